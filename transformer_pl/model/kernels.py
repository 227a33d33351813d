"""Attention, small products, softmax and dropout, in the forms that are fastest on the device at hand.

Their docstrings say how much faster they are than torch's own forms, measured on one core with AVX512 and torch 2.13
(`python tests/benchmarks/operations.py`). `tests/model/test_kernels.py` compares the results with those of torch.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VECTOR = 16  # floats in a register: with fewer keys than this, torch's softmax works on one number at a time
SMALL = 400  # multiplications: with fewer of them in each product of a batch, torch computes one number at a time
SAFE = 60.0  # exponentials of numbers from -60 to 60, and sums of 15 of them, neither overflow nor underflow
CACHED = 2**18  # numbers that a CPU's cache holds


def set_up_gpu() -> None:
    """Let a GPU compute float32 without TF32, even if its container image has chosen TF32, and attention without cuDNN.

    Since 2.11 torch prefers cuDNN's attention on an H100, but that takes a second to plan each new pair of lengths.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # of convolutions and LSTMs
    torch.backends.cuda.enable_cudnn_sdp(False)


def rows_at_once(matrix: Tensor) -> int:
    """How many rows of a matrix to work on at once: as many as a CPU's cache holds; on a GPU all."""
    return len(matrix) if matrix.is_cuda else max(1, CACHED // matrix.shape[1])


def fused_where_faster(equation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute a method that is equation (1) by torch's fused kernel where that is faster, else as it is written.

    The kernel is faster on a GPU, and on a CPU in float32 from 16 keys on.
    """

    @wraps(equation)
    def attention(self: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Any, start: int = 0) -> Tensor:
        Lq, Lk = Q.shape[-2], K.shape[-2]
        if not Q.is_cuda and (Lk < VECTOR or Q.dtype != torch.float32):
            return equation(self, Q, K, V, mask, start)
        causal = mask.causal if Lq > 1 else False  # one query alone is the last position, and sees the whole prefix
        if mask.keys is None and (not causal or Lq == Lk):  # without a mask tensor it is the fastest
            return F.scaled_dot_product_attention(Q, K, V, is_causal=causal)
        return F.scaled_dot_product_attention(Q, K, V, mask.dense(Q, K, start))  # zeros for a query that sees nothing

    return attention


def product(A: Tensor, B: Tensor) -> Tensor:
    """A @ B for batches of matrices, A (..., n, k) and B (..., k, m).

    On a CPU, small matrices are enlarged by columns or rows of zeros: below a certain size, torch computes a product
    one number at a time. With 32 heads of 2 numbers and 11 tokens this is twice as fast, forward and backward.
    """
    (n, k), m = A.shape[-2:], B.shape[-1]
    is_one_row = n == 1  # as in decoding, which is fast as it is
    if _is_eager_on_cpu(A) and A.dtype == torch.float32 and not is_one_row:
        if k <= m and (zeros := _zeros_to_add(k, n * m)):
            return F.pad(A, (0, zeros)) @ F.pad(B, (0, 0, 0, zeros))
        if m < k and (zeros := _zeros_to_add(m, n * k)):
            return (A @ F.pad(B, (0, zeros)))[..., :m]
    return A @ B


def _zeros_to_add(size: int, others: int) -> int:
    """How many zeros `product` adds to a side of `size` numbers. others: the product of the two other sides."""
    enough = -(-SMALL // others)
    return enough - size if size < enough <= 4 * size else 0  # beyond four times the size it does not pay


def softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Softmax over the keys that a query may see; zeros for a query that may see nothing.

    scores (..., Lq, Lk); seen, broadcast to it, is True where a query may see a key. Below 16 keys on a CPU it is five
    times as fast as torch's, forward and backward.
    """
    precise = scores.float()
    if _is_eager_on_cpu(scores) and scores.shape[-1] < VECTOR:
        weights = _ShortSoftmax.apply(precise, seen)
    else:
        weights = _hidden(precise, seen).softmax(-1) * seen.any(-1, keepdim=True)
    return weights.type_as(scores)


class _ShortSoftmax(torch.autograd.Function):
    """Softmax over the last axis, by operations that torch does on many rows at once."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, seen: Tensor) -> Tensor:
        low, high = scores.aminmax()
        if not (low > -SAFE and high < SAFE):  # else no maximum needs to be subtracted, which takes half of the time
            hidden = _hidden(scores, seen)
            # Below -80 the result is lost in float32's sum, but the processor is slow where an exponential underflows.
            scores = hidden.sub_(hidden.amax(-1, keepdim=True)).clamp_(min=-80)
        weights = scores.exp().mul_(seen)
        weights /= weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        weighted = gradient * weights
        return weighted.addcmul_(weights, weighted.sum(-1, keepdim=True), value=-1), None


def _hidden(scores: Tensor, seen: Tensor) -> Tensor:
    """The scores, with the lowest number of float32 added where a query may not see a key."""
    return scores + torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, torch.finfo(torch.float32).min)


def _is_eager_on_cpu(x: Tensor) -> bool:
    """Whether x is on a CPU and torch neither compiles nor counts FLOPs, so that code may depend on its numbers."""
    return not (x.is_cuda or x.is_meta or torch.compiler.is_compiling())


class Dropout(nn.Dropout):
    """Dropout, Section 5.4. On a CPU each number takes 16 random bits, so that one draw of the generator serves four.

    So p is rounded to a multiple of 1/65536, and what is kept is scaled by the rounded rate. This is twice as fast as
    torch's dropout.
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
