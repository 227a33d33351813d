"""Sinusoids as the authors' code has them: all sines, then all cosines, up to the wavelength 2π · 10000 itself."""

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_pl.model import SinusoidalPosition


class SinesThenCosines(SinusoidalPosition):
    """PE(pos, i) = sin(pos / 10000^(i / (n - 1))), PE(pos, n + i) = cos of the same, with n = d_model / 2.

    Of an odd d_model the last number is 0.
    """

    @staticmethod
    def encoding(start: int, stop: int, d_model: int, device: torch.device | None = None) -> Tensor:
        n = d_model // 2
        wavelength = 10000 ** (torch.arange(n, device=device) / max(1, n - 1))  # over 2π
        angle = torch.arange(start, stop, device=device)[:, None] / wavelength
        return F.pad(torch.cat([angle.sin(), angle.cos()], -1), (0, d_model % 2))
