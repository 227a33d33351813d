"""Calls a function in a new interpreter: with the code that is on the disk now, and without a trace in this process."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import stop_after

ANSWER = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import answer; answer(int(sys.argv[1]))"

Result = TypeVar("Result")


def fresh(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function, print what it prints, and return what it returns.

    The function, its arguments and its result must be picklable. Raises the function's InputError, and a RuntimeError
    if it fails otherwise or if a signal has stopped it. An interruption of this process also stops the function, and
    waits until it has saved its work. If this process ends, however that ends, the function is stopped, too.
    """
    with tempfile.TemporaryFile() as answered:  # a pipe would be full, while this process waits for what is printed
        with subprocess.Popen(
            [sys.executable, "-c", ANSWER, str(answered.fileno()), *sys.path],
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[answered.fileno()],
            start_new_session=True,  # Ctrl-C comes to this process alone, and reaches the function once
        ) as process:
            assert process.stdin and process.stdout
            try:
                pickle.dump((function, arguments), process.stdin)
                process.stdin.flush()
                for line in process.stdout:
                    print(line.decode(errors="replace"), end="", flush=True)
            except BaseException:
                process.terminate()
                process.wait()  # `with` would not wait after Ctrl-C
                raise
        if code := process.returncode:
            raise RuntimeError(f"{function.__name__} has ended with exit code {code}: its last lines say why")
        answered.seek(0)
        result = pickle.load(answered)
    if isinstance(result, InputError):
        raise result
    return result


def answer(answered: int) -> NoReturn:
    """What the new interpreter does: it calls the function, and writes its result or its InputError.

    Its standard input holds the function and its arguments, and is open as long as the caller lives.

    answered: the descriptor of the file that the answer is written to.
    """

    def wait() -> None:
        sys.stdin.read()  # until the caller has ended; then nobody reads what is printed
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)

    def called(_: list[str]) -> int:
        function, arguments = pickle.load(sys.stdin.buffer)
        stop_after(wait)
        try:
            result = function(*arguments)
        except InputError as error:
            result = error
        with open(answered, "wb") as file:
            pickle.dump(result, file)
        return 0

    run_command(called)
