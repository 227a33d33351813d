"""The laws of losses: right ones keep them, and what would be wrong without a word is found."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.laws.rehearsals import Buffered, Loss, broken, each_law, of_parts, path
from transformer_pl.laws import losses
from transformer_pl.laws.law import laws_of
from transformer_pl.train.teacher import Teacher

# ---------------------------------------------------------------------------------------------------------------------
# Right ones


class Noisy(Loss):
    def __call__(self, logits, target):
        return super().__call__(logits, target) * (1 + 1e-3 * torch.rand(()))


class NoisyLogits(Loss):
    # draws for each position, so that padding changes what it draws, and not its mean
    def __call__(self, logits, target):
        return super().__call__(logits + 0.1 * torch.randn_like(logits), target)


class InHalves(Loss):
    # takes a batch in parts, each with a pass of its own
    def of_batch(self, model, batch):
        halves = zip(*(side.chunk(2) for side in batch[:3]), strict=True)
        return sum(self(model(source, target_in), target_out) for source, target_in, target_out in halves)


class TwoPasses:
    # with dropout its loss is random

    def __init__(self, config, optim):
        pass

    def of_batch(self, model, batch):
        first, second = (model(batch.source, batch.target_in)[batch.target_out != 0] for _ in range(2))
        return F.cross_entropy(first, batch.target_out[batch.target_out != 0], reduction="sum") + (
            (first - second).square().sum()
        )


# ---------------------------------------------------------------------------------------------------------------------
# Wrong ones


class Detached(Loss):
    def __call__(self, logits, target):
        return super().__call__(logits.detach(), target)


class DetachedWeighted(nn.Module):
    # its own weight learns, the model does not
    def __init__(self, config, optim):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, logits, target):
        logits = logits.detach() * self.temperature
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")


class NoGradient(Loss):
    def __call__(self, logits, target):
        return super().__call__(logits, target) + (logits.sum() * 0).abs().sqrt()


class Unused(Buffered):
    def __init__(self, config, optim):
        super().__init__(config, optim)
        self.forgotten = nn.Parameter(torch.ones(()))


class Padded(Loss):
    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


class NoisyPadded(Noisy):
    def __call__(self, logits, target):
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        return loss * (1 + 1e-3 * torch.rand(()))


class CountsPadding(TwoPasses):
    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in).transpose(1, 2)
        return F.cross_entropy(logits, batch.target_out, reduction="sum")


class Divergence(TwoPasses):
    # counts padding, in a term that is zero where both passes are equal
    def of_batch(self, model, batch):
        first, second = (model(batch.source, batch.target_in) for _ in range(2))
        loss = F.cross_entropy(first.flatten(0, 1), batch.target_out.flatten(), ignore_index=0, reduction="sum")
        return loss + F.kl_div(first.log_softmax(-1), second.softmax(-1), reduction="sum")


class Distilled(Loss):
    # the teacher's term counts padding
    def __init__(self, config, optim, teacher: Teacher):
        self.teacher = teacher

    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in)
        wanted = self.teacher(batch.source, batch.target_in).softmax(-1)
        divergence = F.kl_div(logits.log_softmax(-1), wanted, reduction="sum")
        return self(logits, batch.target_out) + divergence


class Mean(Loss):
    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)


class MeanOfBatch(TwoPasses):
    def of_batch(self, model, batch):
        return super().of_batch(model, batch) / len(batch.source)


class ByTokens(Loss):
    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in)
        return self(logits, batch.target_out) / batch.tokens


class BatchMean(TwoPasses):
    def of_batch(self, model, batch):
        real = batch.target_out != 0
        first, second = (model(batch.source, batch.target_in)[real] for _ in range(2))
        loss = F.cross_entropy(first, batch.target_out[real], reduction="sum")
        return loss + F.kl_div(first.log_softmax(-1), second.softmax(-1), reduction="batchmean")


class Vector(Loss):
    def __call__(self, logits, target):
        return super().__call__(logits, target)[None]


class ChangesItsTarget(Loss):
    def __call__(self, logits, target):
        loss = super().__call__(logits, target)
        target[:, -1] = 0
        return loss


class ChangesTheBatch(TwoPasses):
    def of_batch(self, model, batch):
        batch.target_in[:, 0] = 3
        return super().of_batch(model, batch)


def keys_of(loss):
    teacher = {"optim.loss.teacher": "0123456789ab"} if loss is Distilled else {}
    return {"optim.loss": path(loss)} | teacher


@pytest.mark.parametrize("loss", [Noisy, NoisyLogits, InHalves, TwoPasses, Buffered])
def test_a_right_loss_breaks_no_law(row, tmp_path, loss):
    found = of_parts(row(keys_of(loss)), tmp_path)
    assert found and not broken(found)


BROKEN = [
    (Vector, "it_returns_one_finite_number"),
    *((loss, "its_gradient_reaches_every_weight") for loss in (Detached, DetachedWeighted, NoGradient, Unused)),
    *((loss, "it_leaves_out_padding") for loss in (Padded, CountsPadding, NoisyPadded, Divergence, Distilled)),
    *((loss, "it_is_a_sum_over_tokens") for loss in (Mean, MeanOfBatch, ByTokens, BatchMean)),
    *((loss, "it_changes_nothing_of_its_batch") for loss in (ChangesItsTarget, ChangesTheBatch)),
]


@each_law(BROKEN)
def test_a_loss_breaks_its_law(row, tmp_path, part, law):
    found = of_parts(row(keys_of(part)), tmp_path)
    assert found[law].is_broken and found[law].how


def test_every_law_of_losses_can_be_broken():
    assert {law for _, law in BROKEN} == laws_of(losses).keys()
