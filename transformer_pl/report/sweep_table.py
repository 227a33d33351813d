"""The table of a sweep, in the columns of the paper's Table 3 and beside the numbers that a paper printed."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_pl.config import SIZE_NAMES, STACKS, Config, nominal_sizes
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.published import PublishedTable, paper_table
from transformer_pl.report.row_names import RowNames, arranged, headings_of, printed_numbers
from transformer_pl.report.rows import Grid, sweep_rows
from transformer_pl.table.formats import Table
from transformer_pl.table.looks import LookedAt
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

LEARNED = 1.0  # a base with a lower score has learned next to nothing, and no row is compared with it


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


def table_of(
    grids: Sequence[Grid], choice: Choice = DEFAULT, notes: Sequence[str] = (), looked_at: LookedAt | None = None
) -> tuple[Table, list[Row]]:
    """The table of sweeps from the results that are there, and its rows.

    notes: those of `notes_of`. looked_at: if the sweep was looked at while it was trained, see `as_seen`.
    """
    rows, about = rows_and_about(grids, choice, notes, looked_at)
    return make_table(rows, about), rows


def rows_and_about(
    grids: Sequence[Grid], choice: Choice = DEFAULT, notes: Sequence[str] = (), looked_at: LookedAt | None = None
) -> tuple[list[Row], About]:
    """The rows of sweeps as those of one table, in their order, and what the table is of; see `table_of`."""
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
        added=notes,
        looked_at=looked_at,
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
