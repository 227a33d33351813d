"""Where a trial's metrics go: Lightning loggers of metrics.jsonl and of a W&B run. Only rank 0 logs."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.runtime.files import write_atomically
from transformer_pl.training.wandb_process import SEND_S, WandbRun
from transformer_pl.trials.metrics import Diverged, line_kind, metrics_to_json, parse_line
from transformer_pl.trials.trial_run import TrialRun

PRINT_EVERY_S = 5.0


class _TrialLogger(Logger):
    """What both have in common. Steps are optimiser steps."""

    name = version = "trial"

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Lightning calls this. The config is in config.yaml, and W&B has it from the start."""


class MetricsFile(_TrialLogger):
    """Appends to metrics.jsonl. Prints every validation, and every few seconds a line of training."""

    _file: TextIO | None = None  # between start and close

    def __init__(self, folder: Path, steps: int):
        """steps: of the whole training."""
        super().__init__()
        self._path, self._steps, self._printed = folder / "metrics.jsonl", steps, 0.0

    @rank_zero_only
    def start(self, step: int) -> None:
        """Open the file for a training that continues at `step`: lines after it and of a final evaluation go."""
        if self._path.exists():
            written = self._path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            lines = [(text, parse_line(text)) for text in written]
            kept = [text for text, line in lines if line and line["step"] <= step and line_kind(line) != "final"]
            write_atomically(self._path, "".join(kept))
        self._file = self._path.open("a", encoding="utf-8")

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert self._file
        line = {"step": step, "kind": line_kind(metrics), **metrics_to_json(metrics), "time": round(time.time(), 2)}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if line["kind"] == "validation" or time.monotonic() - self._printed > PRINT_EVERY_S:
            self._printed = time.monotonic()
            values = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            print(f"step {step}/{self._steps}  {values}", flush=True)

    def close(self) -> None:
        if self._file:
            self._file.close()


class WandbLogger(_TrialLogger):
    """Sends the same to a W&B run, from the moment it is made. Only rank 0 makes one."""

    def __init__(self, run: TrialRun):
        super().__init__()
        self.run = WandbRun(folder=str(run.trial.folder), **run.labels())

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.run.tell(log={"step": step, **metrics})


@contextmanager
def trial_loggers(run: TrialRun) -> Iterator[tuple[MetricsFile, WandbLogger]]:
    """The loggers of a trial. An error within the context ends its W&B run with the error's exit code."""
    file, wandb = MetricsFile(run.trial.folder, run.config.steps), WandbLogger(run)
    exit_code = 0
    try:
        yield file, wandb
    except BaseException as error:
        exit_code = getattr(error, "exit_code", 1)
        if isinstance(error, Diverged):
            wandb.run.tell(summary={"diverged_at_step": error.step})
        raise
    finally:
        file.close()
        wandb.run.finish(exit_code)


def log_ended_trial(run: TrialRun, result: dict[str, Any] | None, diverged_at: int | None) -> None:
    """Report an earlier result, or at which step it diverged, to the run that W&B's agent has opened for a trial."""
    wandb_run = WandbRun(folder=str(run.trial.folder), **run.labels())
    if result:
        wandb_run.tell(log={"step": result["steps"], **result["metrics"]})
    wandb_run.tell(summary=wandb_summary(result) if result else {"diverged_at_step": diverged_at})
    wandb_run.finish(0 if result else 1, wait=SEND_S)  # nothing was sent before


def wandb_summary(result: dict[str, Any]) -> dict[str, Any]:
    """What W&B's table of runs shows beside the metrics. val/loss.fall: see trials/convergence.py."""
    summary = {key: result[key] for key in ("params", "flops", "tokens_per_s", "wall_s")}
    if ended := result.get("convergence"):
        summary |= {"val/loss.fall": ended["fall"], "val/loss.fall_noise": ended["noise"]}
    return summary
