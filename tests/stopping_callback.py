"""Callbacks: one stops a training early, and fails once after it; one logs."""

import multiprocessing
from pathlib import Path

import lightning as L


class StopAt(L.Callback):
    def __init__(self, step: int = 3, fails_once: str = ""):
        """fails_once: a file that is made when `on_fit_end` fails, after which it does no more; not in a rehearsal."""
        self.step, self.fails_once = step, fails_once

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step >= self.step

    def on_fit_end(self, trainer, module):
        if self.fails_once and not multiprocessing.parent_process() and not Path(self.fails_once).exists():
            Path(self.fails_once).touch()
            raise RuntimeError("fails once")


class Logs(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        module.log("mine", float(trainer.global_step))
        module.log_dict({"step": -1.0, "time": -1.0, "val/bleu": -1.0})
