"""Names of processes, by which others of the same machine can tell whether one of them has died."""

import os
import socket
from contextlib import suppress
from pathlib import Path


def process_id(pid: int) -> str:
    """The name of a process of this machine, for others to read. No other process ever has the same."""
    return f"{_pid_namespace()} {_stat(pid)[1]} {pid}"


def is_here(process: str) -> bool:
    """Whether the process of a `process_id` is, or was, of this machine and container."""
    return process.startswith(f"{_pid_namespace()} ")


def is_dead(process: str) -> bool:
    """Whether a `process_id` is of this machine and its process has ended. False if it is of another machine."""
    *_, started, pid = ("", "", *process.split())
    if not is_here(process) or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    state, begun = _stat(int(pid))
    return state == "Z" or begun != started  # a zombie has ended, but its parent has not waited for it


def _stat(pid: int) -> tuple[str, str]:
    """The state of a process, and the moment of its start; empty where the system has no /proc."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    return "", "0"


def _pid_namespace() -> str:
    """Where process numbers are unique: this boot of this machine, this container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()
