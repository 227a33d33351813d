"""Commands in processes that are forked from a server: without the seconds in which Python imports torch and Lightning.

They are real processes, with signals, files, titles and exit codes of their own; a sweep forks its trials, too, from
itself. Tests of a start from nothing (passwords in the title, imports) use `helpers.command`.
"""

import atexit
import functools
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from helpers import ROOT

from transformer_pl.runtime import fork_server
from transformer_pl.runtime.fork_server import ForkedProcess, ForkServer

IMPORTED = ("training.fit", "evaluation.evaluate_trial", "sweep", "search.cli", "report", "complexity", "translate")


@functools.cache
def server() -> ForkServer:
    """The server of this process of pytest."""
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")])):
        started = ForkServer("forked", ["transformer_pl.train", *(f"transformer_pl.{name}" for name in IMPORTED)])
    atexit.register(started.close)
    while not started.is_ready():
        time.sleep(0.02)
    return started


def start(name: str, *argv: object, output: Any, errors: Any = None, **environment: str) -> ForkedProcess:
    """Start `python -m transformer_pl.<name> ARGV`. output, errors: files."""
    files = {"ERRORS": errors or output}
    return server().start([f"transformer_pl.{name}", *map(str, argv)], os.environ | environment, output, files)


@contextmanager
def running(name: str, *argv: object, output: Any, **environment: str) -> Iterator[ForkedProcess]:
    """A command, which has ended afterwards: killed if there is an error."""
    process = start(name, *argv, output=output, **environment)
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


class _ForkedServer:
    """In place of the `Popen` of a sweep's server: a fork of the sweep, which has imported everything already."""

    def __init__(self, words: list[str], env: dict[str, str], pass_fds: list[int], **_: Any):
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *pass_fds}:
            with suppress(OSError):  # the one that listed them
                os.close(number)
        os.environ.update(env)
        sys.argv = words[2:]
        _end_with(fork_server.main)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def _end_with(function: Any) -> None:
    """End this process as Python ends after that function, but for what the code above it on the stack would do."""
    code: Any = 0
    try:
        function()
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    """What a fork runs."""
    module = sys.argv[1]
    os.dup2(int(os.environ.pop("ERRORS")), 2)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    del sys.argv[0]
    fork_server._set_title([sys.executable, "-m", *sys.argv])
    sys.modules.pop(module, None)
    popen = subprocess.Popen

    def begin(words: Any, *arguments: Any, **options: Any) -> Any:
        is_server = isinstance(words, list) and words[1:3] == ["-m", fork_server.__name__]
        return _ForkedServer(words, **options) if is_server else popen(words, *arguments, **options)

    with mock.patch.object(fork_server.subprocess, "Popen", begin):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
