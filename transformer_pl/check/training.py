"""Checks of an optimizer, a schedule and a loss of the user's: a few steps of a small model, in a child process."""

import math
from collections.abc import Iterable
from typing import Any

from transformer_pl.config import PAD, Config, Model, Optim, not_papers, sizes
from transformer_pl.runtime.errors import InputError, collect_errors
from transformer_pl.runtime.isolated import isolated

SMALL = Model(N=1, d_model=16, d_ff=32, h=2)
VOCABULARY, STEPS = 40, 3


def check_training(configs: Iterable[Config]) -> None:
    """Check what trains the models of these configs, where it is not the default. Raises one InputError for all."""

    def check(optim: Optim) -> None:
        own = not_papers(optim)
        if own:
            isolated(", ".join(f"optim.{slot} = {one.path}" for slot, one in own.items()), _train, optim)

    collect_errors(check, dict.fromkeys(one.optim.model_copy(update={"max_steps": one.steps}) for one in configs))


def _train(optim: Optim) -> None:
    """Train for STEPS, and measure what every optimizer, schedule and loss must keep."""
    import torch

    from transformer_pl.config.components import build
    from transformer_pl.model import Transformer
    from transformer_pl.model.loss import training_loss
    from transformer_pl.model.optimizer import build_optimizer

    def broken(slot: str, law: str) -> InputError:
        return InputError(f"optim.{slot} = {getattr(optim, slot).path}: {law}; fix it")

    config = sizes(SMALL, VOCABULARY)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        schedule: Any = build(optim.schedule, config, optim)
        rates = [schedule(step) for step in (1, 2, math.ceil(optim.max_steps / 2), optim.max_steps)]
        if not all(isinstance(rate, float | int) and 0 <= rate < math.inf for rate in rates):
            raise broken("schedule", f"must give a finite rate of at least 0 for each step, but gives {rates}")
        model, loss = Transformer(config), build(optim.loss, config, optim)
        source, target = torch.randint(4, VOCABULARY, (2, 3, 7))
        target[0, 4:] = PAD
        states = model.states(source, target)
        value = training_loss(loss, model.embedding, states, target)
        if value.shape != () or not value.isfinite():
            raise broken("loss", f"must return one finite number, but returns {value}")
        moved = states.detach().clone()
        moved[0, 4:] += 1
        if not torch.allclose(training_loss(loss, model.embedding, moved, target), value, rtol=1e-5):
            raise broken("loss", "must leave out padding (target 0), but changes with the logits at it")
        by_sentence = sum(training_loss(loss, model.embedding, states[i : i + 1], target[i : i + 1]) for i in range(3))
        if not torch.allclose(torch.as_tensor(by_sentence), value, rtol=1e-4):
            raise broken("loss", "must be a sum over tokens, but differs from the sum over single sentences")
        if "optimizer" not in not_papers(optim):
            return
        optimizer, _ = build_optimizer(optim, config, model)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise broken("optimizer", "must be derived from torch.optim.Optimizer, but is not")
        before = [weight.detach().clone() for weight in model.parameters()]
        for _ in range(STEPS):
            optimizer.zero_grad()
            training_loss(loss, model.embedding, model.states(source, target), target).backward()
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())  # as a checkpoint does
        calls = []

        def closure() -> float:
            calls.append(1)
            return 0.0

        optimizer.step(closure)  # as Lightning calls it
        if not calls:
            raise broken("optimizer", "step(closure) must call closure(), which computes the gradients, but does not")
        weights = list(model.named_parameters())
        if bad := [name for name, weight in weights if not weight.isfinite().all()]:
            raise broken("optimizer", f"must keep weights finite, but {bad[0]} is not after {STEPS} steps at rate 1")
        if still := [name for (name, weight), old in zip(weights, before, strict=True) if torch.equal(weight, old)]:
            raise broken("optimizer", f"must train every weight, but {still[0]} has not changed")
