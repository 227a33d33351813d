"""The table of a sweep, in the columns of the paper's Table 3 and beside the numbers that a paper printed."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from transformer_pl.config import SIZE_NAMES, STACKS, Config, nominal_sizes
from transformer_pl.data.selection import leaks
from transformer_pl.plan.options import SHIPPED
from transformer_pl.plan.plan import PlannedTrial, tested_by
from transformer_pl.plan.sweep_file import Sweep, read_sweep
from transformer_pl.report.published import PublishedTable, paper_table
from transformer_pl.report.row_names import RowNames, arranged, headings_of, printed_numbers
from transformer_pl.report.rows import sweep_rows
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.formats import Table
from transformer_pl.table.notes import change_note
from transformer_pl.table.rows import (
    SETS,
    About,
    Measure,
    Printed,
    PrintedTable,
    Row,
    Training,
    in_order,
    together,
    with_base,
)
from transformer_pl.table.table import make_table
from transformer_pl.task import Task, task_of
from transformer_pl.trials.identity import row_identity
from transformer_pl.trials.runs_folder import read_plan

LEARNED = 1.0  # a base with a lower score has learned next to nothing, and no row is compared with it
Grid = tuple[Sweep, Sequence[PlannedTrial]]


@dataclass(frozen=True)
class Choice:
    """What a table of sweeps shows. The fields are options of the report command."""

    base: str | None = None
    paper: bool | None = None
    margin: float | None = None
    split: str = "val"
    sort: str | None = None
    names: RowNames | None = None


DEFAULT = Choice()


def table_of(grids: Sequence[Grid], choice: Choice = DEFAULT, folder: Path | None = None) -> tuple[Table, list[Row]]:
    """The table of sweeps from the results that are there, and its rows. folder: that says what was planned."""
    rows, about = rows_and_about(grids, choice, folder)
    return make_table(rows, about), rows


def rows_and_about(
    grids: Sequence[Grid], choice: Choice = DEFAULT, folder: Path | None = None
) -> tuple[list[Row], About]:
    """The rows of sweeps as those of one table, in their order, and what the table is of."""
    (sweep, _), names = grids[0], choice.names
    task = task_of(sweep.base.data)
    paper = _paper(sweep, choice, task)
    by_name, printed = _printed(sweep, choice, paper, task.measure.name)
    tables = {}
    for one, planned in grids:
        numbers = paper.beside(one) if paper else [by_name.get(row.name) for row in one.rows]
        tables[one.name] = sweep_rows(one, planned, choice.split, numbers)
    rows = together(tables) if len(grids) > 1 else tables[sweep.name]
    rows = with_base(rows, choice.base, f" of {sweep.name}")
    rows = arranged(rows, names) if names else rows
    measure = Measure(
        f"{choice.split}/{task.measure.name}",
        task.measure.title,
        task.measure.digits,
        task.measure.lower_is_better,
        0.0,
        task.measure.highest,
        LEARNED,
        meaning=f"{task.described} on the {SETS[choice.split]} ({_signatures(rows)}): mean ± standard deviation over "
        "seeds.",
    )
    if choice.sort not in (None, "file"):
        rows = in_order(rows, choice.sort, measure)
    about = About(
        measures=[measure],
        perplexity=f"{choice.split}/ppl",
        loss=Measure(f"{choice.split}/loss", "loss", 3, True, 0.0, of_tokens=True),
        others={f"{choice.split}/{key}": title for key, title in task.others.items()},
        split=choice.split,
        unit="sentences" if task.has_source else f"{task.unit}s",
        margins={} if choice.margin is None else {measure.key: choice.margin},
        printed=printed and _with_reference(printed, rows, choice.split),
        training=_training(sweep.base, paper, task.text),
        added=_added(grids, task.unit, folder),
        headings=headings_of(rows, names) if names else {},
        setting_names={"model.p_drop": "P_drop"},
        has_page=True,
        how_to_name_base="add base to variant, or base's value to the values of a key",
    )
    return rows, about


def _signatures(rows: Sequence[Row]) -> str:
    return " and ".join(dict.fromkeys(signature for row in rows for signature in row.signatures))


def _paper(sweep: Sweep, choice: Choice, task: Task) -> PublishedTable | None:
    """The paper's table that stands beside the rows, unless the user's names have numbers."""
    if choice.names and any(entry.published for entry in choice.names.rows):
        return None
    paper = paper_table(sweep.base.data, task.published, sweep.name, choice.paper)
    return None if paper and paper.split != choice.split == "test" else paper  # its scores are of the validation set


def _printed(
    sweep: Sweep, choice: Choice, paper: PublishedTable | None, metric: str
) -> tuple[dict[str, Printed], PrintedTable | None]:
    """The printed numbers of the user's names, and where the numbers beside the rows are from."""
    model, data = sweep.base.model, sweep.base.data
    if paper:
        scaled = model.width != 1 or model.depth != 1
        differs_in = (["data"] if data.hub != paper.hub else []) + (["sizes"] if scaled else [])
        return {}, paper.printed._replace(differs_in=differs_in)
    if choice.names is None or choice.paper is False:
        return {}, None
    base = None if sweep.base_row is None else sweep.rows[sweep.base_row].name
    return printed_numbers(choice.names, base, choice.split, metric)


def _with_reference(printed: PrintedTable, rows: Sequence[Row], split: str) -> PrintedTable:
    """The printed table whose differences are to the row that --base names, if it names one; and only beside ours."""
    base = next((row.printed for row in rows if row.is_reference), printed.base)
    return printed._replace(base=base if printed.split == split else None)  # else ours are of another set


def _training(config: Config, paper: PublishedTable | None, text: str) -> Training:
    """How the rows were trained."""
    model, data = config.model, config.data
    papers, ours = nominal_sizes(paper.rows[0].config.model if paper else Config().model), nominal_sizes(model)
    return Training(
        config.steps,
        data.batch_tokens,
        data.path or data.hub or text,
        [f"{name} {ours[key]}" for name in (*SIZE_NAMES, *STACKS) if ours[key := f"model.{name}"] != papers[key]],
        [f"{name} {getattr(model, name):g}" for name in ("width", "depth") if getattr(model, name) != 1],
        config.averaged,
    )


def _added(grids: Sequence[Grid], unit: str, folder: Path | None) -> list[str]:
    """What a note must say of the sweep and its dataset. unit: what the dataset consists of."""
    notes = [note for sweep, _ in grids for note in sweep.notes]
    for prepared in dict.fromkeys(trial.prepared for _, planned in grids for trial in planned):
        with suppress(InputError):  # the dataset is not on this machine
            found = leaks(prepared.meta["splits"], unit)  # evaluation pairs that make a score look too good
            notes += [f"{leak[0].upper()}{leak[1:]}" for leak in found]
    if folder:
        plan = read_plan(folder)
        notes += [*plan.get("notes", ()), change_note(plan.get("tested"), tested_by(grids[0][0]))]
        notes.append(_larger_sweep(grids, folder))
    return [f"{note.removesuffix('.')}." for note in dict.fromkeys(notes) if note]


def _larger_sweep(grids: Sequence[Grid], folder: Path) -> str:
    """Which sweep has all of the rows and more, so that p should be corrected for these, too."""
    rows = {row_identity(row.configs[0]): row.name for sweep, _ in grids for row in sweep.rows}
    known = itertools.chain(_planned_sweeps(grids, folder), _shipped_sweeps(rows, grids[0][0].scale))
    for name, count in known:
        if count > len(rows) > 1:
            return (
                f"All of these rows are among the {count} of {name}: if you chose them by its results, "
                "take its p, which is corrected for all."
            )
    return ""


def _planned_sweeps(grids: Sequence[Grid], folder: Path) -> Iterator[tuple[str, int]]:
    """The other sweeps of the runs folder that have all of the trials, each with the number of its rows."""
    ids = {one.identity.trial for _, planned in grids for one in planned}
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
