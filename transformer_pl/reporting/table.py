"""The table of a sweep, in the columns of the paper's Table 3 and beside the numbers that the paper printed.

A row shows where it differs from base, in the paper's numbers whatever the scale. A value that was not measured is
never shown as a number: the cell reads `diverged`, `failed`, or `-` for a row that is not finished.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from transformer_pl.config import Config
from transformer_pl.experiments.cost import short_number
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting import cells
from transformer_pl.reporting.notes import table_notes
from transformer_pl.reporting.published import Beside, PublishedRow, PublishedTable
from transformer_pl.reporting.render import Column, Table
from transformer_pl.reporting.rows import (
    ALPHA,
    RowResults,
    TableRow,
    make_table_rows,
    mean,
    published_table,
    read_rows,
    standard_deviation,
)
from transformer_pl.runtime.terminal import counted
from transformer_pl.task import task_of

if TYPE_CHECKING:
    from transformer_pl.reporting.stats import RowComparison


def table_of(
    sweep: Sweep, planned: Iterable[PlannedTrial], randomise: bool = False, beside: Beside | None = None
) -> Table:
    """The table of a sweep from the results that are there."""
    table = build_table(read_rows(sweep, planned), sweep.base, randomise, beside, [row.name for row in sweep.rows])
    records = [{"name": row.name} | record for row, record in zip(sweep.rows, table.records, strict=True)]
    return table._replace(records=records, notes=[*table.notes, *sweep.notes])


def build_table(
    rows: Sequence[RowResults],
    base: Config | None = None,
    randomise: bool = False,
    beside: Beside | None = None,
    names: Sequence[str] = (),
) -> Table:
    """The table of at least one row, beside the paper's. Differences are to `base`, if that is among the rows.

    p-values are by a t-test over seeds and sentences, or with `randomise` by approximate randomisation of sentences.
    beside: `paper`, `none`, or by default `none` where the text is the user's own and else `paper`. names: of the rows;
    they stand where the paper has no label.
    """
    table_rows = make_table_rows(rows, base, randomise, beside)
    keys = _differing_keys([row.settings for row in table_rows])
    columns = [column for column in _columns(table_rows, keys, names or [""] * len(rows)) if any(column.cells)]
    return Table(columns, _records(table_rows, keys), table_notes(table_rows, base, randomise, beside), table_rows)


def _differing_keys(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The keys in which not all rows agree."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if any(values.get(key, ...) != settings[0].get(key, ...) for values in settings)]


def _columns(rows: list[TableRow], keys: list[str], names: Sequence[str]) -> list[Column]:
    """All columns of a table, also those that stay empty."""
    title = rows[0].results.measure.title
    return [
        Column("row", [row.label or name for row, name in zip(rows, names, strict=True)]),
        *(Column(cells.setting_title(key), cells.setting_cells(key, rows), setting=True) for key in keys),
        Column("params", cells.params(rows), drop_rank=5, meaning="Trained weights of the model."),
        *_measured_columns(rows, title),
        *_compared_columns(rows, title),
        Column(
            "seeds",
            [cells.seed_counts(row.results) for row in rows],
            meaning="Finished trainings of the row, which differ in their random numbers alone. 2/3: two of three are "
            "finished.",
        ),
        *_published_columns(rows, title),
    ]


def _measured_columns(rows: list[TableRow], title: str) -> list[Column]:
    """What was measured of each row alone. title: of the score."""

    def measured(name: str, cell: Callable[[TableRow], str], meaning: str, **options: Any) -> Column:
        texts = [cell(row) or cells.unmeasured(row.results) for row in rows]
        return Column(name, texts, meaning=meaning, **options)

    def other(metric: str, name: str) -> Column:
        def cell(row: TableRow) -> str:
            return cells.number(mean(row.results.values(f"val/{metric}")), ".1f")

        return measured(name, cell, "Higher is better.", drop_rank=3, in_latex=False)

    return [
        measured(
            "PPL",
            cells.perplexity,
            "Perplexity per subword of the validation set; lower is better. "
            f"{cells.SIGNIFICANT}: it differs significantly from base's. "
            f"{cells.UNCONVERGED}: the row had not converged, or a marked difference is from a base that had not.",
        ),
        *(other(metric, name) for metric, name in task_of(rows[0].results.config.data).others.items()),
        measured(
            title,
            lambda row: cells.score(row.results),
            "Of the validation set, the mean over the seeds ± their standard deviation; higher is better. "
            f"{cells.UNCONVERGED}: the row had not converged.",
        ),
        Column(
            "BLEU tok.",
            _tokenised_cells(rows),
            drop_rank=9,
            meaning="BLEU of Moses tokens, compounds split at their hyphens: as the paper's authors computed it.",
        ),
        Column(
            f"{title} 95 %",
            [cells.interval(row.score and row.score.row_mean, ".1f") for row in rows],
            drop_rank=4,
            meaning="The interval has the true value in 95 % of cases.",
        ),
    ]


def _compared_columns(rows: list[TableRow], title: str) -> list[Column]:
    """How each row's score compares with base's. title: of the score."""
    tested = sum(row.score is not None and row.score.p_value is not None for row in rows)

    def compared(name: str, cell: "Callable[[RowComparison | None], str]", meaning: str = "", **options: Any) -> Column:
        return Column(name, [cell(row.score) for row in rows], meaning=meaning, **options)

    return [
        Column(
            f"Δ {title}",
            _difference_cells(rows),
            meaning=f"{title} minus base's, on the same sentences. {cells.SIGNIFICANT} is a significant difference: "
            f"p < {ALPHA:g}. "
            f"{cells.UNCONVERGED}: the row or base had not converged, and more steps may change the difference.",
        ),
        compared(
            "Δ 95 %",
            cells.difference_interval,
            "Where the interval has zero in it, the row may be better or worse than base.",
            drop_rank=8,
        ),
        compared(
            "p",
            cells.p_value,
            "The probability of a difference at least this large if the row were as good as base. Corrected for "
            f"multiple testing (Holm): {counted(tested, 'row')}.",
            drop_rank=7,
        ),
        compared(
            "p own",
            cells.own_p_value,
            "p, with the variance between seeds estimated from this row and base alone. p and the intervals use the "
            "seeds of all rows.",
            drop_rank=0,
            in_latex=False,
        ),
        compared(
            "P(better)",
            cells.probability_better,
            "How probable it is that the row's true score is above base's.",
            drop_rank=2,
            in_latex=False,
        ),
    ]


def _published_columns(rows: list[TableRow], title: str) -> list[Column]:
    """What the paper prints for the same rows. title: of the score."""
    paper = published_table([row.results for row in rows])
    if paper is None:
        return []

    def printed(name: str, cell: Callable[[PublishedRow], str], meaning: str = "", **options: Any) -> Column:
        texts = [cell(row.published) if row.published else "" for row in rows]
        return Column(f"paper {name}", texts, meaning=meaning, **options)

    difference, source = paper.difference, f"The paper's number for the same row: {paper.source}."
    return [
        printed("PPL", lambda row: cells.number(row.ppl, ".2f"), f"{source} It is per wordpiece."),
        printed(title, lambda row: cells.number(row.score, ".1f"), source),
        printed(
            f"Δ {title}",
            lambda row: cells.number(difference(row), "+z.1f"),
            f"Its {title} minus its base's.",
            drop_rank=6,
        ),
        printed("params", lambda row: short_number(row.params * 1e6) if row.params else "", drop_rank=1),
    ]


def _difference_cells(rows: list[TableRow]) -> list[str]:
    """The score minus base's, marked where significant; `-` where it is not known, nothing where no row has one."""
    if all(row.difference() is None for row in rows):
        return [""] * len(rows)
    return ["" if row.is_base else cells.score_difference(row) or "-" for row in rows]


def _tokenised_cells(rows: list[TableRow]) -> list[str]:
    """The paper's kind of BLEU; nothing where no row has it."""
    means = [mean(row.results.values("val/bleu_tokenised")) for row in rows]
    if all(value is None for value in means):
        return [""] * len(rows)
    found = zip(rows, means, strict=True)
    return [cells.number(value, ".1f") or cells.unmeasured(row.results) for row, value in found]


# ---------------------------------------------------------------------------------------------------------------------
# Records: the lines of the CSV file, with numbers at full precision


def _records(rows: list[TableRow], keys: list[str]) -> list[dict[str, Any]]:
    metrics = dict.fromkeys(["val/ppl", f"val/{rows[0].results.measure.name}"])
    metrics |= dict.fromkeys(metric for row in rows for result in row.results.done for metric in result["metrics"])
    paper = published_table([row.results for row in rows])
    return [_record(row, keys, list(metrics), paper) for row in rows]


def _record(row: TableRow, keys: list[str], metrics: list[str], paper: PublishedTable | None) -> dict[str, Any]:
    results, published, score = row.results, row.published, row.results.measure.name
    record: dict[str, Any] = {"row": row.label} | {key: row.settings.get(key) for key in keys}
    record |= {"seeds": len(results.results), "done": len(results.done)}
    record |= {state: results.states.count(state) for state in ("failed", "diverged")}
    record |= {"params": results.params}
    for metric in metrics:
        values = results.values(metric)
        record |= {
            f"{metric}.mean": mean(values),
            f"{metric}.sd": standard_deviation(values),
            f"{metric}.n": len(values),
            f"{metric}.difference": row.difference(metric),
        }
    converged = results.convergence
    record |= {"val/loss.fall": converged and converged.fall, "val/loss.fall.noise": converged and converged.noise}
    record |= comparison_record(f"val/{score}", row.score) | comparison_record("val/loss", row.loss)
    return record | {
        "paper/ppl": published and published.ppl,
        f"paper/{score}": published and published.score,
        f"paper/{score}.difference": published and paper and paper.difference(published),
        "paper/params": round(published.params * 1e6) if published and published.params else None,
    }


def comparison_record(metric: str, comparison: "RowComparison | None") -> dict[str, Any]:
    """The part of a record that holds a metric's intervals and p-value; its values are None without a comparison."""
    row_mean, difference = (comparison.row_mean, comparison.difference) if comparison else (None, None)
    low, high = row_mean.interval() if row_mean else (None, None)
    difference_low, difference_high = difference.interval() if difference else (None, None)
    is_tested = comparison is not None and comparison.p_value is not None
    return {
        f"{metric}.low": low,
        f"{metric}.high": high,
        f"{metric}.difference.low": difference_low,
        f"{metric}.difference.high": difference_high,
        f"{metric}.difference.p": comparison and comparison.p_value,
        f"{metric}.difference.p_own": comparison and comparison.own_p_value,
        f"{metric}.difference.above": difference.probability_positive if difference and is_tested else None,
    }
