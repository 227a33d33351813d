"""Untried code runs in a child process: it may hang, crash or exit without harm to the command."""

import faulthandler
import os
import signal
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from transformer_pl.runtime.children import context, start, stop_with_parent
from transformer_pl.runtime.environment import RANKS_OF
from transformer_pl.runtime.errors import InputError, described

Result = TypeVar("Result")
LONGEST_S = 300.0  # seconds that the code may take


def isolated(what: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a child process, and return its result.

    The function, its arguments and its result must be picklable. Inside such a child, in a trial that a sweep has
    started, and in Lightning's other ranks the function is called directly, because it has been tried before.

    Raises the function's InputError. Any other exception becomes an InputError that begins with `what`, and so does a
    child that hangs, crashes or exits.
    """
    if parent_process() or RANKS_OF in os.environ:
        return function(*arguments)
    starting = context()
    receiver, sender = starting.Pipe(duplex=False)
    sent = (sender, dict(os.environ), what, function, arguments)
    child = starting.Process(target=_answer, args=sent)  # type: ignore[attr-defined]
    try:
        start(child)
    except OSError as error:
        raise InputError(f"{what}: must run, but {error}; run the command again") from None
    sender.close()
    try:
        if not receiver.poll(LONGEST_S):
            mistake = f"has not ended after {LONGEST_S:g} seconds; correct that, or leave the component out"
            raise InputError(f"{what}: must run, but {mistake}")
        result, messages = receiver.recv()
    except EOFError:
        child.join()
        code = child.exitcode
        how = f"crashes with {signal.Signals(-code).name}" if code < 0 else f"ends its process with exit code {code}"
        raise InputError(f"{what}: must run, but {how}; correct that, or leave the component out") from None
    finally:
        child.kill()
        child.join()  # it writes nothing any more
        receiver.close()
    if messages:
        raise InputError(*messages)
    return result


def _answer(
    sender: Connection, environment: dict[str, str], what: str, function: Callable, arguments: tuple[Any, ...]
) -> None:
    """What the child does: it sends the function's result and the messages of its error, or ends without.

    sender: the way back to the parent.
    environment: the variables of the parent.
    what, function, arguments: as for `isolated`.
    """
    os.environ.update(environment)  # the server that it was forked from began with other variables
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the parent, which then kills this process
    stop_with_parent()
    faulthandler.enable(2)  # prints the line at which native code crashes
    try:
        sender.send((function(*arguments), ()))
    except InputError as error:
        sender.send((None, error.messages))
    except BaseException as error:
        sender.send((None, [f"{what}: must run, but fails at {described(error)}"]))
