"""Rotary positions: queries and keys turned by an angle that grows with their position (Su et al. 2021,
arXiv:2104.09864). Meant for a model without positions of its own: with `ablations.no_position.NoPosition`."""

import torch
from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention


class RotaryAttention(ScaledDotProductAttention):
    """Equation (1) on turned Q and K, so that a score depends on the distance. Cross-attention stays as it is."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.turns = site != "cross"

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().forward(*self._turn(Q, K, start), V, mask, start)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().weights(*self._turn(Q, K, start), mask, start)

    def _turn(self, Q: Tensor, K: Tensor, start: int) -> tuple[Tensor, Tensor]:
        return (_turned(Q, start), _turned(K, 0)) if self.turns else (Q, K)


def _turned(x: Tensor, start: int) -> Tensor:
    """x (B, h, L, d) from position start on; numbers 2i and 2i + 1 turn together. An odd last one stays."""
    pairs = x.shape[-1] // 2
    i = torch.arange(pairs, device=x.device)
    angle = torch.arange(start, start + x.shape[2], device=x.device)[:, None] / 10000 ** (2 * i / x.shape[-1])
    cos, sin = angle.cos().type_as(x), angle.sin().type_as(x)  # (L, pairs)
    a, b = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([turned, x[..., 2 * pairs :]], -1)
