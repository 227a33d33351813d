"""The launcher `local`: trials are processes on this machine, each in a session of its own.

On Linux a trial is forked from a server that has imported its libraries, which takes seconds. On a GPU, and on other
systems, it is a new process: CUDA and macOS's libraries do not survive a fork once something has used them.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_pl.config import Trainer
from transformer_pl.launchers import SLEEPING_THREADS, TRAIN, Ended, Training, trial_variables, without_slurm
from transformer_pl.launchers.workers import Workers, available_workers, check_machine
from transformer_pl.runtime.fork_server import ForkedProcess, ForkServer
from transformer_pl.runtime.lease import Lease
from transformer_pl.runtime.machine import gpus
from transformer_pl.runtime.signals import ENDS_WITH_STDIN, GRACE_S, Stopped, install_handler, kill, raise_stopped
from transformer_pl.runtime.terminal import counted
from transformer_pl.trials.trial import LEASE

if TYPE_CHECKING:
    from transformer_pl.experiments.plan import PlannedTrial

TRAIN_LATER = ("transformer_pl.training.fit", "transformer_pl.evaluation.evaluate_trial")  # modules that TRAIN imports


class LocalTraining:
    """A trial that a worker of this machine is training."""

    def __init__(self, process: subprocess.Popen | ForkedProcess):
        self.process = process

    def begun(self) -> bool:
        return True

    def poll(self) -> Ended | None:
        code = self.process.poll()
        if code is None:
            return None
        self.clear_session()
        return Ended(code == 0, f"with exit code {code}")

    def terminate(self) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        kill(self.process.pid)

    def clear_session(self) -> None:
        """Kill whatever the process has left behind in its session."""
        self.kill()
        if self.process.stdin:
            self.process.stdin.close()


class LocalLauncher:
    """Divides this machine among trials. See `Launcher` for what its methods are for."""

    def __init__(self, parallel: int | None = None, devices: int | None = None, per_device: int | None = None):
        """parallel: how many trials at once; devices: how many GPUs or cores in all; per_device: trials on a GPU."""
        self.parallel, self.devices, self.per_device = parallel, devices, per_device
        self.workers = Workers(0, 1, [])
        self.server: ForkServer | None = None
        self.running: dict[int, LocalTraining] = {}  # by worker, 0 to workers.count - 1

    @property
    def slots(self) -> int:
        return self.workers.count

    @property
    def at_once(self) -> int:
        return self.slots

    @property
    def shares(self) -> bool:
        return self.workers.share_memory

    def check(self, trainers: Iterable[Trainer]) -> None:
        check_machine(trainers, self.devices, self.per_device)

    @contextmanager
    def opened(self, trial_count: int) -> Iterator[None]:
        if trial_count <= 0 or sys.platform != "linux" or gpus():
            yield
            return
        with closing(ForkServer(TRAIN, TRAIN_LATER, SLEEPING_THREADS)) as self.server:
            yield
        self.server = None

    def allot(self, trainers: Sequence[Trainer], trial_count: int, is_search: bool = False) -> None:
        self.workers = available_workers(self.parallel, trainers, trial_count, self.devices, self.per_device)

    def describe(self, trials: Sequence["PlannedTrial"], undrawn: int = 0) -> str:
        return self.workers.describe(trials, undrawn)

    def preview(self, trials: Sequence["PlannedTrial"], argv: Callable[["PlannedTrial"], list[str]]) -> list[str]:
        return []

    def threads(self, planned: "PlannedTrial") -> int | None:
        return self.workers.threads_of(planned)

    def cpu_cores(self) -> int:
        return self.workers.cpu_cores

    def waits(self) -> str | None:
        return "importing torch" if self.server and not self.server.is_ready() else None

    def queued(self) -> str | None:
        """None: a trial begins at once."""

    def attach(self, planned: "PlannedTrial") -> Training | None:
        """None: a trial ends with the command that started it."""

    def start(self, planned: "PlannedTrial", argv: list[str], lease: Lease) -> Training:
        for worker, training in list(self.running.items()):
            if training.process.poll() is not None:
                del self.running[worker]
        worker = next(number for number in range(self.workers.count) if number not in self.running)
        process = self._start_process(planned, argv, worker, lease)
        lease.is_given_away = True
        if self.workers.cores and hasattr(os, "sched_setaffinity"):  # Linux alone has it
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(process.pid, self.workers.cores[worker])  # before it has a second thread
        self.running[worker] = LocalTraining(process)
        return self.running[worker]

    def submit(self) -> None:
        """`start` has started everything."""

    def stop(self, trainings: Sequence[Training], say: Callable[[str], None], ask: Callable[[str], bool]) -> None:
        say(
            f"stopping: waiting for {counted(len(trainings), 'trial')} to save and end; Ctrl-C again kills what is left"
        )
        _stop([training for training in trainings if isinstance(training, LocalTraining)])

    def _start_process(
        self, planned: "PlannedTrial", argv: list[str], worker: int, lease: Lease
    ) -> subprocess.Popen | ForkedProcess:
        environment = trial_environment(planned, self.workers, worker) | {LEASE: lease.given}
        planned.trial.begin_log()
        with planned.trial.log.open("ab") as log:
            if self.server:
                with suppress(OSError):  # the server has ended
                    return self.server.start(argv, environment, log, {})
            return subprocess.Popen(
                [sys.executable, "-m", TRAIN, *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )


def trial_environment(planned: "PlannedTrial", workers: Workers, worker: int) -> dict[str, str]:
    """The environment variables of a trial's process."""
    environment = without_slurm() | trial_variables(planned, workers.threads_of(planned))
    environment[ENDS_WITH_STDIN] = "1"  # its standard input is a pipe from this process: it ends when this process ends
    if workers.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = workers.gpus[worker]
    return environment


def _stop(trainings: Sequence[LocalTraining]) -> None:
    """Ask every trial to save and end. Kill those that have not ended in time; kill all at a second signal."""
    for training in trainings:
        if training.process.poll() is None:
            training.terminate()
    deadline = time.monotonic() + GRACE_S
    install_handler(raise_stopped)
    with suppress(subprocess.TimeoutExpired, Stopped):
        for training in trainings:
            training.process.wait(max(0.0, deadline - time.monotonic()))
    install_handler(signal.SIG_IGN)
    for training in trainings:
        training.clear_session()
        training.process.wait()
    install_handler(raise_stopped)


def open_launcher(options: argparse.Namespace, folder: Path) -> LocalLauncher:
    """The launcher that the options of a command describe. folder: of the sweep, which it does not need."""
    return LocalLauncher(options.parallel, options.devices, options.per_device)
