"""Commands in processes that are forked from a server: without the seconds in which Python imports torch and Lightning.

They are real processes, with signals, files, titles and exit codes of their own; a sweep forks its trials, too, from
itself. Tests of a start from nothing (imports) use `helpers.command`.
"""

import atexit
import fcntl
import functools
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from helpers import ROOT
from lightning.fabric.utilities.rank_zero import _get_rank
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.runtime import fork_server
from transformer_pl.runtime.fork_server import ForkedProcess, ForkServer

TRAIN, W_AND_B = "transformer_pl.train", "transformer_pl.training.wandb_process"
COMMANDS = (
    *("training.fit", "evaluation.evaluate_trial", "sweep", "search.cli"),
    *("report", "reporting.table_1", "translate"),
)
IMPORTED = [TRAIN, *(f"transformer_pl.{name}" for name in COMMANDS), "preloaded"]


@functools.cache
def server() -> ForkServer:
    """The server of this process of pytest."""
    folder = tempfile.mkdtemp(prefix="forked")  # for what libraries make when they are imported
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]), TMPDIR=folder):
        started = ForkServer("forked", IMPORTED)
    atexit.register(started.close)
    while not started.is_ready():
        time.sleep(0.02)
    return started


def start(
    name: str, *argv: object, output: Any, errors: Any = None, terminal: Any = None, **environment: str
) -> ForkedProcess:
    """Start `python -m transformer_pl.<name> ARGV` in a session of its own.

    output, errors: files. terminal: a file; then the process is controlled by that terminal and prints there.
    """
    files = {"ERRORS": errors or output} | ({"TERMINAL": terminal} if terminal else {})
    return server().start([f"transformer_pl.{name}", *map(str, argv)], os.environ | environment, output, files)


class TrialServer:
    """In place of a sweep's own server of trials, which takes seconds to start."""

    def is_ready(self) -> bool:
        return True

    def start(
        self, argv: list[str], environment: Mapping[str, str], output: Any, files: Mapping[str, Any]
    ) -> ForkedProcess:
        return server().start([TRAIN, *argv], environment, output, {"ERRORS": output, **files})


@contextmanager
def running(name: str, *argv: object, output: Any, **options: Any) -> Iterator[ForkedProcess]:
    """A command, which has ended afterwards: killed if there is an error."""
    process = start(name, *argv, output=output, **options)
    try:
        yield process
    except BaseException:
        os.kill(process.pid, signal.SIGKILL)
        raise
    finally:
        process.stdin.close()
        process.wait(300)


def command(name: str, *argv: object, **environment: str) -> subprocess.CompletedProcess:
    """Run a command to its end."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(name, *argv, output=out, errors=err, **environment)
        process.stdin.close()
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([name, *argv], process.returncode or 0, out.read(), err.read())


class _Fork:
    """In place of a `Popen` of Python: a fork of this process, which has imported everything already."""

    def __init__(
        self,
        run: Callable[[], object],
        words: list[str],
        env: Mapping[str, str],
        keep: Collection[int] = (),
        stdin: int | None = None,
    ):
        """keep: the files that stay open. stdin: None, or `subprocess.PIPE`."""
        self.returncode: int | None = None
        reading, writing = os.pipe() if stdin == subprocess.PIPE else (None, None)
        self.stdin = writing and os.fdopen(writing, "wb", buffering=0)
        self.pid = os.fork()
        if self.pid:
            if reading:
                os.close(reading)
            return
        _forget_temporary_folders()
        if reading:
            os.dup2(reading, 0)
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *keep}:
            with suppress(OSError):  # the one that listed them
                os.close(number)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = words[2:]
        _end_with(run)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = math.inf) -> None:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.02)

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _forget_temporary_folders() -> None:
    """Of the process that this one was forked from: they are not to be removed at its end, nor used."""
    weakref.finalize._registry.clear()
    tempfile.tempdir = None


def _end_with(run: Callable[[], object]) -> None:
    """End this process as Python does after `run`, but without what the code below it on the stack would do.

    And without taking apart all modules, which in a fork copies the memory that it shares: 0.4 s.
    """
    code: Any = 0
    try:
        run()
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # as where nobody reads it any more
        code = 120
    os._exit(code if isinstance(code, int) else int(code is not None))


class _Popen(subprocess.Popen):
    """`subprocess.Popen`, but a sweep's server, a trial's ranks and its W&B are forked, where only one thread runs."""

    def __new__(cls, words: Any, *arguments: Any, **options: Any) -> Any:
        module = words[2] if isinstance(words, list) and words[1:2] == ["-m"] else None
        env, keep = dict(options.get("env", os.environ)), options.get("pass_fds", ())
        if module == fork_server.__name__:
            return _Fork(_serve, words, env, keep)
        is_rank = module == TRAIN and "stdin" not in options  # a sweep gives its trials one
        if (is_rank or module == W_AND_B) and len(os.listdir("/proc/self/task")) == 1:
            return _Fork(functools.partial(_run, module), words, env, keep, options.get("stdin"))
        return super().__new__(cls)


def _serve() -> None:
    os.setsid()
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    fork_server.main()


def _run(module: str) -> None:
    fork_server._set_title([sys.executable, "-m", module, *sys.argv[1:]])
    rank_zero_only.rank = _get_rank() or 0  # Lightning reads it from the environment when it is imported
    if module == W_AND_B and (media := sys.modules.get("wandb.sdk.data_types._private")):
        media.MEDIA_TMP.__init__("wandb-media")  # a folder of its own, as if W&B were imported here
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """What a fork of the server runs."""
    _forget_temporary_folders()
    if terminal := os.environ.pop("TERMINAL", None):  # it becomes the terminal of this session
        fcntl.ioctl(int(terminal), termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(int(terminal), number)
        os.close(int(terminal))
    errors = int(os.environ.pop("ERRORS"))
    if not terminal:
        os.dup2(errors, 2)
    os.close(errors)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    del sys.argv[0]
    with mock.patch.object(subprocess, "Popen", _Popen):
        _end_with(functools.partial(_run, sys.argv[0]))


if __name__ == "__main__":
    main()
