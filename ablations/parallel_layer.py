"""Layers whose sub-layers run in parallel: all read the same x, and their outputs are added.

The encoder's layer is that of GPT-J (Wang and Komatsuzaki 2021) and PaLM (Chowdhery et al. 2022, arXiv:2204.02311,
Section 2): y = x + FFN(LayerNorm(x)) + Attention(LayerNorm(x)). Both are decoders without a source. Here the decoder's
layer also has the attention to the encoder's output beside the other two, if there is an encoder, so no sub-layer of a
layer sees what another one has found. Initialisation is that of the paper's layers.

One residual is around the sum, so a layer has one norm and one dropout. The paper's residual puts the norm after the
sum; model.residual=ablations.pre_norm.PreNormResidual puts it before, as the equation above has it.
"""

from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.model import Cache, DecoderLayer, EncoderLayer, Mask, Transformer


class ParallelEncoderLayer(EncoderLayer):
    """Residual(x, SelfAttention(x) + FFN(x))."""

    def __init__(self, config: Sizes, layer: int = 0):
        super().__init__(config, layer)
        self.residual = self.residual[:1]

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        return self.residual[0](x, lambda x: self.self_attention(x, mask) + self.ffn(x))


class ParallelDecoderLayer(DecoderLayer):
    """Residual(x, SelfAttention(x) + CrossAttention(x) + FFN(x))."""

    def __init__(self, config: Sizes, layer: int = 0):
        super().__init__(config, layer)
        self.residual = self.residual[:1]

    def forward(
        self, x: Tensor, mask: Mask, memory: tuple[Tensor, ...], memory_mask: Mask, start: int, cache: Cache | None
    ) -> Tensor:
        def sublayers(x: Tensor) -> Tensor:
            attended = self.self_attention(x, mask, start, cache)
            if self.cross_attention is not None:
                attended = attended + self.cross_attention(x, memory, memory_mask)
            return attended + self.ffn(x)

        return self.residual[0](x, sublayers)


class ParallelLayers(Transformer):
    """The Transformer of these layers."""

    encoder_layer = ParallelEncoderLayer
    decoder_layer = ParallelDecoderLayer
