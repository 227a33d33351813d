"""A rehearsal in this process: what its stages find."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tiny_trials

from transformer_pl.config import Config
from transformer_pl.laws import rehearsal
from transformer_pl.laws.law import Found


def of_parts(row: Config, folder: Path) -> dict[str, Found]:
    """By law, what the first stage finds before it trains."""
    _, findings = rehearsal.of_parts(row, folder, folder)
    return {one.law: one for one in findings}


def of_trainings(
    row: Config, folder: Path, is_stopped: bool = False
) -> tuple[tuple[int, float | None], dict[str, Found]]:
    """The steps of the first stage and the passes that a batch costs; and by law, what it finds.

    is_stopped: whether the other two stages follow, in which a training is stopped and continued.
    """
    with tiny_trials.in_a_command():
        findings, steps, passes = rehearsal.begin(row, folder, folder)
        if is_stopped and steps > 1:
            rehearsal.stop(row, folder, 1 + steps // 2)
        findings = findings + (rehearsal.end(row, folder) if is_stopped and steps else [])
    return (steps, passes), {one.law: one for one in findings}


def broken(found: dict[str, Found]) -> list[str]:
    """The laws that are broken."""
    return [law for law, one in found.items() if one.is_broken]


def each_law(cases: Iterable[tuple[Any, str]]) -> pytest.MarkDecorator:
    """Try a test with each part and the law that it breaks; every day with the first part that breaks a law."""
    parameters, seen = [], set[str]()
    for part, law in cases:
        parameters.append(pytest.param(part, law, marks=[pytest.mark.slow] if law in seen else []))
        seen.add(law)
    return pytest.mark.parametrize(("part", "law"), parameters, ids=lambda one: getattr(one, "__name__", str(one)))


def path(part: type) -> str:
    """By which a config names a class."""
    return f"{part.__module__}.{part.__name__}"
