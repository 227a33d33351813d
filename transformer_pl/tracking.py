"""Where metrics go while a trial runs: `metrics.jsonl` always, and W&B beside it. The only door to wandb."""

import json
import netrc
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import wandb
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.results import write

PROJECT = "transformer-pl"
SAY_EVERY_S = 5.0
PROBE_S = 3.0  # how long W&B's server may take to answer before a trial goes on without it


class Tracker(Logger):
    """Lightning's logger for one trial. Steps count optimiser steps; every line carries its own."""

    def __init__(self, folder: Path, steps: int, name: str, tags: list[str], config: dict[str, Any]):
        super().__init__()
        self._folder, self._steps = folder, steps
        self._said = 0.0
        self._told = {"name": name, "tags": tags, "config": config}
        self._run: Any = None

    @property
    def name(self) -> str:
        return self._told["name"]

    @property
    def version(self) -> str:
        return self._folder.name

    @rank_zero_only
    def start(self, step: int) -> None:
        """Open both, at a training that has come to `step`: what an interrupted process wrote after it goes."""
        path = self._folder / "metrics.jsonl"
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
            write(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")
        self._run = _wandb_run(self._folder, **self._told)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        line = {"step": step, **metrics}
        self._file.write(json.dumps(line | {"time": round(time.time(), 2)}) + "\n")
        self._file.flush()
        self._run.log(line)
        if time.monotonic() - self._said > SAY_EVERY_S:
            self._said = time.monotonic()
            told = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            print(f"step {step}/{self._steps}  {told}", flush=True)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The config is known from the start."""

    @rank_zero_only
    def finish(self, exit_code: int = 0, **summary: Any) -> None:
        """Close both; `summary` is what a table of W&B shows of the run."""
        if self._run is not None:
            self._run.summary.update(summary)
            self._run.finish(exit_code=exit_code)
            self._file.close()


def wandb_mode() -> tuple[str, str]:
    """`online` where there is a key and the server answers, else `offline`, or what WANDB_MODE says; and why."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode, f"WANDB_MODE={mode}"
    url = urlsplit(wandb.setup().settings.base_url)
    if not _has_key(url.hostname):
        return "offline", "no API key"
    try:
        socket.create_connection((url.hostname, url.port or 443), timeout=PROBE_S).close()
    except OSError as error:
        return "offline", f"no answer from the server ({error})"
    return "online", "an API key"


def _has_key(host: str | None) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return bool(netrc.netrc(os.environ.get("NETRC")).authenticators(host or ""))
    except (OSError, netrc.NetrcParseError):
        return False


def _wandb_run(folder: Path, name: str, tags: list[str], config: dict[str, Any]) -> Any:
    """The W&B run of a trial: resumed under its own id; in the sweep's group, which the environment names."""
    mode, why = wandb_mode()
    kept_id = folder / "wandb" / "run-id"
    kept_id.parent.mkdir(exist_ok=True)
    if not kept_id.exists():
        kept_id.write_text(f"{folder.name[-12:]}-{uuid.uuid4().hex[:6]}")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        job_type="train",
        name=os.environ.get("WANDB_NAME", name),
        tags=[tag[:64] for tag in tags],
        config=config,
        dir=folder,
        id=None if os.environ.get("WANDB_SWEEP_ID") else kept_id.read_text(),
        resume="allow",
        mode=mode,
        settings=wandb.Settings(console="off", silent=True, init_timeout=20),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    if mode == "offline":
        print(f"W&B: offline ({why}); later: wandb sync {folder}/wandb/offline-run-*", flush=True)
    return run
