"""The W&B run of one trial, in a process of its own: what it is told on its standard input, a JSON object a line.

In a process of its own because a lost network or a dead service must never cost a trial: W&B's calls may block for
minutes, or raise, where nobody waits for them. The only door to wandb.
"""

import json
import netrc
import os
import signal
import socket
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PROJECT = "transformer-pl"
GIVE_UP_S = 60  # of an end that does not come: the trial waits for less
PROBE_S = 3.0  # how long W&B's server may take to answer before a trial goes on without it


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
            elif what == "translations":
                run.log({"translations": wandb.Table(columns=list(told[0]), data=[list(row.values()) for row in told])})
            elif what == "finish":
                if told == 128 + signal.SIGTERM:
                    run.mark_preempting()
                _finish(run, told)
                return 0
        _finish(run, 1)  # the trial ended without a word
    except Exception as error:
        print(f"W&B: lost ({type(error).__name__}: {error}); the trial goes on, metrics.jsonl has all", flush=True)
        os._exit(1)  # its own clean-up would wait for what is lost
    return 0


def _finish(run: Any, exit_code: int) -> None:
    signal.alarm(GIVE_UP_S)  # which ends this process, should W&B wait for ever
    run.finish(exit_code=exit_code)


def open_run(folder: str, name: str, tags: list[str], config: dict[str, Any]) -> Any:
    """The trial's run: resumed under its own id, or the agent's; in the sweep's group, which the environment names."""
    import wandb

    mode, why = wandb_mode()
    kept_id = Path(folder, "wandb", "run-id")
    kept_id.parent.mkdir(exist_ok=True)
    if not kept_id.exists():
        kept_id.write_text(f"{Path(folder).name[-12:]}-{uuid.uuid4().hex[:6]}")
    about = {
        "project": os.environ.get("WANDB_PROJECT", PROJECT),
        "job_type": "train",
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


if __name__ == "__main__":
    sys.exit(main())
