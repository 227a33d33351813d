"""The lock of a trial: only one process trains it, also where several machines share its folder.

The lock is filelock's lease, which needs neither a server nor equal clocks. The process that holds it gives heartbeats.
Another process takes the trial over when it has seen no heartbeat for DEAD_S, or at once if the holder has died on the
same machine. The lock only saves work: a trial's result follows from its identity, whichever process trains it.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import SoftFileLease, Timeout

from transformer_pl.runtime.errors import InputError

HEARTBEAT_S, DEAD_S = 10.0, 30.0
INSTANT_S = 2.0  # seconds; a process that only checks the lock may hold it so long


class LockLost(Exception):
    """Another process has taken the trial over. What this one has trained since then must be dropped."""


class TrialLock:
    """The lock in a trial's folder. The file `lock` names the machine and the process that hold it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._observed = _lease(folder)  # to look whether others hold the lock: it knows when it saw a heartbeat last
        self._held: SoftFileLease | None = None  # while this process holds the lock

    def is_held(self) -> bool:
        """Whether a living process holds it."""
        if not os.path.exists(self._observed.lock_file):
            return False
        try:
            with self._observed.acquire(timeout=0):
                return False
        except (Timeout, PermissionError):  # it is another user's, and cannot be taken
            return True

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock. Raises an InputError where a living process holds it, after DEAD_S if on another machine.

        If another process takes the trial over, this one gets SIGTERM, and `check` raises LockLost from then on.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lease = _lease(self.folder)
        elsewhere = lease.owner and lease.owner.hostname != _host()  # another machine or container
        try:
            lease.acquire(timeout=DEAD_S + HEARTBEAT_S if elsewhere else INSTANT_S)
        except Timeout:
            raise InputError(f"{self.folder}: another process trains this trial; wait for it, or end it") from None
        except PermissionError:
            mine = "continue it as that user, or choose a folder of your own with --runs"
            raise InputError(f"{self.folder}: must be yours, but its lock is of another user; {mine}") from None
        self._held = lease
        try:
            yield
        finally:
            self._held = None
            lease.release()

    def check(self) -> None:
        """Raise LockLost where this process held the lock and another one has taken it."""
        if self._held and self._held.compromise:
            raise LockLost(f"{self.folder}: another process trains this trial now, as this one gave no heartbeat")


def _host() -> str:
    """What filelock calls this machine in a lock. In a container that is more than the machine's name."""
    with TemporaryDirectory() as folder, _lease(Path(folder)) as lease:
        assert lease.owner
        return lease.owner.hostname


def _lease(folder: Path) -> SoftFileLease:
    return SoftFileLease(
        folder / "lock",
        lease_duration=DEAD_S,
        heartbeat_interval=HEARTBEAT_S,
        on_compromise=lambda _: os.kill(os.getpid(), signal.SIGTERM),
        is_singleton=False,
    )
