"""The table of a sweep, in the columns of the paper's Table 3 and beside the numbers that a paper printed."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from transformer_pl.config import SIZE_NAMES, STACKS, Config, nominal_sizes
from transformer_pl.data.selection import leaks
from transformer_pl.plan.plan import PlannedTrial, tested_by
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.looks import read_progress
from transformer_pl.report.published import PublishedTable, paper_table
from transformer_pl.report.row_names import RowNames, arranged, headings_of, printed_table
from transformer_pl.report.rows import sweep_rows
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.formats import Table
from transformer_pl.table.notes import change_note
from transformer_pl.table.rows import SETS, About, Measure, PrintedTable, Row, Training, in_order, together, with_base
from transformer_pl.table.table import make_table
from transformer_pl.task import task_of
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


def rows_and_about(grids: Sequence[Grid], choice: Choice, folder: Path | None = None) -> tuple[list[Row], About]:
    """The rows of sweeps as those of one table, in their order, and what the table is of."""
    (sweep, _), names = grids[0], choice.names
    task, paper = task_of(sweep.base.data), _published(sweep, choice)
    progress = read_progress(sweep, folder) if folder and len(grids) == 1 else None
    if progress:
        grids = [(sweep, progress.trials(grids[0][1], progress.last))]
    tables = {one.name: sweep_rows(one, planned, choice.split, paper) for one, planned in grids}
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
        printed=_printed(sweep.base, paper, rows, choice) if paper else None,
        training=_training(sweep.base, paper),
        added=_added(grids, folder),
        looked_at=progress.looked_at if progress else None,
        headings=headings_of(rows, names) if names else {},
        setting_names={"model.p_drop": "P_drop"},
        has_page=True,
        how_to_name_base="add base to variant, or base's value to the values of a key",
    )
    return rows, about


def _signatures(rows: Sequence[Row]) -> str:
    return " and ".join(dict.fromkeys(signature for row in rows for signature in row.signatures))


def _published(sweep: Sweep, choice: Choice) -> PublishedTable | None:
    """The printed table beside the rows: that of the user's names, if they have numbers, or else the task's."""
    if choice.names and any(entry.published for entry in choice.names.rows):
        paper = None if choice.paper is False else printed_table(sweep, choice.names, choice.split)
    else:
        paper = paper_table(sweep.base.data, sweep.name, choice.paper)
    return None if paper and paper.split != choice.split == "test" else paper  # its scores are of the validation set


def _printed(base: Config, paper: PublishedTable, rows: Sequence[Row], choice: Choice) -> PrintedTable:
    """Where printed numbers are from, and what their differences are to."""
    reference = next((row for row in rows if row.is_reference), None)
    of_base = reference.printed if reference else (paper.base.printed if paper.base else None)
    scaled = any(getattr(base.model, factor) != 1 for factor in ("width", "depth"))
    differs_in = (["data"] if base.data.hub != paper.hub else []) + (["sizes"] if scaled else [])
    return PrintedTable(
        paper.source,
        of_base if paper.split == choice.split else None,  # ours are of another set
        paper.split,
        paper.decimals,
        [row.printed for row in paper.others],
        paper.hub != "",
        differs_in,
        paper.base is not None,
    )


def _training(config: Config, paper: PublishedTable | None) -> Training:
    """How the rows were trained."""
    model, data = config.model, config.data
    papers, ours = nominal_sizes(paper.rows[0].config.model if paper else Config().model), nominal_sizes(model)
    return Training(
        config.steps,
        data.batch_tokens,
        data.path or data.hub or task_of(data).text,
        [f"{name} {ours[key]}" for name in (*SIZE_NAMES, *STACKS) if ours[key := f"model.{name}"] != papers[key]],
        [f"{name} {getattr(model, name):g}" for name in ("width", "depth") if getattr(model, name) != 1],
        config.averaged,
    )


def _added(grids: Sequence[Grid], folder: Path | None) -> list[str]:
    """What a note must say of the sweep and its dataset."""
    sweep, unit = grids[0][0], task_of(grids[0][0].base.data).unit
    notes = dict.fromkeys(note for one, _ in grids for note in one.notes)
    for prepared in dict.fromkeys(trial.prepared for _, planned in grids for trial in planned):
        with suppress(InputError):  # the dataset is not on this machine
            found = leaks(prepared.meta["splits"], unit)  # evaluation pairs that make a score look too good
            notes |= dict.fromkeys(f"{leak[0].upper()}{leak[1:]}." for leak in found)
    changed = change_note(read_plan(folder).get("tested"), tested_by(sweep)) if folder else ""
    return [*notes, *filter(None, [changed, _larger_sweep(grids, folder) if folder else ""])]


def _larger_sweep(grids: Sequence[Grid], folder: Path) -> str:
    """Which sweep of this runs folder has all of the rows and more, so that p should be corrected for these, too."""
    ids = {one.identity.trial for _, planned in grids for one in planned}
    for other in sorted(path.parent for path in folder.parent.glob("*/plan.json")):
        trials = read_plan(other).get("trials", []) if other != folder else []
        rows = len({trial["row"] for trial in trials if "row" in trial})
        if ids <= {trial.get("id") for trial in trials} and rows > sum(len(sweep.rows) for sweep, _ in grids):
            return (
                f"All of these rows are among the {rows} of {other.name}: if you chose them by its results, "
                "take its p, which is corrected for all."
            )
    return ""
