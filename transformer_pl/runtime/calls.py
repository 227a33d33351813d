"""Calls a function in another process.

Untried code runs in a child: there it may hang, crash, exit or print without harm to the command. A command that is
called from Python runs in a new interpreter: with the code that is on the disk now, and leaves no trace in the caller.
"""

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn, TypeVar

from transformer_pl.runtime import machine
from transformer_pl.runtime.children import context, start, stop_with_parent
from transformer_pl.runtime.command_line import run_command
from transformer_pl.runtime.environment import RANKS_OF
from transformer_pl.runtime.errors import InputError, described
from transformer_pl.runtime.signals import stop_after

Value = TypeVar("Value")
Result = TypeVar("Result")
LONGEST_S = 300.0  # seconds that untried code may take
ANSWER = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import answer; answer(int(sys.argv[1]))"
_children = set[BaseProcess]()
_starting = threading.Lock()


def call_in_child(what: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a child process, and return its result.

    The function, its arguments and its result must be picklable. What it prints is dropped, and processes that it has
    started end with it. Inside such a child, in a trial that a sweep has started, and in Lightning's other ranks the
    function is called directly, because it has been tried before.

    Raises the function's InputError. Any other exception becomes an InputError that begins with `what`, and so does a
    child that hangs, crashes or exits.
    """

    def failure(how: str) -> InputError:
        return InputError(f"{what}: must run, but {how}; correct that, or leave the component out")

    if parent_process() or RANKS_OF in os.environ:
        return function(*arguments)
    starting = context()
    receiver, sender = starting.Pipe(duplex=False)
    sent = (sender, dict(os.environ), what, function, arguments)
    child = starting.Process(target=_answer, args=sent)  # type: ignore[attr-defined]
    try:
        with _starting:
            start(child)
    except OSError as error:
        raise InputError(f"{what}: must run, but {error}; run the command again") from None
    _children.add(child)
    sender.close()
    try:
        if not receiver.poll(LONGEST_S):
            raise failure(f"has not ended after {LONGEST_S:g} seconds")
        result, messages = receiver.recv()
    except EOFError:
        child.join()
        code = child.exitcode
        crash = f"crashes with {signal.Signals(-code).name}" if code < 0 else f"ends its process with exit code {code}"
        raise failure(crash) from None
    finally:
        _kill(child)
        child.join()  # it writes nothing any more
        _children.discard(child)
        receiver.close()
    if messages:
        raise InputError(*messages)
    return result


def in_parallel(function: Callable[[Value], Result], values: Iterable[Value]) -> list[Result]:
    """Call a function that calls `call_in_child` for each value, on all cores. Returns the results in order."""
    values = list(values)
    at_once = min(len(values), len(machine.cpu_cores()))
    if at_once < 2:
        return list(map(function, values))
    call_in_child("", int)  # the server of children takes seconds to start, in which a signal must reach this thread
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(function, value) for value in values]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in futures):
                for child in list(_children):
                    _kill(child)
                time.sleep(0.05)
            raise


def _kill(child: BaseProcess) -> None:
    """Kill a child, and the processes of its session."""
    with suppress(ProcessLookupError, PermissionError):  # it has not begun its session yet, or all have ended
        os.killpg(child.pid, signal.SIGKILL)  # type: ignore[arg-type]
    child.kill()


def _answer(
    sender: Connection, environment: dict[str, str], what: str, function: Callable, arguments: tuple[Any, ...]
) -> None:
    """What the child does: it sends the function's result and the messages of its error, or ends without.

    sender: the way back to the parent.
    environment: the variables of the parent.
    what, function, arguments: as for `call_in_child`.
    """
    os.setsid()
    os.environ.update(environment)  # the server that it was forked from began with other variables
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the parent, which then kills this process
    stop_with_parent()
    faulthandler.enable(os.dup(2))  # prints the line at which native code crashes
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    try:
        sender.send((function(*arguments), ()))
    except InputError as error:
        sender.send((None, error.messages))
    except BaseException as error:
        sender.send((None, [f"{what}: must run, but fails at {described(error)}"]))


def call_in_new_interpreter(function: Callable[..., Result], *arguments: Any) -> Result:
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
