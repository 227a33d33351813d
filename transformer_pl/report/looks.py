"""The looks at a sweep while it trains: what was decided at each of them, which no later result changes.

A decision is a file beside plan.json. Whoever finds that all trials of a look have ended writes it; the first one does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock

from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.rows import sweep_rows
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_json, write_json
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.looks import LookedAt, Looks
from transformer_pl.table.rows import Contrast, Measure, Row
from transformer_pl.table.table import compare_at
from transformer_pl.task import task_of
from transformer_pl.trials.records import Decision
from transformer_pl.trials.runs_folder import begun_plan
from transformer_pl.trials.trial import Trial

LEFT_OUT = "left out"  # the verdict on a row of which a trial has failed or diverged


@dataclass(frozen=True)
class Progress:
    """How far the looks at a sweep have come."""

    sweep: Sweep
    looks: Looks
    decisions: Sequence[Decision]  # of the first looks

    @cached_property
    def stopped(self) -> Mapping[str, int]:
        """The rows that need no more seeds, with the look that decided it."""
        looks = reversed([*enumerate(self.decisions)])
        return {name: look for look, one in looks for name, verdict in one["verdicts"].items() if verdict != "open"}

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to decide."""
        return len(self.decisions) == len(self.looks.seeds) or len(self.stopped) == self.looks.rows

    @property
    def last(self) -> int:
        """The last look that may still be needed."""
        return len(self.decisions if self.is_over else self.looks.seeds) - 1

    def seeds(self, row: int, look: int) -> int:
        """How many seeds a row has at a look."""
        if row == self._base_row:
            return self.looks.base_seeds[look]
        return self.looks.seeds[min(look, self.stopped.get(self.sweep.rows[row].name, look))]

    def trials(self, planned: Sequence[Trial], look: int) -> list[Trial]:
        """Those of the planned trials that a look needs."""
        return [one for one in planned if self._places[one.place][one.config.seed] < self.seeds(one.place, look)]

    def needed(self, planned: Sequence[Trial]) -> list[Trial]:
        """Those of the planned trials that are needed now: by the next look, or then by base for the one after it."""
        now, following = (self.trials(planned, min(len(self.decisions) + n, self.last)) for n in (0, 1))
        return now + [one for one in following if one.place == self._base_row and one not in now]

    @cached_property
    def _base_row(self) -> int | None:
        return self.sweep.base_row  # which compares configs, and a queue asks for it several times a second

    @cached_property
    def _places(self) -> Sequence[Mapping[int, int]]:
        """Of each row, the place of each of its seeds."""
        return [{config.seed: place for place, config in enumerate(row.configs)} for row in self.sweep.rows]

    @property
    def described(self) -> list[str]:
        """A line for each decided look: which rows were decided, and how."""
        lines = []
        for look, decision in enumerate(self.decisions):
            by_verdict: dict[str, list[str]] = {}
            for name, verdict in decision["verdicts"].items():
                by_verdict.setdefault(verdict, []).append(name)
            going_on = len(by_verdict.pop("open", ()))
            said = [f"{verdict}: {', '.join(names)}" for verdict, names in by_verdict.items()]
            goes_on = "goes on" if going_on == 1 else "go on"
            said.append(f"{counted(going_on, 'row')} {'not decided' if look == len(self.looks.seeds) - 1 else goes_on}")
            lines.append(f"look {look + 1}, after {self.looks.seeds[look]} seeds a row: {'; '.join(said)}")
        return lines

    @property
    def looked_at(self) -> LookedAt:
        """What the table states of the looks: of each row its p at the looks that it was trained for."""
        last = {row.name: self.stopped.get(row.name, self.last) for row in self.sweep.rows}
        p_values = {name: [one["p"].get(name) for one in self.decisions[: look + 1]] for name, look in last.items()}
        metric = f"val/{task_of(self.sweep.base.data).measure.name}"
        left_out = [name for one in self.decisions for name, verdict in one["verdicts"].items() if verdict == LEFT_OUT]
        return LookedAt(self.looks, metric, p_values, left_out)


def planned_looks(sweep: Sweep) -> Looks:
    """The looks at a sweep that asks for some."""
    of_base = sweep.of_base
    assert of_base is not None  # see `read_sweep`
    return Looks.of(sweep.looks, len(of_base.configs), len(sweep.rows) - 1)


def check_looks(file: Path, sweep: Sweep, folder: Path, margin: float | None = None) -> dict[str, Any]:
    """What plan.json says of the looks at a sweep, from the first training on; empty for a sweep without looks.

    margin: a difference within it counts as none; None: the planned one. Raises an InputError if the looks are not
    those of the first training.
    """
    begun, now = begun_plan(folder), dict[str, Any]()
    first = begun.get("looks", {})
    if sweep.looks:
        looks = planned_looks(sweep)
        now = {key: list(getattr(looks, key)) for key in ("seeds", "base_seeds", "levels")}
        now |= {"rows": [row.name for row in sweep.rows], "margin": first.get("margin") if margin is None else margin}
    if begun and first != now:
        rule = "must be those with which the training began, and for the same rows"
        options = {"--looks": first.get("seeds"), "--base-seeds": first.get("base_seeds", ())[-1:]}
        said = " ".join(f"{option} {','.join(map(str, seeds))}" for option, seeds in options.items() if seeds)
        raise InputError(
            f"{file}: looks = {list(sweep.looks)}: {rule}: {said or 'no looks'} ({folder / 'plan.json'}); "
            "repeat them, or give the sweep another name"
        )
    return now


def read_progress(sweep: Sweep, folder: Path) -> Progress | None:
    """How far the looks at a sweep have come, by the files in its folder; None for a sweep without looks."""
    if not sweep.looks:
        return None
    looks, decisions = planned_looks(sweep), list[Decision]()
    while len(decisions) < len(looks.seeds) and (found := read_json(_path(folder, len(decisions)), Decision)):
        decisions.append(found)
    return Progress(sweep, looks, decisions)


def as_seen(sweep: Sweep, planned: Sequence[Trial], folder: Path) -> tuple[Sequence[Trial], LookedAt | None]:
    """The trials of a sweep without those that its looks have made needless, and what a table states of the looks."""
    progress = read_progress(sweep, folder)
    return (progress.trials(planned, progress.last), progress.looked_at) if progress else (planned, None)


def decide(progress: Progress, planned: Sequence[Trial], margin: float | None, folder: Path) -> bool:
    """Decide the next look, whose trials have ended, and write the decision, unless another command was first.

    planned: all trials of the sweep. margin: a difference within it counts as none. Returns False where there can be no
    decision, because a trial of base has failed or diverged.
    """
    sweep, looks, look = progress.sweep, progress.looks, len(progress.decisions)
    trials = progress.trials(planned, look)
    task_measure = task_of(sweep.base.data).measure
    measure = Measure(f"val/{task_measure.name}", task_measure.title, lowest=0.0, highest=task_measure.highest)
    whole = [row if _is_whole(row) else replace(row, samples={}) for row in sweep_rows(sweep, trials)]
    if any(trial.lock.is_held() for trial in trials):
        return True  # another command trains one again, and its result may be gone
    base = next(row for row in whole if row.is_base)
    if not _is_whole(base):
        return False
    last = {row.name: progress.stopped.get(row.name, look) for row in whole}
    undecided = {
        one.row.name: one
        for one in compare_at(looks, look, whole, measure, base, last)
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
        if not _path(folder, look).exists():
            write_json(_path(folder, look), decision)
    return True


def _is_whole(row: Row) -> bool:
    """Whether no trial of a row has failed or diverged."""
    return row.done == len(row.states)


def _verdict(looks: Looks, look: int, contrast: Contrast, margin: float | None) -> str:
    if not _is_whole(contrast.row):
        return LEFT_OUT
    if contrast.estimate is None or contrast.p_value is None:
        return "equal" if contrast.is_rounding else "open"
    return looks.verdict(look, contrast.estimate, contrast.p_value, margin)


def _path(folder: Path, look: int) -> Path:
    return folder / f"look_{look + 1}.json"
