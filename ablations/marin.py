"""Features of Marin that share a slot, together (github.com/marin-community/marin, issue 9288): sweeps/marin.yaml."""

from ablations.exclusive_attention import ExclusiveAttention
from ablations.gated_attention import GatedAttention
from ablations.grouped_query_attention import GroupedQueryAttention
from ablations.half_rotary_attention import HalfRotaryAttention
from ablations.rotary_attention import RotaryAttention
from ablations.short_convolution import ShortConvolutionSelfAttention
from transformer_pl.config import Sizes
from transformer_pl.model import MultiHeadSelfAttention, linear


class ExclusiveRotaryAttention(ExclusiveAttention, RotaryAttention):
    """Exclusive self-attention with rotary positions."""


class ExclusiveHalfRotaryAttention(ExclusiveAttention, HalfRotaryAttention):
    """Exclusive self-attention with rotary positions in half of each head."""


class GatedGroupedSelfAttention(GroupedQueryAttention, GatedAttention, MultiHeadSelfAttention):
    """Two groups of heads that share keys and values, and a gate for each head."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.W_G = linear(config.d_model, config.h)


class ConvolvedSelfAttention(ShortConvolutionSelfAttention, GatedGroupedSelfAttention):
    """Two groups of heads, a gate for each head, and short convolutions of keys and values."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
