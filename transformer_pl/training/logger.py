"""Where a trial's metrics go: always to metrics.jsonl, and to a W&B run whose loss must never harm the trial."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.runtime.crash import crash_point
from transformer_pl.runtime.environment import sweep_and_row
from transformer_pl.runtime.errors import warn
from transformer_pl.runtime.files import check_regular, set_aside, write_atomically
from transformer_pl.training.wandb_process import SEND_S, WandbRun
from transformer_pl.trials.divergence import Diverged
from transformer_pl.trials.metrics import line_kind, metrics_to_json
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_run import TrialRun

PRINT_EVERY_S = 5.0


class TrialLogger(Logger):
    """Lightning's logger for one trial. Steps are optimiser steps. Only rank 0 writes."""

    lines: list[str]  # of metrics.jsonl, from start on, as far as this process knows them
    _file: TextIO  # metrics.jsonl, between start and finish
    _wandb: WandbRun  # the same

    def __init__(self, folder: Path, steps: int, name: str, tags: list[str], config: dict[str, Any]):
        """steps: of the whole training. name, tags, config: what W&B shows of the run."""
        super().__init__()
        self.lines = []
        self._folder, self._steps = folder, steps
        self._labels: dict[str, Any] = {"name": name, "tags": tags, "config": config}
        self._printed = 0.0  # when metrics of training were last printed
        self._validation: dict[str, float] = {}  # what the validation that runs has measured
        self._is_open = False

    @property
    def name(self) -> str:
        return str(self._labels["name"])

    @property
    def version(self) -> str:
        return self._folder.name

    @rank_zero_only
    def start(self, step: int, saved: list[str] | None = None) -> None:
        """Open metrics.jsonl and the W&B run of a training that continues at `step`.

        The file then holds the lines that a checkpoint has saved. Without them, of an older version, lines after that
        step are removed, and so is the line of an earlier final evaluation.
        """
        path = self._folder / "metrics.jsonl"
        self.lines = self._valid_lines(path, step) if saved is None else saved
        if saved and not _begins_with(path, "".join(saved)):
            kept = f", and the damaged file is set aside as {set_aside(path).name}" if path.exists() else ""
            warn(f"{path}: is not what was written; the checkpoint restores it{kept}")
        if self.lines or path.exists():
            write_atomically(path, "".join(self.lines))
        self._file = path.open("a", encoding="utf-8")
        self._wandb = WandbRun(folder=str(self._folder), **self._labels)
        self._is_open = True

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append a line to metrics.jsonl and send it to W&B; every few seconds print one of training."""
        line = {"step": step, "kind": line_kind(metrics), **metrics_to_json(metrics), "time": round(time.time(), 2)}
        self.lines.append(json.dumps(line) + "\n")
        self._file.write(self.lines[-1])
        self._file.flush()
        crash_point("a line of metrics: after it")
        self._wandb.tell(log={"step": step, **metrics})
        if line["kind"] == "validation":
            self._validation |= metrics
        elif time.monotonic() - self._printed > PRINT_EVERY_S:
            self._printed = time.monotonic()
            self._print(step, metrics)

    @rank_zero_only
    def print_validation(self, step: int) -> None:
        """Print in one line what a validation has measured."""
        self._print(step, self._validation)
        self._validation = {}

    def _print(self, step: int | None, metrics: dict[str, float]) -> None:
        values = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        print(f"step {step}/{self._steps}  {values}", flush=True)

    def _valid_lines(self, path: Path, step: int) -> list[str]:
        """The lines of an interrupted training up to a step. Damaged ones are left out with a warning."""
        lines = Trial(self._folder).metrics()
        if path.exists() and (damaged := path.read_bytes().count(b"\n") - len(lines)):
            warn(f"{path}: {damaged} damaged lines are left out")
        valid = [line for line in lines if line["step"] <= step and line_kind(line) != "final"]
        return [f"{json.dumps(line)}\n" for line in valid]

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Lightning calls this. The config was passed to __init__."""

    @rank_zero_only
    def log_translations(self, rows: list[dict[str, Any]]) -> None:
        """Send a table of translations to W&B."""
        self._wandb.tell(tables={"translations": rows})

    @rank_zero_only
    def fail(self, error: BaseException) -> None:
        """Close both with the error's exit code; W&B is told the step of a divergence."""
        if self._is_open and isinstance(error, Diverged):
            self._wandb.tell(summary=_divergence(error.step))
        self.finish(getattr(error, "exit_code", 1))

    @rank_zero_only
    def finish(self, exit_code: int = 0, result: dict[str, Any] | None = None) -> None:
        """Close metrics.jsonl and end the W&B run. Calling it again does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._file.close()
        if result:
            self._wandb.tell(summary=wandb_summary(result))
        self._wandb.finish(exit_code)


def _begins_with(path: Path, text: str) -> bool:
    """Whether a file begins with a text; not where it cannot be read."""
    with suppress(OSError):
        check_regular(path)
        return path.read_bytes().startswith(text.encode())
    return False


def log_finished_trial(folder: Path, result: dict[str, Any]) -> None:
    """Send an earlier result to the run that W&B's agent has opened for the same trial."""
    labels = {"name": result["name"], "tags": result["tags"]}
    run = WandbRun(folder=str(folder), **labels, config=result["config"] | sweep_and_row(result["tags"][-1]))
    run.tell(log={"step": result["steps"], **result["metrics"]})
    run.tell(summary=wandb_summary(result))
    run.finish(0, wait=SEND_S)  # nothing was sent before


def log_diverged_trial(run: TrialRun, step: int) -> None:
    """Report an earlier divergence to the run that W&B's agent has opened for the same trial."""
    wandb_run = WandbRun(folder=str(run.trial.folder), **run.labels())
    wandb_run.tell(summary=_divergence(step))
    wandb_run.finish(1, wait=SEND_S)


def _divergence(step: int) -> dict[str, int]:
    return {"diverged_at_step": step}


def wandb_summary(result: dict[str, Any]) -> dict[str, Any]:
    """What W&B's table of runs shows beside the metrics. val/loss.fall: see trials/convergence.py."""
    summary = {key: result[key] for key in ("params", "flops", "tokens_per_s", "wall_s")}
    summary |= {"energy_j": joules} if (joules := result.get("energy_j")) is not None else {}
    if ended := result.get("convergence"):
        summary |= {"val/loss.fall": ended["fall"], "val/loss.fall_noise": ended["noise"]}
    return summary
