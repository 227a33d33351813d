"""Attention of linear cost: a kernel in place of the softmax (Katharopoulos et al. 2020, arXiv:2006.16236)."""

from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import Mask


def phi(x: Tensor) -> Tensor:
    """The feature map elu(x) + 1 of queries and keys: positive, and in fp32, as their running sums are."""
    return nn.functional.elu(x.float()) + 1


class LinearAttention(nn.Module):
    """phi(Q) (phi(K)^T V) over its norm: O(n d_k d_v) a head.

    Under a causal mask, every query has the sums of the keys up to its own position.
    """

    table_1 = ("n d² / h", "1", "1")

    def __init__(self, config: Sizes, site: str):
        super().__init__()

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        q, k, v = phi(Q), phi(K), V.float()
        if mask.keys is not None:
            k = k.masked_fill(~mask.keys[:, None, :, None], 0)
        if mask.causal:
            upto = slice(start, start + Q.shape[2])
            sums = (k[..., None] * v[..., None, :]).cumsum(2)[:, :, upto]  # (B, h, Lq, d_k, d_v)
            out, norm = (q[..., None, :] @ sums)[..., 0, :], (q * k.cumsum(2)[:, :, upto]).sum(-1, keepdim=True)
        else:
            out, norm = q @ (k.mT @ v), q @ k.sum(2, keepdim=True).mT
        return (out / norm.clamp(min=1e-6)).type_as(V)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        products = (phi(Q) @ phi(K).mT).masked_fill(~mask.dense(Q, K, start), 0)
        return products / products.sum(-1, keepdim=True).clamp(min=1e-6)
