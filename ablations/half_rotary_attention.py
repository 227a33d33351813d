"""Rotary positions in half of each head, as in Marin (github.com/marin-community/marin, experiments/grug). The other
half compares query and key wherever they stand. Black et al. 2022 (arXiv:2204.06745) turn a quarter. Meant for a model
without positions of its own: with `ablations.no_position.NoPosition`."""

import torch
from torch import Tensor

from ablations.rotary_attention import RotaryAttention


class HalfRotaryAttention(RotaryAttention):
    """Rotary attention that turns the first d_k / 2 numbers of each query and key, and leaves the others."""

    def _turn(self, Q: Tensor, K: Tensor, start: int) -> tuple[Tensor, Tensor]:
        half = Q.shape[-1] // 2
        turned_Q, turned_K = super()._turn(Q[..., :half], K[..., :half], start)
        return torch.cat([turned_Q, Q[..., half:]], -1), torch.cat([turned_K, K[..., half:]], -1)
