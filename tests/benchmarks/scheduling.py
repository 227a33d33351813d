"""What a sweep costs beside its training, run by hand:

    python tests/benchmarks/scheduling.py [trials] [startup] [ddp] [many] [slurm] [--steps 100]

trials: trials an hour at one and two at once. startup: from the result of a trial to the first step of the next.
ddp: the time and the CPU of a step with two processes beside one. many: the processor and memory of the sweep command
over many trials that sleep. slurm: from the command to the first step, on a SLURM cluster on this machine, which needs
root, slurm-wlm and munge.

Trials are base at scale demo, with --steps steps.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import yaml
from growth import in_a_process, peak_mb
from rounds import ROOT, errors_of

from transformer_pl.experiments import launch
from transformer_pl.experiments.plan import estimate_costs, plan_trials
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.experiments.trial_queue import GridQueue
from transformer_pl.launchers import Ended
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import command_console

sys.path.insert(0, str(ROOT / "tests" / "launchers"))
sys.path.insert(0, str(ROOT / "tests"))
from cluster import Cluster, why_not
from helpers import a_result

SLEEP_S = 30.0  # of a trial that trains nothing
CONCURRENT, TRIALS = 200, 400  # of them at once, and in all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(MEASURED)} (all)")
    parser.add_argument("--steps", type=int, default=100, help="of a trial (%(default)s)")
    options = parser.parse_args()
    with errors_of(parser):
        names = options.what or list(MEASURED)
        if unknown := [name for name in names if name not in MEASURED]:
            raise InputError(f"{unknown[0]}: must be one of {', '.join(MEASURED)}")
        for name in names:
            with TemporaryDirectory() as folder:
                for line in MEASURED[name](Path(folder), options.steps):
                    print(f"{name}: {line}", flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Commands


def write_sweep(folder: Path, steps: int, seeds: int, **more: Any) -> Path:
    """Base at scale demo, so many seeds of so many steps, which are validated once. more: keys, in place of these."""
    keys: dict[str, Any] = {"optim.max_steps": steps, "optim.warmup": max(1, steps // 2), "trainer.val_every": steps}
    keys |= {"trainer.log_every": 1} | more
    parameters: dict[str, Any] = {key: {"value": value} for key, value in keys.items()}
    parameters["seed"] = {"values": list(range(1, seeds + 1))}
    content = {"program": "transformer_pl/train.py", "name": "bench", "method": "grid", "parameters": parameters}
    file = folder / "bench.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def run_sweep(file: Path, runs: Path, *options: str) -> tuple[float, float]:
    """Seconds of the wall clock, and of the processors (its own, and its trials')."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, "-m", "transformer_pl.sweep", str(file), "--runs", str(runs), *options]
    environment = os.environ | {"WANDB_MODE": "disabled"}
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise InputError(
            f"{' '.join(words)}: must end with exit code 0, but: {ended.stdout[-500:]}{ended.stderr[-500:]}"
        )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def prepared(folder: Path, file: Path) -> Path:
    """A runs folder in which the text is prepared, by a trial that is not measured."""
    runs = folder / "runs"
    run_sweep(file, runs, "--seeds", "99", "--parallel", "1")
    return runs


def trials_an_hour(folder: Path, steps: int) -> Iterator[str]:
    file = write_sweep(folder, steps, seeds=4)
    for parallel in (1, 2):
        runs = prepared(folder / str(parallel), file)
        wall, cpu = run_sweep(file, runs, "--parallel", str(parallel), "--set", "trainer.threads=1")
        rate = f"{4 * 3600 / wall:.0f} an hour"
        yield f"4 trials of {steps} steps, {parallel} at once: {rate} ({wall:.1f} s, {cpu:.1f} s CPU)"


def first_step(folder: Path) -> float:
    """The date of the first step of a trial."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return min(line["time"] for line in map(json.loads, lines) if line["kind"] == "train")


def start_up(folder: Path, steps: int) -> Iterator[str]:
    """Between two trials on one worker: from the result of one to the first step of the next, and by the claim."""
    file = write_sweep(folder, steps, seeds=4)
    runs = prepared(folder, file)
    run_sweep(file, runs, "--parallel", "1")
    trials = sorted(path.parent for path in runs.glob("trials/*/result.json"))
    begun = sorted((first_step(trial), (trial / "result.json").stat().st_mtime) for trial in trials)
    gaps = [then[0] - now[1] for now, then in pairwise(begun[1:])]
    yield f"from the result of a trial to the first step of the next: {', '.join(f'{gap:.2f}' for gap in gaps)} s"


def overhead_of_ddp(folder: Path, steps: int, rounds: int = 2) -> Iterator[str]:
    """One process, then two, in turn. A step has the same sentences in both, as the global batch stays.

    Each process notes its clocks at the beginning of each step (clocked_position.py). The first tenth of the steps is
    left out, and so is everything before and after the steps.
    """
    file = write_sweep(
        folder, steps, seeds=1, **{"model.position": "clocked_position.Clocked", "trainer.log_every": 10}
    )
    found: dict[int, list[StepTime]] = {1: [], 2: []}
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests" / "benchmarks")])):
        os.environ["CLOCKS"] = str(folder)
        runs = prepared(folder, file)
        for number, devices in itertools.product(range(rounds), found):
            clocks = folder / f"clocks.{number}.{devices}"
            clocks.mkdir()
            os.environ["CLOCKS"] = str(clocks)
            keys = [f"trainer.devices={devices}", f"trainer.strategy={'ddp' if devices > 1 else 'auto'}"]
            run_sweep(file, runs, "--parallel", "1", "--rerun", "--set", *keys, "trainer.threads=1")
            found[devices].append(step_time(clocks, steps, devices))
    times = {devices: StepTime(*map(statistics.fmean, zip(*found[devices], strict=True))) for devices in found}
    for devices, (wall, cpu) in times.items():
        yield (
            f"{devices} process(es) of one thread: {1000 * wall:.1f} ms a step, {1000 * cpu:.1f} ms CPU in all; each "
            f"waits {100 * (1 - cpu / devices / wall):.0f} % of the time"
        )
    yield (
        f"two use {times[2].cpu / times[1].cpu:.2f} times the CPU of one, and take {times[2].wall / times[1].wall:.2f} "
        "of its time; without overhead it were 1.00 and 0.50"
    )


class StepTime(NamedTuple):
    """Seconds of a step, in the mean."""

    wall: float
    cpu: float  # of all processes


def step_time(folder: Path, steps: int, processes: int) -> StepTime:
    """Of a trial of so many steps and processes, by the clocks that these have noted in a folder.

    The check of the component notes some, too, before the steps and in the sweep command.
    """
    noted = [[tuple(map(float, line.split())) for line in path.read_text().splitlines()] for path in folder.iterdir()]
    noted = [lines[-steps:] for lines in noted if len(lines) >= steps]
    if len(noted) != processes:
        raise InputError(f"ddp: {processes} processes must note {steps} steps each, but {len(noted)} did")
    first, count = steps // 10, steps - 1 - steps // 10
    each = [[(end - begin) / count for begin, end in zip(lines[first], lines[-1], strict=True)] for lines in noted]
    return StepTime(max(wall for wall, _ in each), sum(cpu for _, cpu in each))


# ---------------------------------------------------------------------------------------------------------------------
# A launcher whose trials sleep


class Sleeping:
    """A trial that has logged some steps, and has a result after some seconds."""

    def __init__(self, planned: Any, seconds: float):
        self.trial, self.until = planned.trial, time.monotonic() + seconds
        self.trial.set_status("running")
        line = {"kind": "train", "train/loss": 3.0, "lr": 0.001, "tokens_per_s": 1e4}
        lines = [line | {"step": step, "time": time.time() + step / 100} for step in range(1, 41)]
        (self.trial.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))

    def begun(self) -> bool:
        return True

    def poll(self) -> Ended | None:
        if time.monotonic() < self.until:
            return None
        self.trial.finish(a_result())
        return Ended(True, "after its sleep")

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        pass


class Sleepers:
    """A launcher that trains nothing."""

    shares = False

    def __init__(self, slots: int, seconds: float):
        self.slots, self.seconds = slots, seconds

    def waits(self) -> None:
        pass

    def queued(self) -> None:
        pass

    def attach(self, planned: Any) -> None:
        pass

    def start(self, planned: Any, argv: list[str], lease: Any) -> Sleeping:
        lease.is_given_away = True
        return Sleeping(planned, self.seconds)

    def submit(self) -> None:
        pass

    def stop(self, trainings: Any, say: Any, ask: Any) -> None:
        pass


def schedule(file: Path, runs: Path, slots: int, seconds: float, result: Any) -> None:
    sweep = read_sweep(file)
    planned = plan_trials(sweep, runs)
    before, cpu, began = peak_mb(), time.process_time(), time.monotonic()
    estimates, launcher = estimate_costs(planned, []), Sleepers(slots, seconds)
    with redirect_stdout(StringIO()), ProgressView(command_console(), planned, 0, slots, estimates) as view:
        launch.launch(GridQueue(planned), lambda one: [], launcher, view)  # type: ignore[arg-type]
    result.send((time.process_time() - cpu, time.monotonic() - began, peak_mb(), before))


def many_trials(
    folder: Path, steps: int, concurrent: int = CONCURRENT, trials: int = TRIALS, seconds: float = SLEEP_S
) -> Iterator[str]:
    file = write_sweep(folder, steps, seeds=trials)
    cpu, wall, peak, before = in_a_process(schedule, file, folder / "runs", concurrent, seconds)
    yield f"{trials} trials, {concurrent} at once, each asleep for {seconds:g} s: {cpu:.1f} s CPU in {wall:.0f} s"
    yield f"that is {100 * cpu / wall:.1f} % of a core; {peak:.0f} MB at the most, {before:.0f} before"


# ---------------------------------------------------------------------------------------------------------------------
# SLURM


def to_first_step_on_slurm(folder: Path, steps: int) -> Iterator[str]:
    if reason := why_not():
        yield f"not measured: {reason}"
        return
    file = write_sweep(folder, steps, seeds=1)
    runs = prepared(folder, file)
    with Cluster():
        began = time.time()
        run_sweep(file, runs, "--launcher", "slurm")
        (trial,) = [path.parent for path in runs.glob("trials/*s1-*/result.json")]
        yield f"from the start of the command to the first step: {first_step(trial) - began:.1f} s"


MEASURED: dict[str, Callable[[Path, int], Iterator[str]]] = {
    "trials": trials_an_hour,
    "startup": start_up,
    "ddp": overhead_of_ddp,
    "many": many_trials,
    "slurm": to_first_step_on_slurm,
}

if __name__ == "__main__":
    main()
