"""Commands in processes that are forked from a server: without the seconds in which Python imports torch and Lightning.

They are real processes, with signals, files and exit codes of their own; a sweep starts its trials so, too.
"""

import fcntl
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from helpers import ROOT

from transformer_pl.runtime import children

COMMANDS = ("sweep.__main__", "sweep.search", "report.__main__", "report.sweeps", "translate")
children.IMPORTED += [*(f"transformer_pl.{name}" for name in COMMANDS), "preloaded"]


class Command:
    """A command that runs, with the part of `subprocess.Popen` that tests need."""

    def __init__(self, process: Any):
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    name: str, *argv: object, output: Any, errors: Any = None, terminal: Any = None, **environment: str
) -> Command:
    """Start `python -m transformer_pl.<name> ARGV` in a session of its own.

    output, errors: files. terminal: a file; then the process is controlled by that terminal and prints there.
    """
    paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (terminal or output, terminal or errors or output)]
    arguments = (f"transformer_pl.{name}", list(map(str, argv)), os.environ | environment, paths, bool(terminal))
    process = children.context().Process(target=_run, args=arguments)
    process.start()
    return Command(process)


@contextmanager
def running(name: str, *argv: object, output: Any, **options: Any) -> Iterator[Command]:
    """A command, which has ended afterwards: killed if there is an error."""
    process = start(name, *argv, output=output, **options)
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait(300)


def command(name: str, *argv: object, **environment: str) -> subprocess.CompletedProcess:
    """Run a command to its end."""
    with tempfile.NamedTemporaryFile("w+") as out, tempfile.NamedTemporaryFile("w+") as err:
        process = start(name, *argv, output=out, errors=err, **environment)
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess([name, *argv], process.returncode or 0, out.read(), err.read())


def _run(module: str, argv: list[str], environment: Mapping[str, str], paths: list[str], is_terminal: bool) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, children.TERMINAL_SIGNALS)  # which `children.start` has blocked
    for number, path in enumerate(paths, start=1):
        file = os.open(path, os.O_RDWR | (0 if is_terminal else os.O_APPEND))
        os.dup2(file, number)
    if is_terminal:  # it becomes the terminal of this session
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        os.dup2(1, 0)
        sys.stdin = os.fdopen(0)
    for stream, mode in (("stdout", 1), ("stderr", 2)):
        setattr(sys, stream, os.fdopen(mode, "w", buffering=1, closefd=False))  # as `python` opens them
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv[1:] = argv
    for name in {module, f"{module}.__main__"} & set(children.IMPORTED):
        sys.modules.pop(name)
    children.context = lambda: multiprocessing.get_context("fork")  # of this process, which has imported everything
    runpy.run_module(module, run_name="__main__", alter_sys=True)
