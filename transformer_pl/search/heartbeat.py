"""Heartbeats: how processes that share a study notice that another process died.

They are the signs of life of `runtime/lease.py`, judged by the same `Watch`, but they stand in the study, because
processes that share a database need not share a folder. Each changes a number in the trials that it trains. The study
sees to it that one process alone can tell how a trial ended. The folder of a trial has a lease as well.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial

from transformer_pl.runtime.lease import BEAT_S, Watch
from transformer_pl.runtime.processes import is_dead
from transformer_pl.search import states


class Heartbeats:
    """The heartbeats of this process, and those that it has seen of the others. clock: seconds that only increase."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._next_beat = 0.0
        self._watch = Watch(clock)

    def beat(self, trials: Iterable[Trial]) -> None:
        """Give a heartbeat to the trials of this process, if it is time for one."""
        if (now := self._clock()) < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        for trial in trials:
            with suppress(UpdateFinishedTrialError):  # another process has taken it over
                trial.set_user_attr(states.HEARTBEAT, now)

    def orphans(self, others: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Return those trials of other processes whose process died, or gave no heartbeat for the time of a lease."""
        orphans = []
        for trial in others:
            is_silent = self._watch.is_silent(trial.number, trial.user_attrs.get(states.HEARTBEAT))
            if is_silent or is_dead(trial.user_attrs.get(states.PROCESS, "")):
                orphans.append(trial)
        return orphans
