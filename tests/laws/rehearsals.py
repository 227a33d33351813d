"""A rehearsal in this process: what its stages find. And right parts that the tests of several kinds use."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tiny_trials
import torch
import torch.nn.functional as F
from torch import nn

from transformer_pl.config import Config
from transformer_pl.laws import rehearsal
from transformer_pl.laws.law import Found


def of_parts(row: Config, folder: Path) -> dict[str, Found]:
    """By law, what the first stage finds before it trains."""
    _, findings = rehearsal.of_parts(row, folder, folder)
    return {one.law: one for one in findings}


def of_all_stages(row: Config, folder: Path) -> tuple[rehearsal.Begun, dict[str, Found]]:
    """The first stage; and by law, what all of them find."""
    with tiny_trials.in_a_command():
        begun = rehearsal.begin(row, folder, folder)
        findings = begun.found
        if begun.steps:
            if begun.steps > 1:
                rehearsal.stop(row, folder, 1 + begun.steps // 2)
            findings = findings + rehearsal.end(row, folder)
    return begun, {one.law: one for one in findings}


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


class Loss:
    def __init__(self, config, optim):
        pass

    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")


class Buffered(nn.Module):
    def __init__(self, config, optim):
        super().__init__()
        self.register_buffer("weight", torch.ones(config.vocab_size))

    def forward(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), self.weight, ignore_index=0, reduction="sum")


class Schedule:
    def __init__(self, config, optim):
        self.optim, self.calls = optim, 0


class ClosureTwice(torch.optim.SGD):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss
