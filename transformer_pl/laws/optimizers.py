"""The laws of optimizers (`optim.optimizer`): twice a few steps of a small model, each time on other sentences."""

from typing import Any

import torch

from transformer_pl.laws.law import HOLDS, Finding, broken, untested
from transformer_pl.laws.small_training import STEPS, SmallTraining
from transformer_pl.model.loss import smoothed_loss
from transformer_pl.model.optimizer import build_optimizer
from transformer_pl.model.slots import auxiliary_losses, tell_step

UPDATES = 10  # steps, each with a rate as high as the schedule ever gives


class Subject:
    """An optimizer after some steps on some sentences, and after as many on others, at the schedule's highest rate."""

    def __init__(self, training: SmallTraining):
        self.accumulate = training.config.trainer.accumulate
        self.before = {name: weight for name, weight in training.model().named_parameters() if weight.requires_grad}
        self.without = set(self.before)  # gradient
        self.after = [self._stepped(training, part) for part in (1, 0)]

    def _stepped(self, training: SmallTraining, part: int) -> dict[str, torch.Tensor]:
        """The weights after the steps."""
        model, batch, config = training.model(), training.batch(part), training.config
        self.gradients = 0
        self.optimizer, schedule = build_optimizer(config.optim, training.shape, model)
        rate = max(schedule.lr_lambdas[0](step) for step in range(min(STEPS, config.steps)))
        weights: dict[str, torch.Tensor] = dict(model.named_parameters())

        @torch.enable_grad()  # as Lightning's: `step` may run without gradients
        def closure() -> Any:
            self.gradients += 1
            self.optimizer.zero_grad()
            loss = smoothed_loss(model.embedding, model.states(batch.source, batch.target_in), batch.target_out, 0.1)
            (loss / batch.tokens + sum(auxiliary_losses(model).values())).backward()
            self.without -= {name for name, weight in weights.items() if weight.grad is not None and weight.grad.any()}
            return loss.detach()

        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate
        for step in range(UPDATES):
            tell_step(step + 1, config.steps, self.optimizer)
            self.optimizer.step(closure)
        return weights


def it_changes_every_weight_by_its_gradient(subject: Subject) -> Finding:
    """It changes every weight that requires a gradient, and by its gradient: with other sentences to other numbers.

    To keep a weight as it is, set its `requires_grad` to False.

    Usual cause: `groups` that leave weights out, a `step` that does not call `closure`, or one that changes nothing.
    """
    if not subject.gradients:
        return broken(f"no gradient was computed in {UPDATES} steps")
    one, other = subject.after
    for name in sorted(subject.before.keys() - subject.without):
        if torch.equal(one[name], subject.before[name]):
            return broken(f"{name} has not changed in {UPDATES} steps")
        if torch.equal(one[name], other[name]):
            return broken(f"{name} has changed alike with other sentences, whatever its gradient was")
    return HOLDS


def the_lr_of_a_group_is_a_factor(subject: Subject) -> Finding:
    """The `lr` of a group is a factor of the rate that the schedule gives."""
    factors = [group["initial_lr"] for group in subject.optimizer.param_groups]
    notes = [f"the rate of group {n} is {by:g} times that of the schedule" for n, by in enumerate(factors) if by != 1]
    return Finding("holds", "; ".join(notes))


def with_accumulate_it_computes_one_gradient_a_step(subject: Subject) -> Finding:
    """With trainer.accumulate, which splits a batch, it computes one gradient of each part in a step."""
    if subject.accumulate == 1:
        return untested("trainer.accumulate is 1")
    several = f"it computes {subject.gradients / UPDATES:g} gradients a step; set trainer.accumulate=1"
    return broken(several) if subject.gradients > UPDATES else HOLDS
