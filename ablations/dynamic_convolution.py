"""Lightweight and dynamic convolutions in place of self-attention (Wu et al. 2019, arXiv:1901.10430).

A linear layer with a gate, a convolution of each feature over time, and a linear layer. The features of a head have one
kernel, which a softmax normalises. No weights of kernels are dropped. Centred in the encoder, causal in the decoder.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Cache, Mask, linear


class LightweightConvolution(nn.Module):
    """W_O LightConv(GLU(W_I x)): the kernel of a head is the same at all positions. Decodes from a cache."""

    table_1 = ("k n d + n d²", "1", "n / k")

    def __init__(self, config: Sizes, site: str, kernel: Count = 7):
        super().__init__()
        self.h, self.kernel = config.h, kernel
        self.before = kernel - 1 if site == "decoder" else kernel // 2
        self.W_I, self.W_O = linear(config.d_model, 2 * config.d_model), linear(config.d_model, config.d_model)
        self._make_kernels(config)

    def _make_kernels(self, config: Sizes) -> None:
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(self.h, self.kernel)))

    def kernels(self, x: Tensor) -> Tensor:
        """The kernels before their softmax, (h, kernel), or (B, L, h, kernel) from x (B, L, d_model)."""
        return self.weight

    def forward(self, x: Tensor, mask: Mask, start: int = 0, cache: Cache | None = None) -> Tensor:
        x = F.glu(self.W_I(x), -1)
        if mask.keys is not None:
            x = x.masked_fill(~mask.keys[:, :, None], 0)
        kernels = self.kernels(x).softmax(-1).unsqueeze(-2)  # (..., h, 1, kernel)
        padded = F.pad(x, (0, 0, self.before, self.kernel - 1 - self.before))
        x = torch.cat([cache["x"], x], 1) if cache else padded
        if cache is not None:
            cache["x"] = x[:, x.shape[1] - self.before :]
        windows = x.unfold(1, self.kernel, 1).unflatten(2, (self.h, -1))  # (B, L, h, d_model / h, kernel)
        return self.W_O((windows * kernels).sum(-1).flatten(2))


class DynamicConvolution(LightweightConvolution):
    """W_O DynamicConv(GLU(W_I x)): a linear layer computes the kernels at each position from what stands there."""

    def _make_kernels(self, config: Sizes) -> None:
        self.W_kernel = linear(config.d_model, self.h * self.kernel)

    def kernels(self, x: Tensor) -> Tensor:
        return self.W_kernel(x).unflatten(-1, (self.h, self.kernel))
