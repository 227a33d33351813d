"""Child processes, which start in a tenth of a second where a server of multiprocessing has imported torch for them.

The server forks itself for each child (Linux). It only imports modules and never asks for a GPU, because CUDA would not
survive the fork. On other systems a child is a new process.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

from transformer_pl.runtime.environment import WAITED_FOR
from transformer_pl.runtime.files import open_to_append
from transformer_pl.runtime.signals import Stopped, stop_after

TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)  # Ctrl-C, and the end of the terminal
IMPORTED = ["transformer_pl.train.__main__", "transformer_pl.train.one_trial", "sacrebleu"]


def context() -> BaseContext:
    """The context of multiprocessing that starts children. Its server imports IMPORTED when it starts the first."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a fork has one thread: no library may start others before it
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(IMPORTED)
    return forking


def start(process: BaseProcess) -> None:
    """Start a child. `__main__` is hidden meanwhile, because multiprocessing would run it in the child as well.

    The server and the child do not get TERMINAL_SIGNALS, which go to all processes of a terminal: this process ends
    them.
    """
    main, is_forked = sys.modules["__main__"], isinstance(process, ForkServerProcess)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        resource_tracker.ensure_running()  # which lets SIGINT through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
        try:
            forkserver.ensure_running() if is_forked else process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_forked:
            process.start()  # waits until the server has imported everything
    except EOFError:
        raise ChildProcessError("the server of processes was killed (mostly out of memory: lower --parallel)") from None
    except Stopped:
        server = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if server and not multiprocessing.active_children():  # the server reports how its children end
            os.kill(server, signal.SIGKILL)  # it may import for seconds
        raise
    finally:
        sys.modules["__main__"] = main


def start_module(
    module: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    cores: Sequence[int] = (),
    waited_for: Connection | None = None,
) -> BaseProcess:
    """Start `python -m MODULE ARGV` in a session of its own, which prints to a log file.

    The child stops when this process ends, however that ends.

    module: the name of the package to run.
    argv: its arguments.
    environment: all of its environment variables.
    log: the file that its output is appended to.
    cores: the CPU cores that it is pinned to; empty: it may use all.
    waited_for: an end of a pipe, which the child has open, and may hand on.
    """
    arguments = (module, argv, dict(environment), log, cores, waited_for)
    process: BaseProcess = context().Process(target=_run, args=arguments)  # type: ignore[attr-defined]
    start(process)
    return process


def _run(
    module: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    cores: Sequence[int],
    waited_for: Connection | None,
) -> None:
    """What the child of `start_module` does, with the same arguments."""
    gc.freeze()  # what the server has imported is not searched for garbage, which would take a quarter of a second
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # in its own session, SIGINT is meant for it alone
    if cores:
        os.sched_setaffinity(0, cores)
    os.environ.clear()
    os.environ.update(environment)
    if waited_for:
        os.environ[WAITED_FOR] = str(waited_for.fileno())
    with open_to_append(log) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    stop_with_parent()
    sys.argv[1:] = argv
    sys.modules.pop(f"{module}.__main__", None)  # the server has it only for the modules that it imports
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def stop_with_parent() -> None:
    """Let SIGTERM come to this child when its parent ends, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    stop_after(parent.join)
