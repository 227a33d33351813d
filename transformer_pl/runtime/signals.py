"""How processes stop on the signals of a user, a terminal and a cluster."""

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

STOPPING = (
    *(signal.SIGINT, signal.SIGTERM),
    signal.SIGHUP,  # the terminal was closed
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),  # SLURM's --signal, and other schedulers: the time is nearly up
)
GRACE_S = 8.0  # seconds between asking a trial to stop and killing it
GROUP_GRACE_S = 100.0  # the same for a trial of several processes, which look for a signal only when they log
JOB_GRACE_S = 120  # between SLURM's warning and a job's time limit: all trials of the job end in this time


class Stopped(BaseException):
    """A signal stopped the command. What it has done is on disk, and running the command again continues."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}; run the same command again to continue")
        self.signum, self.exit_code = signum, 128 + signum


@contextmanager
def component_code() -> Iterator[None]:
    """Run code that may be a user's component, and turn SystemExit and StopIteration into a RuntimeError.

    Otherwise an exit would end the command, and StopIteration a loop of Lightning, as if the work were done.
    """
    try:
        yield
    except (SystemExit, StopIteration) as error:
        failure = RuntimeError(f"a component must raise errors only, but raised {error!r}")
        raise failure.with_traceback(error.__traceback__) from None


def install_handler(handler: Any) -> None:
    """Install a handler for the signals of STOPPING. SIGHUP stays ignored if `nohup` has asked for that."""
    for signum in STOPPING:
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handler)


def expect_another() -> None:
    """After a first signal, let Ctrl-C end the process at once. Ignore others: SLURM and a sweep may both send one.

    Output to a closed terminal is discarded from now on, because writing there would fail.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for signum in {*STOPPING} - {signal.SIGINT}:
        signal.signal(signum, lambda *_: None)  # not SIG_IGN, which a program that is started would inherit
    for output in (1, 2):
        if stat.S_ISCHR(os.fstat(output).st_mode) and not os.isatty(output):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)


def raise_stopped(signum: int, frame: object) -> NoReturn:
    """Handle a signal by raising Stopped."""
    expect_another()
    raise Stopped(signum)


def stop_after(wait: Callable[[], object]) -> None:
    """Let SIGTERM come to this process once `wait` has returned in a thread, and end the process if it does not end."""

    def stop() -> None:
        wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)  # type: ignore[arg-type]  # it may sleep
        time.sleep(GROUP_GRACE_S)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()


@contextmanager
def postponed() -> Iterator[None]:
    """Run code that none of STOPPING may interrupt. One that arrives meanwhile is handled afterwards."""
    arrived: list[int] = []
    handlers = {signum: signal.signal(signum, lambda number, frame: arrived.append(number)) for signum in STOPPING}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        if arrived:
            signal.raise_signal(arrived[0])
