"""The laws of schedules (`optim.schedule`). They take a millisecond, so they are tested every time. Needs no torch."""

import math
import sys
from functools import partial

from transformer_pl.config import Config, custom_components, sizes
from transformer_pl.config.components import build
from transformer_pl.laws.law import HOLDS, Finding, Found, broken, found

FIRST = 1000  # steps that are all tried; of later ones as many, evenly spaced


class Subject:
    """The schedule of a config, as its training has it, and the steps for which it is asked."""

    def __init__(self, config: Config):
        optim = config.optim_of_all_steps
        self.make = lambda: build(optim.schedule, sizes(config.model, config.data.vocab_size), optim)
        first, later = range(1, min(FIRST, config.steps) + 1), range(FIRST, config.steps, 1 + config.steps // FIRST)
        self.steps = sorted({*first, *later, config.steps})


def findings(config: Config) -> list[Found]:
    """What each law has seen of the schedule of a config; nothing if it is the paper's."""
    if "schedule" not in custom_components(config.optim):
        return []
    return found(f"optim.schedule = {config.optim.schedule.path}", sys.modules[__name__], partial(Subject, config))


def the_rate_is_finite_and_not_negative(subject: Subject) -> Finding:
    """The rate of every step is a finite number, and not negative."""
    schedule = subject.make()
    for step in subject.steps:
        if not 0 <= float(rate := schedule(step)) < math.inf:
            return broken(f"it is {rate} at step {step}")
    return HOLDS


def the_rate_depends_on_the_step_alone(subject: Subject) -> Finding:
    """The rate depends on the step alone, and not on the calls before: a training that continues begins in the middle.

    Usual cause: a count or a value that the schedule keeps; compute it from `step`.
    """
    schedule, again = subject.make(), subject.make()
    rates = {step: float(schedule(step)) for step in subject.steps}
    for step in subject.steps[len(subject.steps) // 2 :]:
        if (rate := float(again(step))) != rates[step]:
            return broken(f"it is {rates[step]:.4g} at step {step}, but {rate:.4g} without the calls of the first half")
    return HOLDS
