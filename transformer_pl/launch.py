"""Who runs where: several trials at once, each a process and a session of its own with its share of the cores."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from transformer_pl.errors import InputError
from transformer_pl.results import Trial, check_writable, unwritable

GRACE_S = 8.0  # from asking a trial to stop to killing it
SAY_EVERY_S = 5.0
GPUS = Path("/proc/driver/nvidia/gpus")  # one folder a GPU, and no need to load torch to count them


class Job(NamedTuple):
    name: str
    argv: list[str]  # of `python -m transformer_pl.train`
    trial: Trial
    weights: str  # jobs that differ in decoding alone share these, and so run one after the other
    steps: int


class Slots(NamedTuple):
    """Places for trials: how many at once, the threads of each, the GPUs of each (none on a CPU)."""

    count: int
    threads: int
    gpus: list[str]


def slots(parallel: int | None, devices: int, jobs: int) -> Slots:
    """`parallel` trials at once; None: as many as there are GPUs for, or a core each where there is no GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = (
        [str(i) for i in range(len(list(GPUS.glob("*"))))]
        if visible is None
        else list(filter(None, visible.split(",")))
    )
    cores = len(os.sched_getaffinity(0))
    count = parallel or min(max(1, len(found) // devices if found else cores // devices), max(1, jobs))
    gpus = (
        [",".join(found[(i * devices + d) % len(found)] for d in range(devices)) for i in range(count)] if found else []
    )
    return Slots(count, max(1, cores // (count * devices)), gpus)


def launch(jobs: Sequence[Job], places: Slots, say: Callable[[str], None]) -> list[Job]:
    """Run all jobs and return those that failed. A signal ends every trial, each after it has saved: `Interrupted`."""
    waiting, failed, done = list(jobs), [], 0
    running: dict[int, tuple[subprocess.Popen, Job]] = {}  # by slot
    said = time.monotonic()
    before = {signum: signal.signal(signum, _interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        while waiting or running:
            for slot in range(places.count):
                taken = {job.weights for _, job in running.values()}
                ready = next((job for job in waiting if job.weights not in taken), None)
                if slot not in running and ready:
                    waiting.remove(ready)
                    try:
                        running[slot] = (_start(ready, places, slot), ready)
                    except (InputError, OSError) as error:  # such as a disk that is full by now
                        done += 1
                        failed.append(ready)
                        say(f"[{done}/{len(jobs)}] {ready.name}: could not be started: {error}")
            time.sleep(0.2)
            for slot, (process, job) in list(running.items()):
                if process.poll() is not None:
                    del running[slot]
                    done += 1
                    _end(process)
                    say(f"[{done}/{len(jobs)}] {_outcome(process.returncode, job)}")
                    if process.returncode:
                        failed.append(job)
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                for _, job in running.values():
                    say(f"  {job.name:24} {progress(job)}")
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        _stop([process for process, _ in running.values()])
    return failed


class Interrupted(BaseException):
    """A signal asked the sweep to stop. The same command continues it."""

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum


def progress(job: Job) -> str:
    """Where a trial is, by the last lines of its metrics."""
    lines = job.trial.metrics()
    trained = [line for line in lines if "train/loss" in line]
    if not trained:
        return "starting"
    last, first = trained[-1], trained[max(0, len(trained) - 10)]
    if last["step"] + (last["step"] - trained[max(0, len(trained) - 2)]["step"]) > job.steps:
        return f"step {last['step']}/{job.steps}  evaluating"
    told = f"step {last['step']}/{job.steps}  loss {last['train/loss']:.3f}  {last['tokens_per_s']:.0f} tokens/s"
    if last["step"] > first["step"]:
        rate = (last["time"] - first["time"]) / (last["step"] - first["step"])
        left = max(0, rate * (job.steps - last["step"]) - (time.time() - last["time"]))
        told += f"  {left // 60:.0f}:{left % 60:02.0f} left"
    return told


def _start(job: Job, places: Slots, slot: int) -> subprocess.Popen:
    environment = os.environ | {
        "OMP_NUM_THREADS": str(places.threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait starve the other trials
        "PYTHONUNBUFFERED": "1",
        "WANDB_NAME": job.name,
    }
    if places.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = places.gpus[slot]
    argv = [sys.executable, "-m", "transformer_pl.train", *job.argv, f"--trainer.threads={places.threads}"]
    check_writable(job.trial.folder.parents[1])
    job.trial.folder.mkdir(parents=True, exist_ok=True)
    with job.trial.log.open("ab") as log:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _outcome(code: int, job: Job) -> str:
    if code:
        end = "\n".join(f"    | {line}" for line in job.trial.log_end())
        if full := unwritable(job.trial.folder.parents[1]):  # then the log may lack it
            end += f"\n    {full}"
        return f"{job.name}: failed with exit code {code}; the end of {job.trial.log}:\n{end}"
    metrics = (job.trial.result() or {})["metrics"]
    return f"{job.name}: val/ppl {metrics['val/ppl']:.2f}  val/bleu {metrics['val/bleu']:.2f}"


def _interrupt(signum: int, frame: object) -> None:
    raise Interrupted(signum)


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    """Ask every process to save and end, and end those that do not."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        _end(process)
        process.wait()


def _end(process: subprocess.Popen) -> None:
    """Whatever a trial has left behind in its session ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
