"""The laws of losses (`optim.loss`).

They are tested without dropout, but each pass of the model, and of a teacher, is another function: a term that compares
two of them is not zero. A loss that draws random numbers is averaged over SEEDS.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transformer_pl.config import PAD
from transformer_pl.data.batches import Batch
from transformer_pl.laws.law import HOLDS, Finding, broken
from transformer_pl.laws.small_training import SmallTraining
from transformer_pl.model.dry_run import check_names
from transformer_pl.model.loss import training_loss
from transformer_pl.model.slots import auxiliary_losses, tell_step

SEEDS = 32
SURE = 4  # standard errors that a mean must differ by
ROUNDING = 1e-4  # by how much a sum may differ, relatively, because its order does
MOVED = 0.3  # standard deviation of what is added to the embeddings, which have one of about 1


class Subject:
    """A loss with an untrained model, and a batch for it."""

    def __init__(self, training: SmallTraining):
        self.batch, self.model, (self.loss, teachers) = training.batch(), training.model().eval(), training.loss()
        tell_step(1, training.config.steps, self.loss)
        self.names = auxiliary_losses(self.loss).keys()
        self.passes, self.differ = 0, True  # in the batch; whether they are different functions
        for model in (self.model, *(teacher.model for teacher in teachers)):
            self._number(model)

    def _number(self, model: nn.Module) -> None:
        """Make the k-th pass of a batch another function than the first: the embeddings are moved by fixed noise k."""
        subject = self

        class Numbered(type(model)):  # type: ignore[misc]  # a copy of the model is one, too, with its own weights
            def states(self, *arguments: Any) -> Tensor:
                subject.passes += 1
                return super().states(*arguments)

            def _embed(self, *arguments: Any) -> Tensor:
                x = super()._embed(*arguments)
                numbered = torch.Generator().manual_seed(subject.passes if subject.differ else 1)
                return x + MOVED * torch.randn(x.shape[-1], generator=numbered).to(x.device)

        model.__class__ = Numbered

    def value(self, batch: Batch, seed: int = 0) -> Tensor:
        """The loss of a batch, auxiliary ones included, with the random numbers of a seed."""
        self.passes = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            loss = training_loss(self.loss, self.model, batch)
        check_names("it", self.names, self.loss)
        tokens = (batch.target_out != PAD).sum()
        return loss + tokens * sum(losses.values()) if (losses := auxiliary_losses(self.loss)) else loss

    @cached_property
    def seeds(self) -> Sequence[int]:
        """One, or several if the loss draws."""
        return range(1 if self.value(self.batch, 0) == self.value(self.batch, 1) else SEEDS)

    @torch.no_grad()
    def compared(self, *parts: Batch) -> tuple[float, float, bool]:
        """The loss of the batch, the sum of those of other batches, and whether they differ by more than chance."""
        counts = {(self.value(batch), self.passes)[1] for batch in (self.batch, *parts)}
        self.differ = len(counts) == 1  # a loss may take a batch in parts, each with a pass of its own
        whole = np.array([self.value(self.batch, seed).item() for seed in self.seeds])
        others = np.array([sum(self.value(part, seed).item() for part in parts) for seed in self.seeds])
        change = others - whole
        chance = SURE * change.std(ddof=1) / len(change) ** 0.5 if len(change) > 1 else 0.0
        return whole.mean(), others.mean(), abs(change.mean()) > max(chance, ROUNDING * abs(whole.mean()))

    def changed(self, columns: int = 0, rows: slice = slice(None)) -> Batch:
        """A copy of the batch with more columns of padding, or of some sentences. It counts its own tokens."""
        sides = [nn.functional.pad(side[rows].clone(), (0, columns), value=PAD) for side in self.batch[:3]]
        return Batch(sides[0], sides[1], sides[2], int((sides[2] != PAD).sum()))


def it_changes_nothing_of_its_batch(subject: Subject) -> Finding:
    """It changes nothing of the batch that it is given, such as its target."""
    subject.value(given := subject.changed())
    return HOLDS if all(map(torch.equal, given[:3], subject.batch[:3])) else broken("the batch is another one after it")


def it_returns_one_finite_number(subject: Subject) -> Finding:
    """It returns one finite number, a tensor without axes."""
    found = subject.value(subject.batch)
    is_number = isinstance(found, Tensor) and found.shape == () and bool(found.isfinite())
    return HOLDS if is_number else broken(f"it returns {found}")


def its_gradient_reaches_every_weight(subject: Subject) -> Finding:
    """It has a finite gradient, which reaches the model, and each weight of the loss itself.

    Usual cause: `detach`, `no_grad`, a root of zero, or a weight of the loss that it does not use.
    """
    found = subject.value(subject.batch)
    if not found.requires_grad:
        return broken("it has no gradient")
    own = [*subject.loss.parameters()] if isinstance(subject.loss, nn.Module) else []
    own, model = ([w for w in weights if w.requires_grad] for weights in (own, [*subject.model.parameters()]))
    gradients = torch.autograd.grad(found, [*own, *model], allow_unused=True)
    if not all(gradient is None or gradient.isfinite().all() for gradient in gradients):
        return broken("some gradients are not finite")
    if not any(gradient is not None and gradient.any() for gradient in gradients[len(own) :]):
        return broken("no weight of the model gets a gradient")
    return broken("some of its own weights get none") if any(g is None for g in gradients[: len(own)]) else HOLDS


def it_leaves_out_padding(subject: Subject) -> Finding:
    """It leaves out padding (target 0), in every term.

    Otherwise the loss of a sentence would depend on the longest one of its batch.

    Usual cause: no `ignore_index`, a mean over positions, or a term such as a divergence of two passes that counts
    padded positions (`real = batch.target_out != 0` finds the others).
    """
    (whole, few, differ), (_, many, differ_more) = (subject.compared(subject.changed(columns)) for columns in (3, 30))
    with_padding = f"it is {whole:.5g}, {few:.5g}, {many:.5g} with 0, 3 and 30 more padded positions"
    return broken(with_padding) if differ or differ_more else HOLDS


def it_is_a_sum_over_tokens(subject: Subject) -> Finding:
    """It is a sum over tokens: the loss of a batch is the sum of those of its sentences.

    Training divides it by the number of target tokens of the whole batch.

    Usual cause: a mean in the place of a sum, or a division by `batch.tokens` or by the number of sentences.
    """
    sentences = [subject.changed(rows=slice(i, i + 1)) for i in range(len(subject.batch.source))]
    whole, parts, differ = subject.compared(*sentences)
    return broken(f"it is {whole:.5g}, but {parts:.5g} as a sum over single sentences") if differ else HOLDS
