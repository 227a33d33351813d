"""The table of the page: what a reader compares first stands first, everything else folds away."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformer_pl.experiments.cost import short_number
from transformer_pl.reporting import cells
from transformer_pl.reporting.published import PublishedRow
from transformer_pl.reporting.render import Column, Table
from transformer_pl.reporting.rows import ALPHA, TableRow, mean, published_table
from transformer_pl.runtime.terminal import counted
from transformer_pl.task import task_of


class PageCell(NamedTuple):
    """A cell of the page's table."""

    text: str
    below: str = ""  # a second line, in small print


class PageColumn(NamedTuple):
    """A column of the page's table."""

    heading: PageCell
    cells: list[PageCell]
    meaning: str = ""  # for a reader who knows the paper
    folded: bool = False  # shown only on demand
    is_text: bool = False  # names and settings rather than numbers
    in_name: bool = False  # repeats the row's name in more words: on a phone it is folded, too


def page_columns(table: Table, names: Sequence[str]) -> list[PageColumn]:
    """The columns of a table for the page. Columns without any content are left out.

    names: of the rows of a sweep. The table of a search keeps its own columns, but the drawn settings come last.
    """
    columns = _sweep_columns(table, names) if table.rows else _search_columns(table.columns)
    return [column for column in columns if any(cell.text for cell in column.cells)]


def _search_columns(columns: Sequence[Column]) -> list[PageColumn]:
    ordered = sorted(columns[1:], key=lambda column: column.setting)
    return [
        PageColumn(PageCell(column.name), list(map(PageCell, column.cells)), is_text=column is columns[0])
        for column in (columns[0], *ordered)
    ]


def _sweep_columns(table: Table, names: Sequence[str]) -> list[PageColumn]:
    settings = [column for column in table.columns if column.setting]
    return [
        *_first_columns(table.rows, names, settings),
        *(PageColumn(PageCell(column.name), list(map(PageCell, column.cells)), folded=True) for column in settings),
        *_measured_columns(table.rows),
        *_published_columns(table.rows),
    ]


def _first_columns(rows: Sequence[TableRow], names: Sequence[str], settings: Sequence[Column]) -> list[PageColumn]:
    """What a reader compares: these columns are always shown."""
    base = next((i for i, row in enumerate(rows) if row.is_base), None)
    title = rows[0].results.measure.title
    tested = sum(row.score is not None and row.score.p_value is not None for row in rows)

    def column(title: str, below: str, cell: Callable[[TableRow], PageCell], meaning: str) -> PageColumn:
        return PageColumn(PageCell(title, below), [cell(row) for row in rows], meaning)

    return [
        PageColumn(
            PageCell("row"),
            [PageCell(name, row.label if row.label != name else "") for name, row in zip(names, rows, strict=True)],
            "Named by the settings in which it differs from base. Labels such as (A) are the paper's.",
            is_text=True,
        ),
        PageColumn(
            PageCell("what differs", "base → row" if base is not None else ""),
            [PageCell(_what_differs(settings, i, base)) for i in range(len(rows))],
            "The same, with base's values and with what follows from them: d_k and d_v are d_model / h unless they are "
            "set.",
            is_text=True,
            in_name=True,
        ),
        column(
            title,
            "95 % interval",
            _score,
            "Of the validation set, the mean over the seeds ± their standard "
            "deviation; higher is better. Below it is the interval that has the true value in 95 % of cases. "
            f"{cells.UNCONVERGED}: the row had not converged.",
        ),
        column(
            f"Δ {title}",
            "95 % interval",
            _difference,
            f"{title} minus base's, on the same sentences. Where the interval has "
            f"zero in it, the row may be better or worse than base. * is a significant difference: p < {ALPHA:g}. "
            f"{cells.UNCONVERGED}: the row or base had not converged, and more steps may change the difference.",
        ),
        column(
            "p",
            "",
            lambda row: PageCell(cells.p_value(row.score)),
            "The probability of a difference at least this large if the row were as good as base. It is raised for the "
            f"number of tests (Holm): {counted(tested, 'row')}.",
        ),
        column(
            "seeds",
            "",
            lambda row: PageCell(cells.seed_counts(row.results)),
            "Finished trainings of the row, which "
            "differ in their random numbers alone. 2/3: two of three are finished.",
        ),
        PageColumn(PageCell("params"), list(map(PageCell, cells.params(rows))), "Trained weights of the model."),
    ]


def _what_differs(settings: Sequence[Column], row: int, base: int | None) -> str:
    """`h 8 → 4, d_k 64 → 128`; without a base row `h 4, d_k 128`."""
    if row == base:
        return "nothing"
    changes = [
        f"{setting.name} {setting.cells[base]}\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}{setting.cells[row]}"
        if base is not None and setting.cells[base]
        else f"{setting.name} {setting.cells[row]}"
        for setting in settings
        if setting.cells[row]
    ]
    return ", ".join(changes)


def _score(row: TableRow) -> PageCell:
    text = cells.score(row.results) or cells.unmeasured(row.results)
    return PageCell(text, cells.interval(row.score and row.score.row_mean, ".1f"))


def _difference(row: TableRow) -> PageCell:
    text = cells.score_difference(row) or ("" if row.is_base or row.base is None else "-")
    return PageCell(text, cells.difference_interval(row.score))


def _measured_columns(rows: Sequence[TableRow]) -> list[PageColumn]:
    """Other measurements."""

    def column(title: str, cell: Callable[[TableRow], str], meaning: str) -> PageColumn:
        return PageColumn(PageCell(title), [PageCell(cell(row)) for row in rows], meaning, folded=True)

    def measured(row: TableRow, metric: str, form: str) -> str:
        return cells.number(mean(row.results.values(metric)), form) or cells.unmeasured(row.results)

    def other(name: str, title: str) -> PageColumn:
        return column(title, lambda row: measured(row, f"val/{name}", ".1f"), "Higher is better.")

    return [
        column(
            "PPL",
            lambda row: cells.perplexity(row) or cells.unmeasured(row.results),
            "Perplexity per subword of the validation set; lower is better.",
        ),
        column(
            "BLEU tok.",
            lambda row: cells.number(mean(row.results.values("val/bleu_tokenised")), ".1f"),
            "BLEU of Moses tokens, compounds split at their hyphens: as the paper's authors computed it.",
        ),
        *(other(name, title) for name, title in task_of(rows[0].results.config.data).others.items()),
        column(
            "p own",
            lambda row: cells.own_p_value(row.score),
            "p, with the variance between seeds estimated from this row and base alone. p and the intervals use the "
            "seeds of all rows.",
        ),
        column(
            "P(better)",
            lambda row: cells.probability_better(row.score),
            "How probable it is that the row's true score is above base's.",
        ),
    ]


def _published_columns(rows: Sequence[TableRow]) -> list[PageColumn]:
    """What the paper prints for the same rows."""

    def column(title: str, cell: Callable[[PublishedRow], str], meaning: str) -> PageColumn:
        texts = [cell(row.published) if row.published else "" for row in rows]
        return PageColumn(PageCell(title), list(map(PageCell, texts)), meaning, folded=True)

    title, paper = rows[0].results.measure.title, published_table([row.results for row in rows])
    if paper is None:
        return []
    difference = paper.difference
    source = f"The paper's number for the same row: {paper.source}."
    return [
        column("paper PPL", lambda row: cells.number(row.ppl, ".2f"), f"{source} It is per wordpiece."),
        column(f"paper {title}", lambda row: cells.number(row.score, ".1f"), source),
        column(
            f"paper Δ {title}",
            lambda row: cells.number(difference(row), "+z.1f"),
            f"Its {title} minus its base's.",
        ),
        column("paper params", lambda row: short_number(row.params * 1e6) if row.params else "", ""),
    ]
