"""Divergence: where it is found, and the error that ends a training.

A training has diverged when its loss, its weights or what the model computes with them are not finite, or when the
schedule gives a learning rate that is not finite or is negative.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import lightning as L
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Diverged(Exception):
    """The training diverged at a step, which is the trial's result: it is not trained further."""

    def __init__(self, step: int):
        finite = "the loss, the weights, the outputs or the learning rate are not finite, or the rate is negative"
        super().__init__(f"diverged at step {step}: {finite}")
        self.step = step


class DivergenceWatch(L.Callback):
    """Remembers the first step on this rank whose loss was not finite, and compares it with the other ranks'."""

    def __init__(self) -> None:
        self._first_step = torch.tensor(math.inf)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._first_step = self._first_step.to(module.device)

    def on_before_backward(self, trainer: L.Trainer, module: L.LightningModule, loss: Tensor) -> None:
        """Remember the step if its loss is not finite. No step waits for a GPU: this is only a tensor operation."""
        first = self._first_step.clamp(max=trainer.global_step + 1)
        self._first_step = torch.where(loss.isfinite(), self._first_step, first)

    def check(self, trainer: L.Trainer, tensors: Iterable[Tensor]) -> None:
        """Raise Diverged on every rank if on any rank an earlier loss, or one of these tensors now, is not finite.

        The error names the first step that is known to have diverged. Call it on every rank, and not at every step: it
        waits for the device.
        """
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
        finite = torch.stack([tensor.isfinite().all() for tensor in local]).all()
        first = torch.where(finite, self._first_step, self._first_step.clamp(max=trainer.global_step))
        step = trainer.strategy.reduce(first, reduce_op="min").item()
        if math.isfinite(step):
            raise Diverged(int(step))


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
