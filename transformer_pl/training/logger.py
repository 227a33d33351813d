"""Where metrics go while a trial runs: `metrics.jsonl` always, and a W&B run that can be lost without harm."""

import json
import time
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.runtime.errors import warn
from transformer_pl.runtime.files import write_atomically
from transformer_pl.training.divergence import Diverged
from transformer_pl.training.wandb_process import SEND_S, WandbRun
from transformer_pl.trials.metrics import line_kind, metrics_to_json
from transformer_pl.trials.trial import Trial

SAY_EVERY_S = 5.0


class TrialLogger(Logger):
    """Lightning's logger for one trial. Steps count optimiser steps; every line carries its own."""

    def __init__(self, folder: Path, steps: int, name: str, tags: list[str], config: dict[str, Any]):
        super().__init__()
        self._folder, self._steps = folder, steps
        self._said = 0.0
        self._told = {"name": name, "tags": tags, "config": config}
        self._run: WandbRun | None = None

    @property
    def name(self) -> str:
        return self._told["name"]

    @property
    def version(self) -> str:
        return self._folder.name

    @rank_zero_only
    def start(self, step: int) -> None:
        """Open both, at a training that has come to `step`: what was written after it, or of what it came to, goes."""
        path = self._folder / "metrics.jsonl"
        if path.exists():
            lines = Trial(self._folder).metrics()
            if damaged := path.read_bytes().count(b"\n") - len(lines):
                warn(f"{path}: {damaged} damaged lines are left out")
            kept = [line for line in lines if line["step"] <= step and line_kind(line) != "final"]
            write_atomically(path, "".join(f"{json.dumps(line)}\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")
        self._run = WandbRun(folder=str(self._folder), **self._told)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        line = {"step": step, **metrics}
        stored = {"step": step, "kind": line_kind(metrics), **metrics_to_json(metrics), "time": round(time.time(), 2)}
        self._file.write(json.dumps(stored) + "\n")
        self._file.flush()
        self._run.tell(log=line)
        if time.monotonic() - self._said > SAY_EVERY_S:
            self._said = time.monotonic()
            told = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            print(f"step {step}/{self._steps}  {told}", flush=True)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The config is known from the start."""

    @rank_zero_only
    def log_translations(self, rows: list[dict[str, Any]]) -> None:
        """A table of W&B: what the trial makes of a few sentences."""
        self._run.tell(tables={"translations": rows})

    @rank_zero_only
    def fail(self, error: BaseException) -> None:
        """End the run with the error's exit code; of a training that diverged, it says at which step."""
        if self._run is not None and isinstance(error, Diverged):
            self._run.tell(summary=_divergence(error.step))
        self.finish(getattr(error, "exit_code", 1))

    @rank_zero_only
    def finish(self, exit_code: int = 0, result: dict[str, Any] | None = None) -> None:
        if self._run is not None:
            self._file.close()
            if result:
                self._run.tell(summary=wandb_summary(result))
            self._run.finish(exit_code)
            self._run = None


def log_finished_trial(folder: Path, result: dict[str, Any]) -> None:
    """A finished trial under W&B's agent, which has given it another run: what it came to."""
    run = WandbRun(folder=str(folder), **{key: result[key] for key in ("name", "tags", "config")})
    run.tell(log={"step": result["steps"], **result["metrics"]})
    run.tell(summary=wandb_summary(result))
    run.finish(0, wait=SEND_S)  # it has everything still to send


def tell_diverged(folder: Path, step: int, name: str, tags: list[str], config: dict[str, Any]) -> None:
    """The same of a trial that diverged."""
    run = WandbRun(folder=str(folder), name=name, tags=tags, config=config)
    run.tell(summary=_divergence(step))
    run.finish(1, wait=SEND_S)


def _divergence(step: int) -> dict[str, int]:
    return {"diverged_at_step": step}


def wandb_summary(result: dict[str, Any]) -> dict[str, Any]:
    """What a table of W&B shows of a run beside its metrics."""
    return {key: result[key] for key in ("params", "flops", "tokens_per_s", "wall_s")}
