"""Section 5.3: the optimizer, and the schedule of its learning rate."""

from typing import Any

import torch
from torch import nn

from transformer_pl.config import Optim, Sizes
from transformer_pl.config.components import build, import_component


class InverseSquareRoot:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), equation (3); the first step is step 1."""

    def __init__(self, config: Sizes, optim: Optim):
        self.d_model, self.warmup = config.d_model, optim.warmup

    def __call__(self, step: int) -> float:
        return self.d_model**-0.5 * min(step**-0.5, step * self.warmup**-1.5)


def build_optimizer(optim: Optim, config: Sizes, model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer of a model's weights, and torch's scheduler: the rate of a step is lr_scale times the schedule's.

    An optimizer has the form of torch's: `Class(parameters, lr, **options)`. `optim.beta1`, `beta2` and `eps` are its
    betas and eps where it has these and the options do not name them. A class may have a static method
    `groups(named_parameters)`, which returns groups of parameters as torch's classes take them; a group's lr multiplies
    the rate.

    optim: max_steps is the number of steps of the trial.
    """
    optimizer_class: Any = import_component(optim.optimizer.path)
    groups = getattr(optimizer_class, "groups", None)
    parameters = groups(list(model.named_parameters())) if groups else model.parameters()
    betas = (optim.beta1, optim.beta2)
    optimizer = build(optim.optimizer, parameters, 1.0, betas=betas, eps=optim.eps, fused=True)
    schedule = build(optim.schedule, config, optim)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: optim.lr_scale * schedule(min(done + 1, optim.max_steps))
    )
