"""A convolutional layer in place of self-attention, Table 1's third row (Gehring et al. 2017, arXiv:1705.03122)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Cache, Mask


class ConvolutionalLayer(nn.Module):
    """A convolution over `kernel` positions with a gated linear unit: centred in the encoder, causal in the decoder.

    Padding counts as zeros. Decodes from a cache: the last kernel - 1 inputs. Weights are drawn as torch draws them;
    the source draws them 3.5 times as large, and normalises them.
    """

    table_1 = ("k n d²", "1", "n / k")

    def __init__(self, config: Sizes, site: str, kernel: Count = 3):
        super().__init__()
        self.before = kernel - 1 if site == "decoder" else kernel // 2
        self.after = kernel - 1 - self.before
        self.convolution = nn.Conv1d(config.d_model, 2 * config.d_model, kernel)

    def forward(self, x: Tensor, mask: Mask, start: int = 0, cache: Cache | None = None) -> Tensor:
        if mask.keys is not None:
            x = x.masked_fill(~mask.keys[:, :, None], 0)
        x = torch.cat([cache["x"], x], 1) if cache else F.pad(x, (0, 0, self.before, self.after))
        if cache is not None:
            cache["x"] = x[:, x.shape[1] - self.before :]
        return F.glu(self.convolution(x.mT), 1).mT
