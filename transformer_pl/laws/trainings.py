"""The laws of every training, whatever parts it has."""

from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer_pl.config import PAD
from transformer_pl.config.components import build, own_parts
from transformer_pl.data.batches import Batch
from transformer_pl.laws.law import HOLDS, Finding, broken, untested
from transformer_pl.laws.small_training import STEPS, Observer, SmallTraining
from transformer_pl.model.loss import training_loss
from transformer_pl.model.slots import tell_step
from transformer_pl.train.divergence import Diverged
from transformer_pl.train.random_numbers import random_state

ROUNDING = 1e-4  # by how much the loss of a step may differ, relatively, because its order of sums does


def it_is_trained_and_scored(training: SmallTraining) -> Finding:
    """It is trained, validated, saved, evaluated, decoded and scored."""
    try:
        return HOLDS if training.train("whole").steps else broken("no step is trained")
    except Diverged as error:
        return untested(f"it diverges at step {error.step} of the {STEPS} of a rehearsal")


def its_flops_are_known(training: SmallTraining) -> Finding:
    """It calls the model in whole passes, so that its FLOPs are known. Else a note says so."""
    observer = Observer.of.get("whole")
    if observer is None or observer.computed is None or observer.computed.is_whole:
        return HOLDS
    called = observer.otherwise or "states without their logits"
    return Finding("holds", f"its FLOPs are not known, as it calls the model otherwise than in whole passes: {called}")


def accumulate_changes_nothing(training: SmallTraining) -> Finding:
    """With `trainer.accumulate`, which makes no other trial, a step has the same sentences and the same loss.

    Usual cause: a loss or batches that count their calls, which are made for each part of a batch, in place of steps;
    or a `changed` that takes a share of what it is given.
    """
    if not own_parts(training.config).keys() & {"optim.loss", "data.batches"}:
        return untested("loss and batches are the core's")
    for step, (whole, parts) in enumerate(zip(_steps(training, 1), _steps(training, 2), strict=True), 1):
        with_two = f"at step {step} with trainer.accumulate=2, and"
        if parts.counts != whole.counts:
            return broken(
                f"{parts.counts[0]} sentences with {parts.counts[1]} tokens {with_two} {whole.counts} without"
            )
        if whole.draws or parts.draws:
            return untested("random numbers are drawn, which are others for parts of a batch")
        if abs(parts.loss - whole.loss) > ROUNDING * abs(whole.loss):
            return broken(f"the loss is {parts.loss:.5g} {with_two} {whole.loss:.5g} without")
    return HOLDS


class _Step(NamedTuple):
    loss: float
    counts: tuple[int, int]  # the sentences and target tokens
    draws: bool  # whether random numbers were drawn for it


def _steps(training: SmallTraining, accumulate: int) -> list[_Step]:
    """The first steps of an untrained model without dropout, with each batch in so many parts."""
    config, prepared = training.config.with_values({"trainer.accumulate": accumulate}), training.prepared
    stream = build(config.data.batches, prepared.split("train"), prepared.tokenizer, config)
    model, (loss, _) = training.model().eval(), training.loss()
    drawn: list[bool] = []

    def noted(changed: Any) -> Any:
        @wraps(changed)
        def notes(batch: Batch, generator: torch.Generator, *others: Any, **options: Any) -> Batch:
            before, found = generator.get_state(), changed(batch, generator, *others, **options)
            drawn.append(not torch.equal(before, generator.get_state()))
            return found

        return notes

    stream.changed = noted(stream.changed)
    parts, steps = iter(stream), []
    for step in range(1, min(STEPS, config.steps) + 1):
        tell_step(step, config.steps, model, loss)
        before, batches = _random_numbers(), [next(parts) for _ in range(accumulate)]
        total = sum(training_loss(loss, model, training.on_device(batch)).item() for batch in batches)
        targets = [batch.target_out != PAD for batch in batches]
        counts = sum(int(real.any(1).sum()) for real in targets), sum(int(real.sum()) for real in targets)
        steps.append(_Step(total, counts, any(drawn) or before != _random_numbers()))
    return steps


def _random_numbers() -> dict[str, Any]:
    """What the next random numbers depend on."""
    return {name: state.tolist() if isinstance(state, Tensor) else state for name, state in random_state().items()}
