"""Calls a function in a new interpreter: with the code that is on the disk now, and without a trace in this process."""

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.errors import InputError

ANSWER = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import answer; answer(int(sys.argv[1]))"


def fresh(function: Callable[..., int], *arguments: Any) -> int:
    """Call a function of a command, print what it prints, and return its exit code: 0 or 1.

    The function and its arguments must be picklable. Raises the function's InputError, and a RuntimeError if a signal
    has stopped it. An interruption of this process also stops the function, and waits until it has saved its work.
    """
    here, there = Pipe()
    with subprocess.Popen(
        [sys.executable, "-c", ANSWER, str(there.fileno()), *sys.path],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[there.fileno()],
        start_new_session=True,  # Ctrl-C comes to this process alone, and reaches the function once
    ) as process:
        assert process.stdout
        try:
            there.close()
            here.send((function, arguments))
            for line in process.stdout:
                print(line.decode(errors="replace"), end="", flush=True)
        except BaseException:
            process.terminate()
            process.wait()  # `with` would not wait after Ctrl-C
            raise
    if process.returncode == 2 and here.poll():
        raise InputError(*here.recv())
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{function.__name__} was stopped with exit code {process.returncode}; call it again")
    return process.returncode


def answer(descriptor: int) -> NoReturn:
    """What the new interpreter does: it calls the function and sends the messages of its InputError."""

    caller = Connection(descriptor)

    def called(_: list[str]) -> int:
        function, arguments = caller.recv()
        try:
            return function(*arguments)
        except InputError as error:
            caller.send(error.messages)
            return 2

    run_command(called)
