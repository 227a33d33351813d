"""What a trial needs to go on after an interruption, exactly where it was."""

import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from transformer_pl.runtime import memory
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import check_digest, sha256
from transformer_pl.runtime.signals import Stopped, install_handler


class Checkpoints(L.Callback):
    """Saves at every validation, and when asked to stop by SIGINT or SIGTERM; keeps the last two files.

    Each file has its sha256 beside it. With `average` k > 1 it keeps the weights of the last k validations too
    (Section 6.1), the end of the training being one.

    The module is asked before anything is kept whether it has diverged (its validation asks for itself): the files are
    of a state that is good.
    """

    def __init__(self, folder: Path, average: int):
        self.folder, self.average = folder, average
        self.earlier_s = 0.0  # trained by processes before this one
        self.accumulate = 1
        self._asked: int | None = None
        self._restored: list[dict[str, Any]] | None = None  # by rank

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole: that some digest stands for, since a process may die between renames."""
        digests = {path.read_bytes().decode(errors="replace") for path in self.folder.glob("*.sha256")}
        files = [path for name in ("last.ckpt", "previous.ckpt") if (path := self.folder / name).exists()]
        whole = next((path for path in files if sha256(path) in digests), None)
        if files and whole != files[0]:
            warn(f"{files[0]}: is not whole; going on from {whole.name if whole else 'the beginning'}")
        return whole

    def averaged(self) -> dict[str, torch.Tensor] | None:
        """The mean of the weights of the last k validations, or of all where there were fewer; None for k = 1.

        Raises an InputError for damaged weights. No checkpoint can make them again, so all are removed.
        """
        files = sorted(self.folder.glob("weights.*.pt"))[-self.average :]
        if self.average == 1 or not files:
            return None
        for file in files:
            digest = file.with_suffix(".sha256")  # an older version wrote none
            try:
                check_digest(file, digest.read_bytes().decode(errors="replace") if digest.exists() else None)
            except ValueError as error:
                shutil.rmtree(self.folder)
                raise InputError(
                    f"{file}: cannot be averaged: {error}; its checkpoints are removed, and the same command trains "
                    "the trial anew"
                ) from None
        states = [torch.load(file) for file in files]
        return {name: sum(state[name] for state in states) / len(states) for name in states[0]}

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.accumulate = trainer.accumulate_grad_batches

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._begun = time.perf_counter() - self.earlier_s
        install_handler(self._ask)

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if self._restored:  # not earlier: Lightning draws numbers of its own while it starts
            if len(self._restored) == trainer.world_size:
                _restore_random(self._restored[trainer.global_rank])
            self._restored = None

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:  # gradients of half a batch are not saved
            return
        if trainer.global_step < trainer.max_steps and not _validates(trainer):  # else it is heeded after that
            self._heed(trainer)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        module.stop_if_diverged()  # the last step may have done it, and nothing was validated since
        if not _validates(trainer):
            self._keep_weights(trainer, module)
        self._heed(trainer)  # asked to stop while the last validation went on

    def _heed(self, trainer: L.Trainer) -> None:
        if trainer.strategy.reduce_boolean_decision(self._asked is not None, all=False):  # on any rank
            trainer.lightning_module.stop_if_diverged()  # what is kept is the last state that is good
            self._save(trainer)
            raise Stopped(self._asked or signal.SIGTERM)

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        memory.return_to_system()
        self._keep_weights(trainer, module)  # first: who goes on from this checkpoint does not come here again
        self._save(trainer)
        if trainer.global_step < trainer.max_steps:
            self._heed(trainer)

    def _keep_weights(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        weights = module.weights() if self.average > 1 else None
        if weights and trainer.is_global_zero:
            unfinished = self.folder / "new.weights"
            torch.save(weights, unfinished)
            kept = self.folder / f"weights.{trainer.global_step:09d}.pt"
            kept.with_suffix(".sha256").write_text(sha256(unfinished))
            unfinished.replace(kept)
            for old in sorted(self.folder.glob("weights.*.pt"))[: -self.average]:
                old.with_suffix(".sha256").unlink(missing_ok=True)
                old.unlink()

    def state_dict(self) -> dict[str, Any]:
        seconds, numbers = time.perf_counter() - self._begun, _of_every_rank(_random())
        return {"seconds": seconds, "random": numbers, "accumulate": self.accumulate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        before = state.get("accumulate", self.accumulate)
        if before != self.accumulate:  # Lightning counts parts of batches
            raise InputError(
                f"trainer.accumulate = {self.accumulate}: must be what this trial was begun with, {before}, which "
                "Lightning cannot go on from with another; take that again, or remove its checkpoints from "
                f"{self.folder}"
            )
        self.earlier_s, self._restored = state["seconds"], state["random"]

    def _ask(self, signum: int, frame: object) -> None:
        """Only takes note: the step ends first, and what is saved is whole. After training, Lightning lets go of it."""
        self._asked = signum
        install_handler(signal.SIG_DFL)  # once more, and it ends at once

    def _save(self, trainer: L.Trainer) -> None:
        last, previous, new = (self.folder / f"{name}.ckpt" for name in ("last", "previous", "new"))
        trainer.save_checkpoint(new)  # on every rank: strategies may gather
        if not trainer.is_global_zero:
            return
        digest = sha256(new)
        if last.with_suffix(".sha256").exists():  # else a process has died before it was whole: it is written over
            for suffix in (".ckpt", ".sha256"):
                with suppress(FileNotFoundError):  # renamed already by a process that died then
                    last.with_suffix(suffix).replace(previous.with_suffix(suffix))
        new.replace(last)
        last.with_suffix(".sha256").write_text(digest)


def _validates(trainer: L.Trainer) -> bool:
    """Whether a validation falls on the step that was just made."""
    return trainer.global_step * trainer.accumulate_grad_batches % trainer.val_check_batch == 0


def _of_every_rank(value: Any) -> list[Any]:
    if not torch.distributed.is_initialized():
        return [value]
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _random() -> dict[str, Any]:
    """The state of every random number generator, in plain types: that is what checkpoints load."""
    name, keys, *rest = np.random.get_state()
    state = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": (name, keys.tolist(), *rest)}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
