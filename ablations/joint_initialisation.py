"""W^Q, W^K and W^V of self-attention drawn as one matrix, as in the authors' code; Section 3.2.2 has three of them."""

import torch

from transformer_pl.config import Sizes
from transformer_pl.model import MultiHeadSelfAttention, linear


class JointInitialisation(MultiHeadSelfAttention):
    """The same equation from smaller weights: Glorot's distribution of [W^Q W^K W^V] has the outputs of all three.

    With d_k = d_v = d_model / h their deviation is that of each alone divided by sqrt(2).
    """

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        projections = (self.W_Q, self.W_K, self.W_V)
        widths = [W.out_features for W in projections]
        joint = linear(config.d_model, sum(widths)).weight
        with torch.no_grad():
            for W, part in zip(projections, joint.split(widths), strict=True):
                W.weight.copy_(part)
