"""Trainings of a fraction of a second in this process, of the module alone: without the command around it."""

import os
import signal

import lightning as L
import torch
from lightning.pytorch.loggers.logger import Logger

from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.datamodule import DataModule
from transformer_pl.runtime.signals import STOPPING
from transformer_pl.train.compiling import compile_layers
from transformer_pl.train.fit import build_trainer
from transformer_pl.train.module import TransformerModule

TINY = {"model.N": 1, "model.d_model": 16, "model.d_ff": 32, "model.h": 2, "data.vocab_size": 400}
TINY |= {"data.batch_tokens": 128, "optim.warmup": 10, "optim.max_steps": 12, "trainer.threads": 1}
TINY |= {"trainer.val_every": 6, "trainer.accelerator": "cpu"}


def config(**keys):
    return resolve([Level("test", TINY | {key.replace("__", "."): value for key, value in keys.items()})])


class Notes(Logger):
    """A logger that remembers."""

    name = version = "notes"

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, *args, **kwargs):
        pass


def fit(prepared, config, *callbacks, checkpoint=None, lines=None, compiled=False):
    """Train, from a checkpoint if there is one. Returns the module, and what was logged: also in `lines`.

    compiled: whether layers are compiled.
    """
    torch.set_num_threads(1)
    L.seed_everything(config.seed, verbose=False)
    handlers = [(signum, signal.getsignal(signum)) for signum in STOPPING]
    module, notes = TransformerModule(config, len(prepared.tokenizer)), Notes()
    if compiled:
        compile_layers(module.model)
    if lines is not None:
        notes.lines = lines
    trainer = build_trainer(config, [notes], list(callbacks))
    try:
        trainer.fit(module, DataModule(config, prepared), ckpt_path=checkpoint, weights_only=True)
    finally:
        for signum, handler in handlers:
            signal.signal(signum, handler)
    return module, notes.lines


class Signals(L.Callback):
    """Sends this process a signal in the middle of step `step`."""

    def __init__(self, signum, step):
        self.signum, self.step = signum, step

    def on_before_zero_grad(self, trainer, module, optimizer):
        if trainer.global_step == self.step - 1:
            os.kill(os.getpid(), self.signum)


class Power(BaseException):
    """It is cut."""


class Cut(L.Callback):
    """Ends the training before a part of a batch, or as the validation of a step begins."""

    def __init__(self, part=None, validation=None):
        self.part, self.validation = part, validation

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == self.part:
            raise Power

    def on_validation_start(self, trainer, module):
        if trainer.global_step == self.validation:
            raise Power
