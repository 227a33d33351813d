"""Small models of the paper's kind, and two sentences for them."""

import torch
from torch import nn

from transformer_pl.config import Sizes, sizes
from transformer_pl.config.components import build
from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.batches import PAD
from transformer_pl.model import PostNormResidual, Transformer
from transformer_pl.trials.flops import Cost, forward_costs

SMALL = {"model.N": 2, "model.d_model": 24, "model.d_ff": 40, "model.h": 4, "model.p_drop": 0.0}
VOCABULARY = 31


def small(keys=None, vocab_size=VOCABULARY) -> Sizes:
    """Small sizes, all different from each other, with `keys` on top of them."""
    return sizes(resolve([Level("small", SMALL), Level("test", keys or {})]).model, vocab_size)


def batch(vocab_size=VOCABULARY):
    """Source (3, 7) and target (3, 6), one sentence of each padded."""
    torch.manual_seed(5)
    source, target = torch.randint(4, vocab_size, (3, 7)), torch.randint(4, vocab_size, (3, 6))
    source[1, 5:] = target[2, 3:] = PAD
    return source, target


def forward_cost(config: Sizes, *shape: int) -> Cost:
    """The cost of one forward pass. shape: sentences, tokens of source and of target."""
    return forward_costs([(config, *shape)])[0]


def built(config: Sizes) -> Transformer:
    torch.manual_seed(6)
    return build(config.architecture, config)


class NormOverTheBatch(PostNormResidual):
    """Makes a sentence depend on the others of its batch."""

    def __init__(self, config, site):
        super().__init__(config, site)
        self.norm = nn.BatchNorm1d(config.d_model)

    def forward(self, x, sublayer):
        return self.norm((x + sublayer(x)).flatten(0, 1)).view_as(x)
