"""Pre-LN: the norm before each sub-layer and not after it (Wang et al. 2019, arXiv:1906.01787; Xiong et al. 2020,
arXiv:2002.04745)."""

from collections.abc import Callable

from torch import Tensor, nn

from transformer_pl.model import PostNormResidual


class PreNormResidual(PostNormResidual):
    """x + Dropout(Sublayer(LayerNorm(x))), and one norm more after the last layer of a stack."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x))).type_as(x)

    def final_norm(self) -> nn.Module:
        return nn.LayerNorm(self.norm.normalized_shape, eps=self.norm.eps)
