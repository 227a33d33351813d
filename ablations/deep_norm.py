"""DeepNorm (Wang et al. 2022, arXiv:2203.00555): the input of a residual counts more, and weights begin smaller.

x_(l+1) = LayerNorm(alpha x_l + Sublayer(x_l)). W^V, W^O, W_1 and W_2 are drawn from Glorot's normal distribution with
the gain beta, W^Q and W^K with the gain 1 (Figure 2 of the source). With N layers in the encoder and M in the decoder,
the encoder has alpha = 0.81 (N^4 M)^(1/16) and beta = 0.87 (N^4 M)^(-1/16), the decoder alpha = (3 M)^(1/4) and
beta = (12 M)^(-1/4). A decoder alone has alpha = (2 M)^(1/4) and beta = (8 M)^(-1/4).
"""

from collections.abc import Callable

from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.config.components import with_own
from transformer_pl.model import PostNormResidual, Transformer


def alpha_beta(config: Sizes, site: str) -> tuple[float, float]:
    """The two constants of the encoder or the decoder."""
    N, M = config.N_encoder, config.N_decoder
    if site == "encoder":
        return 0.81 * (N**4 * M) ** (1 / 16), 0.87 * (N**4 * M) ** (-1 / 16)
    return ((3 * M) ** (1 / 4), (12 * M) ** (-1 / 4)) if N else ((2 * M) ** (1 / 4), (8 * M) ** (-1 / 4))


class DeepNormResidual(PostNormResidual):
    """LayerNorm(alpha x + Dropout(Sublayer(x)))."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.alpha, _ = alpha_beta(config, site)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(self.alpha * x + self.dropout(sublayer(x)).type_as(x))


class DeepNorm(Transformer):
    """The Transformer with this residual, and with all projections of its layers drawn anew."""

    def __init__(self, config: Sizes):
        super().__init__(with_own(config, "residual", DeepNormResidual))
        for site, layers in (("encoder", self.encoder), ("decoder", self.decoder)):
            for name, module in layers.named_modules():
                if isinstance(module, nn.Linear):
                    _, beta = alpha_beta(config, site)
                    nn.init.xavier_normal_(module.weight, 1.0 if name.endswith(("W_Q", "W_K")) else beta)
