"""The softmax and the dropout of the model, in forms that are faster on a CPU than torch's own.

Each says what it saves, measured on one core with AVX512 and torch 2.13 (`python tests/benchmarks/operations.py`).
Torch's own forms are the references that `tests/test_kernels.py` compares them with.
"""

from typing import Any

import torch
from torch import Tensor, nn

VECTOR = 16  # floats in a register: with fewer keys than this, torch's softmax works on one number at a time
CACHED = 2**18  # numbers that a CPU's cache holds


def rows_at_once(matrix: Tensor) -> int:
    """How many rows of a matrix to work on at once: as many as a CPU's cache holds; on a GPU all."""
    return len(matrix) if matrix.is_cuda else max(1, CACHED // matrix.shape[1])


def softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Softmax over the keys that a query may see; zeros for a query that may see nothing.

    scores (..., Lq, Lk); seen, broadcast to it, is True where a query may see a key. Below 16 keys on a CPU it is 3.5
    times as fast as torch's, forward and backward.
    """
    hidden = torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, torch.finfo(torch.float32).min)
    masked = scores + hidden  # in float32, whatever the scores are
    if scores.shape[-1] < VECTOR and not scores.is_cuda:
        weights = _ShortSoftmax.apply(masked, seen.float())
    else:
        weights = masked.softmax(-1) * seen.any(-1, keepdim=True)
    return weights.type_as(scores)


class _ShortSoftmax(torch.autograd.Function):
    """Softmax over the last axis, by operations that torch does on many rows at once. seen: 1 or 0 for each score."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, seen: Tensor) -> Tensor:
        # Below -80 the result is lost in float32's sum, but the processor is slow where an exponential underflows.
        weights = scores.sub(scores.amax(-1, keepdim=True)).clamp_(min=-80).exp_().mul_(seen)
        weights /= weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        weighted = gradient * weights
        return weighted.addcmul_(weights, weighted.sum(-1, keepdim=True), value=-1), None


class Dropout(nn.Dropout):
    """Dropout, Section 5.4. On a CPU its masks are drawn as 16 bits a number, four from each draw of the generator.

    So p is rounded to a multiple of 1/65536, and what is kept is scaled by the rounded rate. Twice as fast as torch's.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p or x.is_cuda:
            return super().forward(x)
        dropped = round(self.p * 2**16)
        draws = -(-x.numel() // 4)
        if torch.compiler.is_compiling():  # the same bits, by functions that torch can compile
            bits = torch.randint(-(2**63), 2**63 - 1, (draws,)) ^ -(2**63)
        else:
            bits = torch.empty(draws, dtype=torch.int64).random_(-(2**63), None)
        kept = bits.view(torch.int16)[: x.numel()].view(x.shape).float().ge_(dropped - 2**15)  # 1 where kept, else 0
        return x * kept.mul_(2**16 / max(1, 2**16 - dropped)).type_as(x)
