"""Queues, which decide what is trained next: their interface, and the queue of a grid. A search has its own."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from transformer_pl.plan.plan import CostEstimate
from transformer_pl.trials.trial import Trial

ENDED = ("done", "failed", "diverged")  # states of a trial that was trained to its end
Outcome = Literal["done", "failed", "diverged", "pruned"]  # how a trial has ended


class Remaining(NamedTuple):
    """The trials that a queue has not given out yet."""

    trials: int
    flops: float


class TrialQueue(Protocol):
    """Decides what is trained next, and learns how each trial ended."""

    estimates: dict[int, CostEstimate]  # by row

    def remaining(self) -> Remaining:
        """The trials that wait, and the FLOPs of their trainings."""

    def next(self, taken: set[str]) -> Trial | None:
        """A trial to start now, or None if there is none at the moment.

        taken: the ids of the weights that are being trained here. Trials that share weights are not trained together.
        """

    def hold(self, trial: Trial) -> None:
        """Take back a trial that `next` returned: another command trains it."""

    def ended_elsewhere(self, trial: Trial) -> Outcome | None:
        """How another command has ended a trial that `next` returned; None: it is to be trained here."""
        return None

    def waits(self) -> str | None:
        """What the queue waits for when nothing runs and nothing can be started; None if everything is done."""

    def watch(self, trial: Trial) -> bool:
        """Called several times a second for each running trial; True asks it to end early, which prunes it."""
        return False

    def ended(self, trial: Trial, outcome: Outcome) -> None:
        """A trial that `next` returned has ended, here or elsewhere, or could not be started (`failed`)."""

    def news(self) -> list[str]:
        """Lines for people about what the queue has decided since this was last called."""
        return []


class GridQueue(TrialQueue):
    """The trials of a grid, seed by seed, so that every row has a result early. No trial is pruned.

    Within a seed those that others start from come first, then those with the most FLOPs, so that no long trial runs
    alone at the end.

    Several commands share the work: a trial that another command is training waits until that is over. If it has ended
    then, well or badly, that counts here too; if it was stopped, this command continues it. Trials that differ in
    evaluation alone share weights and run one after the other.
    """

    def __init__(self, trials: Sequence[Trial], estimates: dict[int, CostEstimate]):
        self.estimates = estimates
        self.trials: list[Trial] = []
        self.waiting: list[Trial] = []
        self.failed: list[Trial] = []
        self.open: set[str] = set()  # the ids of those that have not ended, as far as this command knows
        self._earlier: dict[str, dict[str, Any]] = {}  # by id, the status of each trial when it was added
        self.add(trials)

    def add(self, trials: Sequence[Trial]) -> None:
        """Take more trials."""
        self.trials += trials
        self.waiting += trials
        self.open |= {trial.id for trial in trials}
        starts, costs = {trial.start.id for trial in self.trials if trial.start}, self.estimates
        # Of trials that share weights the one that keeps its state comes first, or it would be trained once more.
        self.waiting.sort(key=lambda one: (not one.keeps_state, -costs[one.place].cost.flops))
        self.waiting.sort(key=lambda one: (one.config.seed, one.id not in starts))
        self._earlier |= {trial.id: trial.folder.status() for trial in trials}

    def remaining(self) -> Remaining:
        return Remaining(len(self.waiting), sum(self.estimates[trial.place].cost.flops for trial in self.waiting))

    def next(self, taken: set[str]) -> Trial | None:
        taken = taken | {trial.identity.weights for trial in self.trials if trial.folder.lock.is_held()}
        for trial in self.ready():
            if trial.identity.weights not in taken:
                self.waiting.remove(trial)
                return trial
        return None

    def ready(self) -> Sequence[Trial]:
        """The waiting trials that are needed now, and whose start has been trained."""
        return [trial for trial in self.waiting if self._can_start(trial)]

    def _can_start(self, trial: Trial) -> bool:
        return trial.start is None or (trial.start.id not in self.open and trial.start.result() is not None)

    def stranded(self) -> list[Trial]:
        """The waiting trials that cannot be trained, as what they start from has ended without weights."""
        return [trial for trial in self.waiting if self._is_stranded(trial)]

    def _is_stranded(self, trial: Trial | None) -> bool:
        if trial is None or trial.start is None or trial.start.result():
            return False
        return trial.start.id not in self.open or self._is_stranded(trial.trunk)

    def hold(self, trial: Trial) -> None:
        self.waiting.append(trial)

    def ended_elsewhere(self, trial: Trial) -> Outcome | None:
        status = trial.folder.status()
        has_ended = status["state"] in ENDED
        return status["state"] if has_ended and status != self._earlier[trial.id] else None

    def waits(self) -> str | None:
        starts = [trial.start for trial in self.waiting if trial.start and not self._can_start(trial)]
        count = len(self.ready()) + sum(start.lock.is_held() for start in starts)
        return f"waiting for another command, which trains {count} of these, or what they start from" if count else None

    def ended(self, trial: Trial, outcome: Outcome) -> None:
        self.open.discard(trial.id)
        if outcome == "failed":
            self.failed.append(trial)
