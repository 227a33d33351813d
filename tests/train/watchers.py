"""Callbacks and a logger for the tests of those that only watch; and a clock.

They lie in a file that imports little, because all that a file imports is part of the code of its classes.
"""

import random
import threading
import time

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers.logger import Logger


def spoil(value):
    """Draw random numbers, and change what can be changed of a hook's arguments."""
    torch.rand(1), np.random.rand(1), random.random()
    if isinstance(value, dict):
        for key, content in value.items():
            spoil(content)
            if isinstance(content, float):
                value[key] = round(content)
    elif isinstance(value, tuple | list):
        for content in value:
            spoil(content)
    elif isinstance(value, torch.Tensor) and not value.requires_grad:
        value.zero_()


class SpoilsAll(L.Callback):
    """Overrides every hook."""

    def __init__(self):
        spoil([])


class SpoilsMetrics(Logger):
    name = version = "spoils"

    def log_metrics(self, metrics, step=None):
        spoil(metrics)

    def log_hyperparams(self, params, *arguments):
        spoil(params)

    def finalize(self, status):
        spoil(status)


def spoiling(name):
    def hook(self, *arguments, **options):
        spoil(arguments)
        if "batch" in name:
            spoil(arguments[0].callback_metrics)
        return {"own": 1} if name == "state_dict" else None

    return hook


HOOKS = [name for name, hook in vars(L.Callback).items() if callable(hook) and not name.startswith("_")]
for name in HOOKS:
    setattr(SpoilsAll, name, spoiling(name))


class FailsOnce(L.Callback):
    """Fails after a checkpoint, to which it has added something."""

    loaded: list = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == 4 and not self.loaded:
            raise RuntimeError("fails once")

    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["own"] = trainer.global_step

    def on_load_checkpoint(self, trainer, module, checkpoint):
        self.loaded.append(checkpoint["own"])


def first_weight(module):
    return next(module.model.parameters())


def moments(trainer, module):
    return trainer.optimizers[0].state[first_weight(module)]


CHANGES = {
    "the rate": ("on_train_batch_start", lambda t, m: t.optimizers[0].param_groups[0].update(lr=0.1)),
    "the schedule": ("on_train_batch_start", lambda t, m: t.lr_scheduler_configs[0].scheduler.base_lrs.append(1.0)),
    "a weight": ("on_train_batch_end", lambda t, m: first_weight(m).detach().mul_(0.9)),
    "a weight's place": ("on_train_batch_end", lambda t, m: setattr(first_weight(m), "data", first_weight(m) * 1)),
    "a gradient": ("on_before_optimizer_step", lambda t, m: first_weight(m).grad.mul_(2)),
    "what is trained": ("on_train_start", lambda t, m: first_weight(m).requires_grad_(False)),
    "a moment": ("on_train_batch_end", lambda t, m: moments(t, m)["exp_avg"].zero_()),
    "the mode": ("on_train_start", lambda t, m: m.model.eval()),
    "the end": ("on_train_batch_end", lambda t, m: setattr(t, "should_stop", True)),
    "the last step": ("on_train_batch_end", lambda t, m: setattr(t.fit_loop.epoch_loop, "max_steps", 5)),
    "data at a validation": ("on_validation_batch_end", lambda t, m: first_weight(m).data.neg_()),
    "data before a validation": ("on_train_batch_end", lambda t, m: first_weight(m).data.mul_(t.global_step == 3)),
    "data at the end": ("on_train_end", lambda t, m: first_weight(m).data.mul_(0.9)),
    "a moment's data": ("on_validation_end", lambda t, m: moments(t, m)["exp_avg"].data.mul_(2)),
    "a number": ("setup", lambda t, m: setattr(m.model.encoder[0].ffn, "p", 0.5)),
    "a step": ("on_train_start", lambda t, m: t.optimizers[0].register_step_post_hook(lambda *values: None)),
    "a gradient on its way": ("on_train_start", lambda t, m: first_weight(m).register_hook(lambda gradient: None)),
    "the steps with a validation": ("on_train_start", lambda t, m: setattr(t, "val_check_batch", 2)),
    "no validation": ("on_train_start", lambda t, m: setattr(t, "limit_val_batches", 0)),
    "clipping": ("on_train_batch_start", lambda t, m: setattr(t, "gradient_clip_val", 0.01)),
    "the rule of a step": ("on_train_start", lambda t, m: setattr(t.optimizers[0], "step", lambda closure: None)),
    "how it is trained": ("on_train_start", lambda t, m: setattr(m, "training_step", lambda batch: None)),
    "threads": ("on_train_start", lambda t, m: torch.set_num_threads(torch.get_num_threads() + 1)),
    "an output": ("on_fit_start", lambda t, m: m.model.encoder[0].register_forward_hook(lambda *values: None)),
}


class Changes(L.Callback):
    def __init__(self, what: str):
        hook, change = CHANGES[what]
        setattr(self, hook, lambda trainer, module, *others, **stage: change(trainer, module))


class EndsItLater(L.Callback):
    """By a thread, outside of its hooks."""

    def on_train_start(self, trainer, module):
        def end():
            while trainer.global_step < 2:
                time.sleep(0.001)
            trainer.should_stop = True

        threading.Thread(target=end, daemon=True).start()


class LogsTheLoss(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        module.log("val/loss", 1.0)


class Clock(L.Callback):
    """The clock of the process, by which a step takes 1,000 seconds, and all else no time."""

    now = 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        Clock.now += 1000
