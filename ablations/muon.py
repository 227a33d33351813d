"""Muon (Jordan 2024, kellerjordan.github.io/posts/muon): momentum whose matrices are made orthogonal; else Adam.

The Newton-Schulz iteration and its coefficients are of that text. Hidden matrices are Muon's, embeddings and vectors
Adam's, as there. Learned positions count as a hidden matrix, and kernels of convolutions are Adam's. An update has the
root mean square 0.2, as Adam's has about (Liu et al. 2025, arXiv:2502.16982), so that both take one rate.
"""

from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Two groups of parameters: hidden matrices, and all others."""

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @staticmethod
    def groups(named_parameters: list[tuple[str, Tensor]]) -> list[dict[str, Any]]:
        hidden = [p for name, p in named_parameters if p.ndim == 2 and not name.startswith("embedding")]
        others = [p for name, p in named_parameters if p.ndim != 2 or name.startswith("embedding")]
        return [{"params": hidden, "orthogonal": True}, {"params": others, "orthogonal": False}]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure else None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                update = (self._muon if group["orthogonal"] else self._adam)(weight, group)
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
        return loss

    def _muon(self, weight: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[weight]
        if not state:
            state["m"] = torch.zeros_like(weight)
        state["m"].mul_(group["momentum"]).add_(weight.grad)
        update = orthogonal(weight.grad.add(state["m"], alpha=group["momentum"]))
        return update * 0.2 * max(update.shape) ** 0.5

    def _adam(self, weight: Tensor, group: dict[str, Any]) -> Tensor:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            state.update(step=0, m=torch.zeros_like(weight), v=torch.zeros_like(weight))
        state["step"] += 1
        state["m"].lerp_(weight.grad, 1 - beta1)
        state["v"].lerp_(weight.grad.square(), 1 - beta2)
        corrected = state["v"] / (1 - beta2 ** state["step"])
        return state["m"] / (1 - beta1 ** state["step"]) / (corrected.sqrt() + group["eps"])


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """A matrix with the same singular vectors, and singular values near 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    X = matrix / (matrix.norm() + 1e-7)
    wide = X if X.shape[0] <= X.shape[1] else X.mT
    for _ in range(steps):
        A = wide @ wide.mT
        wide = a * wide + (b * A + c * A @ A) @ wide
    return wide if X.shape[0] <= X.shape[1] else wide.mT
