"""The W&B run of a trial: what it receives, and the process that has it. Only this file imports wandb.

W&B's calls may block for minutes, or raise, when the network or the service fails. In a process of their own they
cannot delay or end a trial, which only writes messages to a pipe, as lines of JSON. The process imports no Lightning,
which would take it seconds.
"""

import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import redirect_stderr, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from transformer_pl.runtime.environment import PROJECT, why_unreachable
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_atomically
from transformer_pl.runtime.terminal import plain

if TYPE_CHECKING:
    from transformer_pl.trials.result import Result

END_S = 4.5  # seconds that W&B gets at the end of a trial where its server does not answer
SEND_S = 30.0  # seconds that it gets where its server answers, or where the run is offline


# ---------------------------------------------------------------------------------------------------------------------
# In the trial


class WandbRun:
    """The W&B run of a trial. No method fails when W&B does, and only `finish` waits."""

    def __init__(self, **run: Any):
        """run: the arguments of `_open_run`."""
        self._process: subprocess.Popen[bytes] | None = None
        if os.environ.get("WANDB_MODE") != "disabled":
            command = [sys.executable, "-m", "transformer_pl.train.wandb_run"]
            # In a session of its own, so that signals reach the trial alone, which then sends `finish`.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            self.send(run=run)

    def send(self, **message: Any) -> None:
        """Send a message of one key: log, summary or translations."""
        if self._process and self._process.stdin:
            with suppress(OSError):  # the process has ended
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()

    def send_summary(self, result: "Result") -> None:
        """Send what W&B's table of runs shows of a result beside the metrics."""
        shown = {key: getattr(result, key) for key in ("params", "flops", "tokens_per_s", "of_peak", "wall_s")}
        self.send(summary=shown | {"val/loss.fall": result.convergence and result.convergence["fall"]})

    def finish(self, exit_code: int = 0) -> None:
        """End the run. W&B has SEND_S to send the rest, or END_S where its server does not answer.

        After an exit code other than 0 this process waits for END_S at most, and W&B's process goes on alone.
        """
        if self._process and self._process.stdin:
            self.send(finish=exit_code)
            with suppress(OSError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S if exit_code else SEND_S + END_S)  # it ends itself earlier
            if self._process.returncode:
                print("W&B: logging stopped before its end; all metrics are in metrics.jsonl", flush=True)


def runs_online(address: str) -> list[dict[str, Any]]:
    """The runs of a group or a sweep at W&B's server, by their columns as its table of runs exports them.

    address: ENTITY/PROJECT/GROUP, where the last part may be the id of a sweep. Raises an InputError where there are
    none, or where the server does not answer.
    """
    import wandb

    entity, project, group = ["", "", *address.strip("/").split("/")][-3:]
    try:
        found = wandb.Api().runs(f"{entity}/{project}", filters={"$or": [{"group": group}, {"sweep": group}]})
        runs = [{"Name": run.name, "State": run.state, **run.config, **dict(run.summary)} for run in found]
    except Exception as error:  # of the network, of the server, of a missing key
        remedy = "log in with `wandb login`, or export the table of runs as CSV"
        raise InputError(f"wandb://{address}: cannot be read: {type(error).__name__}: {error}; {remedy}") from None
    if not runs:
        raise InputError(f"wandb://{address}: has no runs; give ENTITY/PROJECT/GROUP, or the id of a sweep as GROUP")
    return runs


# ---------------------------------------------------------------------------------------------------------------------
# The process: `python -m transformer_pl.train.wandb_run`

_messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
_server: str | None = None  # at which the run is online, or is to be


def _main() -> None:
    threading.Thread(target=_read, daemon=True).start()
    try:
        _keep_run()
    except Exception as error:
        print(f"W&B: {type(error).__name__}: {error}", flush=True)
        os._exit(1)  # W&B's own exit handlers would wait for the server; its service ends with this process


def _read() -> None:
    """Read the messages to their end. Then make sure that W&B ends, also where the trial was killed."""
    for line in sys.stdin:
        _messages.put(*json.loads(line).items())  # one key and its content
    _messages.put(("finish", 1))
    time.sleep(END_S / 2)  # a run that has just begun may still be opened
    if not (_server and why_unreachable(_server, END_S / 2)):
        time.sleep(SEND_S - END_S / 2)
    os._exit(1)


def _keep_run() -> None:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb  # here, because it is slow

    run = _open_run(**_messages.get()[1])
    while True:
        kind, content = _messages.get()
        if kind == "log":
            run.log(content)
        elif kind == "summary":
            run.summary.update(content)
        elif kind == "translations":  # rows by column
            table = wandb.Table(columns=list(content[0]), data=[list(row.values()) for row in content])
            run.log({"translations": table})
        elif kind == "finish":
            if content == 128 + signal.SIGTERM:
                run.mark_preempting()
            run.finish(exit_code=content)
            return


def _open_run(folder: str, name: str, tags: list[str], config: dict[str, Any]) -> Any:
    """Open the W&B run of a folder: under the id that the folder keeps, or the one that W&B's agent gives.

    The environment variables of W&B win over `name` and the default project. The run is online where there is an API
    key and the server answers, and offline otherwise, or where the user wants that.
    """
    import wandb

    global _server
    mode: Any = wandb.setup().settings.mode  # from WANDB_MODE, or else from `wandb offline` and `wandb disabled`
    if mode == "disabled":
        return wandb.init(mode=mode)  # a run that does nothing
    id_file = Path(folder, "wandb", "run-id")
    id_file.parent.mkdir(exist_ok=True)
    if not id_file.exists():
        id_ = f"{re.sub('[^A-Za-z0-9]', '-', Path(folder).name)[-12:]}-{uuid.uuid4().hex[:6]}"
        write_atomically(id_file, id_)
    options: dict[str, Any] = {
        "project": os.environ.get("WANDB_PROJECT", PROJECT),
        "job_type": "train",
        "name": os.environ.get("WANDB_NAME", name),
        "tags": [tag[:64] for tag in tags],
        "config": config,
        "dir": folder,
        "id": None if os.environ.get("WANDB_SWEEP_ID") else id_file.read_text(),
        "resume": "allow",
    }
    # After finish_timeout W&B gives up, and keeps on disk what it has not sent.
    options["settings"] = wandb.Settings(
        console="off", silent=True, init_timeout=20, finish_timeout=SEND_S - END_S, program="-m transformer_pl.train"
    )
    reason = "by `wandb offline` or WANDB_MODE"
    try:
        if mode == "online":
            _server = wandb.setup().settings.base_url
            if unreachable := why_unreachable(_server):
                raise ConnectionError(f"no answer from the server: {unreachable}")
        run = wandb.init(mode=mode, **options)
    except Exception as error:  # also where there is no API key, or where the server refuses it
        mode, reason, _server = "offline", str(error), None
        wandb.teardown()  # frees the run's id
        run = wandb.init(mode=mode, **options)
    with redirect_stderr(io.StringIO()):  # W&B warns that it makes links
        for source in sorted(Path(folder, "sources").rglob("*.py")):  # the sources of the trial's components
            run.save(source, base_path=folder, policy="now")
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    if mode == "offline":
        print(plain(f"W&B: offline ({reason}); later: wandb sync {quote(folder)}/wandb/offline-run-*"), flush=True)
    return run


if __name__ == "__main__":
    _main()
