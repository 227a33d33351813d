"""The text of a table's cells. An empty string means that there is nothing to print."""

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from transformer_pl.runtime.terminal import short_number, short_numbers
from transformer_pl.table.row import ALPHA, Contrast, Outcome, Row
from transformer_pl.table.statistics import Estimate

SIGNIFICANT = "*"  # marks a row that differs significantly from base
EXEMPT = "‡"  # marks the name of a row whose components break a law on purpose
UNLIKE = "§"  # marks a ratio of perplexities of which one means something else
UNCONVERGED = "†"  # marks a row that had not converged
HUGE = 1e7
CLASS = re.compile(r"(?:\w+\.)+([A-Z]\w*)")  # an import path


def number_if_known(value: float | None, form: str = "") -> str:
    return "" if value is None else number(value, form)


def measured(value: float | None, form: str, row: Row) -> str:
    """A number of a row, or what stands in its place."""
    return unmeasured(row) if value is None else number(value, form)


def metric(name: str, form: str, row: Row) -> str:
    """The mean of a metric."""
    return measured(row.mean(name), form, row)


def number(value: float, form: str = "") -> str:
    """A number in a format, a huge one in three digits; without a format in three digits and a unit."""
    if not form:
        return short_number(value)
    return f"{value:{form.partition('.')[0]}.3g}" if HUGE <= abs(value) < math.inf else f"{value:{form}}"


def setting(value: Any) -> str:
    """The value of a setting; of a class only its name."""
    text = str(value)
    return match[1] if (match := CLASS.fullmatch(text)) else text


def marked(name: str, exempt: bool) -> str:
    """The name of a row, marked if a component of it breaks a law on purpose."""
    return name + EXEMPT if exempt else name


def title(row: Row) -> str:
    return marked(row.title, bool(row.exempt))


def mark_unconverged(text: str, row: Row) -> str:
    """The text of a number, marked where the row had not converged."""
    return text + UNCONVERGED if row.still_falls else text


def score(contrast: Contrast) -> str:
    """`mean ± standard deviation` of the score over the seeds, marked where the row had not converged."""
    if contrast.score is None:
        return unmeasured(contrast.row)
    if contrast.outcome.is_logarithm:
        unlike = UNLIKE if contrast.is_unlike and contrast.difference is None else ""
        mean = statistics.fmean(map(contrast.outcome.shown, contrast.scores))
        text = number(mean, f".{contrast.outcome.digits}f")
        return mark_unconverged(text + unlike, contrast.row)
    form = number_form(contrast.mean, contrast.outcome)
    numbers = [number(value, form) for value in (contrast.score, contrast.spread) if value is not None]
    return mark_unconverged(" ± ".join(numbers), contrast.row)


def ratio(contrast: Contrast) -> str:
    """Of an outcome whose differences are those of logarithms."""
    return "" if contrast.difference is None else number(math.exp(contrast.difference), ".2f")


def ratio_interval(contrast: Contrast) -> str:
    """Of such an outcome: where its difference is 0, the ratio is 1."""
    estimate, form = contrast.estimate, f".{contrast.outcome.digits}f"
    return interval(map(math.exp, estimate.interval()), form, contrast.open_end, 1) if estimate else ""


def detectable(contrast: Contrast) -> str:
    """The difference that would be found."""
    estimate = contrast.estimate
    shown = contrast.outcome.shown
    return number(shown(estimate.detectable), f".{contrast.outcome.digits}f") if estimate else ""


def interval(ends: Iterable[float], form: str, open_end: str | None = None, at: float = 0) -> str:
    """The two ends of a confidence interval, one of which may be open: `above 0 to +3.1`. at: where that one lies."""
    low, high = (number(end, form) for end in ends)
    return f"{f'above {at}' if open_end == 'low' else low} to {f'below {at}' if open_end == 'high' else high}"


def row_interval(contrast: Contrast) -> str:
    mean, outcome = contrast.mean, contrast.outcome
    return interval(map(outcome.shown, mean.interval()), number_form(mean, outcome)) if mean else ""


def difference_interval(contrast: Contrast) -> str:
    """With a sign before positive numbers, too, but for ratios."""
    estimate, outcome = contrast.estimate, contrast.outcome
    if estimate is None:
        return ""
    ends, none = map(outcome.shown, estimate.interval()), int(outcome.is_logarithm)
    return interval(ends, difference_form(estimate, outcome), contrast.open_end, none)


def number_form(estimate: Estimate | None, outcome: Outcome) -> str:
    """The format of a number and its interval, with so many digits that no end is rounded to zero, or a ratio to 1, nor
    the number where an end is zero."""
    none, fewest = outcome.shown(0) if outcome.is_logarithm else 0, outcome.digits
    numbers = [outcome.shown(end or estimate.value) - none for end in estimate.interval()] if estimate else []
    enough = (n for n in range(fewest, fewest + 3) if all(number == 0 or round(number, n) for number in numbers))
    return f".{next(enough, fewest + 3)}f"


def difference_form(estimate: Estimate | None, outcome: Outcome) -> str:
    """That of a difference, with its sign, or of a ratio."""
    return f"{'' if outcome.is_logarithm else '+z'}{number_form(estimate, outcome)}"


def difference(contrast: Contrast) -> str:
    """The score minus base's, marked with `*` where significant; `-` where it is not known; empty for base."""
    if contrast.difference is None:
        return "" if contrast.row.is_base else "-"
    form, unlike = difference_form(contrast.estimate, contrast.outcome), UNLIKE if contrast.is_unlike else ""
    return f"{number(contrast.outcome.shown(contrast.difference), form)}{star(contrast)}{unlike}"


def marked_difference(contrast: Contrast) -> str:
    """The difference, marked where the row had not converged."""
    return mark_unconverged(difference(contrast), contrast.row)


def star(contrast: Contrast) -> str:
    """`*` where the row differs significantly from base."""
    return SIGNIFICANT if contrast.is_found else ""


def p_value(contrast: Contrast) -> str:
    p = contrast.p_value
    if p is None:
        return ""
    if p < 0.001:
        return "<0.001"
    shown = f"{p:.3f}"
    return f"<{shown}" if p < ALPHA <= float(shown) else shown  # so that a star agrees with its p


def verdict(margin: float, contrast: Contrast) -> str:
    """Whether a row is equal to base within a margin, better, worse or undecided. Empty without several seeds.

    A row of which runs have failed is never better: those that would have been worse may be among them.

    It is equal if its simultaneous interval lies within the margin on both sides of zero. For this the interval is not
    cut at zero, as it is elsewhere for a row with a star.
    """
    estimate = contrast.estimate
    if contrast.is_rounding:
        return "equal"
    if estimate is None or not estimate.parts:
        return ""
    if abs(estimate.value) + estimate.half_width(estimate.level) <= margin:
        return f"equal{star(contrast)}"
    is_better = (estimate.value > 0) != contrast.outcome.lower_is_better
    if not contrast.is_found:
        return "undecided"
    return "better" if is_better else "worse"


def unmeasured(row: Row) -> str:
    """What stands in the place of a number that was not measured: `diverged`, `failed`, `refused`, or `-` (none)."""
    return next((state for state in ("diverged", "failed", "refused") if state in row.states), "-")


def counts(contrast: Contrast) -> str:
    """How many seeds have a score (`3`; `2/3` if one of three has not), failed or diverged: `2/3, 1 diverged`."""
    states, done = contrast.row.states, len(contrast.scores)
    ended = [f"{count} {state}" for state in ("failed", "diverged", "refused") if (count := states.count(state))]
    return ", ".join([f"{done}" if done == len(states) else f"{done}/{len(states)}", *ended])


def params(rows: Sequence[Row]) -> list[str]:
    """The number of trained weights of each row, with enough digits that rows which differ look different."""
    counts = [row.params or 0 for row in rows]
    return [text if count else "-" for count, text in zip(counts, short_numbers(counts), strict=True)]


def setting_cells(key: str, rows: Sequence[Row]) -> list[str]:
    """The column of a setting, as the paper prints it: base in full, other rows only where they differ from base.

    Without a base row every cell is filled.
    """
    base = next((row for row in rows if row.is_base), None)
    shown = [base in (None, row) or row.settings.get(key) != base.settings.get(key) for row in rows]
    return [setting(row.settings.get(key, "")) if is_shown else "" for row, is_shown in zip(rows, shown, strict=True)]
