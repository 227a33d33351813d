"""The lock of a trial: one process trains it, on whichever machine, as long as all share its folder.

It is filelock's lock for network file systems, which needs no server and no equal clocks: the process that holds it
gives heartbeats, and another one takes the trial over when it has seen none for DEAD_S. Where the process was killed on
this machine, no process needs to wait for that. A trial's result follows from its identity: the lock only saves work.
"""

import os
import platform
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import SoftReadWriteLock, Timeout

from transformer_pl.runtime.errors import InputError

HEARTBEAT_S, DEAD_S = 10.0, 30.0
LOOK_S = 1.0  # between two looks at a lock that another process holds
INSTANT_S = 2.0  # for which a process that only looks may hold it


class Lost(Exception):
    """Another process has taken the trial over. What this one has of it must be dropped."""


class TrialLock:
    """The lock in a trial's folder. `lock.holder` names the machine and the process that hold it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._holder = folder / "lock.holder"
        self._looking = self._lock()  # knows for how long it has seen no heartbeat
        self._own: SoftReadWriteLock | None = None  # while this process holds it
        self._looked_at = -LOOK_S

    def _lock(self) -> SoftReadWriteLock:
        return SoftReadWriteLock(
            self.folder / "lock",
            is_singleton=False,
            heartbeat_interval=HEARTBEAT_S,
            stale_threshold=DEAD_S,
            on_compromise=lambda _: os.kill(os.getpid(), signal.SIGTERM),
        )

    def is_held(self) -> bool:
        """Whether a living process holds it."""
        if not self._holder.exists() or self._holder_died_here():
            return False
        if time.monotonic() >= self._looked_at + LOOK_S:
            try:
                with self._looking.read_lock(blocking=False):
                    return False
            except (Timeout, PermissionError):  # a lock is one user's: that of another cannot be looked at
                self._looked_at = time.monotonic()
        return True

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock. Raises an InputError where a living process holds it, after DEAD_S if on another machine.

        If another process takes the trial over, this one gets SIGTERM, and `check` raises Lost from then on.
        """
        if self._holder_died_here():
            self._remove()
        elsewhere = self._holder.exists() and self._read_holder()[0] != _this_machine()
        own = self._lock()
        try:
            own.acquire_write(timeout=DEAD_S + HEARTBEAT_S if elsewhere else INSTANT_S)
        except Timeout:
            raise InputError(
                f"{self.folder}: another process trains this trial, and only one may; wait for it, or end it"
            ) from None
        except PermissionError:
            mine = "continue it as that user, or choose a folder of your own with --runs"
            raise InputError(f"{self.folder}: must be yours, but its lock is of another user; {mine}") from None
        self._own = own
        self._holder.write_text(f"{_this_machine()} {os.getpid()}\n", encoding="utf-8")
        try:
            yield
        finally:
            if own.compromise is None:
                self._holder.unlink(missing_ok=True)
            self._own = None
            own.release()

    def check(self) -> None:
        """Raise Lost where this process held the lock and another one has taken it."""
        if self._own and self._own.compromise:
            raise Lost(f"{self.folder}: another process trains this trial now, as this one gave no heartbeat")

    def _holder_died_here(self) -> bool:
        machine, pid = self._read_holder()
        if machine != _this_machine() or not pid.isdecimal():
            return False
        with suppress(OSError):  # of another user
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                return True
        return False

    def _read_holder(self) -> tuple[str, str]:
        """The machine and the process that hold it; empty where none does."""
        with suppress(OSError):
            machine, _, pid = self._holder.read_text(encoding="utf-8").strip().rpartition(" ")
            return machine, pid
        return "", ""

    def _remove(self) -> None:
        """Remove the lock of a process that died."""
        aside = self.folder / f"lock.{uuid.uuid4().hex}"
        with suppress(OSError):  # another process has done it
            (self.folder / "lock.rw").rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _this_machine() -> str:
    """A name of this machine, or of this container: where numbers of processes are unique."""
    with suppress(OSError):
        return f"{platform.node()} {os.stat('/proc/self/ns/pid').st_ino}"
    return platform.node()
