"""Hyper-connections (Zhu et al. 2024, arXiv:2409.19606): n streams in place of one residual, with learned connections.

The state H (n, d_model) of a position begins as n copies of its embedding. A sub-layer reads a weighted sum of the
streams, h = A_m^T H; then H = A_r^T H + B^T Sublayer(LayerNorm(h)). After the last layer comes the LayerNorm of the sum
of all streams (equations 2 to 5). The norm is before the sub-layer, so compare the row with
ablations.pre_norm.PreNormResidual, which it equals at first: B = (1, ..., 1), A_r is the identity, and A_m takes the
stream k mod n at sub-layer k of a stack, counted from 0 (equation 14).

With `dynamic` the weights depend on the streams, too: s tanh(norm(H) W) is added to them, where W begins at zero, and s
at 0.01 (equations 10 to 13). The source multiplies the initial W^O and W_2 by sqrt(n), which is left out here.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ablations.pre_norm import PreNormResidual
from transformer_pl.config import Count, Site, Sizes


class SumOfStreams(nn.LayerNorm):
    """LayerNorm of the sum of streams (B, L, n, d_model): (B, L, d_model)."""

    def forward(self, streams: Tensor) -> Tensor:
        return super().forward(streams.sum(2))


class HyperConnections(PreNormResidual):
    """H = A_r^T H + B^T Dropout(Sublayer(LayerNorm(A_m^T H))), of H (B, L, n, d_model)."""

    def __init__(self, config: Sizes, site: Site, streams: Count = 4, dynamic: bool = False):
        super().__init__(config, site)
        layer, sublayer = site.layer or 0, site.sublayer or 0
        sublayers = 3 if site == "decoder" and config.N_encoder else 2
        self.streams, self.dynamic = streams, dynamic
        one, read = torch.eye(streams), (layer * sublayers + sublayer) % streams
        self.connections = nn.Parameter(torch.cat([one[:, [read]], one, torch.ones(streams, 1)], 1))  # A_m, A_r, B
        if dynamic:
            self.norm_of_streams = nn.LayerNorm(config.d_model, eps=1e-6)
            self.W = nn.Parameter(torch.zeros(config.d_model, streams + 2))
            self.s = nn.Parameter(torch.full((2,), 0.01))  # of A_m and A_r, and of B

    def forward(self, H: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if H.dim() == 3:  # the embeddings
            H = H[:, :, None].expand(-1, -1, self.streams, -1)
        weights = self.connections  # (n, n + 2)
        if self.dynamic:
            s = torch.cat([self.s[:1].expand(self.streams + 1), self.s[1:]])
            weights = weights + s * (self.norm_of_streams(H) @ self.W).tanh()  # (B, L, n, n + 2)
        A, B = weights[..., :-1, None], weights[..., -1:]
        mixed = torch.stack([A[..., i, :, :] * H[:, :, i, None] for i in range(self.streams)]).sum(0)
        output = self.dropout(sublayer(self.norm(mixed[:, :, 0]))).type_as(H)
        return mixed[:, :, 1:] + B * output[:, :, None]

    def final_norm(self) -> nn.Module:
        return SumOfStreams(self.norm.normalized_shape, eps=self.norm.eps)
