"""The rows of sweeps as those of one table, in the columns of the paper's Table 3 and beside printed numbers."""

from collections.abc import Sequence

from transformer_pl.config import SIZE_NAMES, STACKS, Config, nominal_sizes
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.published import paper_table
from transformer_pl.report.row_names import RowNames, arranged, headings_of, printed_numbers
from transformer_pl.report.rows import Grid, sweep_rows
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
from transformer_pl.task import Task

LEARNED = 1.0  # a base with a lower score has learned next to nothing, and no row is compared with it


def rows_and_about(
    grids: Sequence[Grid],
    task: Task,
    *,
    names: RowNames | None = None,
    notes: Sequence[str] = (),
    base: str | None = None,
    paper: bool | None = None,
    margin: float | None = None,
    split: str = "val",
    sort: str | None = None,
) -> tuple[list[Row], About]:
    """The rows of sweeps as those of one table, in their order, and what the table is of.

    task: that of the sweeps. notes: those of `notes_of`. The others are options of the report command.
    """
    sweep = grids[0].sweep
    numbers, printed, papers = _printed([grid.sweep for grid in grids], task, names, paper, split)
    tables = {grid.sweep.name: sweep_rows(grid, task.measure, split, numbers.get(grid.sweep.name)) for grid in grids}
    rows = together(tables) if len(grids) > 1 else tables[sweep.name]
    rows = with_base(rows, base, f" of {sweep.name}")
    rows = arranged(rows, names) if names else rows
    measure = _measure(task, split, rows)
    rows = rows if sort in (None, "file") else in_order(rows, sort, measure)
    about = About(
        measures=[measure],
        perplexity=f"{split}/ppl",
        loss=Measure(f"{split}/loss", "loss", 3, True, 0.0, of_tokens=True),
        others={f"{split}/{key}": title for key, title in task.others.items()},
        split=split,
        unit="sentences" if task.has_source else f"{task.unit}s",
        margins={} if margin is None else {measure.key: margin},
        printed=printed and _with_reference(printed, rows, split),
        training=_training(sweep.base, papers, task.text),
        added=notes,
        looked_at=grids[0].looked_at,
        headings=headings_of(rows, names) if names else {},
        setting_names={"model.p_drop": "P_drop"},
        has_page=True,
        how_to_name_base="add base to variant, or base's value to the values of a key",
    )
    return rows, about


def _printed(
    sweeps: Sequence[Sweep], task: Task, names: RowNames | None, paper: bool | None, split: str
) -> tuple[dict[str, dict[str, Printed]], PrintedTable | None, Config]:
    """The numbers beside the rows, by sweep and row; where they are from; and a config of the usual sizes.

    They are those of the user's names, which are for one sweep, or else the paper's.
    """
    base, of_base = sweeps[0].base, sweeps[0].of_base
    if names and names.have_numbers:
        if paper is False:
            return {}, None, Config()
        numbers, printed = printed_numbers(names, of_base.name if of_base else "", split, task.measure.name)
        return {sweeps[0].name: numbers}, printed, Config()
    if table := paper_table(base.data, task.published, sweeps[0].name, paper, split):
        return {sweep.name: table.beside(sweep) for sweep in sweeps}, table.printed(base), table.rows[0].config
    return {}, None, Config()


def _measure(task: Task, split: str, rows: Sequence[Row]) -> Measure:
    """What the rows are compared by on a set."""
    score, signatures = task.measure, dict.fromkeys(signature for row in rows for signature in row.signatures)
    meaning = (
        f"{task.described} on the {SETS[split]} ({' and '.join(signatures)}): mean ± standard deviation over seeds."
    )
    key, lowest, highest = f"{split}/{score.name}", 0.0, score.highest
    return Measure(key, score.title, score.digits, score.lower_is_better, lowest, highest, LEARNED, meaning=meaning)


def _with_reference(printed: PrintedTable, rows: Sequence[Row], split: str) -> PrintedTable:
    """The printed table whose differences are to the row that --base names, if it names one; and only beside ours."""
    base = next((row.printed for row in rows if row.is_reference), printed.base)
    return printed._replace(base=base if printed.split == split else None)  # else ours are of another set


def _training(config: Config, paper: Config, text: str) -> Training:
    """How the rows were trained. paper: the config whose sizes are the paper's."""
    model, data = config.model, config.data
    papers, ours = nominal_sizes(paper.model), nominal_sizes(model)
    return Training(
        config.steps,
        data.batch_tokens,
        data.path or data.hub or text,
        [f"{name} {ours[key]}" for name in (*SIZE_NAMES, *STACKS) if ours[key := f"model.{name}"] != papers[key]],
        [f"{name} {getattr(model, name):g}" for name in ("width", "depth") if getattr(model, name) != 1],
        config.averaged,
    )
