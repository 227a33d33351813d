"""Segment-level recurrence and relative positions: Transformer-XL (Dai et al. 2019, arXiv:1901.02860).
Its model has no positions of its own: `model.position=ablations.no_position.NoPosition`. Table 6 of the source takes
either part away."""

import heapq
import itertools

import numpy as np
import torch
from torch import Tensor, nn

from transformer_pl.config import Natural, Sizes
from transformer_pl.data.batches import TrainStream
from transformer_pl.data.tokens import Split
from transformer_pl.model import (
    Cache,
    Mask,
    MultiHeadSelfAttention,
    ScaledDotProductAttention,
    SinusoidalPosition,
    linear,
    softmax,
)


class TransformerXLAttention(ScaledDotProductAttention):
    """softmax((Q K^T + Q R^T + u K^T + v R^T) / sqrt(d_k)) V, R = W_R PE(i - j) by distance; Section 3.3.

    u and v are learned, for each layer, as an option of the authors' code has it.
    """

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.d_model, self.W_R = config.d_model, None
        if site != "cross":  # where there is no distance
            self.W_R = linear(config.d_model, config.h * config.d_k)
            self.u, self.v = (nn.Parameter(0.02 * torch.randn(config.h, 1, config.d_k)) for _ in range(2))

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().forward(Q, K, V, mask, start) if self.W_R is None else self.weights(Q, K, mask, start) @ V

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        if self.W_R is None:
            return super().weights(Q, K, mask, start)
        (B, h, Lq, d_k), Lk = Q.shape, K.shape[2]
        least = start - Lk + 1  # of the distances
        PE = SinusoidalPosition.encoding(least, start + Lq, self.d_model, Q.device)  # (distances, d_model)
        R = self.W_R(PE.type_as(self.W_R.weight)).unflatten(-1, (h, d_k)).transpose(0, 1)  # (h, distances, d_k)
        i, j = (torch.arange(first, first + n, device=Q.device) for first, n in ((start, Lq), (0, Lk)))
        by_distance = ((Q + self.v) @ R.mT).gather(-1, (i[:, None] - j - least).expand(B, h, Lq, Lk))
        return softmax(((Q + self.u) @ K.mT + by_distance) * d_k**-0.5, mask.dense(Q, K, start))


class SegmentMemory(MultiHeadSelfAttention):
    """Self-attention whose keys and values are those of [SG(m), x]: m are its last `memory` inputs; Section 3.2.

    No gradient flows into m. The attention must know positions by their distance alone.
    """

    carries = True

    def __init__(self, config: Sizes, site: str, memory: Natural = 64):
        super().__init__(config, site)
        self.memory, self.before, self.after = memory, dict[str, Tensor](), dict[str, Tensor]()

    def carry(self, state: dict[str, Tensor]) -> None:
        self.before = state

    def carried(self) -> dict[str, Tensor]:
        return self.after

    def forward(self, x: Tensor, mask: Mask, start: int = 0, cache: Cache | None = None) -> Tensor:
        m = self.before.get("m", x[:, :0]).type_as(x)  # (B, M, d_model)
        known = self.before.get("known", torch.ones(m.shape[:2], dtype=torch.bool, device=x.device))
        keys = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask.keys is None else mask.keys
        whole, keys = torch.cat([m, x], 1), torch.cat([known, keys], 1)
        first = max(0, whole.shape[1] - self.memory)
        self.after = {"m": whole[:, first:].detach(), "known": keys[:, first:]} if mask.causal else {}
        if not self.before:
            return super().forward(x, mask, start, cache)
        return self.attend(x, *self.keys_values(whole), Mask(keys, mask.causal), m.shape[1])


class ConsecutiveBatches(TrainStream):
    """Row b of a batch goes on where row b of the batch before has ended; where a document ends, another begins.

    A batch has batch_tokens / max_length rows. Each document comes once before any comes again, in an order that is
    drawn anew.
    """

    consecutive = True

    def epoch_batches(self, split: Split, epoch: int) -> list[np.ndarray]:
        """All batches of the training, as rows end at different times."""
        first, steps, data = split.target.first_pieces, self.config.steps, self.config.data
        counts = np.diff(first, append=len(split.target)).tolist()
        rounds = (np.random.default_rng((self.config.seed, n)).permutation(len(first)) for n in itertools.count())
        documents = itertools.chain.from_iterable(rounds)
        ends = [(0, row) for row in range(data.batch_tokens // data.longest)]  # a heap: the step in which each is free
        batches = np.empty((steps, len(ends)), np.int32)
        while (step := ends[0][0]) < steps:
            row, document = ends[0][1], next(documents)
            end = step + counts[document]
            batches[step:end, row] = first[document] + np.arange(min(end, steps) - step)
            heapq.heapreplace(ends, (end, row))
        return list(batches)
