"""The law of what trains otherwise than the paper: a loss, an optimizer, a schedule, batches."""

from typing import NamedTuple

from transformer_pl.config import COMPONENTS, Config
from transformer_pl.laws import schedules
from transformer_pl.laws.law import HOLDS, Finding, untested
from transformer_pl.laws.small_training import SmallTraining
from transformer_pl.runtime.errors import described

KEYS = ("optim.loss", "optim.optimizer", "optim.schedule", "data.batches")
SCHEDULE = "optim.schedule"


class Subject(NamedTuple):
    """A training that has come to its end, and the key of one of its parts."""

    training: SmallTraining
    key: str


def it_changes_the_training(subject: Subject) -> Finding:
    """It changes what is trained: with the paper's in its place weights or rates are others. Else a note says so."""
    training, without = subject.training, f"without {subject.key}"
    if subject.key == SCHEDULE:  # a warm-up may be longer than a rehearsal
        is_other, where = _rates_differ(training.config), "at any step: the rates are the paper's"
    else:
        try:
            training.train(without, without=subject.key)
        except Exception as error:  # it diverges, or another part of the row needs this one
            return untested(f"with the paper's in its place the training fails at {described(error)}")
        is_other = bool(training.differences("whole", without))
        where = "in the steps of the rehearsal, which ends with exactly base's weights"
    return HOLDS if is_other else Finding("holds", f"it changes nothing {where}")


def _rates_differ(config: Config) -> bool:
    own = schedules.Subject(config)
    ours, theirs = own.make(), schedules.Subject(config.with_values({SCHEDULE: COMPONENTS[SCHEDULE]})).make()
    return any(float(ours(step)) != theirs(step) for step in own.steps)
