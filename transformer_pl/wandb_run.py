"""A W&B run, of a trial or of a sweep's report, in a process of its own: it is told by a pipe, a JSON object a line.

In a process of its own because a lost network or a dead service must never cost a trial: W&B's calls may block for
minutes, or raise, where nobody waits for them. The only door to wandb.
"""

import fcntl
import json
import netrc
import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformer_pl.network import answers

PROJECT = "transformer-pl"
PIPE_BYTES = 1 << 20
FINISH_S = 20.0  # how long a run may take to reach W&B's server when all else is done
GIVE_UP_S = 60  # of an end that does not come: the trial waits for less


class Run:
    """The end that tells: a trial, or a sweep. Nothing here waits for W&B, or fails with it."""

    def __init__(self, **told: Any):
        words = [sys.executable, "-m", "transformer_pl.wandb_run"]
        try:
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, bufsize=0)
        except OSError as error:
            self._process = None
            print(f"W&B: not kept ({error}); all of it is on disk", flush=True)
            return
        os.set_blocking(self._process.stdin.fileno(), False)
        with suppress(OSError, AttributeError):  # room for what is told while W&B starts, where the system gives it
            fcntl.fcntl(self._process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.tell(**told)

    def tell(self, **told: Any) -> None:
        """First what the run is; from then on one thing at a time: `log`, `summary`, `tables`, `images`, `finish`."""
        if self._process and self._process.poll() is None:
            line = json.dumps(told).encode() + b"\n"
            try:
                if self._process.stdin.write(line) != len(line):
                    self._lose("does not keep up")
            except BrokenPipeError:  # it ended meanwhile, and has said why
                pass

    def finish(self, exit_code: int, wait: float | None = None) -> None:
        """End the run; and its process if that takes longer than `wait` seconds, by default FINISH_S."""
        self.tell(finish=exit_code)
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(FINISH_S if wait is None else wait)
        except subprocess.TimeoutExpired:
            self._lose("does not answer")

    def _lose(self, why: str) -> None:
        print(f"W&B: lost (it {why}); all of it is on disk", flush=True)
        self._process.kill()
        self._process.wait()


def main() -> int:
    for signum in (signal.SIGINT, signal.SIGTERM):  # which ask the trial; it says here what becomes of it
        signal.signal(signum, signal.SIG_IGN)
    import wandb  # here, for it takes a while, in which a signal may come

    try:
        run = open_run(**json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            ((what, told),) = json.loads(line).items()
            if what == "log":
                run.log(told)
            elif what == "summary":
                run.summary.update(told)
            elif what == "tables":
                for name, rows in told.items():
                    table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
                    run.log({name: table})
            elif what == "images":
                run.log({name: wandb.Image(path) for name, path in told.items()})
            elif what == "finish":
                if told == 128 + signal.SIGTERM:
                    run.mark_preempting()
                _finish(run, told)
                return 0
        _finish(run, 1)  # the trial ended without a word
    except Exception as error:
        print(f"W&B: lost ({type(error).__name__}: {error}); all of it is on disk", flush=True)
        os._exit(1)  # its own clean-up would wait for what is lost
    return 0


def _finish(run: Any, exit_code: int) -> None:
    signal.alarm(GIVE_UP_S)  # which ends this process, should W&B wait for ever
    run.finish(exit_code=exit_code)


def open_run(folder: str, name: str, tags: list[str], config: dict[str, Any], job_type: str = "train") -> Any:
    """The run of this folder: resumed under its own id, or the agent's; in the group that the environment names."""
    import wandb

    mode, why = wandb_mode()
    kept_id = Path(folder, "wandb", "run-id")
    kept_id.parent.mkdir(exist_ok=True)
    if not kept_id.exists():
        kept_id.write_text(f"{re.sub('[^A-Za-z0-9]', '-', Path(folder).name)[-12:]}-{uuid.uuid4().hex[:6]}")
    about = {
        "project": os.environ.get("WANDB_PROJECT", PROJECT),
        "job_type": job_type,
        "name": os.environ.get("WANDB_NAME", name),
        "tags": [tag[:64] for tag in tags],
        "config": config,
        "dir": folder,
        "id": None if os.environ.get("WANDB_SWEEP_ID") else kept_id.read_text(),
        "resume": "allow",
        "settings": wandb.Settings(console="off", silent=True, init_timeout=20, program="-m transformer_pl.train"),
    }
    try:
        run = wandb.init(mode=mode, **about)
    except Exception as error:  # such as a key that the server does not know
        if mode != "online":
            raise
        mode, why = "offline", f"{type(error).__name__}: {error}"
        wandb.teardown()  # it holds on to the run's id
        run = wandb.init(mode=mode, **about)
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    if mode == "offline":
        print(f"W&B: offline ({why}); later: wandb sync {folder}/wandb/offline-run-*", flush=True)
    return run


def wandb_mode() -> tuple[str, str]:
    """`online` where there is a key and the server answers, else `offline`, or what WANDB_MODE says; and why."""
    import wandb

    if mode := os.environ.get("WANDB_MODE"):
        return mode, f"WANDB_MODE={mode}"
    server = wandb.setup().settings.base_url
    if not _has_key(urlsplit(server).hostname):
        return "offline", "no API key"
    if why := answers(server):
        return "offline", f"no answer from the server ({why})"
    return "online", "an API key"


def _has_key(host: str | None) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return bool(netrc.netrc(os.environ.get("NETRC")).authenticators(host or ""))
    except (OSError, netrc.NetrcParseError):
        return False


if __name__ == "__main__":
    sys.exit(main())
