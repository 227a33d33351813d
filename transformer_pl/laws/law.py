"""A law: what every part of a kind keeps, such as that a loss leaves out padding.

A law is a function. It is given a part with what is around it, and returns a `Finding`. The first paragraph of its
docstring is its sentence, and what usually breaks it may follow `Usual cause:` at the end. Commands print what the
functions return, and the lists of ablations/SLOTS.md are made from them.
"""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from transformer_pl.config import Component
from transformer_pl.runtime.errors import InputError, described

CAUSE = "Usual cause:"
FAILS = "it fails at"  # begins the finding where a part raises an error that is no InputError


class Finding(NamedTuple):
    """What a law has seen."""

    state: str  # holds, BROKEN, FAILS (where the part raises an error), exempt or untested
    how: str = ""  # how it is broken, with numbers; why it was not tested; where it holds, what is worth a note


class Found(NamedTuple):
    """The finding of a law of a part, in plain values, which are kept."""

    part: str  # such as `optim.loss = my_loss.Mine`
    law: str  # its name
    sentence: str
    cause: str  # what usually breaks it, where it is broken and that is known
    state: str
    how: str

    @property
    def is_broken(self) -> bool:
        return self.state in ("BROKEN", "FAILS")

    @property
    def is_note(self) -> bool:
        """Whether it holds, with something that is worth a note."""
        return self.state == "holds" and bool(self.how)

    def __str__(self) -> str:
        """A line of the check command."""
        return f"{'note' if self.is_note else self.state:8}  {self.law}: {self.how or self.sentence}{self.cause}"


Law = Callable[[Any], Finding]
HOLDS = Finding("holds")


def broken(how: str) -> Finding:
    return Finding("BROKEN", how)


def untested(why: str) -> Finding:
    return Finding("untested", why)


def laws_of(kind: ModuleType) -> dict[str, Law]:
    """The laws of a kind, in the order of its file: its functions that return a Finding."""
    functions = {name: value for name, value in vars(kind).items() if inspect.isfunction(value)}
    own = {name: value for name, value in functions.items() if value.__module__ == kind.__name__}
    return {name: law for name, law in own.items() if law.__annotations__["return"] is Finding}


def sentence(law: Law) -> str:
    """The first paragraph of a law's docstring, on one line."""
    return " ".join(inspect.getdoc(law).split("\n\n")[0].split())  # type: ignore[union-attr]


def part_names(parts: Mapping[str, Component]) -> str:
    """Parts by the names of `own_parts`, as messages name them: each with its key and its path."""
    return ", ".join(f"{name.partition('[')[0]} = {part.path}" for name, part in parts.items())


def found(part: str, kind: ModuleType, subject: Callable[[], Any], **known: Finding) -> list[Found]:
    """Test the laws of a kind. Where the first one is broken, the others are not tested, as all else builds on it.

    part: its key and path. subject: makes what the laws are given. known: by law, what need not be tested.
    """
    findings: list[Found] = []
    for name, law in laws_of(kind).items():
        hidden = untested(f"{findings[0].law} is broken") if findings and findings[0].is_broken else None
        try:
            finding = known.get(name) or hidden or law(subject())
        except InputError as error:
            finding = Finding("FAILS", "; ".join(message.removeprefix(f"{part}: ") for message in error.messages))
        except Exception as error:
            finding = Finding("FAILS", f"{FAILS} {described(error)}")
        cause = " ".join(inspect.getdoc(law).partition(CAUSE)[2].split()).rstrip(".")  # type: ignore[union-attr]
        cause = f"; usual cause: {cause}" if cause and finding.state == "BROKEN" else ""
        findings.append(Found(part, name, sentence(law), cause, *finding))
    return findings
