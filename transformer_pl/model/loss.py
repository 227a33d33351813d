"""Cross-entropy of the next token: smoothed for training (Section 5.4), plain for perplexity.

Both take the embedding and the states that it projects to logits, and go through a batch in chunks of sentences: with
37,000 subwords and 25,000 tokens the logits alone take 3.7 GB in float32. In training, a GPU with enough memory takes a
whole batch at once.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import PAD, Optim, Sizes
from transformer_pl.model.kernels import rows_at_once
from transformer_pl.model.slots import LossOfBatch, LossOfStates

TOKENS_AT_ONCE = 2048  # tokens whose logits exist at once
LOGITS_AT_ONCE = 2**22  # logits whose logarithms exist at once: 16 MiB in float32


class SmoothedCrossEntropy:
    """Label-smoothed cross-entropy (Section 5.4), which never needs all logits at once."""

    def __init__(self, config: Sizes, optim: Optim):
        self.eps_ls, self.vocab_size = optim.eps_ls, config.vocab_size

    def of_states(self, embedding: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        return smoothed_loss(embedding, x, target, self.eps_ls, _tokens_at_once(x, self.vocab_size))


def training_loss(loss: Any, model: Any, batch: Any) -> Tensor:
    """The sum of a loss (`optim.loss`) over the target tokens of a batch, from a pass of the model, or of several.

    loss: a `LossOfBatch`, which calls the model itself; a `LossOfStates`, which need not have all logits at once; or a
    function of logits (B, L, V) and target (B, L), which may hold PAD.
    """
    if isinstance(loss, LossOfBatch):
        return loss.of_batch(model, batch)
    states, embedding = model.states(batch.source, batch.target_in), model.embedding
    if isinstance(loss, LossOfStates):
        return loss.of_states(embedding, states, batch.target_out)
    return loss(embedding.logits(states), batch.target_out)


def smoothed_loss(
    embedding: nn.Module, x: Tensor, target: Tensor, eps_ls: float, tokens: int = TOKENS_AT_ONCE
) -> Tensor:
    """The sum over tokens of the label-smoothed cross-entropy, in nats; padding is left out.

    The gradient of a chunk is computed while its logits exist.

    embedding: projects x (B, L, d_model) to logits. target: (B, L).
    eps_ls: the probability that is spread evenly over all V subwords (Szegedy et al. 2016; torch's variant).
    tokens: how many tokens' logits exist at once.
    """
    weights = [weight for weight in embedding.parameters() if weight.requires_grad]
    return _SmoothedLoss.apply(embedding.logits, x, target, eps_ls, tokens, *weights)


class _SmoothedLoss(torch.autograd.Function):
    """The forward pass computes the gradients too. The backward pass multiplies them by the gradient of the loss.

    project: maps x to logits.
    tokens: the most tokens of a chunk.
    weights: the weights of `project` that are trained.
    """

    @staticmethod
    def forward(
        ctx: Any, project: Any, x: Tensor, target: Tensor, eps_ls: float, tokens: int, *weights: Tensor
    ) -> Tensor:
        losses, x_gradients = [], []
        weight_gradients: list[Tensor | None] = [None for _ in weights]
        for chunk, chunk_target in _chunks(x.detach(), target, tokens):
            with torch.enable_grad():
                logits = project(chunk.requires_grad_()).flatten(0, 1)
            loss, logits_gradient = _loss_and_gradient(logits.detach(), chunk_target.flatten(), eps_ls)
            x_gradient, *new_gradients = torch.autograd.grad(
                logits, [chunk, *weights], logits_gradient, allow_unused=True
            )
            losses.append(loss)
            x_gradients.append(x_gradient)
            weight_gradients = [
                new if old is None else _sum(old, new) for old, new in zip(weight_gradients, new_gradients, strict=True)
            ]
        ctx.save_for_backward(torch.cat(x_gradients), *weight_gradients)
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_gradient, *weight_gradients = (None if saved is None else saved * gradient for saved in ctx.saved_tensors)
        return None, x_gradient, None, None, None, *weight_gradients


def _sum(old: Tensor, new: Tensor) -> Tensor:
    """The sum of two gradients, on a GPU in float32. Not in place: autograd may return one tensor for two weights."""
    return old + (new.float() if new.is_cuda else new)


def _loss_and_gradient(rows: Tensor, target: Tensor, eps_ls: float) -> tuple[Tensor, Tensor]:
    """The summed loss of logits (N, V), and its gradient by the logits: softmax less the smoothed target (N,)."""
    V, index = rows.shape[1], target.unsqueeze(1)  # (N, 1)
    real = (index != PAD).float()
    gradient = torch.empty_like(rows, dtype=torch.float32)
    losses = []
    block = rows_at_once(rows)
    for scores, out, true, weight in zip(*(x.split(block) for x in (rows, gradient, index, real)), strict=True):
        torch.sub(scores, scores.amax(-1, keepdim=True), out=out)
        expected = (1 - eps_ls) * out.gather(-1, true) + eps_ls / V * out.sum(-1, keepdim=True)
        total = out.exp_().sum(-1, keepdim=True)
        losses.append(((total.log() - expected) * weight).sum())
        out.mul_(weight / total).sub_(eps_ls / V * weight).scatter_add_(-1, true, (eps_ls - 1) * weight)
    return torch.stack(losses).sum(), gradient.type_as(rows)


def negative_log_likelihood(embedding: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The un-smoothed cross-entropy of every token in nats, (B, L); zero at padding. x (B, L, d_model)."""
    project: Any = embedding.logits
    nll = []
    for chunk, chunk_target in _chunks(x, target, TOKENS_AT_ONCE):
        rows = project(chunk).flatten(0, 1)
        size = max(1, LOGITS_AT_ONCE // rows.shape[1])  # F.cross_entropy takes three times the memory of its logits
        for logits, tokens in zip(rows.split(size), chunk_target.flatten().split(size), strict=True):
            nll.append(F.cross_entropy(logits.float(), tokens, ignore_index=PAD, reduction="none"))
    return torch.cat(nll).view_as(target)


def _tokens_at_once(x: Tensor, vocab_size: int) -> int:
    """TOKENS_AT_ONCE, or on a GPU as many as fit into a fifth of its memory, at 12 bytes for each logit."""
    if x.device.type != "cuda":
        return TOKENS_AT_ONCE
    return int(torch.cuda.get_device_properties(x.device).total_memory // (5 * 12 * vocab_size))


def _chunks(x: Tensor, target: Tensor, tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split x (B, L, d_model) and target (B, L) into chunks of sentences that have at most so many tokens together."""
    sentences = max(1, tokens // x.shape[1])
    return zip(x.split(sentences), target.split(sentences), strict=True)
