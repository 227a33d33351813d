"""The text of a table's cells. An empty string means that there is nothing to print."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from transformer_pl.runtime.terminal import short_number, short_numbers
from transformer_pl.table.rows import ALPHA, Contrast, Measure, Row
from transformer_pl.table.statistics import Estimate

SIGNIFICANT = "*"  # marks a row that differs significantly from base
EXEMPT = "‡"  # marks the name of a row whose components break a law on purpose
UNCONVERGED = "†"  # marks a row that had not converged
HUGE = 1e7
CLASS = re.compile(r"(?:\w+\.)+([A-Z]\w*)")  # an import path


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


def converged(text: str, row: Row) -> str:
    """The text of a number, marked where the row had not converged."""
    return text + UNCONVERGED if row.still_falls else text


def score(contrast: Contrast) -> str:
    """`mean ± standard deviation` of the score over the seeds, marked where the row had not converged."""
    form = number_form(contrast.mean, contrast.measure)
    numbers = [number(value, form) for value in (contrast.score, contrast.spread) if value is not None]
    return converged(" ± ".join(numbers), contrast.row)


def perplexity(metric: str, contrast: Contrast) -> str:
    """PPL, marked with `*` where it differs from base's by the loss, and where the row had not converged."""
    text = number(contrast.row.mean(metric) or 0.0, ".2f")
    return converged(f"{text}{star(contrast)}", contrast.row)


def interval(ends: Iterable[float], form: str) -> str:
    """The two ends of a confidence interval."""
    return " to ".join(number(end, form) for end in ends)


def row_interval(contrast: Contrast) -> str:
    return interval(contrast.mean.interval(), number_form(contrast.mean, contrast.measure)) if contrast.mean else ""


def difference_interval(contrast: Contrast) -> str:
    """With a sign before positive numbers, too."""
    estimate = contrast.estimate
    return interval(estimate.interval(), f"+z{number_form(estimate, contrast.measure)}") if estimate else ""


def number_form(estimate: Estimate | None, measure: Measure) -> str:
    """The format of a number and its interval, with so many digits that no end is rounded to zero."""
    ends, fewest = estimate.interval() if estimate else (), measure.digits
    enough = (n for n in range(fewest, fewest + 3) if all(end == 0 or round(end, n) for end in ends))
    return f".{next(enough, fewest + 3)}f"


def difference(contrast: Contrast) -> str:
    """The score minus base's, marked with `*` where significant; `-` where it is not known; empty for base."""
    if contrast.difference is None:
        return "" if contrast.row.is_base else "-"
    return f"{number(contrast.difference, f'+z{number_form(contrast.estimate, contrast.measure)}')}{star(contrast)}"


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


def unmeasured(one: Row | Contrast) -> str:
    """What stands in the place of a number that was not measured: `diverged`, `failed`, `refused`, or `-` (none)."""
    states = one.row.states if isinstance(one, Contrast) else one.states
    return next((state for state in ("diverged", "failed", "refused") if state in states), "-")


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
