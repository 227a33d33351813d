"""Where a trial's metrics go: Lightning loggers of metrics.jsonl and of a W&B run. Only rank 0 logs."""

import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.runtime.files import write_atomically
from transformer_pl.runtime.signals import kill
from transformer_pl.train import wandb_process
from transformer_pl.train.wandb_process import END_S, SEND_S
from transformer_pl.trials.metrics import Diverged, line_kind, metrics_to_json, parse_line
from transformer_pl.trials.trial_run import TrialRun

PRINT_EVERY_S = 5.0
KILLED_S = 0.4  # seconds to wait until a killed process is gone; one that hangs in the system may stay


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
    """Sends the same to a W&B run, which is in a process of its own. Only rank 0 makes one.

    No method fails when W&B does. A thread writes the messages, and only `finish` waits.
    """

    def __init__(self, **run: Any):
        """run: the arguments of `open_run`, in train/wandb_process.py."""
        super().__init__()
        self._process: subprocess.Popen[bytes] | None = None
        if os.environ.get("WANDB_MODE") != "disabled":
            self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None: the end
            command = [sys.executable, "-m", wandb_process.__name__]
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(command, stdin=theirs.fileno())
            threading.Thread(target=self._write, daemon=True).start()
            self.tell(run=run)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.tell(log={"step": step, **metrics})

    def tell(self, **message: Any) -> None:
        """Send a message of one key: log, summary or tables."""
        if self._process:
            self._lines.put(json.dumps(message).encode() + b"\n")

    def finish(self, exit_code: int = 0, wait: float = END_S) -> None:
        """End the run. Its processes are killed if they have not ended after `wait` seconds, or when a signal comes.

        After exit code 0, a run that is online at a server that answers gets SEND_S to send what is queued.
        """
        if self._process is None:
            return
        self.tell(finish=exit_code)
        self._lines.put(None)
        try:
            ended = self._ends_in(wait)
            if not ended and exit_code == 0 and select.select([self._socket], [], [], 0)[0]:  # the server answers
                self._ends_in(SEND_S - wait)
        finally:
            if self._process.returncode != 0:
                print("W&B: logging stopped before its end; all metrics are in metrics.jsonl", flush=True)
                kill(self._process.pid)
                self._ends_in(KILLED_S)
            self._socket.close()

    def _ends_in(self, seconds: float) -> bool:
        assert self._process
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def _write(self) -> None:
        """Write the lines to the socket. Where W&B hangs, this waits until its process is killed."""
        with suppress(OSError):
            while line := self._lines.get():
                self._socket.sendall(line)
            self._socket.shutdown(socket.SHUT_WR)


@contextmanager
def trial_loggers(run: TrialRun) -> Iterator[tuple[MetricsFile, WandbLogger]]:
    """The loggers of a trial. An error within the context ends its W&B run with the error's exit code."""
    file, wandb = MetricsFile(run.trial.folder, run.config.steps), WandbLogger(**run.labels())
    exit_code = 0
    try:
        yield file, wandb
    except BaseException as error:
        exit_code = getattr(error, "exit_code", 1)
        if isinstance(error, Diverged):
            wandb.tell(summary={"diverged_at_step": error.step})
        raise
    finally:
        file.close()
        wandb.finish(exit_code)


def log_ended_trial(run: TrialRun, result: dict[str, Any] | None, diverged_at: int | None) -> None:
    """Report an earlier result, or at which step it diverged, to the run that W&B's agent has opened for a trial."""
    wandb = WandbLogger(**run.labels())
    if result:
        wandb.log_metrics(result["metrics"], result["steps"])
    wandb.tell(summary=wandb_summary(result) if result else {"diverged_at_step": diverged_at})
    wandb.finish(0 if result else 1, wait=SEND_S)  # nothing was sent before


def wandb_summary(result: dict[str, Any]) -> dict[str, Any]:
    """What W&B's table of runs shows beside the metrics. val/loss.fall: see trials/convergence.py."""
    summary = {key: result[key] for key in ("params", "flops", "tokens_per_s", "wall_s")}
    if ended := result.get("convergence"):
        summary |= {"val/loss.fall": ended["fall"], "val/loss.fall_noise": ended["noise"]}
    return summary
