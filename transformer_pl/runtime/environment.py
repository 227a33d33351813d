"""The environment of this process: variables that the project sets, versions, the machine, servers that answer."""

import math
import os
import platform
import queue
import re
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

NAME = "transformer-pl"
GIT_S = 5.0  # seconds that git has to answer
PROJECT = NAME  # the project at W&B, unless a sweep file names another

# Variables that a sweep sets for its trials
SWEEP = "TRANSFORMER_PL_SWEEP"  # the name of the sweep's folder
ROW = "TRANSFORMER_PL_ROW"  # the name of the row
TRIAL = "TRANSFORMER_PL_TRIAL"  # the id of the trial
WAITED_FOR = "TRANSFORMER_PL_WAITED_FOR"  # a descriptor; the sweep waits for all processes that have it
WEIGHTS_OF = "TRANSFORMER_PL_WEIGHTS_OF"  # the folders of finished trials with the same weights, separated by `/`
# A variable that a trial sets for the other processes which train it
RANKS_OF = "TRANSFORMER_PL_RANKS_OF"  # the id of the trial


def set_wandb_group(group: str, project: str, sweep: str) -> None:
    """Group the W&B runs of the processes that this one starts. A project that the user chose stays.

    sweep: the name of the sweep's folder, such as `table3-A@demo`.
    """
    os.environ["WANDB_RUN_GROUP"] = group
    os.environ[SWEEP] = sweep
    os.environ.setdefault("WANDB_PROJECT", project)


def process_began() -> float:
    """When this process began, in seconds since 1970, or a little before; earlier than any file where nobody knows."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # since the machine began
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK") - 0.1
    except (OSError, AttributeError):  # not on Linux
        return -math.inf


def project_version() -> str:
    """Such as `0.1.0`; `not installed` where the project runs from its folder and pip has not installed it."""
    return _installed(NAME)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def code_state() -> str | None:
    """The git commit of this project's code, and `-dirty` where its files were changed since.

    None where the code is not in a git repository of its own, or where git does not answer.
    """
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        # Without locks, as other commands do the same at the same time.
        git = ["git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([*git, "--dirty"], capture_output=True, check=True, timeout=GIT_S, text=True)
            return done.stdout.strip()
    return None


def processor(cpu_info: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """What Linux says of the first processor, by its names for it, such as `model name`; nothing on other systems.

    cpu_info: the kernel's list of processors.
    """
    with suppress(OSError):
        first = cpu_info.read_text(encoding="utf-8").split("\n\n")[0]
        return dict(re.findall(r"^(\S.*?)\s*: (.+)$", first, re.MULTILINE))
    return {}


def describe_environment(packages: Iterable[str]) -> dict[str, Any]:
    """The machine, the system, Python and the versions of these packages. Rates and times depend on them."""
    found = processor()
    cpu = found.get("model name", platform.processor() or platform.machine())
    if "cpu family" in found:  # of x86, where servers of several generations may have one name
        cpu += f" (family {found['cpu family']}, model {found['model']})"
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "packages": {name: _installed(name) for name in packages},
    }


def why_unreachable(address: str, seconds: float = 3.0) -> str | None:
    """Why the web server at a URL, or its proxy, answers no request; None if it does, with any status.

    A server that hangs may still accept connections: only an answer counts.
    """
    answers: queue.Queue[str | None] = queue.Queue()
    thread = threading.Thread(target=lambda: answers.put(_failure(address, seconds)), daemon=True)
    thread.start()  # a thread, because a name lookup has no time-out
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return f"none in {seconds:g} s"


def _failure(address: str, seconds: float) -> str | None:
    import ssl  # few commands need these
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, build_opener

    try:
        build_opener().open(Request(address, method="HEAD"), timeout=seconds).close()
    except HTTPError as error:
        error.close()
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLError) else str(reason)  # W&B may have a certificate that Python lacks
    return None
