"""The stages of a rehearsal, each for a child process: laws of parts, and small trainings that are compared."""

from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from transformer_pl.config import Config
from transformer_pl.config.components import own_parts
from transformer_pl.data.excerpt import write_excerpt
from transformer_pl.laws import (
    callbacks,
    effects,
    losses,
    optimizers,
    resuming,
    schedules,
    tasks,
    tokenizers,
    trainings,
)
from transformer_pl.laws.law import Found, found, part_names
from transformer_pl.laws.small_training import Observer, SmallTraining
from transformer_pl.runtime.signals import Stopped

KINDS: dict[str, Any] = {"data.tokenizer": tokenizers, "data.task": tasks}  # by key, the laws that need no training
KINDS |= {"optim.loss": losses, "optim.optimizer": optimizers}


def of_parts(row: Config, runs: Path, folder: Path) -> tuple[SmallTraining, list[Found]]:
    """Write the small dataset, and test the laws of each part that need no training."""
    training, parts = SmallTraining(row, folder, write_excerpt(row.data, runs, folder)), own_parts(row)
    findings = schedules.findings(row)
    for key in [key for key in KINDS if key in parts]:
        findings += found(f"{key} = {parts[key].path}", KINDS[key], cache(partial(KINDS[key].Subject, training)))
    return training, findings


def begin(row: Config, runs: Path, folder: Path) -> tuple[list[Found], int, float | None]:
    """Test the laws of each part and, where none is broken, train to the end.

    Returns the findings, the steps that were trained, and the passes with a gradient that a batch costs; None: these
    are known after a training at most.
    """
    (training, findings), parts = of_parts(row, runs, folder), own_parts(row)
    if not any(one.is_broken for one in findings):
        findings += found(part_names(parts), trainings, lambda: training)
    if not (result := training.trial("whole").result()):
        return findings, 0, 1.0
    if watching := {name: part for name, part in parts.items() if name.startswith("trainer.callbacks")}:
        findings += found(part_names(watching), callbacks, lambda: training)
    for key in [key for key in effects.KEYS if key in parts]:
        findings += found(f"{key} = {parts[key].path}", effects, partial(effects.Subject, training, key))
    computed = Observer.of["whole"].computed
    passes = 1.0 if computed is None else None if "data.batches" in parts else computed.passes
    return findings, result.steps, passes


def stop(row: Config, folder: Path, step: int) -> None:
    """Train until a signal stops the training in a step."""
    with suppress(Stopped):
        SmallTraining(row, folder).train("stopped", stop_at=step)


def end(row: Config, folder: Path) -> list[Found]:
    """Continue the stopped training to its end, and compare it with the whole one."""
    return found(part_names(own_parts(row)), resuming, lambda: SmallTraining(row, folder))
