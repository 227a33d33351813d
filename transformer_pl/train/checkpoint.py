"""Checkpoints: what a trial needs to continue exactly where it was interrupted.

Lightning's ModelCheckpoint is not enough for that. If it saves by minutes, it may do so between micro-batches, whose
gradients no checkpoint holds, or before a validation that is due at the same step, which a resumed training skips.
"""

import math
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from transformer_pl.runtime import machine
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import reading, unfinished
from transformer_pl.runtime.signals import Stopped, expect_another, install_handler
from transformer_pl.train.counting import CountedPasses
from transformer_pl.train.module import TransformerModule, of_all_ranks
from transformer_pl.train.random_numbers import random_state, restore_random_state
from transformer_pl.trials.trial_folder import LAST


class CheckpointFiles(TorchCheckpointIO):
    """Writes a checkpoint beside its place first. Lightning writes it to the folder of temporary files, often small."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with unfinished(Path(path)) as part:
            torch.save(checkpoint, part)


class RandomNumbers(L.Callback):
    """Saves the state of all random number generators, and restores it before a continued training draws from them.

    It stands before all other callbacks, because these may draw, too.
    """

    _saved: Sequence[dict[str, Any]] = ()  # by rank, from a checkpoint; empty once restored

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if len(self._saved) == trainer.world_size:  # not earlier, because Lightning draws while it starts
            restore_random_state(self._saved[trainer.global_rank])
        self._saved = ()

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": of_all_ranks(random_state())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = state["ranks"]


class Checkpoints(Checkpoint):
    """Saves a checkpoint at every validation, `minutes` after the last one, at the end, and when a signal asks to stop.

    With `average` k > 1 the weights of the last k validations are kept beside the checkpoint (Section 6.1). Then a
    validation measures their mean, which is what will be scored. The end of the training counts as a validation.
    With `select` best, what the validation with the lowest loss has measured is kept, too, and will be scored. Nothing
    is saved of a training that has diverged. It is a Checkpoint, because Lightning calls those after all others.
    """

    def __init__(
        self,
        folder: Path,
        average: int = 1,
        minutes: float = math.inf,
        check: Callable[[], None] = lambda: None,
        select: Literal["last", "best"] = "last",
    ):
        """folder: where the files are written.
        average: the number of validations whose weights are averaged.
        minutes: how long after a checkpoint the next one is saved at the latest.
        check: called before anything is written; raises an error where another process has taken the trial over.
        select: which validation is scored.
        """
        self.select, self.keeps_weights = select, average > 1 or select == "best"
        self.lowest, self.best = math.inf, 0  # the lowest loss of a validation, and its step
        self.folder, self.average, self.minutes, self.check = folder, average, minutes, check
        self.file = folder / LAST
        self.earlier_s = 0.0  # seconds that earlier processes trained
        self.accumulate = 1  # micro-batches of a batch, from the trainer
        self._unaveraged: list[tuple[torch.Tensor, torch.Tensor]] = []  # in a validation: tensors, and their own values
        self.ended = False  # whether the checkpoint is of the end, where callbacks may have changed the weights
        self._signal: int | None = None  # the signal that asked to stop
        self._is_of_start = False  # whether the training goes on from the last state of another trial

    def newest(self, of_start: Path | None = None) -> tuple[Path | None, int]:
        """The checkpoint, and its step; None and 0 without one. Raises an InputError where it cannot be loaded.

        of_start: the last state of another trial, from which this one goes on.
        """
        self._is_of_start = of_start is not None and not self.file.exists()
        file = of_start if self._is_of_start else self.file
        if not (file and file.exists()):
            return None, 0
        remedy = "remove it to train from the beginning"
        with reading(file, remedy):
            try:
                saved = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
            except Exception as error:
                if type(error).__name__ != "UnpicklingError":
                    raise
                kind = re.search(r"GLOBAL (\S+)", str(error))
                rule = "must hold tensors and Python's own values alone, as the state of callbacks and optimizer"
                raise InputError(f"{file}: {rule}, but has {kind[1] if kind else error}; {remedy}") from None
            return file, saved["global_step"]

    def scored(self, step: int, last: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights that are scored after a training of so many steps, whose last weights are given.

        Raises an InputError if a callback has changed the last ones at the end: those kept would not show this change.
        """
        if not self.keeps_weights:
            return last
        kept = torch.load(self._weights_at(step), map_location="cpu", weights_only=True)
        if not all(torch.equal(value.cpu(), kept[name]) for name, value in last.items()):
            keys = f"decode.average = {self.average} and decode.select = {self.select}"
            rule = f"must not change the weights at the end of the training with {keys}"
            remedy = "which score checkpoints from before; set decode.average=1 and decode.select=last"
            raise InputError(f"trainer.callbacks: {rule}, {remedy}")
        if self.best:
            return torch.load(self._best_at(self.best), map_location="cpu", weights_only=True)
        return self.averaged(step)

    def averaged(self, step: int) -> dict[str, torch.Tensor]:
        """The mean of the weights of the last k validations up to a step, or of all if there were fewer.

        Whole numbers, such as an index that a component keeps, are those of the last.
        """
        files = sorted(path for path in self.folder.glob("weights.*.pt") if path <= self._weights_at(step))
        total: dict[str, torch.Tensor] = {}
        for file in files:  # one after the other, on the CPU, because the files of a large model are many gigabytes
            for name, value in torch.load(file, map_location="cpu", weights_only=True).items():
                total[name] = total[name] + value if name in total and value.is_floating_point() else value
        return {name: value / len(files) if value.is_floating_point() else value for name, value in total.items()}

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.accumulate = trainer.accumulate_grad_batches

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        trainer.should_stop = self.ended  # before the training starts, so that it does not end twice

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self._is_of_start:
            set_rates(trainer)
        self._started, self._saved = time.perf_counter() - self.earlier_s, time.monotonic()
        install_handler(self._note_signal)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:  # a checkpoint holds no gradients of part of a batch
            return
        log_every = cast(TransformerModule, module).config.trainer.log_every
        if trainer.world_size > 1 and trainer.global_step % log_every:
            return  # asking the other processes waits for the device, as a log line does
        if not (_is_last(trainer) or _validates_now(trainer)):  # else save after the validation
            is_due = time.monotonic() >= self._saved + 60 * self.minutes
            if trainer.strategy.reduce_boolean_decision(is_due or self._signal is not None, all=False):
                self._save(trainer)
                self._stop_if_asked(trainer)

    @torch.no_grad()
    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.keeps_weights:
            self._keep_weights(trainer)
            trainer.strategy.barrier()  # every rank reads what the first has written
            model = module.get_submodule("model")
            self._unaveraged = [(tensor, tensor.clone()) for tensor in (*model.parameters(), *model.buffers())]
            averaged: dict[str, Any] = {**self.averaged(trainer.global_step)}
            set_model_state_dict(model, averaged, options=StateDictOptions(full_state_dict=True))

    @torch.no_grad()
    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for tensor, value in self._unaveraged:
            tensor.copy_(value)
        self._unaveraged = []
        machine.return_freed_memory()
        self._keep_best(trainer)
        if not _is_last(trainer):  # else save when the other callbacks have ended
            self._save(trainer)
            self._stop_if_asked(trainer)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not _validates_now(trainer):
            self._keep_weights(trainer)
        self.ended = True
        self._save(trainer)
        self._stop_if_asked(trainer)  # by a signal during the last validation

    def _note_signal(self, signum: int, frame: object) -> None:
        """Remember the signal until the step ends. Lightning restores the earlier handler after the training."""
        self._signal = signum
        expect_another()

    def _stop_if_asked(self, trainer: L.Trainer) -> None:
        """Stop after a checkpoint was saved."""
        if trainer.strategy.reduce_boolean_decision(self._signal is not None, all=False):
            raise Stopped(self._signal or signal.SIGTERM)

    def _weights_at(self, step: int) -> Path:
        return self.folder / f"weights.{step:09d}.pt"

    def _best_at(self, step: int) -> Path:
        return self.folder / f"best.{step:09d}.pt"

    def _check(self, trainer: L.Trainer) -> TransformerModule:
        """The module. Raises an error if the training has diverged, or if another process has taken it over."""
        module = cast(TransformerModule, trainer.lightning_module)
        module.stop_if_diverged()
        self.check()
        return module

    def _keep_weights(self, trainer: L.Trainer) -> None:
        """Save the weights, on every rank, if they are to be averaged or may be the best."""
        if self.keeps_weights:
            weights = self._check(trainer).weights()
            if trainer.is_global_zero:
                with unfinished(self._weights_at(trainer.global_step)) as part:
                    torch.save(weights, part)
                for old in sorted(self.folder.glob("weights.*.pt"))[: -self.average]:
                    old.unlink()

    def _keep_best(self, trainer: L.Trainer) -> None:
        """Save what a validation has measured if its loss is the lowest so far. The best before stays until `_save`."""
        loss = self._check(trainer).validation_loss
        if self.select == "best" and loss < self.lowest:
            self.lowest, self.best = loss, trainer.global_step
            if trainer.is_global_zero:
                with unfinished(self._best_at(self.best)) as part:
                    torch.save(self.averaged(self.best), part)

    def _save(self, trainer: L.Trainer) -> None:
        """Save a checkpoint, on every rank."""
        self._check(trainer)
        trainer.save_checkpoint(self.file)
        if trainer.is_global_zero:
            for path in {*self.folder.glob("best.*.pt")} - {self._best_at(self.best)}:
                path.unlink()
        self._saved = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        state = {"seconds": time.perf_counter() - self._started, "accumulate": self.accumulate}
        return state | {"ended": self.ended, "best": (self.lowest, self.best)}

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let Lightning's loops go on where another training has ended, as if it had been stopped before its end."""
        if self._is_of_start:
            checkpoint["callbacks"].pop(CountedPasses.__qualname__, None)  # the passes of its own steps alone
            loop = checkpoint["loops"]["fit_loop"]
            loop["epoch_loop.batch_progress"]["is_last_batch"] = False
            for counts in loop["epoch_progress"].values():
                counts |= {"processed": 0, "completed": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["accumulate"] != self.accumulate:  # Lightning counts parts of batches
            raise InputError(
                f"trainer.accumulate = {self.accumulate}: must be {state['accumulate']}, with which this trial began, "
                f"as its checkpoints count micro-batches; set that, or remove {self.folder} to begin again"
            )
        if not self._is_of_start:
            self.earlier_s, self.ended = state["seconds"], state["ended"]
            self.lowest, self.best = state["best"]


def set_rates(trainer: L.Trainer) -> None:
    """Set the learning rates of the next step to those of this training's schedule: a checkpoint has another one's."""
    for scheduler in (config.scheduler for config in trainer.lr_scheduler_configs):
        assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
        scheduler._last_lr = [
            base * rate(scheduler.last_epoch)
            for base, rate in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        for group, rate in zip(scheduler.optimizer.param_groups, scheduler._last_lr, strict=True):
            group["lr"] = rate


def _is_last(trainer: L.Trainer) -> bool:
    """Whether the step that has just ended is the last one, after which a validation may follow."""
    return trainer.global_step >= trainer.max_steps or trainer.should_stop


def _validates_now(trainer: L.Trainer) -> bool:
    """Whether a validation follows the step that has just ended."""
    assert trainer.val_check_batch  # set, because the trainer has a val_check_interval
    return trainer.global_step * trainer.accumulate_grad_batches % trainer.val_check_batch == 0
