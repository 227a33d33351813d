"""How a process ends when it is asked to: SIGINT and SIGTERM in every command, and in a trial whose sweep is gone."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

GRACE_S = 8.0  # from asking a trial to stop to killing it
ENDS_WITH_STDIN = "TRANSFORMER_PL_ENDS_WITH_STDIN"


class Stopped(BaseException):
    """A signal asked the command to end. What it has done so far is kept: the same command continues."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}; the same command continues")
        self.exit_code = 128 + signum


@contextmanager
def component_code() -> Iterator[None]:
    """Around code that may be a user's component: whatever that raises is an error, and never an end.

    SystemExit (`sys.exit`), KeyboardInterrupt and GeneratorExit would end the command, and StopIteration a loop of
    Lightning's, as if all were done. They come out as a RuntimeError with their own traceback. A signal passes: it
    raises `Stopped`; or KeyboardInterrupt, where Python's own handler answers it because no command runs.
    """
    try:
        yield
    except BaseException as error:
        by_signal = (
            isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        is_error = isinstance(error, Exception) and not isinstance(error, StopIteration)
        if is_error or by_signal or isinstance(error, Stopped):
            raise
        failure = RuntimeError(f"a component must raise errors only, but raised {error!r}")
        raise failure.with_traceback(error.__traceback__) from None


def install_handler(handler: Any) -> None:
    """Let `handler` answer both signals."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, handler)


def raise_stopped(signum: int, frame: object) -> NoReturn:
    """End in good order; but whoever asks again while that goes on is obeyed at once."""
    install_handler(signal.SIG_DFL)
    raise Stopped(signum)


def end_with_parent() -> None:
    """In a process with ENDS_WITH_STDIN in its environment: stop when whoever holds its standard input is gone.

    A pipe that nobody writes to ends with its parent, whatever ended that: so no trial outlives its sweep.
    """
    if not os.environ.get(ENDS_WITH_STDIN):
        return

    def watch() -> None:
        os.read(0, 1)  # not by sys.stdin, whose lock would be missed at exit
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def kill(leader: int) -> None:
    """Kill a process, its session and process group, and all their descendants, which may have sessions of their own.

    W&B's service has one: were its parent killed alone, a service that hangs would stay for ever.
    """
    processes: dict[int, tuple[int, int]] = {}  # parent and session of each; empty where the system has no /proc
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            _, parent, _, session = path.read_bytes().rpartition(b")")[2].split()[:4]
            processes[int(path.parent.name)] = int(parent), int(session)
    doomed = {leader} | {pid for pid, (_, session) in processes.items() if session == leader}
    while children := {pid for pid, (parent, _) in processes.items() if parent in doomed} - doomed:
        doomed |= children
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    for pid in sorted(doomed, key=lambda pid: pid == os.getpid()):  # itself last
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
