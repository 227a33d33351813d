"""A W&B run in a process of its own, for a trial or for a sweep's report.

W&B's calls may block for minutes, or raise, when the network or the service fails. In a process of its own they cannot
delay or end a trial: the trial writes JSON objects to a pipe, one per line, and waits only in `WandbRun.finish`. Only
this file imports wandb.
"""

import fcntl
import io
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
from contextlib import redirect_stderr, suppress
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from transformer_pl.runtime.environment import PROJECT
from transformer_pl.runtime.network import why_unreachable
from transformer_pl.runtime.signals import kill

RUN_ID = "wandb/run-id"  # in the folder of a trial or of a sweep
PIPE_BYTES = 1 << 20
END_S = 4.5  # seconds that W&B gets at the end of a trial; with KILLED_S less than the 5 s that the README promises
SEND_S = 30.0  # seconds that it gets where much may be left to send, and nothing trains: see `WandbRun.finish`
KILLED_S = 0.4  # seconds to wait until a killed process is gone; one that hangs in the system may stay

_server: str | None = None  # in the W&B process: the address of the server at which the run is online


class WandbRun:
    """The trial's end of the pipe. No method fails when W&B does, and only `finish` waits for it."""

    def __init__(self, **run: Any):
        """run: the arguments of `open_run`."""
        self._process: subprocess.Popen[bytes] | None = None
        if os.environ.get("WANDB_MODE") == "disabled":
            return
        self._answer, answer = os.pipe()  # the W&B process writes to it once the server has answered at the end
        command = [sys.executable, "-m", "transformer_pl.training.wandb_process", str(answer)]
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, pass_fds=[answer])
        except OSError as error:
            os.close(self._answer)
            print(f"W&B: not started ({error}); everything is on disk", flush=True)
            return
        finally:
            os.close(answer)  # the other process has its own copy
        assert process.stdin
        self._process, self._pipe = process, process.stdin
        os.set_blocking(self._pipe.fileno(), False)
        with suppress(
            OSError, AttributeError
        ):  # a large pipe, where the system allows it, holds what W&B is sent early
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.tell(**run)

    def tell(self, **message: Any) -> None:
        """Send the run's description first, then messages of one key: log, summary, tables, images or finish."""
        if self._process and self._process.poll() is None:
            line = json.dumps(message).encode() + b"\n"
            try:
                if self._pipe.write(line) != len(line):
                    self._give_up(self._process, "does not keep up")
            except BrokenPipeError:  # the process ended meanwhile, and has printed why
                pass

    def finish(self, exit_code: int, wait: float = END_S) -> None:
        """End the run. Kill its processes if they have not ended after `wait` seconds, or when a signal comes.

        With exit code 0, a run that is online at a server that answers gets SEND_S to send what is queued.
        """
        self.tell(finish=exit_code)
        process = self._process
        if process is None:
            return
        self._pipe.close()
        try:
            ended = _ends_in(process, wait)
            if not ended and exit_code == 0 and self._server_answers():
                ended = _ends_in(process, SEND_S - wait)
            if not ended:
                self._give_up(process, "has not ended in time")
        finally:
            _kill(process)
            os.close(self._answer)

    def _server_answers(self) -> bool:
        """Whether the run is online at a server that answers, as `_watch_parent` reports."""
        return bool(select.select([self._answer], [], [], 0)[0])

    @staticmethod
    def _give_up(process: subprocess.Popen[bytes], reason: str) -> None:
        print(f"W&B: logging stopped (it {reason}); all metrics are in metrics.jsonl", flush=True)
        _kill(process)


def _ends_in(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        kill(process.pid)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_S)


def main() -> int:
    """The W&B process: read messages from standard input until `finish`, or until the pipe is closed."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the trial handles these and sends `finish`
        signal.signal(signum, signal.SIG_IGN)
    threading.Thread(target=_watch_parent, daemon=True).start()
    import wandb  # only now: the import is slow, and a signal may arrive meanwhile

    try:
        run = open_run(**json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            ((kind, content),) = json.loads(line).items()
            if kind == "log":
                run.log(content)
            elif kind == "summary":
                run.summary.update(content)
            elif kind == "tables":
                for name, rows in content.items():
                    table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
                    run.log({name: table})
            elif kind == "images":
                run.log({name: wandb.Image(path) for name, path in content.items()})
            elif kind == "finish":
                if content == 128 + signal.SIGTERM:
                    run.mark_preempting()
                run.finish(exit_code=content)
                return 0
        run.finish(exit_code=1)  # the trial was killed
    except Exception as error:
        print(f"W&B: logging stopped ({type(error).__name__}: {error}); all metrics are in metrics.jsonl", flush=True)
        kill(os.getpid())  # W&B's own exit handlers would wait for the server
    return 0


def _watch_parent() -> None:
    """When the parent closes the pipe or dies, tell it whether the server answers, and make sure this process ends."""
    pipe = select.poll()
    pipe.register(sys.stdin, 0)  # reports only that the other end is closed
    pipe.poll()
    deadline = threading.Timer(SEND_S + KILLED_S, kill, [os.getpid()])  # a living parent kills it earlier
    deadline.daemon = True
    deadline.start()
    while _server is None:  # the run may still be opening
        time.sleep(0.1)
    if why_unreachable(_server, END_S) is None:
        with suppress(OSError):  # the parent was killed
            os.write(int(sys.argv[1]), b"!")


def kept_run_id(folder: Path) -> str | None:
    """The id of the W&B run that `open_run` keeps for a folder; None where it never had one."""
    id_file = folder / RUN_ID
    return id_file.read_text() if id_file.exists() else None


def open_run(folder: str, name: str, tags: list[str], config: dict[str, Any], job_type: str = "train") -> Any:
    """Open the W&B run of a folder: under the id that the folder keeps, or the one that W&B's agent gives.

    The environment variables of W&B win over `name` and the default project.
    """
    import wandb

    global _server
    mode: Any
    mode, reason = wandb_mode()
    _server = wandb.setup().settings.base_url if mode == "online" else None
    id_file = Path(folder, RUN_ID)
    id_file.parent.mkdir(exist_ok=True)
    if not id_file.exists():
        id_file.write_text(f"{re.sub('[^A-Za-z0-9]', '-', Path(folder).name)[-12:]}-{uuid.uuid4().hex[:6]}")
    options: dict[str, Any] = {
        "project": os.environ.get("WANDB_PROJECT", PROJECT),
        "job_type": job_type,
        "name": os.environ.get("WANDB_NAME", name),
        "tags": [tag[:64] for tag in tags],
        "config": config,
        "dir": folder,
        "id": None if os.environ.get("WANDB_SWEEP_ID") else id_file.read_text(),
        "resume": "allow",
        "settings": wandb.Settings(
            console="off",
            silent=True,
            init_timeout=20,
            finish_timeout=SEND_S - END_S,  # then W&B gives up, and keeps on disk what it has not sent
            program="-m transformer_pl.train",
        ),
    }
    try:
        run = wandb.init(mode=mode, **options)
    except Exception as error:  # such as an API key that the server refuses
        if mode != "online":
            raise
        mode, reason, _server = "offline", f"{type(error).__name__}: {error}", None
        wandb.teardown()  # frees the run's id
        run = wandb.init(mode=mode, **options)
    with redirect_stderr(io.StringIO()):  # W&B warns that it makes links
        for source in sorted(Path(folder, "sources").rglob("*.py")):  # of the trial's components
            run.save(source, base_path=folder, policy="now")
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    if mode == "offline" and job_type != "report":  # the sweep's command says it of the report and all trials at once
        print(f"W&B: offline ({reason}); later: wandb sync {quote(folder)}/wandb/offline-run-*", flush=True)
    return run


def wandb_mode() -> tuple[str, str]:
    """The mode for `wandb.init` and the reason for it.

    WANDB_MODE wins; else `online` where there is an API key and the server answers, and `offline` otherwise.
    """
    import wandb

    if mode := os.environ.get("WANDB_MODE"):
        return mode, f"WANDB_MODE={mode}"
    server = wandb.setup().settings.base_url
    if not _has_key(urlsplit(server).hostname):
        return "offline", "no API key"
    if reason := why_unreachable(server):
        return "offline", f"no answer from the server ({reason})"
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
