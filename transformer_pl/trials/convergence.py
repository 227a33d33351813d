"""Convergence: whether a training still learned when its steps ended.

The validation loss is that of the weights that would be scored, which decode.average may average. Late in a training it
is close to a line over the logarithm of the step, because the learning rate of equation 3 falls as a power of the step.
A line is fitted to the validations of the last two fifths of the steps. Its slope is the median of the slopes between
all pairs of them (Theil 1950, Sen 1968), which one bad validation does not move. The fall is what this line loses over
the last fifth, from 0.8 T to T steps:

    loss = a + b log(step),     fall = -b log(T / 0.8 T),

in nats per token. A fall of 0.01 nats is 1 % of the perplexity. The fall is not taken as a share of the loss, because
the loss depends on how well a text can be predicted at best. Where a curve bends, the line falls somewhat more than the
curve, so that in doubt a row is called unconverged.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_pl.trials.records import ConvergenceRecord
from transformer_pl.trials.result import Result

FITTED = 0.4  # the share of the steps, at their end, whose validations the line goes through
FALLEN = 0.2  # the share of the steps, at their end, over which the fall is taken
LIMIT = 0.01  # nats per token: a training that falls by more has not converged
NOISES = 2  # a fall must also exceed this many standard errors
TURNED = 0.9  # a best validation up to this share of the steps shows that the others were of no use


class Convergence(NamedTuple):
    """How far the validation loss still fell at the end of a training, or of a row on the mean of its seeds."""

    fall: float  # nats per token over the last fifth of the steps; negative where the loss rose
    noise: float | None  # the standard error of the fall; None with two validations, which a line meets exactly
    validations: int  # how many the line goes through, over all seeds
    scored: float = 1.0  # the share of the steps after which the weights are scored (`decode.select`)

    @property
    def still_falls(self) -> bool:
        """Whether the training had not converged: it fell by more than LIMIT, and by more than its noise explains.

        If the validation with the lowest loss is scored, and lies before the last tenth, later steps were of no use.
        """
        return self.scored > TURNED and self.fall > max(LIMIT, NOISES * (self.noise or 0.0))

    def as_record(self) -> ConvergenceRecord:
        """The fields, as result.json has them."""
        return ConvergenceRecord(fall=self.fall, noise=self.noise, validations=self.validations)

    @property
    def share(self) -> float:
        """The fall as a share of the perplexity."""
        return -math.expm1(-self.fall)


def validation_losses(lines: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """The loss of each validation during a training, by step. lines: those of the metrics file."""
    return {line["step"]: line["val/loss"] for line in lines if "val/loss" in line and line["kind"] == "validation"}


def convergence(losses: Mapping[int, float], steps: int) -> Convergence | None:
    """How far the loss of a training still fell at its end; None where that is not known.

    It is not known with fewer than two validations in the last two fifths, or with an infinite loss there.

    losses: of each validation, by step.
    steps: how many steps the model was trained.
    """
    late = {step: loss for step, loss in losses.items() if steps - step < FITTED * steps + 0.5}
    if len(late) < 2 or not all(map(math.isfinite, late.values())):
        return None
    x, y = [math.log(step) for step in late], list(late.values())
    slope = statistics.median(
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(zip(x, y, strict=True), 2)
    )
    span = -math.log(1 - FALLEN)
    noise = None
    if len(late) > 2:
        rest = [loss - slope * at for at, loss in zip(x, y, strict=True)]
        spread = (len(x) - 1) * statistics.variance(x)
        noise = span * math.sqrt((len(x) - 1) * statistics.variance(rest) / (len(x) - 2) / spread)
    return Convergence(-slope * span, noise, len(late))


def trial_convergence(result: Result | None) -> Convergence | None:
    """How the training with this result ended; None where it is not known."""
    if not (result and result.convergence):
        return None
    return Convergence(**result.convergence, scored=result.scored_step / max(1, result.steps))


def mean_convergence(seeds: Sequence[Convergence | None]) -> Convergence | None:
    """The mean over the seeds of a row, as far as they are known."""
    known = [seed for seed in seeds if seed]
    if not known:
        return None
    noises = [seed.noise for seed in known if seed.noise is not None]
    return Convergence(
        statistics.fmean(seed.fall for seed in known),
        math.hypot(*noises) / len(known) if len(noises) == len(known) else None,
        sum(seed.validations for seed in known),
        statistics.fmean(seed.scored for seed in known),
    )
