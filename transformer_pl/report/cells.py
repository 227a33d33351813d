"""The text of a table's cells. An empty string means that there is nothing to print."""

from collections.abc import Callable, Sequence
from typing import Protocol

from transformer_pl.config import COMPONENTS
from transformer_pl.report.published import PublishedTable
from transformer_pl.report.rows import ALPHA, RowResults, TableRow, mean, standard_deviation
from transformer_pl.report.statistics import Estimate, RowComparison
from transformer_pl.trials.flops import short_number, short_numbers


class Shown(Protocol):
    """What cells need to know of a score to show it."""

    @property
    def title(self) -> str: ...
    @property
    def digits(self) -> int: ...  # at least so many after the decimal point
    @property
    def lower_is_better(self) -> bool: ...


class ScoredRow(Protocol):
    """A row with its scores by seed, and how they compare with those of base."""

    @property
    def title(self) -> str: ...
    @property
    def measure(self) -> Shown: ...
    @property
    def scores(self) -> Sequence[float]: ...  # one per finished seed
    @property
    def is_base(self) -> bool: ...
    @property
    def score(self) -> RowComparison | None: ...
    @property
    def still_falls(self) -> bool: ...  # whether it is known that the training had not converged
    def difference(self) -> float | None: ...  # the mean minus base's


SIGNIFICANT = "*"  # marks a row that differs significantly from base
EXEMPT = "‡"  # marks the name of a row whose components break a property on purpose
UNCONVERGED = "†"  # marks a row that had not converged


def number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def short(value: float | None) -> str:
    """A number in three digits and a unit."""
    return "" if value is None else short_number(value)


def title(row: TableRow) -> str:
    """The name of the row, marked if a component of it breaks a property on purpose."""
    return marked(row.title, row.results.exempt)


def mean_of(metric: str, row: TableRow) -> str:
    return number(mean(row.results.values(metric)), ".1f")


def flops(row: TableRow) -> str:
    return short(row.results.flops)


def printed(name: str, form: str = "") -> Callable[[TableRow], str]:
    """A function for what the paper printed beside a row. form: its format; empty: three digits and a unit."""

    def text(row: TableRow) -> str:
        value: float | None = getattr(row.published, name, None)
        return number(value, form) if form else short(value)

    return text


def printed_difference(paper: PublishedTable, row: TableRow) -> str:
    return number(paper.difference(row.published, row.printed_base), f"+z.{paper.decimals}f")


def score(row: ScoredRow) -> str:
    """`mean ± standard deviation` of the score over the seeds, marked where the row had not converged."""
    form = f".{digits(row.score and row.score.row_mean, row.measure)}f"
    text, spread = number(mean(row.scores), form), standard_deviation(row.scores)
    text += "" if spread is None else f" ± {spread:{form}}"
    return text + UNCONVERGED if text and row.still_falls else text


def perplexity(row: TableRow) -> str:
    """PPL, marked with `*` where it differs from base's, and where the row had not converged."""
    text = number(mean(row.results.values(f"{row.results.split}/ppl")), ".2f") + significance_mark(row.loss)
    return text + UNCONVERGED if text and row.results.still_falls else text


def row_interval(row: ScoredRow) -> str:
    return _interval(row, row.score and row.score.row_mean)


def difference_interval(row: ScoredRow) -> str:
    return _interval(row, row.score and row.score.difference, "+z")


def _interval(row: ScoredRow, estimate: Estimate | None, sign: str = "") -> str:
    """The two ends of a confidence interval. sign: `+z` writes a sign before positive numbers, too."""
    if estimate is None:
        return ""
    form = f"{sign}.{digits(estimate, row.measure)}f"
    return " to ".join(f"{end:{form}}" for end in estimate.interval())


def digits(estimate: Estimate | None, measure: Shown) -> int:
    """How many digits a number and its interval have after the decimal point, so that no end is rounded to zero."""
    ends, fewest = estimate.interval() if estimate else (), measure.digits
    return next((n for n in range(fewest, fewest + 3) if all(end == 0 or round(end, n) for end in ends)), fewest + 3)


def score_difference(row: ScoredRow) -> str:
    """The score minus base's, marked with `*` where significant; `-` where it is not known; empty for base."""
    difference = row.difference()
    if difference is None:
        return "" if row.is_base else "-"
    form = f"+z.{digits(row.score and row.score.difference, row.measure)}f"
    return f"{difference:{form}}{significance_mark(row.score)}"


def significance_mark(comparison: RowComparison | None) -> str:
    """`*` where the row differs significantly from base."""
    return SIGNIFICANT if comparison and comparison.p_value is not None and comparison.p_value < ALPHA else ""


def p_value(row: ScoredRow) -> str:
    p = row.score and row.score.p_value
    if p is None:
        return ""
    if p < 0.001:
        return "<0.001"
    shown = f"{p:.3f}"
    return f"<{shown}" if p < ALPHA <= float(shown) else shown  # so that a star agrees with its p


def detectable(row: ScoredRow) -> str:
    if row.score is None or row.score.difference is None:
        return ""
    return number(row.score.difference.detectable, f".{row.measure.digits}f")


def verdict(margin: float, row: ScoredRow) -> str:
    """Whether a row is equal to base within a margin, better, worse or undecided. Empty without several seeds.

    It is equal if its simultaneous interval lies within the margin on both sides of zero. For this the interval is not
    cut at zero, as it is elsewhere for a row with a star.
    """
    if row.score and row.score.is_rounding:
        return "equal"
    if row.score is None or row.score.difference is None or not row.score.difference.parts:
        return ""
    difference = row.score.difference
    if abs(difference.value) + difference.half_width(difference.level) <= margin:
        return f"equal{significance_mark(row.score)}"
    if not significance_mark(row.score):
        return "undecided"
    return "better" if (difference.value > 0) != row.measure.lower_is_better else "worse"


def verdict_meaning(margin: float) -> str:
    """What a column of verdicts says."""
    return f"Equal: the simultaneous interval is within {margin:g} on both sides. Better, worse: p < {ALPHA:g}."


def unmeasured(row: RowResults) -> str:
    """What stands in the place of a number that was not measured: `diverged`, `failed` or `-` (not finished)."""
    return next((state for state in ("diverged", "failed") if state in row.states), "-")


def seed_counts(row: TableRow) -> str:
    """How many seeds are finished (`3`; `2/3` if one of three is not), failed or diverged: `2/3, 1 diverged`."""
    done, planned, states = len(row.results.done), len(row.results.results), row.results.states
    ended = [f"{count} {state}" for state in ("failed", "diverged") if (count := states.count(state))]
    return ", ".join([f"{done}" if done == planned else f"{done}/{planned}", *ended])


def params(rows: Sequence[TableRow]) -> list[str]:
    """The number of trained weights of each row, with enough digits that rows which differ look different."""
    counts = [row.results.params or 0 for row in rows]
    return [text if count else "-" for count, text in zip(counts, short_numbers(counts), strict=True)]


def marked(name: str, exempt: str | None) -> str:
    """The name of a row, marked if `exempt` says that a component of it breaks a property on purpose."""
    return name + EXEMPT if exempt else name


def setting_cells(key: str, rows: Sequence[TableRow]) -> list[str]:
    """The column of a config key, as the paper prints it: base in full, other rows only where they differ from base.

    Without a base row every cell is filled.
    """
    base = next((row for row in rows if row.is_base), None)
    texts = [str(row.settings.get(key, "")) for row in rows]
    if key in (*COMPONENTS, "data.task"):
        texts = [text.rpartition(".")[2] for text in texts]  # of a class only its name
    shown = [base in (None, row) or row.settings.get(key) != base.settings.get(key) for row in rows]
    return [text if is_shown else "" for text, is_shown in zip(texts, shown, strict=True)]
