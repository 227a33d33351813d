"""Commands in processes that are forked from this one: without the seconds in which Python imports torch and Lightning.

They are real processes, with signals, files and exit codes of their own. Only their start differs, and each has one
thread, because OpenMP's threads do not survive a fork. Tests of the start itself (process titles, imports, numbers of
threads) use `helpers.command`.
"""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any, ClassVar
from unittest import mock

import torch
from helpers import ROOT

import transformer_pl.training.fit  # noqa: F401  # before a fork, so that it is imported once
from transformer_pl.experiments import launch

POLL_S = 0.02
CRASHED = 70  # the exit code where this file fails, not the command


def start(name: str, *argv: object, output: Any, errors: Any = None, **environment: str) -> "ForkedProcess":
    """Start `python -m transformer_pl.<name> ARGV`. A sweep forks its trials, too. output, errors: files."""
    words = [sys.executable, "-m", f"transformer_pl.{name}", *map(str, argv)]
    return ForkedProcess(words, output, errors or output, os.environ | environment, cwd=ROOT)


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


class ForkedProcess:
    """`python -m MODULE ARGV` as a fork of this process, with the part of `subprocess.Popen` that a sweep uses.

    Its standard input is a pipe.
    """

    _pipes: ClassVar[list[Any]] = []  # the ends that this process holds; a fork must not keep them open

    def __init__(self, words: list[str], stdout: Any, stderr: Any, env: Any, **options: Any):
        self.returncode: int | None = None
        stdin, writing = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads, which a fork lacks
            self.pid = os.fork()
        if not self.pid:
            os.close(writing)
            for pipe in self._pipes:
                pipe.close()
            _run([stdin, stdout.fileno(), stderr.fileno()], words, env, **options)
        os.close(stdin)
        self.stdin = os.fdopen(writing, "wb", buffering=0)
        self._pipes.append(self.stdin)

    def __enter__(self) -> "ForkedProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.stdin.close()
        if error[0]:
            self.send_signal(signal.SIGKILL)
        self.wait()

    def send_signal(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 3600) -> int | None:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked command", timeout)
            time.sleep(POLL_S)
        return self.returncode


def _run(
    files: list[int], words: list[str], env: Any, cwd: Any = None, start_new_session: bool = False, **_: Any
) -> None:
    """Make the forked process what `python -m` would make of a new one; run the command; end the process."""
    code: Any = CRASHED
    try:
        if start_new_session:
            os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w", closefd=False) for n in range(3))
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd or os.getcwd())
        sys.path[:0] = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        sys.argv = words[2:]
        torch.set_num_threads(1)
        torch.set_num_threads = lambda number: None
        warnings.resetwarnings()
        with mock.patch.object(launch.subprocess, "Popen", _popen(subprocess.Popen)):
            runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _popen(popen: Any) -> Any:
    """`subprocess.Popen`, but trials are forked."""

    def start(words: Any, *arguments: Any, **options: Any) -> Any:
        is_trial = isinstance(words, list) and words[1:3] == ["-m", "transformer_pl.train"]
        return ForkedProcess(words, **options) if is_trial else popen(words, *arguments, **options)

    return start
