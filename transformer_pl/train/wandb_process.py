"""The W&B process of a trial: `python -m transformer_pl.train.wandb_process`. Only this file imports wandb.

W&B's calls may block for minutes, or raise, when the network or the service fails. Here they cannot delay or end a
trial, which only writes messages to a socket, as lines of JSON: see WandbLogger.
"""

import io
import json
import os
import queue
import re
import signal
import sys
import threading
import time
import uuid
from contextlib import redirect_stderr, suppress
from pathlib import Path
from shlex import quote
from typing import Any

from transformer_pl.runtime.environment import PROJECT, why_unreachable
from transformer_pl.runtime.signals import kill

END_S = 4.5  # seconds that W&B gets at the end of a trial
SEND_S = 30.0  # seconds that it gets at the end where its server answers, or where nothing else waits

_messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
_server: str | None = None  # at which the run is online


def _main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the trial handles these and sends `finish`
        signal.signal(signum, signal.SIG_IGN)
    threading.Thread(target=_read, daemon=True).start()
    try:
        _keep_run()
    except Exception as error:
        print(f"W&B: logging stopped ({type(error).__name__}: {error}); all metrics are in metrics.jsonl", flush=True)
        kill(os.getpid())  # W&B's own exit handlers would wait for the server


def _read() -> None:
    """Read the socket to its end. Then tell the trial whether W&B's server answers, and make sure that W&B ends."""
    for line in sys.stdin:
        ((kind, content),) = json.loads(line).items()
        _messages.put((kind, content))
    _messages.put(("finish", 1))  # where the trial was killed
    if _server and why_unreachable(_server, END_S) is None:
        with suppress(OSError):
            os.write(sys.stdin.fileno(), b"!")
    time.sleep(SEND_S)
    kill(os.getpid())


def _keep_run() -> None:
    import wandb  # here, because it is slow, and signals are ignored by now

    run = open_run(**_messages.get()[1])
    while True:
        kind, content = _messages.get()
        if kind == "log":
            run.log(content)
        elif kind == "summary":
            run.summary.update(content)
        elif kind == "tables":  # rows by name; a row by column
            for name, rows in content.items():
                table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
                run.log({name: table})
        elif kind == "finish":
            if content == 128 + signal.SIGTERM:
                run.mark_preempting()
            run.finish(exit_code=content)
            return


def open_run(folder: str, name: str, tags: list[str], config: dict[str, Any]) -> Any:
    """Open the W&B run of a folder: under the id that the folder keeps, or the one that W&B's agent gives.

    The environment variables of W&B win over `name` and the default project. The run is online where there is an API
    key and the server answers, and offline otherwise.
    """
    import wandb

    global _server
    id_file = Path(folder, "wandb", "run-id")
    id_file.parent.mkdir(exist_ok=True)
    if not id_file.exists():
        id_file.write_text(f"{re.sub('[^A-Za-z0-9]', '-', Path(folder).name)[-12:]}-{uuid.uuid4().hex[:6]}")
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
    mode: Any = os.environ.get("WANDB_MODE", "online")
    server = wandb.setup().settings.base_url
    reason = f"WANDB_MODE={mode}"
    try:
        if mode == "online" and (unreachable := why_unreachable(server)):
            raise ConnectionError(f"no answer from the server: {unreachable}")
        run = wandb.init(mode=mode, **options)
        _server = server if mode == "online" else None
    except Exception as error:  # also where there is no API key, or where the server refuses it
        mode, reason = "offline", str(error)
        wandb.teardown()  # frees the run's id
        run = wandb.init(mode=mode, **options)
    with redirect_stderr(io.StringIO()):  # W&B warns that it makes links
        for source in sorted(Path(folder, "sources").rglob("*.py")):  # of the trial's components
            run.save(source, base_path=folder, policy="now")
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    if mode == "offline":
        print(f"W&B: offline ({reason}); later: wandb sync {quote(folder)}/wandb/offline-run-*", flush=True)
    return run


if __name__ == "__main__":
    _main()
