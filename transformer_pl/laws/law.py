"""A law: what every part of a kind keeps, such as that a loss leaves out padding.

A law is a function. It is given a part with what is around it, and returns a `Finding`. The first paragraph of its
docstring is its sentence, and what usually breaks it may follow `Usual cause:` at the end. Commands print what the
functions return, and the lists of ablations/SLOTS.md are made from them.
"""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from transformer_pl.runtime.errors import InputError, described

CAUSE = "Usual cause:"
FAILS = "it fails at"  # begins the finding where a part raises an error that is no InputError


class Finding(NamedTuple):
    """What a law has seen."""

    state: str  # holds, BROKEN, FAILS (where the part raises an error) or untested
    how: str = ""  # how it is broken, with numbers; why it was not tested; where it holds, what is worth a note


class Found(NamedTuple):
    """The finding of a law of a part, in plain values, which are kept."""

    part: str  # such as `optim.loss = my_loss.Mine`
    law: str  # its name
    sentence: str
    cause: str  # what usually breaks it; empty where that is not known
    state: str
    how: str

    @property
    def is_broken(self) -> bool:
        return self.state in ("BROKEN", "FAILS")

    def __str__(self) -> str:
        """A line of the check command."""
        cause = f"; usual cause: {self.cause}" if self.cause and self.state == "BROKEN" else ""
        return f"{self.state:8}  {self.law}: {self.how or self.sentence}{cause}"


Law = Callable[[Any], Finding]
HOLDS = Finding("holds")


def broken(how: str) -> Finding:
    return Finding("BROKEN", how)


def untested(why: str) -> Finding:
    return Finding("untested", why)


def laws_of(module: ModuleType) -> dict[str, Law]:
    """The laws of a kind, in the order of its file: its functions that return a Finding."""
    functions = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
    return {
        name: function
        for name, function in functions.items()
        if function.__module__ == module.__name__ and function.__annotations__.get("return") is Finding
    }


def sentence(law: Law) -> str:
    """The first paragraph of a law's docstring, on one line."""
    return " ".join(inspect.getdoc(law).split("\n\n")[0].split())  # type: ignore[union-attr]


def usual_cause(law: Law) -> str:
    """What usually breaks a law; empty where its docstring does not say so."""
    return " ".join(inspect.getdoc(law).partition(CAUSE)[2].split()).rstrip(".")  # type: ignore[union-attr]


def found(part: str, laws: Mapping[str, Law], subject: Any, known: Finding | None = None) -> list[Found]:
    """Test laws of a part. subject: what these laws are given. known: their finding, where they cannot be tested.

    An error of the part breaks the law in which it is raised, and ends the test: the same error would break others.
    """
    findings: list[Found] = []
    for name, law in laws.items():
        if findings and findings[-1].state == "FAILS":
            known = untested(f"{findings[-1].law} fails")
        try:
            finding = known or law(subject)
        except InputError as error:
            finding = Finding("FAILS", "; ".join(message.removeprefix(f"{part}: ") for message in error.messages))
        except Exception as error:
            finding = Finding("FAILS", f"{FAILS} {described(error)}")
        findings.append(Found(part, name, sentence(law), usual_cause(law), *finding))
    return findings
