"""One layer for a whole stack, in the encoder or in the decoder alone: rows of Narang et al. 2021 (arXiv:2102.11972),
after ALBERT (Lan et al. 2020, arXiv:1909.11942). For both stacks see shared_layers.py."""

from torch import nn

from transformer_pl.config import Sizes
from transformer_pl.model import Transformer


class SharedEncoder(Transformer):
    """All layers of the encoder are one."""

    def __init__(self, config: Sizes):
        super().__init__(config)
        self.encoder = nn.ModuleList(self.encoder[0] for _ in self.encoder)


class SharedDecoder(Transformer):
    """All layers of the decoder are one."""

    def __init__(self, config: Sizes):
        super().__init__(config)
        self.decoder = nn.ModuleList(self.decoder[0] for _ in self.decoder)
