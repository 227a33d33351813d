"""Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245): several heads share one key and one value head.

With one group it is multi-query attention (Shazeer 2019, arXiv:1911.02150), with h groups the paper's. As with Shazeer,
the encoder's self-attention shares keys, too; Ainslie et al. leave it as it is, and begin with a trained model. Shazeer
widens the feed-forward network to keep the number of weights; here there are fewer.
"""

from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import CrossAttention, Mask, MultiHeadAttention, MultiHeadSelfAttention, linear
from transformer_pl.runtime.errors import InputError


class GroupedQueryAttention(MultiHeadAttention):
    """h heads of queries, and `groups` heads of keys and values."""

    def __init__(self, config: Sizes, site: str, groups: Count = 2):
        super().__init__(config, site)
        if config.h % groups:
            raise InputError(f"groups = {groups}: must divide the number of heads, h = {config.h}")
        self.groups = groups
        self.W_K: nn.Linear = linear(config.d_model, groups * config.d_k)
        self.W_V: nn.Linear = linear(config.d_model, groups * config.d_v)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, L, d_model) to keys and values (B, groups, L, d_k or d_v), which are what decoding caches."""
        K, V = (W(x).unflatten(-1, (self.groups, -1)).transpose(1, 2) for W in (self.W_K, self.W_V))
        return K, V

    def attend(self, x: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        heads = self.h // self.groups  # of each group
        return super().attend(x, K.repeat_interleave(heads, 1), V.repeat_interleave(heads, 1), mask, start)


class GroupedQuerySelfAttention(GroupedQueryAttention, MultiHeadSelfAttention):
    """In place of `model.self_attention`."""


class GroupedQueryCrossAttention(GroupedQueryAttention, CrossAttention):
    """In place of `model.cross_attention`."""
