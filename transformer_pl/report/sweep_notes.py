"""What a table must say of its sweep: its dataset, its plan, and larger sweeps that have the same rows."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from transformer_pl.data.selection import leaks
from transformer_pl.plan.plan import tested_by
from transformer_pl.plan.shared_options import SHIPPED
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report.rows import Grid
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.notes import change_note
from transformer_pl.trials.identity import row_identity
from transformer_pl.trials.runs_folder import read_plan


def notes_of(grids: Sequence[Grid], unit: str, folder: Path | None = None) -> list[str]:
    """The notes of sweeps that make one table.

    unit: what an item of the dataset is called. folder: that of the sweep, which says what was planned.
    """
    notes = [note for grid in grids for note in grid.sweep.notes]
    for prepared in dict.fromkeys(trial.prepared for grid in grids for trial in grid.trials):
        with suppress(InputError):  # the dataset is not on this machine
            found = leaks(prepared.meta["splits"], unit)  # evaluation pairs that make a score look too good
            notes += [f"{leak[0].upper()}{leak[1:]}" for leak in found]
    if folder:
        plan = read_plan(folder)
        notes += [*plan.get("notes", ()), change_note(plan.get("tested"), tested_by(grids[0].sweep))]
        notes.append(_larger_sweep(grids, folder))
    return [f"{note.removesuffix('.')}." for note in dict.fromkeys(notes) if note]


def _larger_sweep(grids: Sequence[Grid], folder: Path) -> str:
    """Which sweep has all of the rows and more, so that p should be corrected for these, too."""
    rows = {row_identity(row.configs[0]): row.name for grid in grids for row in grid.sweep.rows}
    known = itertools.chain(_planned_sweeps(grids, folder), _shipped_sweeps(rows, grids[0].sweep.scale))
    for name, count in known:
        if count > len(rows) > 1:
            return (
                f"All of these rows are among the {count} of {name}: if you chose them by its results, "
                "take its p, which is corrected for all."
            )
    return ""


def _planned_sweeps(grids: Sequence[Grid], folder: Path) -> Iterator[tuple[str, int]]:
    """The other sweeps of the runs folder that have all of the trials, each with the number of its rows."""
    ids = {trial.id for grid in grids for trial in grid.trials}
    for other in sorted(path.parent for path in folder.parent.glob("*/plan.json")):
        trials = read_plan(other).get("trials", []) if other != folder else []
        if ids <= {trial.get("id") for trial in trials}:
            yield other.name, len({trial["row"] for trial in trials if "row" in trial})


def _shipped_sweeps(rows: Mapping[str, str], scale: str) -> Iterator[tuple[str, int]]:
    """The shipped sweep files that have all of these rows at this scale, each with the number of its rows.

    rows: names by identity. A file in which a key or a value of a name does not stand is not read further, and neither
    is one in which FLOPs are matched, because that takes seconds.
    """
    words = {word for name in rows.values() for part in name.split() if "=" in part for word in part.split("=")}
    for path in sorted(SHIPPED.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        with suppress(InputError):  # the file is for another scale, or for none
            if "optim.match" not in text and all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words):
                of_file = {row_identity(row.configs[0]) for row in read_sweep(path, scale).rows}
                if rows.keys() <= of_file:
                    yield path.stem, len(of_file)
