"""Lion (Chen et al. 2023, arXiv:2302.06675, Algorithm 2): the sign of a momentum. Its rate is below Adam's.

In a trial its betas are `optim.beta1` and `optim.beta2`, 0.9 and 0.98 by default. The source has 0.9 and 0.99, and 0.95
and 0.98 for language models; `optim.optimizer.betas` sets others.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Lion(torch.optim.Optimizer):
    """w <- w - lr (sign(beta1 m + (1 - beta1) g) + weight_decay w);  m <- beta2 m + (1 - beta2) g."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure else None
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["m"] = torch.zeros_like(weight)
                update = state["m"].lerp(weight.grad, 1 - beta1).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                state["m"].lerp_(weight.grad, 1 - beta2)
        return loss
