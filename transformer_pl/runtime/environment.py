"""The environment of this process: the variables that the project sets, and a description of the machine."""

import os
import platform
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any


def avoid_spinning_threads() -> None:
    """Let OpenMP's idle threads sleep, unless the user chose otherwise. Call it before torch is imported.

    By default they spin, and two trials on the same cores slow each other down many times.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def thread_count_is_set() -> bool:
    """Whether the user, or the sweep that started this process, has set the number of threads."""
    return "OMP_NUM_THREADS" in os.environ


def set_thread_count(threads: int) -> None:
    """For the processes that Lightning starts: without it Lightning chooses a number itself."""
    os.environ["OMP_NUM_THREADS"] = str(threads)


def set_wandb_group(group: str, project: str) -> None:
    """Group the W&B runs of the processes that this one starts. A project that the user chose stays."""
    os.environ["WANDB_RUN_GROUP"] = group
    os.environ.setdefault("WANDB_PROJECT", project)


def under_wandb_agent() -> bool:
    """Whether W&B's agent started this process."""
    return bool(os.environ.get("WANDB_SWEEP_ID"))


def describe_environment(packages: Iterable[str]) -> dict[str, Any]:
    """The machine, the system, Python and the versions of these packages. Rates and times depend on them."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (model := re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())):
        cpu = model[1]
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in packages},
    }
