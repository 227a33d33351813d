"""Callbacks that only watch (`in_identity: false`) and loggers: they must change nothing of a training.

A trial's result must be the same without them, as they are no part of its id.
"""

import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers.logger import Logger
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from transformer_pl.config import Component
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import component_code
from transformer_pl.train.random_numbers import same_random_numbers

# in the names of hooks that each step calls
EVERY_STEP = ("batch", "backward", "optimizer", "zero_grad", "log_metrics")


def watch(trainer: L.Trainer, key: str, watchers: Iterable[tuple[Component, Any]]) -> None:
    """Let the hooks of callbacks or loggers change nothing of a training.

    They are given copies of metrics, batches and checkpoints, and the states of all random number generators are put
    back. What else they change is an InputError that names the hook. It is found by the versions and addresses of
    tensors, and in a step that ends with a validation, and outside of steps, by their content.

    key: whose entries they are, `trainer.callbacks` or `trainer.loggers`. watchers: as they were written, and built;
    those that count are left alone.
    """
    base = Logger if key == "trainer.loggers" else L.Callback
    names = [name for name in dir(base) if callable(getattr(base, name)) and not name.startswith("_")]
    for written, watcher in watchers:
        for name in names if not getattr(written, "in_identity", False) else ():
            hook = getattr(watcher, name)
            if getattr(hook, "__func__", None) is not getattr(base, name):  # it does something
                setattr(watcher, name, partial(_watched, hook, name, trainer, f"{key} = {written.path}"))


def _watched(hook: Any, name: str, trainer: L.Trainer, place: str, *arguments: Any, **options: Any) -> Any:
    """What a hook returns."""
    is_whole = _validates(trainer) or not any(word in name for word in EVERY_STEP)
    before, metrics = _state(trainer, is_whole), dict(trainer.callback_metrics)
    copies = apply_to_collection((arguments, options, metrics), Tensor, torch.clone)
    trainer.callback_metrics.update(copies[2])
    with same_random_numbers(), component_code():
        returned = hook(*copies[0], **copies[1])
    trainer.callback_metrics.update(metrics)
    if name == "on_save_checkpoint":  # what a callback adds is kept
        checkpoint, copy = arguments[-1], copies[0][-1]
        checkpoint |= {key: value for key, value in copy.items() if key not in checkpoint}
    after = _state(trainer, is_whole)
    if changed := [part for part, value in before.items() if value != after.get(part)]:
        rule = f"must only watch, but {name} changes {', '.join(changed)} at step {trainer.global_step}"
        remedy = "a callback that changes a training counts: leave in_identity out"
        raise InputError(f"{place}: {rule}; {remedy}")
    return returned


def _validates(trainer: L.Trainer) -> bool:
    """Whether the step under way ends with a validation."""
    parts = trainer.accumulate_grad_batches
    step = -(-trainer.fit_loop.epoch_loop.batch_progress.current.ready // parts)
    return step * parts % int(trainer.val_check_interval or 1) == 0


def _state(trainer: L.Trainer, is_whole: bool) -> dict[str, Any]:
    """What decides how a training goes on, by the words for it. is_whole: with the content of tensors, and hooks."""
    module, optimizers = trainer.lightning_module, trainer.optimizers
    parts, tensors = [*module.modules()], _tensors(module, optimizers)
    groups = [{**group, "params": [*map(id, group["params"])]} for one in optimizers for group in one.param_groups]
    schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
    state: dict[str, Any] = {name: [*map(_mark, several)] for name, several in tensors.items()}
    state |= {
        "the groups of the optimizer": repr(groups),
        "the schedule": [(id(schedule), repr(schedule.state_dict())) for schedule in schedules],
        "max_steps": trainer.max_steps,
        "settings of torch": (torch.get_default_dtype(), torch.get_num_threads()),
        "the mode of the model": [part.training for part in parts],
    }
    state |= {f"trainer.{name}": value for name, value in vars(trainer).items() if _is_plain(value)}
    if is_whole:
        state |= {f"the content of {name}": _checksum(several) for name, several in tensors.items()}
        # Lightning changes attributes of its module, as hooks log, and those of its own begin with _
        attributes = [(part, *item) for part in (*parts, *optimizers) for item in vars(part).items()]
        state["attributes of the model or the optimizer"] = [
            (name, _mark(value)) for part, name, value in attributes if part is not module or name[0] != "_"
        ]
        state["hooks"] = [*map(_hooks, (*parts, *tensors["weights"], *optimizers))]
    return state


def _tensors(module: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, list[Any]]:
    """What a training changes, by the words for it."""
    weights = [*module.parameters()]
    of_weights = [state for optimizer in optimizers for state in optimizer.state.values()]
    return {
        "weights": weights,
        "gradients": [weight.grad for weight in weights],
        "buffers": [*module.buffers()],
        "the state of the optimizer": [value for state in of_weights for value in state.values()],
    }


def _hooks(owner: Any) -> list[list[int]]:
    """The functions that torch calls beside those of a module, a tensor or an optimizer, by kind."""
    names = dir(owner) if isinstance(owner, Tensor) else vars(owner)
    found = [getattr(owner, name) for name in names if name.endswith("_hooks")]
    return [[*map(id, hooks.values())] for hooks in found if isinstance(hooks, dict)]


def _mark(value: Any) -> Any:
    """What shows that a value was changed or replaced."""
    if isinstance(value, Tensor):
        local = value.to_local() if isinstance(value, DTensor) else value
        return id(value), value._version, local.data_ptr(), value.requires_grad
    return value if _is_plain(value) else id(value)


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a text or None."""
    return value is None or isinstance(value, int | float | str)


def _checksum(values: Iterable[Any]) -> int:
    """Of the bytes of all tensors among the values."""
    found = 0
    for tensor in (value for value in values if isinstance(value, Tensor)):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        content = local.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(content.numpy().data, found)
    return found
