"""Stochastic depth (Huang et al. 2016, arXiv:1603.09382): in training, sub-layers are left out at random.

Pham et al. 2019 (arXiv:1904.13377) brought it to Transformers. Fan et al. 2020 (arXiv:1909.11556) leave out all layers
at one rate. Here, as with Huang et al., the probability rises linearly with the depth, from `rate` / N in
the first of N layers to `rate` in the last. As with Pham et al., an output that remains is divided by the probability
that it remains, and evaluation uses all sub-layers as they are.

Each sub-layer is drawn for each sentence by itself; Huang et al. draw once for a mini-batch, Pham et al. once for a
mini-batch and a whole layer. It is computed also where it is left out, so training gets no
faster. `rate` is 0.2 here, as with Fan et al.; Huang et al. have 0.5. Initialisation is that of the paper.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import Rate, Site, Sizes
from transformer_pl.model import PostNormResidual


class StochasticDepth(PostNormResidual):
    """LayerNorm(x + b / (1 - p) Dropout(Sublayer(x))), where b of a sentence is 0 with probability p = rate i / N.

    i is the layer, from 1.
    """

    def __init__(self, config: Sizes, site: Site, rate: Rate = 0.2):
        super().__init__(config, site)
        N = config.N_encoder if site == "encoder" else config.N_decoder
        self.p = rate * ((site.layer or 0) + 1) / N

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        kept = F.dropout(x.new_ones(len(x), 1, 1), self.p, self.training)  # 0 or 1 / (1 - p) for each sentence
        return super().forward(x, lambda x: sublayer(x) * kept)
