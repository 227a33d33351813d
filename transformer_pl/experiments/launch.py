"""Who runs where: several trials at once, each a process and a session of its own with its share of the cores."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol

from transformer_pl.config import Trainer
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.machine import gpus
from transformer_pl.runtime.signals import ENDS_WITH_STDIN, GRACE_S, Stopped, install_handler, kill, raise_stopped
from transformer_pl.trials.runs_folder import check_writable, why_unwritable

POLL_S = 0.2
Argv = Callable[[PlannedTrial], list[str]]  # of `python -m transformer_pl.train`
Ending = Literal["done", "failed", "diverged", "pruned"]  # of a trial's process


class Workers(NamedTuple):
    """Places for trials: how many at once, the threads of each process, the GPUs of each trial (none on a CPU)."""

    count: int
    threads: int
    gpus: list[str]

    def threads_of(self, job: PlannedTrial) -> int:
        """Of each of a trial's processes; without another reason, its share of the cores."""
        return job.trial.threads(job.config.trainer.threads, self.threads)

    def describe(self, jobs: Sequence[PlannedTrial]) -> str:
        """How many trials run at once and with how many threads, and where that is not the sweep's own choice."""
        threads = [self.threads_of(job) for job in jobs]
        chosen = [job.config.trainer.threads or self.threads for job in jobs]
        begun = [job.trial.threads_begun() for job in jobs]
        each = " or ".join(str(number) for number in sorted(set(threads)))
        text = f"{len(jobs)} trials, {self.count} at a time with {each} threads each"
        if kept := sum(used != choice for used, choice in zip(threads, chosen, strict=True)):
            text += f"; {kept} interrupted: resumed with as many threads as before, not {self.threads}"
        if changed := sum(before not in (None, used) for before, used in zip(begun, threads, strict=True)):
            text += (
                f"; {changed} interrupted: resumed with trainer.threads, not as many as before, so the results may "
                "differ in the last digits"
            )
        return text


def available_workers(parallel: int | None, trainers: Iterable[Trainer], jobs: int) -> Workers:
    """`parallel` trials at once; None: as many as there are GPUs for, or a core each where none is used."""
    trainers = list(trainers)
    devices = max((trainer.devices for trainer in trainers), default=1)
    found = gpus() if any(trainer.accelerator != "cpu" for trainer in trainers) else []
    cores = len(os.sched_getaffinity(0))
    count = parallel or min(max(1, len(found) // devices if found else cores // devices), max(1, jobs))
    of_slot = [",".join(found[(i * devices + d) % len(found)] for d in range(devices)) for i in range(count) if found]
    return Workers(count, max(1, cores // (count * devices)), of_slot)


class TrialQueue(Protocol):
    """Says what is trained, and hears what came of it."""

    def next(self, taken: set[str]) -> PlannedTrial | None:
        """A trial to start now. `taken`: the weights that are being trained, which no second trial may touch.

        None: none now.
        """

    def waits(self) -> str | None:
        """For what, where nothing can be started and nothing runs; None: there is no more to come."""

    def watch(self, job: PlannedTrial) -> bool:
        """Asked again and again while a trial runs; True asks it to end early: it is pruned."""

    def ended(self, job: PlannedTrial, ending: Ending) -> None:
        """What came of a trial."""


class GridQueue:
    """All of a list, in its order. Trials that differ in decoding alone share weights: one runs after the other.

    One that another command trains at this moment is waited for: started then, it finds its result and ends at once.
    """

    def __init__(self, jobs: Sequence[PlannedTrial]):
        self.waiting, self.failed = list(jobs), list[PlannedTrial]()

    def next(self, taken: set[str]) -> PlannedTrial | None:
        free = (job for job in self.waiting if job.who.weights not in taken and not job.trial.locked())
        ready = next(free, None)
        if ready:
            self.waiting.remove(ready)
        return ready

    def waits(self) -> str | None:
        return f"waiting for another command, which trains {len(self.waiting)} of these" if self.waiting else None

    def watch(self, job: PlannedTrial) -> bool:
        return False

    def ended(self, job: PlannedTrial, ending: Ending) -> None:
        if ending == "failed":
            self.failed.append(job)


def launch(source: TrialQueue, argv: Argv, places: Workers, view: ProgressView) -> None:
    """Run all that `source` has. A signal ends every trial, each after it has saved: `Stopped`."""
    running: dict[int, tuple[subprocess.Popen, PlannedTrial]] = {}  # by slot
    asked: dict[int, float] = {}  # until when a slot's trial may take to end early
    try:
        while True:
            started = _fill(source, argv, places, view, running)
            view.waits = None if started or running else source.waits()
            if not (started or running or view.waits):
                break
            view.refresh()
            time.sleep(POLL_S)
            for slot, (process, job) in list(running.items()):
                code = process.poll()
                if code is None and slot in asked and time.monotonic() > asked[slot]:
                    kill(process.pid)
                elif code is None and slot not in asked and source.watch(job):
                    asked[slot] = time.monotonic() + GRACE_S
                    os.killpg(process.pid, signal.SIGTERM)
                elif code is not None:
                    del running[slot]
                    _end(process)
                    ending = _ending(code, job, asked.pop(slot, None) is not None)
                    source.ended(job, ending)
                    view.ended(job, ending, _outcome(ending, code, job))
    finally:
        if running:
            view.say(f"stopping: {len(running)} trials save and end; once more kills them")
            _stop([process for process, _ in running.values()])


def _fill(source: TrialQueue, argv: Argv, places: Workers, view: ProgressView, running: dict) -> bool:
    """Start a trial in every free slot; False where there was nothing to start."""
    started = False
    for slot in range(places.count):
        if slot in running:
            continue
        job = source.next({job.who.weights for _, job in running.values()})
        if job is None:
            break
        started = True
        view.started(job)
        try:
            running[slot] = (_start(job, argv(job), places, slot), job)
        except (InputError, OSError) as error:  # such as a disk that is full by now
            source.ended(job, "failed")
            view.ended(job, "failed", f"could not be started: {error}")
    return started


def _start(job: PlannedTrial, argv: list[str], places: Workers, slot: int) -> subprocess.Popen:
    environment = os.environ | {
        "OMP_NUM_THREADS": str(places.threads_of(job)),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait starve the other trials
        "PYTHONUNBUFFERED": "1",
        "WANDB_NAME": job.name,
        ENDS_WITH_STDIN: "1",  # a pipe that nobody writes to: it ends when this process does, whatever ended it
    }
    if places.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = places.gpus[slot]
    words = [sys.executable, "-m", "transformer_pl.train", *argv]
    check_writable(job.trial.folder.parents[1])
    job.trial.make()
    with job.trial.log.open("ab") as log:
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _ending(code: int, job: PlannedTrial, was_asked: bool) -> Ending:
    """`was_asked`: to end early."""
    if code == 0 and job.trial.result() is not None:  # a component may end the process with 0
        return "done"
    if job.trial.diverged_at() is not None:
        return "diverged"
    return "pruned" if was_asked else "failed"


def _outcome(ending: Ending, code: int, job: PlannedTrial) -> str:
    if ending == "pruned":
        return ending
    if ending == "diverged":
        return f"diverged at step {job.trial.diverged_at()}"
    if ending == "failed":
        end = "\n".join(f"    | {line}" for line in job.trial.log_end())
        if full := why_unwritable(job.trial.folder.parents[1]):  # then the log may lack it
            end += f"\n    {full}"
        without = "" if code else ", without a result"
        return f"failed with exit code {code}{without}; the end of {job.trial.log}:\n{end}"
    metrics = job.trial.result()["metrics"]
    return f"val/ppl {metrics['val/ppl']:.2f}  val/bleu {metrics['val/bleu']:.2f}"


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    """Ask every process to save and end; kill those that have not in time, or all when asked again."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    install_handler(raise_stopped)
    with suppress(subprocess.TimeoutExpired, Stopped):
        for process in processes:
            process.wait(max(0.0, until - time.monotonic()))
    install_handler(signal.SIG_IGN)
    for process in processes:
        _end(process)
        process.wait()
    install_handler(raise_stopped)


def _end(process: subprocess.Popen) -> None:
    """Whatever a trial has left behind in its session ends with it."""
    kill(process.pid)
    process.stdin.close()
