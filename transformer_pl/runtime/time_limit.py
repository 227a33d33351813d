"""A limit of the time that code may take, which holds whatever that code does."""

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from transformer_pl.runtime.errors import as_printed

UNHEARD_S = 5.0  # seconds that code has to end after it was interrupted
PRINTING_S = 0.5  # seconds between the message and the end of the process
REMEDY = "an import, or a check, must end by then: fix what does not, or leave the component out"


@contextmanager
def time_limit(what: str, seconds: float) -> Iterator[None]:
    """Interrupt code that has not ended after so many seconds: a TimeoutError at the line that it has come to.

    Code that catches this error, or is inside a function in C, which may never come back to Python, ends the process
    UNHEARD_S later: with exit code 2 and a message that begins with `what`. The latter only on Linux. In the main
    thread; inside another limit, that one counts.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def ring(signum: int, frame: object) -> NoReturn:
        raise TimeoutError(f"it has not ended after {seconds:g} seconds; {REMEDY}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again every second, for code that catches every exception
    message = f"{what}: it has not ended after {seconds:g} seconds, and does not let itself be interrupted; {REMEDY}"
    try:
        with _end_of_process(message, seconds + UNHEARD_S):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------------------------------------------------------------
# Without Python: code in C may hold the lock of the interpreter (GIL), and then no Python code runs in any thread


class _Event(ctypes.Structure):
    """`struct sigevent` of Linux: what happens when a timer ends."""

    _fields_ = [
        ("value", ctypes.c_void_p),  # the argument of `function`
        ("signal", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("function", ctypes.c_void_p),  # called in a thread of its own
        ("attributes", ctypes.c_void_p),
        ("unused", ctypes.c_char * 32),
    ]


CALL_FUNCTION = 2  # the `kind` SIGEV_THREAD


@contextmanager
def _end_of_process(message: str, seconds: float) -> Iterator[None]:
    """End the process if the context lasts longer: two timers of the C library print the message and call `_exit`."""
    libc = ctypes.CDLL(None)
    if sys.platform != "linux" or not hasattr(libc, "timer_create"):
        yield
        return
    ctypes.c_char_p.in_dll(libc, "program_invocation_short_name").value = b"error"  # which `warnx` prints first
    text = ctypes.create_string_buffer(as_printed(message).replace("%", "%%").encode(errors="replace"))
    timers = [
        _call_later(libc, seconds, libc.warnx, ctypes.addressof(text)),
        _call_later(libc, seconds + PRINTING_S, libc._exit, 2),
    ]
    try:
        yield
    finally:
        for timer in timers:
            libc.timer_delete(timer)


def _call_later(libc: Any, seconds: float, function: Any, argument: int) -> ctypes.c_void_p:
    """Start a timer that calls a function of C. Returns the timer."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    event, timer = _Event(value=argument, kind=CALL_FUNCTION, function=address), ctypes.c_void_p()
    whole, part = divmod(seconds, 1)
    times = (ctypes.c_long * 4)(0, 0, int(whole), int(part * 1e9))  # struct itimerspec: not again; at first after
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError("no timer can be started")
    libc.timer_settime(timer, 0, times, None)
    return timer
