"""The laws of optimizers and of schedules."""

import pytest
import torch

from tests.laws.rehearsals import ClosureTwice, Schedule, broken, each_law, of_parts, path
from transformer_pl.laws import optimizers, schedules
from transformer_pl.laws.checks import check_all
from transformer_pl.laws.law import laws_of
from transformer_pl.runtime.errors import InputError

# ---------------------------------------------------------------------------------------------------------------------
# Optimizers


class IgnoresTheClosure(torch.optim.SGD):
    def step(self, closure=None):
        super().step()


class Rests(torch.optim.SGD):
    def step(self, closure=None):
        return closure and closure()


class Decays(Rests):
    # every weight changes, and none by its gradient
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data *= 0.9
        return super().step(closure)


class LeavesOut(torch.optim.SGD):
    @staticmethod
    def groups(named_parameters):
        return [{"params": [p for name, p in named_parameters if "norm" not in name]}]


class Fraction(torch.optim.SGD):
    @staticmethod
    def groups(named_parameters):
        return [{"params": [p for _, p in named_parameters], "lr": 0.5}]


class EvaluatesElsewhere(torch.optim.SGD):
    def train(self):
        pass

    def eval(self):
        pass


# ---------------------------------------------------------------------------------------------------------------------
# Schedules


class Counts(Schedule):
    def __call__(self, step):
        self.calls += 1
        return 1e-3 / self.calls


class Negative(Schedule):
    def __call__(self, step):
        return -1.0 if step == 17 else 1e-3


class Falls(Schedule):
    def __init__(self, config, optim):
        self.d_model = config.d_model

    def __call__(self, step):
        return 1 - step / 50 - self.d_model / 100


class NotANumber(Schedule):
    def __call__(self, step):
        return float("nan") if step == self.optim.max_steps else 1e-3


def keys_of(part):
    return {"optim.optimizer" if issubclass(part, torch.optim.Optimizer) else "optim.schedule": path(part)}


@pytest.mark.parametrize(
    "name",
    [
        *(f"torch.optim.{name}" for name in ("AdamW", "Adafactor", "SGD", "Rprop")),
        *(
            pytest.param(f"torch.optim.{name}", marks=pytest.mark.slow)
            for name in ("Adagrad", "Adadelta", "RMSprop", "NAdam", "RAdam", "Adamax", "ASGD")
        ),
        "ablations.muon.Muon",  # whose `step` runs without gradients
    ],
)
def test_a_right_optimizer_breaks_no_law(row, tmp_path, name):
    found = of_parts(row({"optim.optimizer": name}), tmp_path)
    assert found and not broken(found)


BROKEN = [
    *(
        (part, "it_changes_every_weight_by_its_gradient")
        for part in (IgnoresTheClosure, Rests, Decays, LeavesOut, EvaluatesElsewhere)
    ),
    (ClosureTwice, "with_accumulate_it_computes_one_gradient_a_step"),
    *((part, "the_rate_is_finite_and_not_negative") for part in (Negative, NotANumber)),
    (Counts, "the_rate_depends_on_the_step_alone"),
]


@each_law(BROKEN)
def test_a_part_breaks_its_law(row, tmp_path, part, law):
    accumulate = {"trainer.accumulate": 2} if part is ClosureTwice else {}
    found = of_parts(row(keys_of(part) | accumulate), tmp_path)
    assert found[law].is_broken and found[law].how


def test_the_rate_of_a_group_is_noted_as_a_factor(row, tmp_path):
    noted = of_parts(row(keys_of(Fraction)), tmp_path)["the_lr_of_a_group_is_a_factor"]
    assert (noted.state, bool(noted.how)) == ("holds", True)


def test_every_law_of_optimizers_and_schedules_can_be_broken():
    """Or ends in a note."""
    known = {law for _, law in BROKEN} | {"the_lr_of_a_group_is_a_factor"}
    assert known == laws_of(optimizers).keys() | laws_of(schedules).keys()


def test_a_schedule_is_tested_in_each_row(row, tmp_path):
    """Whatever has passed before: of a longer row, and of another width."""
    check_all([row(keys_of(Falls))], tmp_path)
    for other in ({"optim.max_steps": 400}, {"model.d_model": 1024, "model.h": 8}):
        with pytest.raises(InputError, match="not_negative"):
            check_all([row(keys_of(Falls) | other)], tmp_path)
