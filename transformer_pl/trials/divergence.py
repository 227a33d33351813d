"""Divergence: a training whose loss, weights or outputs are no longer finite."""

from collections.abc import Iterator
from contextlib import contextmanager


class Diverged(Exception):
    """The training diverged at this step: its loss, the weights after it, or their outputs are not finite.

    That is the trial's result. It is not trained further.
    """

    def __init__(self, step: int):
        super().__init__(f"diverged at step {step}: the loss, the weights or the outputs are not finite")
        self.step = step


@contextmanager
def diverged_if_not_finite(step: int) -> Iterator[None]:
    """Raise Diverged in place of beam search's FloatingPointError.

    Weights that are finite, with a finite loss, may still be too large to decode with.
    """
    try:
        yield
    except FloatingPointError as error:
        raise Diverged(step) from error
