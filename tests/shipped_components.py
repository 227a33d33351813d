"""The sweeps that ship and the components that they name, and which of them the tests of every day try."""

import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers import GRIDS, ROOT

from transformer_pl.config import COMPONENTS
from transformer_pl.config.components import is_core
from transformer_pl.plan.sweep_file import Sweep, read_sweep

OF_TRAINING = {"optim.loss", "optim.optimizer", "optim.schedule", "data.batches"}


@cache
def shipped_sweep(path: Path) -> Sweep:
    """A grid at scale demo, whatever its own is: a row of full size takes minutes in a test."""
    return read_sweep(path, scale="demo")


@cache
def components(training: bool = False) -> dict[str, dict[str, Any]]:
    """By name, the keys of every component that a shipped grid names, and the paper's.

    training: also losses, optimizers, schedules and batches.
    """
    found: dict[str, dict[str, Any]] = {"base": {}}
    slots = {key for key in COMPONENTS if key.startswith("model.")} | (OF_TRAINING if training else set())
    for path in GRIDS:
        for row in shipped_sweep(path).rows:
            flat = row.configs[0].flat()
            keys = {key: value for key, value in flat.items() if ".".join(key.split(".")[:2]) in slots}
            own = [str(value) for value in keys.values() if not is_core(str(value))]
            found.setdefault(" ".join(value.rpartition(".")[2] for value in own) or "base", keys)
    return found


@cache
def changed() -> set[str]:
    """The files of the repository that differ from the last commit. None where git does not know."""
    asked = ("git diff --name-only --relative HEAD", "git ls-files --others --exclude-standard")
    answers = [subprocess.run(words.split(), cwd=ROOT, capture_output=True, text=True) for words in asked]
    return {file for answer in answers if answer.returncode == 0 for file in answer.stdout.splitlines()}


class Sample:
    """Of components that are shown one after another: which are tried every day, and which by the slow tests alone.

    Every day: the first that fills a slot, the first that is all the paper's, and those whose file has changed.
    """

    def __init__(self) -> None:
        self.slots = set[str]()

    def marks(self, keys: Mapping[str, Any], file: str = "") -> list[pytest.MarkDecorator]:
        """The marks of a test. keys: those of the config. file: another that decides what is tried."""
        own = {slot: str(keys[slot]) for slot in COMPONENTS.keys() & keys.keys() if not is_core(str(keys[slot]))}
        files = {file, *(f"{path.rpartition('.')[0].replace('.', '/')}.py" for path in own.values())}
        slots = own.keys() or {"none"}
        is_daily = not slots <= self.slots or bool(files & changed())
        self.slots |= slots
        return [] if is_daily else [pytest.mark.slow]


def each(found: Mapping[str, Mapping[str, Any]]) -> pytest.MarkDecorator:
    """Try a test with the `keys` of each component, most of them in the slow tests alone."""
    sample = Sample()
    parameters = [pytest.param(keys, id=name, marks=sample.marks(keys)) for name, keys in found.items()]
    return pytest.mark.parametrize("keys", parameters)


DAILY = ("table3", "attention", "language_model", "search_regularisation")  # plain keys, components, a task, a search


def marks_of(*paths: str) -> list[pytest.MarkDecorator]:
    """The marks of a test of these files or folders, which seldom change: it is tried every day when they have."""
    return [] if any(file.startswith(paths) for file in changed()) else [pytest.mark.slow]


def seldom(*paths: str) -> Callable[[Callable], Callable]:
    """A decorator for a test of these files or folders; see `marks_of`."""
    return next(iter(marks_of(*paths)), lambda test: test)


def marks_of_file(stem: str) -> list[pytest.MarkDecorator]:
    """The marks of a test of a sweep file, by its name: every day a few are tried, and those that have changed."""
    return [] if stem in DAILY or any(Path(file).stem == stem for file in changed()) else [pytest.mark.slow]


def each_file(paths: list[Path]) -> pytest.MarkDecorator:
    """Try a test with the `path` of each sweep file, most of them in the slow tests alone."""
    parameters = [pytest.param(path, id=path.stem, marks=marks_of_file(path.stem)) for path in paths]
    return pytest.mark.parametrize("path", parameters)
