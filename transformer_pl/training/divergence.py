"""When numbers are no longer finite: a training that diverges, and what is written in place of an infinite number."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Diverged(Exception):
    """A training whose numbers are not finite at this step: its loss, the weights after it, or what these decode with.

    That is its result: it ends there.
    """

    def __init__(self, step: int):
        super().__init__(f"diverged at step {step}: the loss, the weights or the outputs are not finite")
        self.step = step


@contextmanager
def decoding_after(step: int) -> Iterator[None]:
    """Weights that are finite, and have a finite loss, may be too large to decode with: Diverged, in place of an error.

    Beam search raises a FloatingPointError for probabilities that are not finite.
    """
    try:
        yield
    except FloatingPointError as error:
        raise Diverged(step) from error


def perplexity(loss: float) -> float:
    """Of a loss in nats per piece; infinite where that is more than a float can hold (a loss above 709)."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def finite_or_none(value: Any) -> Any:
    """JSON has no infinity and no nan: null stands for both."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def metrics_to_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: finite_or_none(value) for name, value in metrics.items()}


def metrics_from_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What `metrics_to_json` wrote. Only a perplexity is infinite while its trial goes on: null is read as that."""
    return {name: math.inf if value is None else value for name, value in metrics.items()}
