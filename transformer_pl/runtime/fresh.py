"""Calls a function in a new interpreter: with the code that is on the disk now, and without a trace in this process."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeVar

from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import stop_after

ANSWER = f"import sys; sys.path[:] = sys.argv[3:]; from {__name__} import answer; answer(*map(int, sys.argv[1:3]))"

Result = TypeVar("Result")


def fresh(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function, print what it prints, and return what it returns.

    The function, its arguments and its result must be picklable. Raises the function's InputError, and a RuntimeError
    if it fails otherwise or if a signal has stopped it. An interruption of this process also stops the function, and
    waits until it has saved its work. If this process ends, however that ends, the function is stopped, too.
    """
    here, there = Pipe()
    with tempfile.TemporaryFile() as answered:  # a pipe would be full, while this process waits for what is printed
        descriptors = (there.fileno(), answered.fileno())
        with subprocess.Popen(
            [sys.executable, "-c", ANSWER, *map(str, descriptors), *sys.path],
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
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
        if code := process.returncode:
            raise RuntimeError(f"{function.__name__} has ended with exit code {code}: its last lines say why")
        answered.seek(0)
        result, messages = pickle.load(answered)
    if messages:
        raise InputError(*messages)
    return result


def answer(call: int, answered: int) -> NoReturn:
    """What the new interpreter does: it calls the function, and writes its result, or the messages of its InputError.

    call: the descriptor of a pipe with the function and its arguments, which the caller keeps open.
    answered: the descriptor of the file that the answer is written to.
    """
    caller = Connection(call)

    def wait() -> None:
        caller.poll(None)  # until the caller has ended; then nobody reads what is printed
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)

    def called(_: list[str]) -> int:
        function, arguments = caller.recv()
        stop_after(wait)
        result, messages = None, tuple[str, ...]()
        try:
            result = function(*arguments)
        except InputError as error:
            messages = error.messages
        with open(answered, "wb") as file:
            pickle.dump((result, messages), file)
        return 0

    run_command(called)
