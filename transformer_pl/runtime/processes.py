"""This machine, as leases see it, and names of its processes, by which others of it can tell whether one has died."""

import math
import os
import secrets
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from transformer_pl.runtime.files import put_in_place


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


def seconds_from(variable: str, default: float) -> float:
    """The seconds that an environment variable sets. Ends the process with exit code 2 where that is no time."""
    text = os.environ.get(variable) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if 1 <= seconds < math.inf:
        return seconds
    print(
        f"error: {variable} = {text}: must be a number of seconds, at least 1; correct it, or unset it", file=sys.stderr
    )
    sys.exit(2)


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


class ThisMachine:
    """The machine and the process that run this: a `Machine` of `runtime/lease.py`."""

    host = socket.gethostname()

    @property
    def process(self) -> str:
        return process_id(os.getpid())

    def clock(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def is_here(self, process: str) -> bool:
        return is_here(process)

    def is_dead(self, process: str) -> bool:
        return is_dead(process)

    def token(self) -> str:
        return str(secrets.randbits(62))

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def read(self, path: Path) -> str:
        return path.read_text(encoding="utf-8")

    def write(self, path: Path, text: str) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def link(self, path: Path, name: Path) -> None:
        os.link(path, name)

    def rename(self, path: Path, name: Path) -> None:
        put_in_place(path, name)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
