"""Stochastic depth with the norm before each sub-layer, as in Pham et al. 2019 (arXiv:1904.13377)."""

from ablations.pre_norm import PreNormResidual
from ablations.stochastic_depth import StochasticDepth


class StochasticDepthPreNorm(StochasticDepth, PreNormResidual):
    """x + b / (1 - p) Dropout(Sublayer(LayerNorm(x))), where b of a sentence is 0 with probability p = rate i / N."""
