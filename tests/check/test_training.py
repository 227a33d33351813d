"""The checks of an optimizer, a schedule and a loss: what breaks a rule is refused, and what ships is not."""

import pytest

from transformer_pl.check.training import check_training
from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime.errors import InputError

OWN = """
import torch
from torch.nn import functional as F


class Descent(torch.optim.SGD):
    def step(self, closure=None):
        if closure:
            with torch.enable_grad():
                closure()
        super().step()


class IgnoresTheClosure(torch.optim.SGD):
    def step(self, closure=None):
        super().step()


class Rests(torch.optim.SGD):
    def step(self, closure=None):
        return closure and closure()


class Negative:
    def __init__(self, config, optim):
        pass

    def __call__(self, step):
        return -1.0 / step


class Padded:
    def __init__(self, config, optim):
        pass

    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


class Mean(Padded):
    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)
"""


def check(keys):
    check_training([resolve([Level("test", {"optim.max_steps": 20, "optim.warmup": 5} | keys)])])


@pytest.mark.parametrize(
    "keys",
    [
        {"optim.optimizer": "stranger.Descent"},
        {"optim.optimizer": "ablations.muon.Muon"},
        {"optim.schedule": "ablations.schedules.Cosine"},
    ],
)
def test_what_keeps_the_rules_passes(module, keys):
    module(OWN)
    check(keys)


@pytest.mark.parametrize(
    ("slot", "name"),
    [
        ("optimizer", "IgnoresTheClosure"),
        ("optimizer", "Rests"),
        ("schedule", "Negative"),
        ("loss", "Padded"),
        ("loss", "Mean"),
    ],
)
def test_what_breaks_a_rule_is_named(module, slot, name):
    module(OWN)
    with pytest.raises(InputError, match=f"optim.{slot} = stranger.{name}"):
        check({f"optim.{slot}": f"stranger.{name}"})
