"""The queue of a grid that is looked at while it trains: rows that are decided get no more seeds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from transformer_pl.plan.plan import Plan
from transformer_pl.plan.queue import Ending, GridQueue, Remaining
from transformer_pl.report.looks import LEFT_OUT, Progress, decision_file, read_progress
from transformer_pl.report.rows import Grid, sweep_rows
from transformer_pl.runtime.files import write_json
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.looks import Looks
from transformer_pl.table.rows import Contrast, Measure, Row
from transformer_pl.table.table import compare_at
from transformer_pl.task import task_of
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
        self._running: set[str] = set()  # the ids of the trials that this command has been given
        self._is_stuck = False  # a trial of base has failed, so that nothing more can be decided
        self.progress = self._read()
        self._news = described(self.progress)
        self._go_on()

    def remaining(self) -> Remaining:
        left = self.progress.trials(self.waiting, self.progress.last)
        return Remaining(len(left), sum(self.estimates[trial.place].cost.flops for trial in left))

    def next(self, taken: set[str]) -> Trial | None:
        self._go_on()
        if trial := super().next(taken):
            self._running.add(trial.id)
        return trial

    def ready(self) -> Sequence[Trial]:
        return self.progress.needed(self.waiting)

    def hold(self, trial: Trial) -> None:
        self._running.discard(trial.id)
        super().hold(trial)

    def ended(self, trial: Trial, ending: Ending) -> None:
        self._running.discard(trial.id)
        super().ended(trial, ending)

    def waits(self) -> str | None:
        if self.ready() or self.progress.is_over or self._is_stuck:
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
        """Decide every look whose trials have ended."""
        while not (self.progress.is_over or self._is_stuck) and self._has_ended(look := len(self.progress.decisions)):
            self._is_stuck = not decide(self.progress, self.plan.trials, self.margin, self.folder)
            self.progress = self._read()
            self._news += described(self.progress)[look:]

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


def decide(progress: Progress, planned: Sequence[Trial], margin: float | None, folder: Path) -> bool:
    """Decide the next look, whose trials have ended, and write the decision, unless another command was first.

    planned: all trials of the sweep. margin: a difference within it counts as none. Returns False where there can be no
    decision, because a trial of base has failed or diverged.
    """
    sweep, looks, look = progress.sweep, progress.looks, len(progress.decisions)
    trials = progress.trials(planned, look)
    task_measure = task_of(sweep.base.data).measure
    measure = Measure(f"val/{task_measure.name}", task_measure.title, lowest=0.0, highest=task_measure.highest)
    rows = [*map(_if_whole, sweep_rows(Grid(sweep, trials), task_measure))]
    if any(trial.lock.is_held() for trial in trials):
        return True  # another command trains one again, and its result may be gone
    base = next(row for row in rows if row.is_base)
    if not _is_whole(base):
        return False
    last = {row.name: progress.stopped.get(row.name, look) for row in rows}
    undecided = {
        one.row.name: one
        for one in compare_at(looks, look, rows, measure, base, last)
        if one.row is not base and one.row.name not in progress.stopped
    }
    decision = {
        "look": look + 1,
        "seeds": looks.seeds[look],
        "base_seeds": looks.base_seeds[look],
        "level": looks.levels[look],
        "verdicts": {name: _verdict(looks, look, one, margin) for name, one in undecided.items()},
        "p": {name: one.p_value for name, one in undecided.items()},
        "results": [one.id for one in trials],
    }
    with FileLock(folder / "lock"):
        if not decision_file(folder, look).exists():
            write_json(decision_file(folder, look), decision)
    return True


def _is_whole(row: Row) -> bool:
    """Whether no trial of a row has failed or diverged."""
    return row.done == len(row.states)


def _if_whole(row: Row) -> Row:
    """A row, which is not tested if a trial of it has failed or diverged."""
    return row if _is_whole(row) else replace(row, samples={})


def _verdict(looks: Looks, look: int, contrast: Contrast, margin: float | None) -> str:
    if not _is_whole(contrast.row):
        return LEFT_OUT
    if contrast.estimate is None or contrast.p_value is None:
        return "equal" if contrast.is_rounding else "open"
    return looks.verdict(look, contrast.estimate, contrast.p_value, margin)


def described(progress: Progress) -> list[str]:
    """A line for each decided look: which rows were decided, and how."""
    lines = []
    for look, decision in enumerate(progress.decisions):
        by_verdict: dict[str, list[str]] = {}
        for name, verdict in decision["verdicts"].items():
            by_verdict.setdefault(verdict, []).append(name)
        going_on = len(by_verdict.pop("open", ()))
        said = [f"{verdict}: {', '.join(names)}" for verdict, names in by_verdict.items()]
        goes_on = "goes on" if going_on == 1 else "go on"
        said.append(f"{counted(going_on, 'row')} {'not decided' if look == len(progress.looks.seeds) - 1 else goes_on}")
        lines.append(f"look {look + 1}, after {progress.looks.seeds[look]} seeds a row: {'; '.join(said)}")
    return lines
