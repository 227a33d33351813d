"""The looks at a sweep while it trains: what was decided at each of them, which no later result changes.

A decision is a file beside plan.json, which the sweep command writes when all trials of a look have ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformer_pl.plan.plan import tested_by
from transformer_pl.plan.shared_options import TableOptions
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.rows import Grid
from transformer_pl.runtime.command_line import words_of
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_json
from transformer_pl.table.looks import LookedAt, Looks
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

    margin: a difference within it counts as none; None: the planned one. Raises an InputError if the looks, or the
    seeds, are not those of the first training.
    """
    begun, now = begun_plan(folder), dict[str, Any]()
    first = begun.get("looks", {})
    if sweep.looks:
        looks = planned_looks(sweep)
        now = {key: list(getattr(looks, key)) for key in ("seeds", "base_seeds", "levels")}
        now |= {"rows": [row.name for row in sweep.rows], "margin": first.get("margin") if margin is None else margin}
    if begun and (first != now or (now and begun.get("tested") != tested_by(sweep))):
        rule = "must be those with which the training began, and for the same rows and seeds"
        said = words_of(TableOptions(**begun_looks(folder)))
        raise InputError(
            f"{file}: looks = {list(sweep.looks)}: {rule}: {' '.join(said) or 'no looks'} ({folder / 'plan.json'}); "
            "repeat them, or give the sweep another name"
        )
    return now


def begun_looks(folder: Path) -> dict[str, Any]:
    """The options for seeds and looks with which the training of a sweep began; empty where there are no looks."""
    begun = begun_plan(folder)
    if not (looks := begun.get("looks")):
        return {}
    *_, most = looks["seeds"]
    seeds = tuple(begun.get("tested", {}).get("seeds", ())[:most])
    return {"seeds": seeds, "looks": tuple(looks["seeds"]), "base_seeds": looks["base_seeds"][-1]}


def read_progress(sweep: Sweep, folder: Path) -> Progress | None:
    """How far the looks at a sweep have come, by the files in its folder; None for a sweep without looks."""
    if not sweep.looks:
        return None
    looks, decisions = planned_looks(sweep), list[Decision]()
    while len(decisions) < len(looks.seeds) and (found := read_json(decision_file(folder, len(decisions)), Decision)):
        decisions.append(found)
    return Progress(sweep, looks, decisions)


def as_seen(sweep: Sweep, planned: Sequence[Trial], folder: Path) -> Grid:
    """A sweep and its planned trials, without those that its looks have made needless.

    Raises an InputError for a decision by trials that are none of the sweep's, because its keys or its code changed.
    """
    progress = read_progress(sweep, folder)
    if progress is None:
        return Grid(sweep, planned)
    for look, decision in enumerate(progress.decisions):
        if others := {*decision["results"]} - {trial.id for trial in planned}:
            rule = f"must be of trials of this sweep, but {len(others)} are of other keys or code: {min(others)}"
            raise InputError(f"{decision_file(folder, look)}: {rule}; undo the change, or give the sweep another name")
    return Grid(sweep, progress.trials(planned, progress.last), progress.looked_at)


def decision_file(folder: Path, look: int) -> Path:
    """Where the decision of a look is kept."""
    return folder / f"look_{look + 1}.json"
