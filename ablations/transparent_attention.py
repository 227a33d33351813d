"""Transparent attention (Bapna et al. 2018, arXiv:1808.07561): each decoder layer reads all layers of the encoder.

Layer j of the decoder attends to the sum over i of s_ij h_i, where h_0 are the embeddings, h_i is the output of the
encoder's layer i, and s_j is the softmax of numbers that are learned, equal at first. If the encoder ends in a norm,
all h_i pass it. The source drops some of the s out in training; nothing is dropped here.
"""

import torch
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.config.components import with_own
from transformer_pl.model import CrossAttention, Mask, Transformer


class AttentionToAllLayers(CrossAttention):
    """Attention to a weighted sum of the encoder's layers."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.mix = nn.Parameter(torch.zeros(config.N_encoder + 1))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, (N_encoder + 1) L, d_model), of one layer after another."""
        layers = x.unflatten(1, (len(self.mix), -1))  # (B, N_encoder + 1, L, d_model)
        return super().keys_values(torch.einsum("n, b n l d -> b l d", self.mix.softmax(0).type_as(x), layers))


class TransparentAttention(Transformer):
    """The Transformer with this attention to the encoder's output."""

    def __init__(self, config: Sizes):
        super().__init__(with_own(config, "cross_attention", AttentionToAllLayers))

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        layers = [x]
        for layer in self.encoder:
            layers.append(layer(layers[-1], mask))
        return torch.cat(layers, 1)
