"""Code that nobody has tried yet runs in a child process: it may hang, crash or exit without harm to the command."""

import faulthandler
import os
import re
import signal
import tempfile
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from transformer_pl.runtime.children import context, start
from transformer_pl.runtime.errors import InputError, described, innermost

Result = TypeVar("Result")
LONGEST_S = 300.0  # seconds that the code may take


def isolated(what: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a child process, and return its result.

    The function, its arguments and its result must be picklable. Raises an InputError: that of the function; and one
    that begins with `what` for any other exception, and where the child hangs, crashes or exits. Inside such a child,
    in a trial that a sweep has started, and in Lightning's other ranks it is called directly: it has been tried.
    """
    if parent_process() or os.environ.get("LOCAL_RANK"):
        return function(*arguments)
    with tempfile.NamedTemporaryFile("r") as dump:
        starting = context(on_gpu=False)
        receiver, sender = starting.Pipe(duplex=False)
        told = (sender, dump.name, LONGEST_S, dict(os.environ), what, function, arguments)
        child = starting.Process(target=_answer, args=told)  # type: ignore[attr-defined]
        start(child)
        sender.close()
        try:
            result, messages = receiver.recv()
        except EOFError:
            child.join()
            raise InputError(f"{what}: must run, but {_end(child.exitcode, dump.read())}") from None
        finally:
            child.kill()
            receiver.close()
    if messages:
        raise InputError(*messages)
    return result


def _answer(
    sender: Connection,
    dump: str,
    seconds: float,
    environment: dict[str, str],
    what: str,
    function: Callable,
    arguments: tuple[Any, ...],
) -> None:
    """What the child does: it sends the function's result and the messages of its error, or ends without."""
    os.environ.update(environment)  # it was forked from a server that began with another one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the parent, which then kills this process
    with open(dump, "w") as file:
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)  # by a thread that needs no Python
        try:
            sender.send((function(*arguments), ()))
        except InputError as error:
            sender.send((None, error.messages))
        except BaseException as error:
            sender.send((None, [f"{what}: must run, but fails at {described(error)}"]))


def _end(exit_code: int, dump: str) -> str:
    """How a child ended without an answer, and where: at the innermost line of what faulthandler has written."""
    calls = [(file, int(line)) for file, line in re.findall(r'File "(.+)", line (\d+)', dump)]
    where = f", at {innermost(calls)}" if calls else ""
    if dump.startswith("Timeout"):
        how = f"has not ended after {LONGEST_S:g} seconds"
    elif exit_code < 0:
        how = f"crashes with {signal.Signals(-exit_code).name}"
    else:
        how = f"ends its process with exit code {exit_code}"
    return f"{how}{where}; correct that, or leave the component out"
