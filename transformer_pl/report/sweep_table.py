"""The rows of a sweep as those of a table, in the columns of the paper's Table 3 and beside printed numbers."""

from collections.abc import Sequence
from pathlib import Path

from transformer_pl.config.levels import resolve, scale_level, scale_measured
from transformer_pl.plan.plan import main_metric
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.facts import facts_of
from transformer_pl.report.published import RowsFile, arranged, headings_of, paper_table
from transformer_pl.report.sweep_rows import Grid, documents_of, items_of, sweep_rows
from transformer_pl.table.moderation import Prior
from transformer_pl.table.row import SETS, About, Outcome, PrintedTable, Row, with_base

LEARNED = 1.0  # a base with a lower score has learned next to nothing, and no row is compared with it


def rows_and_about(
    grid: Grid,
    *,
    names: RowsFile | None = None,
    base: str | None = None,
    paper: bool | None = None,
    margin: float | None = None,
    split: str = "val",
    folder: Path | None = None,
) -> tuple[list[Row], About]:
    """The rows of a sweep, in their order, and what their table is of.

    names: what a file says of the rows. folder: that of the sweep. The others are options of the report command.
    """
    sweep, task = grid.sweep, grid.task
    of_user = names if names and any(entry.published for entry in names.rows) else None
    of_paper = None if of_user else paper_table(sweep.base.data, task.published, sweep.name, paper)
    beside = None if paper is False else of_user or of_paper
    numbers, printed = beside.printed(sweep, task.measure.name, split, bool(of_paper)) if beside else ({}, None)
    rows, headings = with_base(sweep_rows(grid, task.measure, split, numbers), base, f" of {sweep.name}"), {}
    if names:
        places = names.places(sweep)
        rows, headings = arranged(rows, names, places), headings_of(names, places, len(rows))
    return rows, About(
        outcomes=[*outcomes_of(grid, split), *(_score(grid, name) for name in grid.further)],
        others={f"{split}/{key}": title for key, title in task.others.items()},
        split=split,
        unit=_unit(grid, [split, *grid.further]),
        priors=priors_of(sweep),
        margins={} if margin is None else {f"{split}/{task.measure.name}": margin},
        printed=printed and _with_reference(printed, rows, split),
        facts=facts_of(grid, rows, split, folder),
        has_steps=grid.is_selected,
        looked_at=grid.looked_at,
        headings=headings,
        setting_names={"model.p_drop": "P_drop"},
        has_page=True,
        how_to_name_base="add base to variant, or base's value to the values of a key",
    )


def _unit(grid: Grid, sets: Sequence[str]) -> str:
    """What intervals cover on these sets beside seeds."""
    units = sorted({items_of(grid.task, documents_of(grid.trials, name)) for name in sets})
    return ", or where none are known ".join(units) + ", which count as independent" * (units[-1] != "documents")


def outcomes_of(grid: Grid, split: str = "val") -> list[Outcome]:
    """What the rows are compared by on the validation or test set, the sweep's main metric first."""
    meaning = f"Perplexity per token of the {SETS[split]}: the mean over seeds."
    loss = Outcome(f"{split}/loss", "PPL", 2, True, 0.0, is_logarithm=True, of_tokens=True, meaning=meaning)
    of_score = _score(grid, split)
    return [loss, of_score] if main_metric(grid.sweep) == "val/loss" else [of_score, loss]


def _score(grid: Grid, split: str) -> Outcome:
    """The task's measure on a set."""
    score, signatures = grid.task.measure, " and ".join(dict.fromkeys(result.signature for result in grid.results))
    of_set, title = SETS.get(split, f"set {split}"), score.title if split in SETS else f"{split} {score.title}"
    meaning = f"{grid.task.described} on the {of_set} ({signatures}): mean ± standard deviation over seeds."
    key, lowest, highest = f"{split}/{score.name}", 0.0, score.highest
    return Outcome(key, title, score.digits, score.lower_is_better, lowest, highest, LEARNED, meaning=meaning)


def priors_of(sweep: Sweep) -> dict[str, Prior]:
    """By outcome, how rows spread that are too few to tell it, by the file of the scale; none where the model, the text
    or the training of the sweep's base is another than the scale's."""
    own = resolve([scale_level(sweep.scale)])
    if any(getattr(sweep.base, part) != getattr(own, part) for part in ("model", "optim", "data")):
        return {}
    known = scale_measured(sweep.scale).priors
    return {f"{split}/{name}": Prior.of_scale(law.spread, law.freedom) for split in SETS for name, law in known.items()}


def _with_reference(printed: PrintedTable, rows: list[Row], split: str) -> PrintedTable:
    """The printed table whose differences are to the row that --base names, if it names one; and only beside ours."""
    base = next((row.printed for row in rows if row.is_reference), printed.base)
    return printed._replace(base=base if printed.split == split else None)  # else ours are of another set
