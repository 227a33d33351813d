"""What is trained next: the queue of a sweep's trials, and what any queue is asked (a search has its own)."""

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from transformer_pl.experiments.plan import PlannedTrial

MOST_NAMED = 4  # trials of other commands
Ending = Literal["done", "failed", "diverged", "pruned"]  # of a trial


class TrialQueue(Protocol):
    """Decides what is trained next, and is told how each trial ended."""

    def next(self, taken: set[str]) -> PlannedTrial | None:
        """A trial to start now, or None if there is none at the moment.

        taken: the weights ids that are being trained here; no second trial may write to the same weights.
        """

    def hold(self, planned: PlannedTrial) -> None:
        """Take back a trial that `next` returned: another command has begun to train it, or has taken it over."""

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        """How another command has ended a trial that `next` returned; None: it is to be trained here."""

    def waits(self) -> str | None:
        """What the queue waits for when nothing runs and nothing can be started; None if everything is done."""

    def give_heartbeat(self) -> None:
        """Called at every poll: tells other commands that this one lives."""

    def watch(self, planned: PlannedTrial) -> bool:
        """Called at every poll of a running trial; True asks the trial to end early, which prunes it."""

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        """A trial that `next` returned has ended, here or elsewhere, or could not be started (`failed`)."""


class GridQueue:
    """A list of trials, in its order; no trial is pruned.

    Several commands share the work: a trial that another one is training waits until that is over. If it has ended
    then, well or badly, its ending counts here too; if it was stopped, this command continues it. Trials that differ in
    decoding alone share weights and run one after the other.
    """

    def __init__(self, trials: Sequence[PlannedTrial], attached: Collection[PlannedTrial] = ()):
        """attached: those among the trials that the launcher has been training since an earlier command."""
        self.waiting, self.failed = list(trials), list[PlannedTrial]()
        self._attached = {planned.identity.weights for planned in attached}
        self._sharing: dict[str, list[PlannedTrial]] = {}  # by weights
        for planned in trials:
            self._sharing.setdefault(planned.identity.weights, []).append(planned)
        self._earlier = {planned.identity.trial: planned.trial.status() for planned in trials}

    def next(self, taken: set[str]) -> PlannedTrial | None:
        taken = set(taken)
        for planned in self.waiting:
            weights = planned.identity.weights
            if weights not in taken:
                if weights in self._attached or not any(one.trial.locked() for one in self._sharing[weights]):
                    self.waiting.remove(planned)
                    return planned
                taken.add(weights)
        return None

    def hold(self, planned: PlannedTrial) -> None:
        self.waiting.append(planned)

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        status = planned.trial.status()
        state = status["state"]
        has_ended = state in ("done", "failed", "diverged") and status != self._earlier[planned.identity.trial]
        return state if has_ended and not is_short_of_memory(planned) else None

    def waits(self) -> str | None:
        if not self.waiting:
            return None
        theirs = [(planned.name, holder.host) for planned in self.waiting if (holder := planned.trial.holder())]
        named = [f"{name} on {host}" for name, host in theirs[:MOST_NAMED]]
        more = [f"{len(theirs) - MOST_NAMED} more"] if len(theirs) > MOST_NAMED else []
        which = f": {', '.join(named + more)}" if named else ""
        return f"waiting for another command, which trains {len(self.waiting)} of these{which}"

    def give_heartbeat(self) -> None:
        """None is needed: the lease of a trial has one."""

    def watch(self, planned: PlannedTrial) -> bool:
        return False

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        if ending == "failed":
            self.failed.append(planned)


def is_short_of_memory(planned: PlannedTrial) -> bool:
    """Whether the trial ran out of a device's memory with as many parts of a batch as its config says."""
    return False
