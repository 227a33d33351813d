"""A recurrent layer in place of self-attention, Table 1's second row: an LSTM (Hochreiter and Schmidhuber 1997)."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import Cache, Mask


class RecurrentLayer(nn.Module):
    """An LSTM of width d_model: bidirectional in the encoder (half the width each way), left to right in the decoder.

    Decodes from a cache: the state after the prefix. Padding must stand at the end, as in every batch here. Autocast is
    off, because a CPU without AVX512 has no LSTM in bfloat16, and a GPU takes float16 for it. Weights are drawn as
    torch draws them.
    """

    table_1 = ("n d²", "n", "n")

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        back = config.d_model // 2 if site == "encoder" else 0
        self.onward = nn.LSTM(config.d_model, config.d_model - back, batch_first=True)
        self.back = nn.LSTM(config.d_model, back, batch_first=True) if back else None

    def forward(self, x: Tensor, mask: Mask, start: int = 0, cache: Cache | None = None) -> Tensor:
        state = (cache["h"][None], cache["c"][None]) if cache else None
        out, (h, c) = _without_autocast(self.onward, x, state)
        if cache is not None:
            cache.update(h=h[0], c=c[0])
        return out if self.back is None else torch.cat([out, self._backward(x, mask)], -1)

    def _backward(self, x: Tensor, mask: Mask) -> Tensor:
        """From the last piece of each sentence to its first; padding keeps its place."""
        B, L, _ = x.shape
        lengths = torch.full((B, 1), L, device=x.device) if mask.keys is None else mask.keys.sum(1, keepdim=True)
        turned = (lengths - 1 - torch.arange(L, device=x.device)) % L  # (B, L), its own inverse
        rows = torch.arange(B, device=x.device)[:, None]
        return _without_autocast(self.back, x[rows, turned])[0][rows, turned]


def _without_autocast(lstm: Any, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> Any:
    kind = x.device.type
    with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():  # not on meta
        return lstm(x.type_as(next(lstm.parameters())), state)
