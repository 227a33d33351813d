"""In how many steps a row reaches the lowest validation loss of base.

With the loss of a row's seed s as a line between its validations, and t_s(L) the first step at which it is at most L,
the row needs, as a share of the steps of base,

    r_s = t_s(L) / t_base(L),    L = max(base's lowest loss, the seed's lowest loss),

where base's loss is the mean over its seeds, at the steps that all of them have. A row that never reaches base's lowest
loss is so compared at its own, which base has reached before. The mean of log r_s has two errors, as a difference of
scores has: the spread over the row's seeds, and that of base, by leaving out one of its seeds at a time (the
jackknife). The same in FLOPs is r_s times the FLOPs of a step, beside base's.

This is meaningful only where a shorter training is the beginning of a longer one. That holds for equation (3), and not
for a learning rate that falls to zero at the last step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from transformer_pl.table.moderation import SeedVariance, variance_of
from transformer_pl.table.row import Contrast, Outcome, Row
from transformer_pl.table.statistics import Estimate

STEPS = Outcome("steps_to_base", "steps to base's loss", 2, lower_is_better=True)
FLOPS = Outcome("flops_to_base", "FLOPs to base's loss", 2, lower_is_better=True)
Losses = Mapping[int, float]  # of the validations of a training, by step


def crossing(losses: Losses, level: float) -> float | None:
    """The first step at which the line through the losses is at most this level; None where that is not known.

    It is not known if no loss is so low, or if the first one is below the level already.
    """
    before: tuple[int, float] | None = None
    for step, loss in sorted(losses.items()):
        if loss == level:
            return float(step)
        if loss < level:
            return before and before[0] + (step - before[0]) * (before[1] - level) / (before[1] - loss)
        before = (step, loss) if math.isfinite(loss) else None
    return None


def mean_losses(seeds: Sequence[Losses]) -> Losses:
    """The mean over seeds, at the steps that all have."""
    steps = set(seeds[0]).intersection(*seeds[1:])
    return {step: fmean(losses[step] for losses in seeds) for step in sorted(steps)}


def log_ratios(row: Sequence[Losses], base: Losses) -> list[float] | None:
    """log r_s of each seed; None where base's curve and that of a seed have no known crossing."""
    ratios = []
    for losses in row if base else ():
        level = max(min(curve.values()) for curve in (base, losses))
        own, of_base = crossing(losses, level), crossing(base, level)
        if own is None or of_base is None:
            return None
        ratios.append(math.log(own / of_base))
    return ratios or None


def steps_to_base(row: Sequence[Losses], base: Sequence[Losses]) -> tuple[float, Estimate | None] | None:
    """The mean of log r_s, and its estimate if both have several seeds that vary; None where it is not known."""
    if (ratios := log_ratios(row, mean_losses(base))) is None:
        return None
    value, S, B = fmean(ratios), len(ratios), len(base)
    left_out = [log_ratios(row, mean_losses([*base[:i], *base[i + 1 :]])) for i in range(B)] if B > 1 else []
    means = [fmean(ratios) for ratios in left_out if ratios]
    if S == 1 or B == 1 or len(means) < B:
        return value, None
    parts = SeedVariance(variance_of(ratios) / S, S - 1), SeedVariance((B - 1) ** 2 / B * variance_of(means), B - 1)
    estimate = Estimate(value, parts, 0.0)
    return value, estimate if estimate.standard_error else None


def why_unknown(row: Row, base: Row) -> str:
    """Why the steps to base's loss are not known; empty where nothing speaks against them."""
    if not all(known.losses and all(known.losses) for known in (row, base)):
        return "the losses of validations are not in all results"
    if row.dataset != base.dataset:
        return "the text of the validations is another one"
    if row.vocabulary != base.vocabulary or not row.has_tokens_of(base):
        return "the tokens are others"
    if not (row.ends_anywhere and base.ends_anywhere):
        return "a learning rate that depends on the last step makes the beginning of a training no shorter training"
    return ""


def steps_contrasts(rows: Sequence[Row], base: Row | None) -> dict[str, list[Contrast]]:
    """By outcome, each row beside base. Differences are those of logarithms."""
    contrasts: dict[str, list[Contrast]] = {STEPS.key: [], FLOPS.key: []}
    for row in rows:
        found, cost, unknown = None, None, ""
        if base and any(base.losses) and row is not base and not (unknown := why_unknown(row, base)):
            found, cost = steps_to_base(row.losses, base.losses), _log_cost(row, base)
            unknown = "" if found else "the losses do not meet between two validations"
        for outcome, more in ((STEPS, 0.0), (FLOPS, cost)):
            contrast = Contrast(row, outcome, unknown=unknown)
            if found and more is not None:
                value, estimate = found[0] + more, found[1]
                contrast = replace(contrast, difference=value, estimate=estimate and estimate._replace(value=value))
            contrasts[outcome.key].append(contrast)
    return contrasts


def _log_cost(row: Row, base: Row) -> float | None:
    """The logarithm of the FLOPs of a step beside those of base; None where they are not known."""
    return math.log(row.step_flops / base.step_flops) if row.step_flops and base.step_flops else None
