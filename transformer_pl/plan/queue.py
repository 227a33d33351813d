"""Queues, which decide what is trained next: their interface, and the queue of a grid. A search has its own."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from transformer_pl.plan.plan import CostEstimate, PlannedTrial

Ending = Literal["done", "failed", "diverged", "pruned"]  # how a trial has ended


class Remaining(NamedTuple):
    """The trials that a queue has not given out yet."""

    trials: int
    flops: float


class TrialQueue(Protocol):
    """Decides what is trained next, and learns how each trial ended."""

    estimates: dict[int, CostEstimate]  # by row

    def remaining(self) -> Remaining:
        """The trials that wait, and the FLOPs of their trainings."""

    def next(self, taken: set[str]) -> PlannedTrial | None:
        """A trial to start now, or None if there is none at the moment.

        taken: the ids of the weights that are being trained here. Trials that share weights are not trained together.
        """

    def hold(self, planned: PlannedTrial) -> None:
        """Take back a trial that `next` returned: another command trains it."""

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        """How another command has ended a trial that `next` returned; None: it is to be trained here."""
        return None

    def waits(self) -> str | None:
        """What the queue waits for when nothing runs and nothing can be started; None if everything is done."""

    def watch(self, planned: PlannedTrial) -> bool:
        """Called several times a second for each running trial; True asks it to end early, which prunes it."""
        return False

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        """A trial that `next` returned has ended, here or elsewhere, or could not be started (`failed`)."""

    def news(self) -> list[str]:
        """Lines for people about what the queue has decided since this was last called."""
        return []

    def stopped(self) -> None:
        """A signal has stopped this command, and the trials that `next` returned have saved and ended."""
        return


class GridQueue(TrialQueue):
    """The trials of a grid, seed by seed, so that every row has a result early. No trial is pruned.

    Within a seed the trials with the most FLOPs come first, so that no long trial runs alone at the end.

    Several commands share the work: a trial that another command is training waits until that is over. If it has ended
    then, well or badly, its ending counts here too; if it was stopped, this command continues it. Trials that differ in
    decoding alone share weights and run one after the other.
    """

    def __init__(self, trials: Sequence[PlannedTrial], estimates: dict[int, CostEstimate]):
        self.estimates = estimates
        self.trials: list[PlannedTrial] = []
        self.waiting: list[PlannedTrial] = []
        self.failed: list[PlannedTrial] = []
        self._earlier: dict[str, dict[str, Any]] = {}  # by id, the status of each trial when it was added
        self.add(trials)

    def add(self, trials: Sequence[PlannedTrial]) -> None:
        """Take more trials."""
        self.trials += trials
        self.waiting += trials
        self.waiting.sort(key=lambda planned: (planned.config.seed, -self.estimates[planned.row].cost.flops))
        self._earlier |= {planned.identity.trial: planned.trial.status() for planned in trials}

    def remaining(self) -> Remaining:
        return Remaining(len(self.waiting), sum(self.estimates[planned.row].cost.flops for planned in self.waiting))

    def next(self, taken: set[str]) -> PlannedTrial | None:
        taken = taken | {planned.identity.weights for planned in self.trials if planned.trial.lock.is_held()}
        for planned in self.waiting:
            if planned.identity.weights not in taken:
                self.waiting.remove(planned)
                return planned
        return None

    def hold(self, planned: PlannedTrial) -> None:
        self.waiting.append(planned)

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        status = planned.trial.status()
        has_ended = status["state"] in ("done", "failed", "diverged")
        return status["state"] if has_ended and status != self._earlier[planned.identity.trial] else None

    def waits(self) -> str | None:
        if not self.waiting:
            return None
        return f"waiting for another command, which trains {len(self.waiting)} of these"

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        if ending == "failed":
            self.failed.append(planned)
