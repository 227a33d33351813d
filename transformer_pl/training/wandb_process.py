"""A W&B run, of a trial or of a sweep's report, in a process of its own: it is told by a pipe, a JSON object a line.

In a process of its own because a lost network or a dead service must never cost a trial: W&B's calls may block for
minutes, or raise, where nobody waits for them. Only this file imports wandb, and only `Run.finish` waits for it.
"""

import fcntl
import json
import netrc
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformer_pl.runtime.network import responds, why_unreachable
from transformer_pl.runtime.signals import kill

PROJECT = "transformer-pl"
PIPE_BYTES = 1 << 20
END_S = 4.5  # for all of W&B at the end of a trial, whatever ends it: with KILLED_S, less than the 5 s we promise
SEND_S = 30.0  # instead, where much may still be to be sent and nothing trains: see `Run.finish`
KILLED_S = 0.4  # until what was killed is gone; what hangs in the system itself is not

_server: str | None = None  # the address of the one that this process is online at


class WandbRun:
    """The end that tells: a trial, or a sweep. Nothing here fails with W&B; only `finish` waits for it."""

    def __init__(self, **told: Any):
        """`told`: the arguments of `open_run`."""
        self._news, news = os.pipe()
        words = [sys.executable, "-m", "transformer_pl.training.wandb_process", str(news)]
        try:
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, bufsize=0, pass_fds=[news])
        except OSError as error:
            self._process = None
            print(f"W&B: not kept ({error}); all of it is on disk", flush=True)
            return
        finally:
            os.close(news)  # the other process has its own
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

    def finish(self, exit_code: int, wait: float = END_S) -> None:
        """End the run, and kill what has not ended after `wait` seconds, or when a signal comes.

        With exit code 0, a run that is online at a server that answers has SEND_S to send what is queued.
        """
        self.tell(finish=exit_code)
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            ended = self._ends_in(wait)
            if not ended and exit_code == 0 and self._is_sending():
                ended = self._ends_in(SEND_S - wait)
            if not ended:
                self._lose("has not ended in time")
        finally:
            self._kill()
            os.close(self._news)

    def _ends_in(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def _is_sending(self) -> bool:
        """Whether it is online at a server that answers, as `_watch_the_end` tells."""
        return bool(select.select([self._news], [], [], 0)[0])

    def _lose(self, why: str) -> None:
        print(f"W&B: lost (it {why}); all of it is on disk", flush=True)
        self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            kill(self._process.pid)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILLED_S)


def main() -> int:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # which ask the trial; it says here what follows
        signal.signal(signum, signal.SIG_IGN)
    threading.Thread(target=_watch_the_end, daemon=True).start()
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
                run.finish(exit_code=told)
                return 0
        run.finish(exit_code=1)  # the trial ended without a word
    except Exception as error:
        print(f"W&B: lost ({type(error).__name__}: {error}); all of it is on disk", flush=True)
        kill(os.getpid())  # W&B's own clean-up would wait for what is lost
    return 0


def _watch_the_end() -> None:
    """When the parent has told everything, or was killed: let it know that the server answers, and see to an end."""
    pipe = select.poll()
    pipe.register(sys.stdin, 0)  # no event but that the other end is closed
    pipe.poll()
    last = threading.Timer(SEND_S + KILLED_S, kill, [os.getpid()])  # the parent does so before, if it lives
    last.daemon = True
    last.start()
    while _server is None:  # the run may still be opened
        time.sleep(0.1)
    if responds(_server, END_S):
        with suppress(OSError):  # the parent was killed
            os.write(int(sys.argv[1]), b"!")


def open_run(folder: str, name: str, tags: list[str], config: dict[str, Any], job_type: str = "train") -> Any:
    """The run of this folder: resumed under its own id, or the agent's; in the group that the environment names."""
    import wandb

    global _server
    mode, why = wandb_mode()
    _server = wandb.setup().settings.base_url if mode == "online" else None
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
        "settings": wandb.Settings(
            console="off",
            silent=True,
            init_timeout=20,
            finish_timeout=SEND_S - END_S,  # then W&B says so, and keeps on disk what it has not sent
            program="-m transformer_pl.train",
        ),
    }
    try:
        run = wandb.init(mode=mode, **about)
    except Exception as error:  # such as a key that the server does not know
        if mode != "online":
            raise
        mode, why, _server = "offline", f"{type(error).__name__}: {error}", None
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
    if why := why_unreachable(server):
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
