"""A mixture of softmaxes in place of one (Yang et al. 2018, arXiv:1711.03953)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import Count, Sizes
from transformer_pl.model import SharedEmbedding, linear


class MixtureOfSoftmaxes(SharedEmbedding):
    """log(sum over k of pi_k softmax(W tanh(W_k x + b_k))), as the logits, with pi = softmax(x W_pi).

    W is the matrix of the embeddings. There are `components` softmaxes (15 in the source), whose
    logits exist at once.
    """

    def __init__(self, config: Sizes, site: None, components: Count = 3):
        super().__init__(config, site)
        self.components = components
        self.W_k = linear(config.d_model, components * config.d_model, bias=True)
        self.W_pi = linear(config.d_model, components)

    def logits(self, x: Tensor) -> Tensor:
        contexts = self.W_k(x).tanh().unflatten(-1, (self.components, -1))  # (B, L, components, d_model)
        log_p = F.linear(contexts, self.weight).log_softmax(-1)
        log_pi = self.W_pi(x).log_softmax(-1)
        return torch.logsumexp(log_p + log_pi.unsqueeze(-1), -2)  # (B, L, V)
