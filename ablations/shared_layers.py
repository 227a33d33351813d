"""Layers that share their weights: one layer, or a cycle of a few, is run several times.

With one layer it is the recurrence of the Universal Transformer (Dehghani et al. 2019, arXiv:1807.03819), without its
embedding of the step, and the sharing of ALBERT (Lan et al. 2020, arXiv:1909.11942). With `period` layers it is the
strategy CYCLE of Takase and Kiyono 2021 (arXiv:2104.06022). ALBERT also shares the attentions alone. Encoder and
decoder share nothing with each other, and initialisation is that of the paper's layers.
"""

from torch import nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Transformer


class SharedLayers(Transformer):
    """x_i = Layer_(i mod period)(x_(i-1)), i from 0: each stack has N layers, of which only `period` differ."""

    def __init__(self, config: Sizes, period: Count = 1):
        super().__init__(config)
        self.encoder, self.decoder = (
            nn.ModuleList(layers[i % period] for i in range(len(layers))) for layers in (self.encoder, self.decoder)
        )


class SharedAttentions(Transformer):
    """All layers of a stack have one self-attention, and all of the decoder one attention to the encoder's output.

    Each layer has a feed-forward network and norms of its own.
    """

    def __init__(self, config: Sizes):
        super().__init__(config)
        for layer in self.encoder:
            layer.self_attention = self.encoder[0].self_attention
        for layer in self.decoder:
            layer.self_attention = self.decoder[0].self_attention
            layer.cross_attention = self.decoder[0].cross_attention
