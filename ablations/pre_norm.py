"""Pre-LN: the norm before each sub-layer and not after it (Wang et al. 2019, arXiv:1906.01787; Xiong et al. 2020,
arXiv:2002.04745)."""

from collections.abc import Callable

from torch import Tensor, nn

from transformer_pl.config import Sizes


class PreNormResidual(nn.Module):
    """x + Dropout(Sublayer(LayerNorm(x))), and one norm more after the last layer of a stack."""

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=1e-6)
        self.dropout = nn.Dropout(config.p_drop)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x))).type_as(x)

    def final_norm(self) -> nn.Module:
        return nn.LayerNorm(self.norm.normalized_shape, eps=self.norm.eps)
