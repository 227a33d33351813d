"""How processes stop: on SIGINT and SIGTERM, and a trial also when its sweep has died."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

GRACE_S = 8.0  # seconds between asking a trial to stop and killing it
ENDS_WITH_STDIN = "TRANSFORMER_PL_ENDS_WITH_STDIN"


class Stopped(BaseException):
    """A signal stopped the command. What it has done is on disk, and running the command again continues."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}; run the same command again to continue")
        self.signum, self.exit_code = signum, 128 + signum


@contextmanager
def component_code() -> Iterator[None]:
    """Run code that may be a user's component, and turn SystemExit and StopIteration into a RuntimeError.

    Otherwise `sys.exit` would end the command, and StopIteration a loop of Lightning, as if the work were done.
    """
    try:
        yield
    except (SystemExit, StopIteration) as error:
        failure = RuntimeError(f"a component must raise errors only, but raised {error!r}")
        raise failure.with_traceback(error.__traceback__) from None


def install_handler(handler: Any) -> None:
    """Install a handler of SIGINT and SIGTERM."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, handler)


def raise_stopped(signum: int, frame: object) -> NoReturn:
    """Handle a signal by raising Stopped. A second signal ends the process at once."""
    install_handler(signal.SIG_DFL)
    raise Stopped(signum)


def end_with_parent() -> None:
    """If ENDS_WITH_STDIN is set, stop this process when its standard input is closed.

    The sweep holds the other end of that pipe and writes nothing. However the sweep ends, the system closes the pipe,
    so no trial outlives its sweep.
    """
    if not os.environ.get(ENDS_WITH_STDIN):
        return

    def watch() -> None:
        os.read(0, 1)  # not sys.stdin.read, which holds a lock that the interpreter needs at exit
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def kill(leader: int) -> None:
    """Kill a process, its session and process group, and all their descendants, whatever their sessions.

    W&B's service, for example, has a session of its own. If it hangs, it would survive its parent.
    """
    processes: dict[int, tuple[int, int]] = {}  # parent and session of each; empty where the system has no /proc
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended meanwhile
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
