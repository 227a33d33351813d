"""Queues, which decide what is trained next: their interface, and the queue of a grid. A search has its own."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from transformer_pl.plan.plan import CostEstimate
from transformer_pl.trials.trial import Trial

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

    def next(self, taken: set[str]) -> Trial | None:
        """A trial to start now, or None if there is none at the moment.

        taken: the ids of the weights that are being trained here. Trials that share weights are not trained together.
        """

    def hold(self, trial: Trial) -> None:
        """Take back a trial that `next` returned: another command trains it."""

    def ended_elsewhere(self, trial: Trial) -> Ending | None:
        """How another command has ended a trial that `next` returned; None: it is to be trained here."""
        return None

    def waits(self) -> str | None:
        """What the queue waits for when nothing runs and nothing can be started; None if everything is done."""

    def watch(self, trial: Trial) -> bool:
        """Called several times a second for each running trial; True asks it to end early, which prunes it."""
        return False

    def ended(self, trial: Trial, ending: Ending) -> None:
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

    def __init__(self, trials: Sequence[Trial], estimates: dict[int, CostEstimate]):
        self.estimates = estimates
        self.trials: list[Trial] = []
        self.waiting: list[Trial] = []
        self.failed: list[Trial] = []
        self._earlier: dict[str, dict[str, Any]] = {}  # by id, the status of each trial when it was added
        self.add(trials)

    def add(self, trials: Sequence[Trial]) -> None:
        """Take more trials."""
        self.trials += trials
        self.waiting += trials
        self.waiting.sort(key=lambda trial: (trial.config.seed, -self.estimates[trial.place].cost.flops))
        self._earlier |= {trial.id: trial.status() for trial in trials}

    def remaining(self) -> Remaining:
        return Remaining(len(self.waiting), sum(self.estimates[trial.place].cost.flops for trial in self.waiting))

    def next(self, taken: set[str]) -> Trial | None:
        taken = taken | {trial.identity.weights for trial in self.trials if trial.lock.is_held()}
        for trial in self.ready():
            if trial.identity.weights not in taken:
                self.waiting.remove(trial)
                return trial
        return None

    def ready(self) -> Sequence[Trial]:
        """The waiting trials that are needed now."""
        return self.waiting

    def hold(self, trial: Trial) -> None:
        self.waiting.append(trial)

    def ended_elsewhere(self, trial: Trial) -> Ending | None:
        status = trial.status()
        has_ended = status["state"] in ("done", "failed", "diverged")
        return status["state"] if has_ended and status != self._earlier[trial.id] else None

    def waits(self) -> str | None:
        ready = len(self.ready())
        return f"waiting for another command, which trains {ready} of these" if ready else None

    def ended(self, trial: Trial, ending: Ending) -> None:
        if ending == "failed":
            self.failed.append(trial)
