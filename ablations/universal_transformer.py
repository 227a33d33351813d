"""The Universal Transformer (Dehghani et al. 2019, arXiv:1807.03819): one layer a stack, told position and step.

Before each of its N steps the encodings of position and of step are added to the state, both sinusoidal. The number of
steps is fixed: nothing halts earlier. Use it with `model.position=ablations.no_position.NoPosition`, because the first
step adds the positions.
"""

from typing import Any

from torch import Tensor

from ablations.shared_layers import SharedLayers
from transformer_pl.model import Mask, SinusoidalPosition


class UniversalTransformer(SharedLayers):
    """x_t = Layer(x_(t-1) + PE(position) + PE(t)), t from 1."""

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        for step, layer in enumerate(self.encoder, 1):
            x = layer(with_coordinates(x, 0, step), mask)
        return x

    def decoder_stack(self, x: Tensor, mask: Mask, memory: Any, memory_mask: Mask, start: int, caches: Any) -> Tensor:
        for step, (layer, keys_values, cache) in enumerate(zip(self.decoder, memory, caches, strict=True), 1):
            x = layer(with_coordinates(x, start, step), mask, keys_values, memory_mask, start, cache)
        return x


def with_coordinates(x: Tensor, start: int, step: int) -> Tensor:
    """x (B, L, d_model) with the encodings of its positions, from start on, and of a step."""
    L, d_model = x.shape[1:]
    positions = SinusoidalPosition.encoding(start, start + L, d_model, x.device)
    return x + (positions + SinusoidalPosition.encoding(step, step + 1, d_model, x.device)).type_as(x)
