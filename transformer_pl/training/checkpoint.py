"""Checkpoints: what a trial needs to continue exactly where it was interrupted."""

import math
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.runtime import memory
from transformer_pl.runtime.crash import crash_point
from transformer_pl.runtime.energy import EnergyMeter
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import check_digest, check_regular, put_in_place, set_aside, sha256, write_atomically
from transformer_pl.runtime.signals import Stopped, install_handler
from transformer_pl.training.logger import TrialLogger
from transformer_pl.training.module import TransformerModule


class Checkpoints(L.Callback):
    """Saves a checkpoint at every validation, `minutes` after the last one, and before it stops on SIGINT or SIGTERM.

    It keeps the last two. Each file has its sha256 beside it. With `average` k > 1 it also keeps the weights of the
    last k validations (Section 6.1); the end of the training counts as one.

    Before it saves, it checks that the training has not diverged (validations check that themselves), so every
    checkpoint is of a good state.
    """

    def __init__(
        self,
        folder: Path,
        average: int,
        minutes: float = math.inf,
        check: Callable[[], None] = lambda: None,
        meter: EnergyMeter | None = None,
    ):
        """check: called before anything is written; it raises an error where nothing may be, because another process
        has taken the trial over. meter: learns from a checkpoint what earlier processes used."""
        self.folder, self.average, self.minutes, self.check = folder, average, minutes, check
        self.meter = meter or EnergyMeter()
        self.earlier_s = 0.0  # seconds that earlier processes trained
        self.accumulate = 1  # parts of a batch, from the trainer
        self._signal: int | None = None  # the signal that asked to stop
        self._random_states: list[dict[str, Any]] | None = None  # by rank, from a checkpoint; None once restored

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole; None without one. One that is not is set aside, with its digest.

        It is whole if any digest in the folder is its own: a process may have died between two renames.
        """
        digests = {_digest_in(path) for path in self.folder.glob("*.sha256")}
        files = [path for name in ("last.ckpt", "previous.ckpt") if (path := self.folder / name).exists()]
        whole = {path: digest for path in files if (digest := _digest_of(path)) in digests}
        newest = next(iter(whole), None)
        goes_on = f"continuing from {newest.name if newest else 'the beginning'}"
        if not getattr(rank_zero_only, "rank", 0):
            for path, digest in whole.items():
                write_atomically(path.with_suffix(".sha256"), digest)
            for path in files:
                if path not in whole:
                    warn(f"{path}: is not whole; {goes_on}; it is set aside as {set_aside(path).name}")
                    with suppress(FileNotFoundError):
                        set_aside(path.with_suffix(".sha256"))
        return newest

    def averaged(self) -> dict[str, torch.Tensor] | None:
        """The mean of the weights of the last k validations, or of all if there were fewer; None where k = 1.

        Whole numbers, such as an index that a component keeps, are those of the last.

        Raises an InputError for damaged weights, sets them aside, and removes the checkpoints: none of them can
        restore those weights.
        """
        files = sorted(self.folder.glob("weights.*.pt"))[-self.average :]
        if not files:
            return None
        for file in files:
            digest = file.with_suffix(".sha256")  # older versions wrote none
            try:
                check_digest(file, digest.read_bytes().decode(errors="replace") if digest.exists() else None)
            except (OSError, ValueError) as error:
                kept = set_aside(file)
                for checkpoint in self.folder.glob("*.ckpt"):
                    checkpoint.unlink()
                raise InputError(
                    f"{file}: cannot be averaged: {getattr(error, 'strerror', None) or error}; it is set aside as "
                    f"{kept.name}, its checkpoints are removed, and the same command trains the trial anew"
                ) from None
        total: dict[str, torch.Tensor] = {}
        for file in files:  # one after the other, on the CPU: of a large model they are many gigabytes
            state = torch.load(file, map_location="cpu", weights_only=True)
            total = {
                name: total[name] + value if name in total and value.is_floating_point() else value
                for name, value in state.items()
            }
        return {name: value / len(files) if value.is_floating_point() else value for name, value in total.items()}

    def logged_until(self, checkpoint: Path | None) -> tuple[int, Any]:
        """The step of a checkpoint, and what it says of metrics.jsonl; 0 and None without a checkpoint."""
        saved = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=True) if checkpoint else {}
        return saved.get("global_step", 0), saved.get("metrics")

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.accumulate = trainer.accumulate_grad_batches

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._started, self._saved = time.perf_counter() - self.earlier_s, time.monotonic()
        install_handler(self._note_signal)

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if self._random_states:  # not earlier, because Lightning draws random numbers while it starts
            if len(self._random_states) == trainer.world_size:
                _restore_random_state(self._random_states[trainer.global_rank])
            self._random_states = None

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:  # a checkpoint holds no gradients of part of a batch
            return
        crash_point("a step: after it")
        if trainer.global_step < trainer.max_steps and not _validates_now(trainer):  # else save after the validation
            is_due = time.monotonic() >= self._saved + 60 * self.minutes
            if _on_any_rank(trainer, is_due or self._signal is not None):
                _module(trainer).stop_if_diverged()
                self._save(trainer)
                self._stop_if_asked(trainer)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        _module(trainer).stop_if_diverged()  # in the last step, after the last validation
        if not _validates_now(trainer):
            self._keep_weights(trainer)
            self._save(trainer)
        self._stop_if_asked(trainer)  # by a signal during the last validation

    def _stop_if_asked(self, trainer: L.Trainer) -> None:
        """Stop after a checkpoint was saved."""
        if _on_any_rank(trainer, self._signal is not None):
            raise Stopped(self._signal or signal.SIGTERM)

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        memory.return_to_system()
        self._keep_weights(trainer)  # first: a process that resumes from this checkpoint does not validate again
        self._save(trainer)
        if trainer.global_step < trainer.max_steps:
            self._stop_if_asked(trainer)

    def _keep_weights(self, trainer: L.Trainer) -> None:
        weights = _module(trainer).weights() if self.average > 1 else None
        if weights and trainer.is_global_zero:
            self.check()
            unfinished = self.folder / "new.weights"
            torch.save(weights, unfinished)
            kept = self.folder / f"weights.{trainer.global_step:09d}.pt"
            write_atomically(kept.with_suffix(".sha256"), sha256(unfinished))
            put_in_place(unfinished, kept)
            for old in sorted(self.folder.glob("weights.*.pt"))[: -self.average]:
                old.with_suffix(".sha256").unlink(missing_ok=True)
                old.unlink()

    def on_save_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the lines of metrics.jsonl, so that a checkpoint restores them, too."""
        if isinstance(trainer.logger, TrialLogger):
            checkpoint["metrics"] = trainer.logger.lines

    def state_dict(self) -> dict[str, Any]:
        seconds, random_states = time.perf_counter() - self._started, _gather(_random_state())
        used = {"seconds": seconds, "joules": self.meter.joules()}
        return used | {"random": random_states, "accumulate": self.accumulate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        begun_with = state.get("accumulate", self.accumulate)
        if begun_with != self.accumulate:  # Lightning counts parts of batches
            raise InputError(
                f"trainer.accumulate = {self.accumulate}: must be what this trial was begun with, {begun_with}: "
                "Lightning cannot resume a checkpoint with another value; set that value again, or remove the "
                f"checkpoints from {self.folder}"
            )
        self.earlier_s, self._random_states = state["seconds"], state["random"]
        self.meter.earlier = state.get("joules")  # checkpoints of older versions lack it

    def _note_signal(self, signum: int, frame: object) -> None:
        """Remember the signal until the step ends. Lightning restores the earlier handler after the training."""
        self._signal = signum
        install_handler(signal.SIG_DFL)  # a second signal ends the process at once

    def _save(self, trainer: L.Trainer) -> None:
        """At every moment a whole checkpoint is there whose digest is somewhere in the folder: see `newest`."""
        new = self.folder / "new.ckpt"
        self.folder.stat()  # Lightning would make a folder that has vanished anew
        self.check()
        trainer.save_checkpoint(new)  # on every rank, because strategies may gather
        self._saved = time.monotonic()
        if not trainer.is_global_zero:
            return
        self.check()
        crash_point("a checkpoint: before its digest")
        write_atomically(new.with_suffix(".sha256"), sha256(new))
        for earlier, later in (("last", "previous"), ("new", "last")):
            for suffix in (".ckpt", ".sha256"):
                if (path := self.folder / f"{earlier}{suffix}").exists():  # at first there is no last one
                    put_in_place(path, self.folder / f"{later}{suffix}")


def _module(trainer: L.Trainer) -> TransformerModule:
    return cast(TransformerModule, trainer.lightning_module)


def _on_any_rank(trainer: L.Trainer, value: bool) -> bool:
    return trainer.strategy.reduce_boolean_decision(value, all=False)


def _digest_in(path: Path) -> str:
    """What stands in a file of a digest; nothing where it cannot be read."""
    with suppress(OSError):
        check_regular(path)
        return path.read_bytes().decode(errors="replace")
    return ""


def _digest_of(path: Path) -> str | None:
    """The sha256 of a checkpoint; None where it is no file that can be read."""
    with suppress(OSError):
        return sha256(path)
    return None


def _validates_now(trainer: L.Trainer) -> bool:
    """Whether a validation follows the step that has just ended."""
    assert trainer.val_check_batch  # set, because the trainer has a val_check_interval
    return trainer.global_step * trainer.accumulate_grad_batches % trainer.val_check_batch == 0


def _gather(value: Any) -> list[Any]:
    """The value of every rank, by rank."""
    if not torch.distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _random_state() -> dict[str, Any]:
    """The state of every random number generator, in plain types, which checkpoints can load."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():  # a trial may continue on another device
        torch.cuda.set_rng_state(state["cuda"])
