"""Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245): several heads share one key and one value head.

With one group it is multi-query attention (Shazeer 2019, arXiv:1911.02150), with h groups the paper's. As with Shazeer,
the encoder's self-attention shares keys, too; Ainslie et al. leave it as it is. Shazeer widens the feed-forward network
to keep the number of weights; here there are fewer. Ainslie et al. begin with a trained model (Section 2.1): `pooled`
keeps the weights of multi-head attention, and projects by their means; `PooledHeads` does so without training.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import CrossAttention, Mask, MultiHeadAttention, MultiHeadSelfAttention, Transformer, linear
from transformer_pl.runtime.errors import InputError
from transformer_pl.train.intervention import Intervention


def heads_by_group(weight: Tensor, groups: int, heads: int) -> Tensor:
    """The rows of W^K or W^V of so many heads: (groups, heads of each, d_k or d_v, d_model)."""
    if heads % groups:
        raise InputError(f"groups = {groups}: must divide the number of heads, h = {heads}")
    return weight.unflatten(0, (groups, heads // groups, -1))


class GroupedQueryAttention(MultiHeadAttention):
    """h heads of queries, and `groups` heads of keys and values; pooled: each of these is the mean of h / groups."""

    def __init__(self, config: Sizes, site: str, groups: Count = 2, pooled: bool = False):
        super().__init__(config, site)
        heads_by_group(self.W_K.weight, groups, config.h)
        self.groups, self.projected = groups, config.h if pooled else groups  # heads of W^K and W^V
        if not pooled:
            self.W_K: nn.Linear = linear(config.d_model, groups * config.d_k)
            self.W_V: nn.Linear = linear(config.d_model, groups * config.d_v)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, L, d_model) to keys and values (B, groups, L, d_k or d_v), which are what decoding caches."""
        return self._project(x, self.W_K.weight), self._project(x, self.W_V.weight)

    def _project(self, x: Tensor, weight: Tensor) -> Tensor:
        pooled = heads_by_group(weight, self.groups, self.projected).mean(1).flatten(0, 1)
        return F.linear(x, pooled).unflatten(-1, (self.groups, -1)).transpose(1, 2)

    def attend(self, x: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        heads = self.h // self.groups  # of each group
        return super().attend(x, K.repeat_interleave(heads, 1), V.repeat_interleave(heads, 1), mask, start)


class GroupedQuerySelfAttention(GroupedQueryAttention, MultiHeadSelfAttention):
    """In place of `model.self_attention`."""


class GroupedQueryCrossAttention(GroupedQueryAttention, CrossAttention):
    """In place of `model.cross_attention`."""


class PooledHeads(Intervention):
    """Each head of keys and values of a trained model becomes the mean of its group."""

    def __init__(self, groups: Count = 2):
        self.groups = groups

    def __call__(self, model: Transformer) -> None:
        for attention in model.modules():
            if isinstance(attention, MultiHeadAttention):
                for W in (attention.W_K, attention.W_V):
                    heads = heads_by_group(W.weight, self.groups, attention.h)
                    heads.copy_(heads.mean(1, keepdim=True).expand_as(heads))
