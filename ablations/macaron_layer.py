"""Macaron layers (Lu et al. 2019, arXiv:1906.02762): half a step of a feed-forward network before the attention, and
half a step of another one after it.

In the letters of Section 3, and with its residual, a layer of the encoder is x = LayerNorm(x + FFN_1(x) / 2), then
x = LayerNorm(x + SelfAttention(x)), then x = LayerNorm(x + FFN_2(x) / 2). In the decoder both attentions are between
the two networks. As in the source, each network has half of d_ff, so a layer has as many weights as the paper's, one
norm and d_model biases aside. Initialisation is that of the paper's layers.
"""

from torch import Tensor, nn

from transformer_pl.config import Site, Sizes
from transformer_pl.config.components import build
from transformer_pl.model import Cache, DecoderLayer, EncoderLayer, Mask, Transformer


def residuals(config: Sizes, site: str, layer: int, sublayers: int) -> nn.ModuleList:
    """One residual for each sub-layer."""
    return nn.ModuleList(build(config.residual, config, Site(site, layer, sublayer)) for sublayer in range(sublayers))


class MacaronEncoderLayer(EncoderLayer):
    """FFN_1, self-attention, FFN_2."""

    def __init__(self, config: Sizes, layer: int = 0):
        half = config._replace(d_ff=(config.d_ff + 1) // 2)
        super().__init__(half, layer)
        self.first_ffn = build(config.ffn, half, Site("encoder", layer))
        self.residual = residuals(config, "encoder", layer, 3)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        x = self.residual[0](x, lambda x: self.first_ffn(x) / 2)
        x = self.residual[1](x, lambda x: self.self_attention(x, mask))
        return self.residual[2](x, lambda x: self.ffn(x) / 2)


class MacaronDecoderLayer(DecoderLayer):
    """FFN_1, self-attention, attention to the encoder's output, FFN_2."""

    def __init__(self, config: Sizes, layer: int = 0):
        half = config._replace(d_ff=(config.d_ff + 1) // 2)
        super().__init__(half, layer)
        self.first_ffn = build(config.ffn, half, Site("decoder", layer))
        self.residual = residuals(config, "decoder", layer, 4 if config.N_encoder else 3)

    def forward(
        self, x: Tensor, mask: Mask, memory: tuple[Tensor, ...], memory_mask: Mask, start: int, cache: Cache | None
    ) -> Tensor:
        x = self.residual[0](x, lambda x: self.first_ffn(x) / 2)
        x = self.residual[1](x, lambda x: self.self_attention(x, mask, start, cache))
        if self.cross_attention is not None:
            x = self.residual[2](x, lambda x: self.cross_attention(x, memory, memory_mask))
        return self.residual[-1](x, lambda x: self.ffn(x) / 2)


class MacaronLayers(Transformer):
    """The Transformer of these layers."""

    encoder_layer = MacaronEncoderLayer
    decoder_layer = MacaronDecoderLayer
