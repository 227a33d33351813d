"""The queue of a grid that is looked at while it trains: rows that are decided get no more seeds."""

from collections.abc import Sequence
from pathlib import Path

from transformer_pl.plan.plan import Plan
from transformer_pl.plan.queue import Ending, GridQueue, Remaining
from transformer_pl.report.looks import Progress, decide, read_progress
from transformer_pl.trials.trial import Trial

ENDED = ("done", "failed", "diverged", "refused")


class LooksQueue(GridQueue):
    """The trials of the looks that are not decided.

    Those of one look are given out first, then base's of the next one, which is needed while any row goes on. Several
    commands act on the same decisions; one that finds nothing to train waits until the others have ended the look.
    """

    def __init__(self, plan: Plan, missing: Sequence[Trial], folder: Path, margin: float | None):
        super().__init__(missing, plan.estimates)
        self.plan, self.folder, self.margin = plan, folder, margin
        self.later: list[Trial] = []  # those that are not needed yet
        self._running: set[str] = set()  # the ids of the trials that this command has been given
        self._is_stuck = False  # a trial of base has failed, so that nothing more can be decided
        self.progress = self._read()
        self._news = self.progress.described
        self._give_out()
        self._go_on()

    def remaining(self) -> Remaining:
        left = [*self.waiting, *self.progress.trials(self.later, self.progress.last)]
        return Remaining(len(left), sum(self.estimates[trial.place].cost.flops for trial in left))

    def next(self, taken: set[str]) -> Trial | None:
        self._go_on()
        if trial := super().next(taken):
            self._running.add(trial.id)
        return trial

    def hold(self, trial: Trial) -> None:
        self._running.discard(trial.id)
        super().hold(trial)

    def ended(self, trial: Trial, ending: Ending) -> None:
        self._running.discard(trial.id)
        super().ended(trial, ending)

    def waits(self) -> str | None:
        if self.waiting or self.progress.is_over or self._is_stuck:
            return super().waits()
        return f"waiting for other commands, which train for look {len(self.progress.decisions) + 1}"

    def news(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def _read(self) -> Progress:
        progress = read_progress(self.plan.sweep, self.folder)
        assert progress is not None
        return progress

    def _go_on(self) -> None:
        """Decide every look whose trials have ended, and give out what the next one needs."""
        while not (self.progress.is_over or self._is_stuck) and self._has_ended(look := len(self.progress.decisions)):
            self._is_stuck = not decide(self.progress, self.plan.trials, self.margin, self.folder)
            self.progress = self._read()
            self._news += self.progress.described[look:]
            self._give_out()

    def _give_out(self) -> None:
        """Let those trials wait that are needed now, and leave the others for later."""
        left = [*self.waiting, *self.later]
        self.waiting = self.progress.needed(left)
        given = {trial.id for trial in self.waiting}
        self.later = [trial for trial in left if trial.id not in given]

    def _has_ended(self, look: int) -> bool:
        """Whether all trials of a look have ended, here or elsewhere.

        One that had ended, and that another command has begun to train again and left, is given out again.
        """
        trials = self.progress.trials(self.plan.trials, look)
        open_here = self._running | {trial.id for trial in self.waiting}
        if any(trial.id in open_here or trial.lock.is_held() for trial in trials):
            return False
        failed = {trial.id for trial in self.failed}  # which a full disk may not have let them say
        left = [trial for trial in trials if trial.id not in failed and trial.state() not in ENDED]
        self.add(left)
        return not left
