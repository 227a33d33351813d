"""The queue of a grid that is looked at while it trains: rows that are decided get no more seeds."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer_pl.plan.plan import Plan
from transformer_pl.plan.queue import Ending, GridQueue, Remaining
from transformer_pl.report.looks import Progress, decide, read_progress
from transformer_pl.trials.trial import Trial

ENDED = ("done", "failed", "diverged", "refused")


class LooksQueue(GridQueue):
    """The trials of the looks that are not decided.

    Those of one look are given out first, then base's of the next one, which are needed in any case. Several commands
    act on the same decisions; one that finds nothing to train waits until the others have ended the look.
    """

    def __init__(self, plan: Plan, missing: Sequence[Trial], folder: Path, margin: float | None):
        super().__init__(missing, plan.estimates)
        self.plan, self.folder, self.margin = plan, folder, margin
        self.later, self.waiting = self.waiting, []
        self._running: set[str] = set()  # the ids of the trials that this command has been given
        self._news: list[str] = []
        self._is_stuck = False  # a trial of base has failed, so that nothing more can be decided
        self.progress = self._read()
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
        """Decide every look whose trials have ended, and take what the next one needs."""
        while not (self.progress.is_over or self._is_stuck):
            look = len(self.progress.decisions)
            self._take(self.progress.trials(self.later, look))
            if not self._has_ended(look):
                break
            self._is_stuck = not decide(self.progress, self.plan.trials, self.margin, self.folder)
            self.progress = self._read()
            self._news += self.progress.described[look:]
        if not self.progress.is_over and len(self.progress.decisions) < self.progress.last:
            following = self.progress.trials(self.later, len(self.progress.decisions) + 1)
            self._take(trial for trial in following if trial.place == self.plan.sweep.base_row)

    def _take(self, trials: Iterable[Trial]) -> None:
        """Take trials from the later ones to those that can be given out."""
        taken = list(trials)
        self.waiting += taken
        self.later = [trial for trial in self.later if trial not in taken]

    def _has_ended(self, look: int) -> bool:
        """Whether all trials of a look have ended, here or elsewhere."""
        open_here = self._running | {trial.id for trial in self.waiting}
        trials = self.progress.trials(self.plan.trials, look)
        return all(
            trial.id not in open_here and not trial.lock.is_held() and trial.state() in ENDED for trial in trials
        )
