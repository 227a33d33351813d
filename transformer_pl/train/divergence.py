"""Divergence: the error that ends a training. `TransformerModule` finds it during the training.

A training has diverged when its loss, its weights or what the model computes with them are not finite, or when the
schedule gives a learning rate that is not finite or is negative.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Diverged(Exception):
    """The training diverged at a step, which is the trial's result: it is not trained further."""

    def __init__(self, step: int):
        finite = "the loss, the weights, the outputs or the learning rate are not finite, or the rate is negative"
        super().__init__(f"diverged at step {step}: {finite}")
        self.step = step


def check_rates(rates: Iterable[float], step: int) -> None:
    """Raise Diverged if a learning rate of this step is not finite or is negative."""
    if not all(0 <= rate < math.inf for rate in rates):
        raise Diverged(step)


@contextmanager
def diverged_if_not_finite(step: int) -> Iterator[None]:
    """Raise Diverged in place of beam search's FloatingPointError.

    Weights that are finite, with a finite loss, may still be too large to decode with.
    """
    try:
        yield
    except FloatingPointError as error:
        raise Diverged(step) from error
