"""Register tokens: learned vectors that the encoder reads with the sentence (Darcet et al. 2024, arXiv:2309.16588).

That source has them for images. Burtsev et al. 2020 (arXiv:2006.11527) had them for translation before.
"""

import torch
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Mask, Transformer


class RegisterTokens(Transformer):
    """Registers stand before the sentence in all layers of the encoder, and the decoder does not see them.

    They have no position, and are drawn as large as embeddings are after the factor of Section 3.4; models of images
    draw them near zero.
    """

    def __init__(self, config: Sizes, registers: Count = 4):
        super().__init__(config)
        self.registers = nn.Parameter(torch.randn(registers, config.d_model)) if config.N_encoder else None

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        registers = self.registers.expand(len(x), -1, -1).type_as(x)
        if mask.keys is not None:
            mask = Mask(torch.cat([mask.keys.new_ones(registers.shape[:2]), mask.keys], 1))
        return super().encoder_stack(torch.cat([registers, x], 1), mask)[:, registers.shape[1] :]
