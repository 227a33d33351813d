"""No positions at all: what is left of word order is what the causal mask lets the decoder see."""

from torch import Tensor, nn

from transformer_pl.config import Sizes


class NoPosition(nn.Module):
    """The embeddings as they are, in place of Section 3.5; see Haviv et al. 2022, arXiv:2203.16634."""

    def __init__(self, config: Sizes, site: str):
        super().__init__()

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return x
