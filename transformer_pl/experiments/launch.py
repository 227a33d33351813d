"""Runs several trials at once. Each trial is a process in a session of its own with its share of cores and GPUs.

On Linux a trial is forked from a server that has imported its libraries, which takes seconds. On a GPU, and on other
systems, it is a new process: CUDA and macOS's libraries do not survive a fork once something has used them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import IO, Literal, NamedTuple, Protocol

from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.workers import Workers
from transformer_pl.runtime.environment import ROW
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.fork_server import ForkedProcess, ForkServer
from transformer_pl.runtime.machine import gpus
from transformer_pl.runtime.signals import ENDS_WITH_STDIN, GRACE_S, Stopped, install_handler, kill, raise_stopped
from transformer_pl.runtime.terminal import counted
from transformer_pl.trials.runs_folder import check_writable, why_unwritable
from transformer_pl.trials.trial import LOCK_FD

POLL_S = 0.2  # between two looks at the running trials
SLEEPING_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin while they wait starve the other trials
TRAIN = "transformer_pl.train"  # what a trial's process runs, and the modules that it imports later
TRAIN_LATER = ("transformer_pl.training.fit", "transformer_pl.evaluation.evaluate_trial")
Argv = Callable[[PlannedTrial], list[str]]  # the arguments of `python -m transformer_pl.train` for a trial
Ending = Literal["done", "failed", "diverged", "pruned"]  # of a trial


# ---------------------------------------------------------------------------------------------------------------------
# Queues: what is trained


class TrialQueue(Protocol):
    """Decides what is trained next, and is told how each trial ended."""

    def next(self, taken: set[str]) -> PlannedTrial | None:
        """A trial to start now, or None if there is none at the moment.

        taken: the weights ids that are being trained here; no second trial may write to the same weights.
        """

    def hold(self, planned: PlannedTrial) -> None:
        """Take back a trial that `next` returned: another command has begun to train it."""

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        """How another command has ended a trial that `next` returned; None: it is to be trained here."""

    def waits(self) -> str | None:
        """What the queue waits for when nothing runs and nothing can be started; None if everything is done."""

    def watch(self, planned: PlannedTrial) -> bool:
        """Called at every poll of a running trial; True asks the trial to end early, which prunes it."""

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        """A trial that `next` returned has ended, here or elsewhere, or could not be started (`failed`)."""


class GridQueue:
    """A list of trials, in its order; no trial is pruned.

    Several commands share the work: a trial that another one is training waits until that is over. If it has ended
    then, well or badly, its ending counts here too; if it was stopped, this command continues it. Trials that differ in
    decoding alone share weights and run one after the other.
    """

    def __init__(self, trials: Sequence[PlannedTrial]):
        self.waiting, self.failed = list(trials), list[PlannedTrial]()
        self._earlier = {planned.identity.trial: planned.trial.status() for planned in trials}

    def next(self, taken: set[str]) -> PlannedTrial | None:
        elsewhere = {one.identity.weights for one in self.waiting if one.trial.locked()}
        for planned in self.waiting:
            if planned.identity.weights not in taken | elsewhere:
                self.waiting.remove(planned)
                return planned
        return None

    def hold(self, planned: PlannedTrial) -> None:
        self.waiting.append(planned)

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        status = planned.trial.status()
        state = status["state"]
        has_ended = state in ("done", "failed", "diverged") and status != self._earlier[planned.identity.trial]
        return state if has_ended else None

    def waits(self) -> str | None:
        return f"waiting for another command, which trains {len(self.waiting)} of these" if self.waiting else None

    def watch(self, planned: PlannedTrial) -> bool:
        return False

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        if ending == "failed":
            self.failed.append(planned)


# ---------------------------------------------------------------------------------------------------------------------
# The scheduling loop


@contextmanager
def trial_server(trial_count: int) -> Iterator[ForkServer | None]:
    """The server that trials are forked from; None where they are not. Enter it early: it takes seconds to be ready.

    trial_count: how many trials are to be trained; without any, there is no server.
    """
    if trial_count <= 0 or sys.platform != "linux" or gpus():
        yield None
        return
    with closing(ForkServer(TRAIN, TRAIN_LATER, SLEEPING_THREADS)) as server:
        yield server


def launch(
    queue: TrialQueue, argv: Argv, workers: Workers, view: ProgressView, server: ForkServer | None = None
) -> None:
    """Train everything that the queue gives out.

    server: of `trial_server`. A signal stops all trials, each after it has saved, and raises `Stopped`.
    """
    scheduler = _Scheduler(queue, argv, workers, view, server)
    try:
        while scheduler.fill_free_workers():
            view.refresh()
            time.sleep(POLL_S)
            scheduler.poll()
    finally:
        scheduler.stop_all()


class TrialProcess(NamedTuple):
    """A trial that a worker is training."""

    process: subprocess.Popen | ForkedProcess
    planned: PlannedTrial
    deadline: float | None = None  # if it was asked to end early: by when, on the monotonic clock


class _Scheduler:
    def __init__(
        self, queue: TrialQueue, argv: Argv, workers: Workers, view: ProgressView, server: ForkServer | None = None
    ):
        self.queue, self.argv, self.workers, self.view, self.server = queue, argv, workers, view, server
        self.running: dict[int, TrialProcess] = {}  # by worker, 0 to workers.count - 1

    def fill_free_workers(self) -> bool:
        """Start a trial on every free worker, as far as the queue has any. False: everything is done."""
        if self.server and not self.server.is_ready():
            self.view.waits = "importing torch"
            return True
        started = False
        for worker in range(self.workers.count):
            if worker in self.running:
                continue
            planned = self.queue.next({running.planned.identity.weights for running in self.running.values()})
            if planned is None:
                break
            started |= self._start(worker, planned)
        self.view.waits = None if started or self.running else self.queue.waits()
        return bool(started or self.running or self.view.waits)

    def poll(self) -> None:
        """Look at every running trial: has it ended, is it to end early, has it taken too long to do so?"""
        for worker, running in list(self.running.items()):
            exit_code = running.process.poll()
            if exit_code is not None:
                del self.running[worker]
                self._end(running, exit_code)
            elif running.deadline is not None:
                if time.monotonic() > running.deadline:
                    kill(running.process.pid)
            elif self.queue.watch(running.planned):
                self.running[worker] = running._replace(deadline=time.monotonic() + GRACE_S)
                _terminate(running.process)

    def stop_all(self) -> None:
        if self.running:
            trials = counted(len(self.running), "trial")
            self.view.say(f"stopping: waiting for {trials} to save and end; Ctrl-C again kills what is left")
            _stop([running.process for running in self.running.values()])

    def _start(self, worker: int, planned: PlannedTrial) -> bool:
        """Start a trial, or count how another command has ended it. False: another command is training it."""
        try:
            check_writable(planned.trial.folder.parents[1])
            lock = planned.trial.take_lock()
            if lock is None:
                self.queue.hold(planned)
                return False
            with closing(lock):  # the trial's process has it too, and keeps it
                if ending := self.queue.ended_elsewhere(planned):
                    self._count(planned, ending, f"{_describe_ending(ending, planned)} (by another command)")
                else:
                    process = self._start_process(planned, worker, lock)
                    self.running[worker] = TrialProcess(process, planned)
                    self.view.started(planned)
        except (InputError, OSError) as error:  # such as a disk that has become full
            self._count(planned, "failed", f"could not be started: {error}")
        return True

    def _start_process(self, planned: PlannedTrial, worker: int, lock: IO) -> subprocess.Popen | ForkedProcess:
        """lock: of the trial; the process keeps it until it ends."""
        argv, environment = self.argv(planned), trial_environment(planned, self.workers, worker)
        planned.trial.begin_log()
        with planned.trial.log.open("ab") as log:
            if self.server:
                with suppress(OSError):  # the server has ended
                    return self.server.start(argv, environment, log, {LOCK_FD: lock})
            return subprocess.Popen(
                [sys.executable, "-m", TRAIN, *argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment | {LOCK_FD: str(lock.fileno())},
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )

    def _count(self, planned: PlannedTrial, ending: Ending, description: str) -> None:
        """Tell the queue and the view of a trial that was not started here."""
        self.queue.ended(planned, ending)
        self.view.started(planned)
        self.view.ended(planned, ending, description)

    def _end(self, running: TrialProcess, exit_code: int) -> None:
        _end_session(running.process)
        ending = _ending(exit_code, running)
        self.queue.ended(running.planned, ending)
        self.view.ended(running.planned, ending, _describe_ending(ending, running.planned, exit_code))


def trial_environment(planned: PlannedTrial, workers: Workers, worker: int) -> dict[str, str]:
    """The environment variables of a trial's process."""
    environment = (
        os.environ
        | SLEEPING_THREADS
        | {
            "OMP_NUM_THREADS": str(workers.threads_of(planned)),
            "PYTHONUNBUFFERED": "1",
            "WANDB_NAME": planned.name,
            ROW: planned.name.removesuffix(f" s{planned.config.seed}"),
            ENDS_WITH_STDIN: "1",  # its standard input is a pipe from this process: it ends when this process ends
        }
    )
    if workers.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = workers.gpus[worker]
    return environment


def _ending(exit_code: int, running: TrialProcess) -> Ending:
    trial = running.planned.trial
    if exit_code == 0 and trial.result() is not None:  # a component may end the process with 0 and without a result
        return "done"
    if trial.diverged_at() is not None:
        return "diverged"
    return "failed" if running.deadline is None else "pruned"


def _describe_ending(ending: Ending, planned: PlannedTrial, exit_code: int | None = None) -> str:
    """One line for people; a failure has the end of its log below. exit_code: where it is known."""
    trial = planned.trial
    if ending == "pruned":
        return ending
    if ending == "diverged":
        return f"diverged at step {trial.diverged_at()}"
    result = trial.result()
    if ending == "done" and result is not None:
        return f"val/ppl {result['metrics']['val/ppl']:.2f}  val/bleu {result['metrics']['val/bleu']:.2f}"
    log_end = "\n".join(f"    | {line}" for line in trial.log_end())
    if reason := why_unwritable(trial.folder.parents[1]):  # then the log may lack it
        log_end += f"\n    {reason}"
    how = "" if exit_code is None else f" with exit code {exit_code}{'' if exit_code else ', without a result'}"
    return f"failed{how}; the end of {trial.log}:\n{log_end}"


def _stop(processes: Sequence[subprocess.Popen | ForkedProcess]) -> None:
    """Ask every process to save and end. Kill those that have not ended in time; kill all at a second signal."""
    for process in processes:
        if process.poll() is None:
            _terminate(process)
    deadline = time.monotonic() + GRACE_S
    install_handler(raise_stopped)
    with suppress(subprocess.TimeoutExpired, Stopped):
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    install_handler(signal.SIG_IGN)
    for process in processes:
        _end_session(process)
        process.wait()
    install_handler(raise_stopped)


def _terminate(process: subprocess.Popen | ForkedProcess) -> None:
    """Ask a process and its helpers to save and end."""
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGTERM)


def _end_session(process: subprocess.Popen | ForkedProcess) -> None:
    """Kill whatever the trial's process has left behind in its session."""
    kill(process.pid)
    if process.stdin:
        process.stdin.close()
