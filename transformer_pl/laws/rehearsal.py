"""The stages of a rehearsal, each for a child process: laws of parts, and small trainings that are compared."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.config import Component, Config
from transformer_pl.data.excerpt import write_excerpt
from transformer_pl.laws import callbacks, losses, optimizers, schedules, tasks, tokenizers, trainings
from transformer_pl.laws.law import Found, found, laws_of
from transformer_pl.laws.small_training import Observer, SmallTraining
from transformer_pl.runtime.signals import Stopped

KINDS: dict[str, Any] = {"data.tokenizer": tokenizers, "data.task": tasks, "optim.schedule": schedules}
KINDS |= {"optim.loss": losses, "optim.optimizer": optimizers}
AT_ONCE = ("it_is_trained_and_scored", "it_leaves_the_trainer_as_it_is")  # laws that the whole training shows


class Begun(NamedTuple):
    """What the first stage has found."""

    found: list[Found]
    layers: int | None = 1  # of the small training: see `SmallTraining`
    steps: int = 0  # that were trained
    passes: float = 1.0  # calls of the model for each part of a batch


def of_parts(row: Config, parts: dict[str, Component], runs: Path, folder: Path) -> tuple[SmallTraining, list[Found]]:
    """Write the small dataset, and test the laws of each part that need no training."""
    written = write_excerpt(row.data, runs, folder)
    training, findings = SmallTraining(row, folder), list[Found]()
    for key in [key for key in KINDS if key in parts]:
        special: dict[str, Any] = {"data.tokenizer": (training, *written), "optim.schedule": (row,)}
        subject = KINDS[key].Subject(*special.get(key, (training,)))
        findings += found(f"{key} = {parts[key].path}", laws_of(KINDS[key]), subject)
    return training, findings


def begin(row: Config, parts: dict[str, Component], runs: Path, folder: Path) -> Begun:
    """Test the laws of each part and, where none is broken, train to the end."""
    training, findings = of_parts(row, parts, runs, folder)
    if any(one.is_broken for one in findings):
        return Begun(findings)
    layers: int | None = 1
    trained = _trained(training, parts)
    if trained[0].is_broken:  # perhaps of a callback that asks for a layer which the row has
        layers, training = None, SmallTraining(row, folder, layers=None)
        training.trial("whole").clear()
        trained = _trained(training, parts)
    result = training.trial("whole").result()
    return Begun(findings + trained, layers, result.steps if result else 0, Observer.latest.passes)


def stop(row: Config, folder: Path, layers: int | None, step: int) -> None:
    """Train until a signal stops the training in a step."""
    with suppress(Stopped):
        SmallTraining(row, folder, layers).train("stopped", stop_at=step)


def end(row: Config, parts: dict[str, Component], folder: Path, layers: int | None) -> list[Found]:
    """Continue the stopped training to its end, train without callbacks, and compare both with the whole training."""
    return _trained(SmallTraining(row, folder, layers), parts, at_once=False)


def _trained(training: SmallTraining, parts: dict[str, Component], at_once: bool = True) -> list[Found]:
    """The findings of the laws of trainings: those that the whole training shows, or those that need others."""
    kinds = {"": trainings} | ({"trainer.callbacks": callbacks} if training.config.trainer.callbacks else {})
    findings = list[Found]()
    for key, kind in kinds.items():
        names = [f"{name.partition('[')[0]} = {part.path}" for name, part in parts.items() if name.startswith(key)]
        laws = {name: law for name, law in laws_of(kind).items() if (name in AT_ONCE) == at_once}
        if not any(one.is_broken for one in findings):
            findings += found(", ".join(names), laws, training)
    return findings
