"""Starts `python -m MODULE ARGV` many times and imports its libraries once. Linux only.

A server process imports the module and then forks itself for each start, which takes milliseconds. The fork becomes the
process that `python -m` would have made: with a session, arguments, an environment, open files, signal handlers and a
title of its own. Then it runs the module and ends as usual.

A fork has one thread, so the server must have no other: it starts no OpenMP threads, initialises no GPU, and refuses to
serve if an import has started a thread. Whoever asks it to start something then gets an OSError.

    the parent                                 the server
    ForkServer(module)              ---->      imports the module
    is_ready()                      <----      "!" on `control`
    start(argv, ...)                ---->      forks; on `control`: the files; on the fork's `channel`: arguments
    ForkedProcess(pid)              <----      the fork, on `channel`: its pid
    poll()                          <----      the server, on `channel`: its exit code

Each end that is closed says that its process has ended: the server ends with its parent.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # variables: else OpenBLAS starts threads at once
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # by the server: it ends when its parent does
MOST_FILES = 16  # that a process is given
PID_BYTES = 16  # of the message with a pid, which an exit code may follow at once
TITLE_BYTES = 4096  # as much of a command line as Linux shows where a process has set its own title


class ForkedProcess:
    """A process that a server has forked, with the part of `subprocess.Popen` that its parent needs.

    Its standard input is a pipe. If the server is killed, the process counts as killed, too.
    """

    def __init__(self, pid: int, stdin: IO[bytes], channel: socket.socket):
        self.pid, self.stdin, self._channel = pid, stdin, channel
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            with suppress(BlockingIOError):
                answer = self._channel.recv(16, socket.MSG_DONTWAIT)
                self.returncode = int(answer) if answer else -signal.SIGKILL
                self._channel.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            select.select([self._channel], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code


class ForkServer:
    """The parent's side of a server. Close it only when all processes have ended: nobody else knows how they ended."""

    def __init__(self, module: str, also: Sequence[str] = (), environment: Mapping[str, str] | None = None):
        """module: what the processes run. also: more modules to import, which `module` itself imports later.

        environment: more variables, for libraries that read them when they are imported, as OpenMP does.
        """
        self.module = module
        self._control, control = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(control.fileno()), module, *also, "-" * TITLE_BYTES]
        variables = os.environ | ONE_THREAD | {"PYTHONUNBUFFERED": "1"} | dict(environment or {})
        with control:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=variables,
                pass_fds=[control.fileno()],
                start_new_session=True,
            )
        self._is_importing = True

    def is_ready(self) -> bool:
        """Whether the server has imported its modules, or has failed to."""
        if self._is_importing and select.select([self._control], [], [], 0)[0]:
            self._is_importing = False
            with suppress(OSError):  # it has ended
                self._control.recv(1)
        return not self._is_importing

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], output: IO, files: Mapping[str, IO]
    ) -> ForkedProcess:
        """Start `python -m MODULE ARGV` in a session of its own. Raises an OSError if the server cannot serve.

        output: where it prints. files: that it keeps open; the environment variable of this name gets the descriptor.
        """
        channel, theirs = socket.socketpair()
        reading, writing = os.pipe()
        stdin = os.fdopen(writing, "wb", buffering=0)
        try:
            with theirs, os.fdopen(reading):
                sent = [theirs.fileno(), reading, output.fileno(), *(file.fileno() for file in files.values())]
                socket.send_fds(self._control, [b"+"], sent)
            channel.sendall(json.dumps([list(argv), dict(environment), list(files)]).encode() + b"\n")
            if not (answer := channel.recv(PID_BYTES)):
                raise OSError("the server has ended")
            return ForkedProcess(int(answer), stdin, channel)
        except BaseException:  # such as a signal: the fork ends when it finds its channel closed
            stdin.close()
            channel.close()
            raise

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()


# ---------------------------------------------------------------------------------------------------------------------
# The server


class _Start(NamedTuple):
    """What a fork needs to become its process."""

    channel: socket.socket
    stdin: int
    output: int
    files: list[int]


def main() -> None:
    """The server; and each of its forks, from `_serve` on."""
    number, module, *also, _ = sys.argv[1:]
    control = socket.socket(fileno=int(number))
    handlers = {signum: signal.signal(signum, signal.SIG_IGN) for signum in IGNORED}
    for name in (module, *also):
        importlib.import_module(name)
    del sys.modules[module]  # was imported for what it imports; runpy runs it
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("a library has started a thread")
    gc.collect()
    gc.freeze()  # a collection would write to the memory that all forks share
    control.send(b"!")
    start = _serve(control)
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
    _become(start, module)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _serve(control: socket.socket) -> _Start:
    """Fork for each request and report exit codes, until the parent has ended. Returns in each fork."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by a descriptor that becomes readable when the process ends
    while True:
        for ready in select.select([control.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, channel = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError), channel:
                    channel.send(str(code).encode())
                os.close(ready)
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 1, MOST_FILES)
            if not message:
                os._exit(0)
            number, stdin, output, *files = descriptors
            channel = socket.socket(fileno=number)
            pid = os.fork()
            if not pid:
                control.close()
                for descriptor, (_, other) in running.items():
                    os.close(descriptor)
                    other.close()
                return _Start(channel, stdin, output, files)
            running[os.pidfd_open(pid)] = pid, channel
            for descriptor in (stdin, output, *files):
                os.close(descriptor)


def _become(start: _Start, module: str) -> None:
    """Make this fork what `python -m MODULE ARGV` would be, and tell the parent its pid. Ends it if nobody listens."""
    os.setsid()
    os.dup2(start.stdin, 0)
    os.dup2(start.output, 1)
    os.dup2(start.output, 2)
    os.close(start.stdin)
    os.close(start.output)
    with start.channel, start.channel.makefile() as lines:
        argv, environment, names = json.loads(lines.readline() or sys.exit())
        os.environ.clear()
        os.environ.update(environment)
        os.environ.update(zip(names, map(str, start.files), strict=True))
        sys.argv[1:] = argv
        with suppress(OSError):
            _set_title([sys.executable, "-m", module, *argv])
        try:
            start.channel.send(str(os.getpid()).ljust(PID_BYTES).encode())
        except OSError:
            sys.exit()


def _set_title(words: list[str]) -> None:
    """Show these words in `ps`, in the place of the server's command line (see `man 5 proc`, `cmdline`)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    room = end - begin
    title = os.fsencode(" ".join(words))[: room - 2].ljust(room - 1, b"\0")
    ctypes.memmove(begin, title + b"-", room)  # a last byte that is not 0 says that the title ends at the first 0


if __name__ == "__main__":
    main()
