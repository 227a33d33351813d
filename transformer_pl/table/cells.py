"""The text of a table's cells. An empty string means that there is nothing to print."""

import math
import re
from collections.abc import Sequence
from typing import Any

from transformer_pl.runtime.terminal import short_number, short_numbers
from transformer_pl.table.rows import ALPHA, Contrast, Measure, Row
from transformer_pl.table.statistics import Estimate

SIGNIFICANT = "*"  # marks a row that differs significantly from base
EXEMPT = "‡"  # marks the name of a row whose components break a law on purpose
UNCONVERGED = "†"  # marks a row that had not converged
HUGE = 1e7
CLASS = re.compile(r"(?:\w+\.)+([A-Z]\w*)")  # an import path


def number(value: float | None, form: str) -> str:
    """A number in a format; a huge one in three digits."""
    if value is None:
        return ""
    return f"{value:{form.partition('.')[0]}.3g}" if HUGE <= abs(value) < math.inf else f"{value:{form}}"


def short(value: float | None) -> str:
    """A number in three digits and a unit."""
    return "" if value is None else short_number(value)


def setting(value: Any) -> str:
    """The value of a setting; of a class only its name."""
    text = str(value)
    return match[1] if (match := CLASS.fullmatch(text)) else text


def marked(name: str, exempt: bool) -> str:
    """The name of a row, marked if a component of it breaks a law on purpose."""
    return name + EXEMPT if exempt else name


def title(row: Row) -> str:
    return marked(row.title, bool(row.exempt))


def converged(text: str, row: Row) -> str:
    """The text of a number, marked where the row had not converged."""
    return text + UNCONVERGED if text and row.still_falls else text


def score(contrast: Contrast) -> str:
    """`mean ± standard deviation` of the score over the seeds, marked where the row had not converged."""
    form = f".{digits(contrast.mean, contrast.measure)}f"
    text = " ± ".join(filter(None, (number(contrast.score, form), number(contrast.spread, form))))
    return converged(text, contrast.row) or unmeasured(contrast.row)


def mean(metric: str, digits: int, row: Row) -> str:
    return number(row.mean(metric), f".{digits}f") or unmeasured(row)


def flops(row: Row) -> str:
    return short(row.flops) or unmeasured(row)


def perplexity(metric: str, contrast: Contrast) -> str:
    """PPL, marked with `*` where it differs from base's by the loss, and where the row had not converged."""
    text = number(contrast.row.mean(metric), ".2f")
    return converged(f"{text}{star(contrast)}" if text else "", contrast.row) or unmeasured(contrast.row)


def detectable(contrast: Contrast) -> str:
    return number(contrast.estimate.detectable, f".{contrast.measure.digits}f") if contrast.estimate else ""


def interval(estimate: Estimate | None, measure: Measure, sign: str = "") -> str:
    """The two ends of a confidence interval. sign: `+z` writes a sign before positive numbers, too."""
    if estimate is None:
        return ""
    form = f"{sign}.{digits(estimate, measure)}f"
    return " to ".join(number(end, form) for end in estimate.interval())


def ratio_interval(contrast: Contrast) -> str:
    """The two ends of the interval of a ratio, whose logarithm the contrast has."""
    if contrast.estimate is None:
        return ""
    return " to ".join(number(math.exp(end), f".{contrast.measure.digits}f") for end in contrast.estimate.interval())


def row_interval(contrast: Contrast) -> str:
    return interval(contrast.mean, contrast.measure)


def difference_interval(contrast: Contrast) -> str:
    return interval(contrast.estimate, contrast.measure, "+z")


def digits(estimate: Estimate | None, measure: Measure) -> int:
    """How many digits a number and its interval have after the decimal point, so that no end is rounded to zero."""
    ends, fewest = estimate.interval() if estimate else (), measure.digits
    return next((n for n in range(fewest, fewest + 3) if all(end == 0 or round(end, n) for end in ends)), fewest + 3)


def difference(contrast: Contrast) -> str:
    """The score minus base's, marked with `*` where significant; `-` where it is not known; empty for base."""
    if contrast.difference is None:
        return "" if contrast.row.is_base else "-"
    form = f"+z.{digits(contrast.estimate, contrast.measure)}f"
    return f"{number(contrast.difference, form)}{star(contrast)}"


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
    if not contrast.is_found:
        return "undecided"
    return "better" if (estimate.value > 0) != contrast.measure.lower_is_better else "worse"


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
