"""Where a trial's metrics go: metrics.jsonl, what the command prints, and a W&B run."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

import lightning as L
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.config.components import build
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_atomically
from transformer_pl.train.divergence import Diverged
from transformer_pl.train.module import TransformerModule
from transformer_pl.train.wandb_run import WandbRun
from transformer_pl.trials.metrics import Kind, metrics_lines
from transformer_pl.trials.records import infinite_as_null
from transformer_pl.trials.trial import Trial

PRINT_EVERY_S = 5.0
OF_TRAINING = ("val/loss", "val/ppl", "train/loss")  # which results and tables read


class LogTraining(L.Callback):
    """Logs the training as each step ends. It comes before all other callbacks, one of which may save and stop."""

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            cast(TransformerModule, module).log_step()


class TrialLogger(Logger):
    """Appends to metrics.jsonl and informs W&B. Prints every validation, and every few seconds a line of training.

    Steps are optimiser steps. Only rank 0 logs.
    """

    name = version = "trial"
    trainer: L.Trainer | None = None  # set when the training begins
    _file: TextIO | None = None  # between start and close

    def __init__(self, folder: Path, steps: int, wandb: WandbRun | None = None, others: Sequence[Logger] = ()):
        """
        folder: the folder of the trial.
        steps: the steps of the whole training.
        wandb: the W&B run, if there is one.
        others: the loggers that Lightning gives the same metrics.
        """
        super().__init__()
        self.wandb, self.others = wandb, others
        self._path, self._steps, self._printed = folder / "metrics.jsonl", steps, 0.0

    @rank_zero_only
    def start(self, step: int) -> None:
        """Open the file for a training that continues at `step`. Remove later lines, and those of an evaluation."""
        lines = metrics_lines(self._path)
        kept = [text for text, line in lines if line["step"] <= step and line["kind"] != "final"]
        write_atomically(self._path, b"".join(kept).decode())
        self._file = self._path.open("a", encoding="utf-8")

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log what the module or a callback gives. Lightning counts steps otherwise, and adds the epoch.

        Raises an InputError where a callback logs what the training logs itself.
        """
        for name in OF_TRAINING if "epoch" in metrics else ():
            if name in metrics:
                rule = "must have a name of its own, but is called as what the training logs"
                raise InputError(f"{name} = {metrics[name]}, which a callback logs: {rule}; choose another name")
        metrics = {name: value for name, value in metrics.items() if name != "epoch"}
        step = self.trainer.global_step if self.trainer else step
        self._log(metrics, step, "validation" if any(name.startswith("val/") for name in metrics) else "train")

    def _log(self, metrics: dict[str, float], step: int | None, kind: Kind) -> None:
        assert self._file
        line = {"step": step, "kind": kind, "time": round(time.time(), 2)}
        self._file.write(json.dumps(line | infinite_as_null(metrics) | line) + "\n")
        self._file.flush()
        if self.wandb:
            self.wandb.send(log=metrics | {"step": step})
        if kind == "validation" or time.monotonic() - self._printed > PRINT_EVERY_S:
            self._printed = time.monotonic()
            values = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            print(f"step {step}/{self._steps}  {values}", flush=True)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Lightning calls this. The config is in config.yaml, and W&B has it from the start."""

    def log_result(self, metrics: dict[str, float], step: int) -> None:
        """Give the metrics of the evaluation to this logger and the others, which Lightning has finalized before."""
        self._log(metrics, step, "final")
        for logger in self.others:
            logger.log_metrics(metrics, step)
            logger.finalize("success")

    def close(self) -> None:
        if self._file:
            self._file.close()


def user_loggers(trial: Trial) -> list[Logger]:
    """The loggers of `trainer.loggers`. They write to the trial's folder where no `save_dir` is given."""
    loggers = [build(logger, save_dir=str(trial.folder)) for logger in trial.config.trainer.loggers]
    for logger in loggers:
        logger.log_hyperparams(trial.settings)
    return loggers


@contextmanager
def trial_logger(trial: Trial) -> Iterator[tuple[TrialLogger, WandbRun]]:
    """The logger of a trial and its W&B run. An error within the context ends the W&B run with its exit code."""
    wandb = WandbRun(**trial.labels())
    logger, exit_code = TrialLogger(trial.folder.path, trial.config.steps, wandb, user_loggers(trial)), 0
    try:
        yield logger, wandb
    except BaseException as error:
        exit_code = getattr(error, "exit_code", 1)
        if isinstance(error, Diverged):
            wandb.send(summary={"diverged_at_step": error.step})
        raise
    finally:
        logger.close()
        wandb.finish(exit_code)
