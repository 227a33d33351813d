"""A vector of zeros as the decoder's first input, as in the authors' code; Figure 1 says "shifted right"."""

from torch import Tensor

from transformer_pl.config import BOS
from transformer_pl.model import SharedEmbedding


class ZeroFirstInput(SharedEmbedding):
    """The shared matrix, without an embedding of the token for the beginning. Positions are added to the zeros."""

    def embed(self, ids: Tensor, site: str) -> Tensor:
        return super().embed(ids, site).masked_fill((ids == BOS)[..., None], 0)
