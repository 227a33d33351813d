"""The lock of a trial: one process trains it, on whichever machine, as long as all share its folder.

It is filelock's lease, which needs no server and no equal clocks: the process that holds it gives heartbeats, and
another one takes the trial over when it has seen none for DEAD_S, or at once where the process has died on this very
machine. A trial's result follows from its identity: the lock only saves work.
"""

import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import SoftFileLease, Timeout

from transformer_pl.runtime.errors import InputError

HEARTBEAT_S, DEAD_S = 10.0, 30.0
INSTANT_S = 2.0  # for which a process that only looks may hold it


class Lost(Exception):
    """Another process has taken the trial over. What this one has of it must be dropped."""


class TrialLock:
    """The lock in a trial's folder. The file `lock` names the machine and the process that hold it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._looking = _lease(folder)  # knows for how long it has seen no heartbeat
        self._own: SoftFileLease | None = None  # while this process holds it

    def is_held(self) -> bool:
        """Whether a living process holds it."""
        if not os.path.exists(self._looking.lock_file):
            return False
        try:
            with self._looking.acquire(timeout=0):
                return False
        except (Timeout, PermissionError):  # another user's cannot be taken
            return True

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock. Raises an InputError where a living process holds it, after DEAD_S if on another machine.

        If another process takes the trial over, this one gets SIGTERM, and `check` raises Lost from then on.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        own = _lease(self.folder)
        elsewhere = own.owner and own.owner.hostname != platform.node()  # or in a container
        try:
            own.acquire(timeout=DEAD_S + HEARTBEAT_S if elsewhere else INSTANT_S)
        except Timeout:
            raise InputError(f"{self.folder}: another process trains this trial; wait for it, or end it") from None
        except PermissionError:
            mine = "continue it as that user, or choose a folder of your own with --runs"
            raise InputError(f"{self.folder}: must be yours, but its lock is of another user; {mine}") from None
        self._own = own
        try:
            yield
        finally:
            self._own = None
            own.release()

    def check(self) -> None:
        """Raise Lost where this process held the lock and another one has taken it."""
        if self._own and self._own.compromise:
            raise Lost(f"{self.folder}: another process trains this trial now, as this one gave no heartbeat")


def _lease(folder: Path) -> SoftFileLease:
    return SoftFileLease(
        folder / "lock",
        lease_duration=DEAD_S,
        heartbeat_interval=HEARTBEAT_S,
        on_compromise=lambda _: os.kill(os.getpid(), signal.SIGTERM),
        is_singleton=False,
    )
