"""Section 5.3: the optimizer, and the schedule of its learning rate."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from transformer_pl.config import Optim, Sizes
from transformer_pl.config.components import build, build_groups, import_component, optimizer_options
from transformer_pl.model.slots import Grouping
from transformer_pl.runtime.errors import InputError


class InverseSquareRoot:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), equation (3); the first step is step 1."""

    def __init__(self, config: Sizes, optim: Optim):
        self.d_model, self.warmup = config.d_model, optim.warmup

    def __call__(self, step: int) -> float:
        return self.d_model**-0.5 * min(step**-0.5, step * self.warmup**-1.5)


def build_optimizer(
    optim: Optim, config: Sizes, model: nn.Module, others: Iterable[tuple[str, nn.Parameter]] = ()
) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer of a model's weights, and torch's scheduler: the rate of a step is lr_scale times the schedule's.

    An optimizer is built as torch's are: `Class(parameters, lr, **options)`. `optim.beta1`, `beta2` and `eps` become
    its betas and eps where its constructor takes these and its options do not name them. A class may have a static
    method `groups(named_parameters, **options)`, which gets the options that it declares, and returns groups of
    parameters as torch's classes take them. The `lr` of a group is a factor, 1 unless it is given: the group's rate is
    the schedule's times this.

    optim: its max_steps is the number of steps of the trial.
    others: weights that are trained with the model's, by name, such as those of a loss.

    Raises an InputError for a class that is no optimizer of torch's, and for one with an `eval()`, which has other
    weights in evaluation.
    """
    named = [(name, weight) for name, weight in (*model.named_parameters(), *others) if weight.requires_grad]
    is_grouping = isinstance(import_component(optim.optimizer.path), Grouping)
    parameters = build_groups(optim.optimizer, named) if is_grouping else [weight for _, weight in named]
    optimizer = build(optim.optimizer, parameters, 1.0, **optimizer_options(optim))
    place = f"optim.optimizer = {optim.optimizer.path}"
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"{place}: must be derived from torch.optim.Optimizer; derive it")
    if callable(getattr(optimizer, "eval", None)):
        rule = "has other weights for evaluation, which this training does not ask for; choose one without eval()"
        raise InputError(f"{place}: {rule}")
    schedule = build(optim.schedule, config, optim)

    def rate(steps_done: int) -> float:
        step = min(steps_done + 1, optim.max_steps)
        return float(optim.lr_scale * schedule(step))  # a checkpoint with a number of numpy's cannot be loaded

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
