"""Leases: which of several processes does a piece of work, wherever they run, as long as they share its folder.

It needs no server, no equal clocks, no file locks and no process numbers that all machines understand. It needs what
network file systems do as one step: to link a file to a name that does not exist yet, and to rename a file.

The claims on a folder are files with numbers: `claim.1`, `claim.2`, and so on. None is ever removed, so only one
process can make the next one, and the last one says whose the work is:

    held    by the process that made it, which gives signs of life: it counts `beat` up
    free    it has released the work
    done    the holder of the claim before has a result

A holder that has given no sign of life for LEASE_S may be taken over by whoever makes the next claim. The others
measure that on their own clocks, each by how long it has seen no change. If the holder only stood still and goes on
later, it finds the next claim made. So it cannot make the claim `done`, without which no result gets its name, and its
work is dropped. `check` tells it before that.

A call to a file system may fail although it has done its work, or do it later. So nobody believes an answer: what
stands in the next claim decides. Each claim has a token of its own for that.
"""

import json
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from transformer_pl.runtime.processes import ThisMachine, seconds_from

# Seconds without a sign of life, after which a process is taken for dead. All machines need the same. A file system
# that shows a change later than after half of that needs more.
LEASE_S = seconds_from("TRANSFORMER_PL_LEASE_S", 120.0)
BEAT_S = LEASE_S / 6  # from one sign of life to the next
HELD, FREE, DONE = "held", "free", "done"
TRIES = 5  # to do what a file system may have failed to do
AGAIN_S = 0.2  # between two of them
INSTANT_S = 0.5  # for which a process may have the lease that takes it only to look whether there is a result


class Lost(Exception):
    """Another process has taken the work over. What this one has of it must be dropped."""


class Machine(Protocol):
    """What leases need of a machine. Calls that touch files may raise an OSError and have worked all the same.

    A folder that this machine has changed is read as it is then. Else it may be read as it was a while ago.
    """

    host: str
    process: str  # the name of this process; no other has it

    def clock(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def is_here(self, process: str) -> bool: ...
    def is_dead(self, process: str) -> bool: ...
    def token(self) -> str: ...
    def names(self, folder: Path) -> list[str]: ...
    def read(self, path: Path) -> str: ...
    def write(self, path: Path, text: str) -> None: ...
    def link(self, path: Path, name: Path) -> None: ...
    def rename(self, path: Path, name: Path) -> None: ...
    def remove(self, path: Path) -> None: ...


class Claim(NamedTuple):
    """What stands in a claim."""

    number: int
    token: str
    state: str
    host: str = ""
    process: str = ""
    beat: int = 0
    file: str = ""  # of a claim that is done: the name of the result

    @property
    def text(self) -> str:
        return json.dumps({key: value for key, value in self._asdict().items() if key != "number"}) + "\n"


class Watch:
    """How long signs of life have not changed, by the clock of whoever looks. clock: seconds that only increase."""

    def __init__(self, clock: Callable[[], float], patience_s: float = LEASE_S):
        self._clock, self._patience_s = clock, patience_s
        self._seen: dict[Hashable, tuple[Any, float]] = {}  # the last sign, and when it was new here

    def is_silent(self, key: Hashable, sign: Any) -> bool:
        """Whether the sign of life of `key` has been this one at every look for the time of a lease."""
        now = self._clock()
        last, since = self._seen.setdefault(key, (sign, now))
        if sign != last:
            self._seen[key] = sign, now
            return False
        return now > since + self._patience_s


class Claims:
    """The claims on the work in a folder, as one process sees and makes them."""

    def __init__(self, folder: Path, machine: "Machine | None" = None, watch: Watch | None = None):
        self.folder, self.machine, self.watch = folder, machine or THIS_MACHINE, watch or SEEN

    def path(self, number: int) -> Path:
        return self.folder / f"claim.{number}"

    def latest(self) -> Claim | None:
        """The claim that counts; None where nobody has ever claimed the work."""
        try:
            names = self.machine.names(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        numbers = [int(end) for name in names if (end := name.removeprefix("claim.")) != name and end.isdecimal()]
        return self.read(max(numbers)) or Claim(max(numbers), "", HELD) if numbers else None

    def read(self, number: int) -> Claim | None:
        """A claim; None where there is none. What no process has written counts as free."""
        try:
            content = json.loads(self.machine.read(self.path(number)))
            fields = {key: content[key] for key in Claim._fields if key != "number" and key in content}
            return Claim(number, **fields)
        except FileNotFoundError:
            return None
        except (IsADirectoryError, ValueError, TypeError, KeyError):  # a power cut may leave it empty
            return Claim(number, "", FREE)
        except OSError:
            return Claim(number, "", HELD)

    def holder(self) -> Claim | None:
        """The claim of the process that has the work, as far as is known; None where the work can be taken."""
        claim = self.latest()
        return claim if claim and self._holds(claim) else None

    def _holds(self, claim: Claim) -> bool:
        if claim.state != HELD or self.machine.is_dead(claim.process):
            return False
        return not self.watch.is_silent(self.folder, claim)

    def wait_until_free(self) -> bool:
        """Wait until the work can be taken. False: the process that has it lives."""
        first, began = self.holder(), self.machine.clock()
        while holder := self.holder():
            lives = holder != first or self.machine.is_here(holder.process)
            if lives and self.machine.clock() > began + INSTANT_S:
                return False
            self.machine.sleep(AGAIN_S / 2)
        return True

    def take(self) -> "Lease | None":
        """Claim the work; None where another process has it. Raises an OSError where nothing can be written.

        A result that another process has finished and could not put in its place is put there, so look for it.
        """
        last = self.latest()
        if last and self._holds(last):
            return None
        claim = Claim(
            last.number + 1 if last else 1, self.machine.token(), HELD, self.machine.host, self.machine.process
        )
        if not self._make(claim, unless_changed=last):
            return None
        lease = Lease(self, claim)
        try:
            earlier = (self.read(number) for number in range(claim.number - 1, 0, -1))
            if done := next((one for one in earlier if one and one.state == DONE), None):
                self.complete(done)
                self.retry(lambda: self.rewrite(claim))  # else this machine may read the folder as it was before
        except OSError:
            lease.release()
            raise
        return lease

    def _make(self, claim: Claim, unless_changed: Claim | None = None) -> bool:
        """Make the next claim. False: another process has made it, or `unless_changed` has given a sign of life."""
        private = self._private(claim)
        self.machine.write(private, claim.text)  # from here on this machine reads the folder as it is
        try:
            if unless_changed and unless_changed.state == HELD and self.read(unless_changed.number) != unless_changed:
                return False
            reason = ""
            for _ in range(TRIES):
                try:
                    self.machine.link(private, self.path(claim.number))
                except OSError as error:
                    reason = f": {error.strerror or error}"
                made = self.read(claim.number)
                if made and made.token:
                    return made.token == claim.token
                self.machine.sleep(AGAIN_S)
        finally:
            with suppress(OSError):
                self.machine.remove(private)
        raise OSError(f"{self.path(claim.number)}: cannot be made{reason}; its file system must have hard links")

    def _private(self, claim: Claim) -> Path:
        return self.folder / f".claim.{claim.number}.{claim.token}"

    def rewrite(self, claim: Claim) -> None:
        """Change what stands in a claim of this process."""
        self.machine.write(self._private(claim), claim.text)
        self.machine.rename(self._private(claim), self.path(claim.number))

    def finish(self, claim: Claim) -> bool:
        """Make the claim that the work is done. False: another process has taken it over."""
        return self._make(claim)

    def complete(self, done: Claim) -> None:
        """Give the result of a finished claim its name, if that has not happened."""
        with suppress(FileNotFoundError):  # it has happened, perhaps by a call that said it had failed
            self.retry(lambda: self.machine.rename(self.unfinished(done), self.folder / done.file))

    def retry(self, action: Callable[[], None]) -> None:
        """Do what may be done twice, again where the file system says that it has failed."""
        for attempt in range(TRIES):
            try:
                return action()
            except FileNotFoundError:
                raise
            except OSError:
                if attempt == TRIES - 1:
                    raise
            self.machine.sleep(AGAIN_S)

    def unfinished(self, done: Claim) -> Path:
        """The result before it has its name."""
        return self.folder / f".{done.file}.{done.token}"


class Lease:
    """The work is this process's, until it releases it, has a result, or gives no sign of life for too long."""

    def __init__(self, claims: Claims, claim: Claim):
        self.claims, self.claim = claims, claim
        self.is_given_away = False
        self._lock = threading.Lock()  # signs of life come from a thread

    @property
    def given(self) -> str:
        """What another process needs to `adopt` the lease. With `is_given_away`, `close` leaves it to that."""
        return f"{self.claim.number} {self.claim.token}"

    @classmethod
    def adopt(cls, claims: Claims, given: str) -> "Lease | None":
        """The lease that another process has given away; None where it is not of this folder, or is lost."""
        number, _, token = given.partition(" ")
        claim = claims.read(int(number)) if number.isdecimal() else None
        if claim is None or claim.token != token:
            return None
        lease = cls(claims, claim._replace(host=claims.machine.host, process=claims.machine.process))
        try:
            lease.beat()
        except Lost:
            return None
        return lease

    def check(self) -> None:
        """Raise Lost where another process has taken the work over. Call it before anything of the work is changed."""
        mine, following = (self.claims.read(self.claim.number + step) for step in (0, 1))
        if any(claim and claim.token not in (self.claim.token, "") for claim in (mine, following)):
            raise self._lost()

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken the work over. Not if it was released before."""
        mine = self.claims.read(self.claim.number)
        if mine and mine.state == FREE:
            return False
        try:
            self.check()
        except Lost:
            return True
        return False

    def _lost(self) -> Lost:
        self.claim = self.claim._replace(state=FREE)  # no more signs of life, and nothing to release
        return Lost(f"{self.claims.folder}: another process works here now, as this one gave no sign of life")

    def beat(self) -> None:
        """Give a sign of life, or raise Lost. Where it cannot be written, the next may."""
        self.check()
        with self._lock, suppress(OSError):
            if self.claim.state == HELD:
                self.claim = self.claim._replace(beat=self.claim.beat + 1)
                self.claims.rewrite(self.claim)

    def publish(self, name: str, text: str) -> None:
        """Write the result, a file of this name in the folder, and end the lease. Raises Lost, and then writes nothing.

        Of all processes that ever had the lease, only one can. If it dies before the file has its name, the next one
        that takes the work gives it that.
        """
        self.check()
        done = self.claim._replace(number=self.claim.number + 1, state=DONE, file=name)
        self.claims.machine.write(self.claims.unfinished(done), text)
        if not self.claims.finish(done):
            with suppress(OSError):
                self.claims.machine.remove(self.claims.unfinished(done))
            raise self._lost()
        with self._lock:
            self.claim = self.claim._replace(state=FREE)  # no more signs of life
        self.claims.complete(done)

    def release(self) -> None:
        """End the lease, so that others need not wait for the work."""
        with self._lock:
            if self.claim.state == HELD:
                self.claim = self.claim._replace(state=FREE)
                with suppress(OSError):
                    self.claims.retry(lambda: self.claims.rewrite(self.claim))

    def close(self) -> None:
        """Release the lease, unless it was given away."""
        if not self.is_given_away:
            self.release()

    @contextmanager
    def kept(self, lost: Callable[[], None]) -> Iterator[None]:
        """Give signs of life from a thread. lost: called by it, once, if another process has taken the work over."""
        ended = threading.Event()

        def beat() -> None:
            try:
                while not ended.wait(BEAT_S):
                    self.beat()
            except Lost:
                if not ended.is_set():
                    lost()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()


THIS_MACHINE = ThisMachine()
SEEN = Watch(THIS_MACHINE.clock)  # what this process has seen of the others
