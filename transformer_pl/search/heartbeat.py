"""Heartbeats: how processes that share a study notice that another process died.

Each process changes a number, its heartbeat, in the trials that it trains. The others only look whether the number has
changed. No clocks of different machines are compared.
"""

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial

from transformer_pl.search import states

HEARTBEAT_S = 20.0  # from one heartbeat to the next
HEARTBEAT_TIMEOUT_S = 120.0  # without a heartbeat, after which a process is taken for dead


class Heartbeats:
    """The heartbeats of this process, and those that it has seen of the others. clock: seconds that only increase."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._next_beat = 0.0
        self._last_seen: dict[int, tuple[Any, float]] = {}  # by trial number: a heartbeat, and when it was new here

    def beat(self, trials: Iterable[Trial]) -> None:
        """Give a heartbeat to the trials of this process, if it is time for one."""
        if (now := self._clock()) < self._next_beat:
            return
        self._next_beat = now + HEARTBEAT_S
        for trial in trials:
            with suppress(UpdateFinishedTrialError):  # another process has taken it over
                trial.set_user_attr(states.HEARTBEAT, now)

    def orphans(self, others: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Return those trials of other processes whose process died, or gave no heartbeat for HEARTBEAT_TIMEOUT_S."""
        now, orphans = self._clock(), []
        for trial in others:
            heartbeat = trial.user_attrs.get(states.HEARTBEAT)
            last_heartbeat, since = self._last_seen.setdefault(trial.number, (heartbeat, now))
            if heartbeat != last_heartbeat:
                self._last_seen[trial.number] = heartbeat, now
            elif now > since + HEARTBEAT_TIMEOUT_S or is_dead(trial.user_attrs.get(states.PROCESS, "")):
                orphans.append(trial)
        return orphans


def process_id(pid: int) -> str:
    """Return what identifies a process of this machine to others that share the study."""
    return f"{_pid_namespace()} {pid}"


def is_dead(process: str) -> bool:
    """Whether a process_id is of this machine and its process has ended. False if it is of another machine."""
    namespace, _, pid = process.rpartition(" ")
    if namespace != _pid_namespace():
        return False
    try:
        os.kill(int(pid), 0)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except ProcessLookupError:
        return True
    except OSError:
        return False
    state = stat.rpartition(")")[2].split()[0]
    return state == "Z"  # a zombie: it has ended, but its parent has not waited for it, as often in a container


def _pid_namespace() -> str:
    """Where process numbers are unique: this boot of this machine, this container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()
