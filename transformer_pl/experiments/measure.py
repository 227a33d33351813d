"""How long the trials of a sweep will take, by the first steps of each row on this machine (`--plan --measure`)."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_pl.experiments.plan import CostEstimate, PlannedTrial
from transformer_pl.launchers.local import TRAIN, end_all
from transformer_pl.runtime import children
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.machine import without_slurm
from transformer_pl.trials.metrics import read_metrics

EVERY = 10  # steps between two lines of metrics
FIRST, LAST = 10, 50  # the steps between which time is taken: in the first ones memory is found, and layers compiled
POLL_S = 0.2


def measured(
    estimates: dict[int, CostEstimate],
    missing: Iterable[PlannedTrial],
    argv: Callable[[PlannedTrial, Path], list[str]],
    threads: Callable[[PlannedTrial], int],
    say: Callable[[str], None],
) -> dict[int, CostEstimate]:
    """The estimates, with the time of the training steps of each row that has a trial left to train.

    It trains each such row for LAST steps, one after the other, in a folder that is removed. The text must be prepared.

    argv: the arguments of `train` for a trial and a runs folder. threads: of each process of a trial. Raises an
    InputError where a row ends before its last step.
    """
    rows = {planned.row: planned for planned in reversed(list(missing))}
    for row, planned in sorted(rows.items()):
        say(f"measuring {planned.name}: its first {min(LAST, planned.config.steps)} steps")
        seconds = planned.config.steps * _seconds_a_step(planned, argv, threads(planned))
        estimates = estimates | {row: estimates[row]._replace(seconds=seconds)}
    return estimates


def check_measurable(missing: Iterable[PlannedTrial]) -> None:
    """Raise an InputError for trials that are too short to be timed."""
    for planned in missing:
        if planned.config.steps < FIRST + EVERY:
            raise InputError(
                f"--measure: {planned.name}: must have at least {FIRST + EVERY} steps to be timed, but has "
                f"{planned.config.steps} (optim.max_steps times optim.duration); train it instead"
            )


def _seconds_a_step(planned: PlannedTrial, argv: Callable[[PlannedTrial, Path], list[str]], threads: int) -> float:
    last = min(LAST, planned.config.steps) // EVERY * EVERY  # the last step that is logged until then
    ours = {"trainer.log_every": EVERY, "trainer.val_every": LAST + 1}  # validations come on top
    environment = without_slurm() | {"OMP_NUM_THREADS": str(threads), "WANDB_MODE": "disabled"}
    with TemporaryDirectory(prefix="measure") as name:
        runs, log = Path(name), Path(name) / "log"
        (runs / "data").symlink_to(planned.prepared.folder.parent.resolve())
        words = [word for word in argv(planned, runs) if not word.startswith(tuple(f"--{key}=" for key in ours))]
        words += [f"--{key}={value}" for key, value in ours.items()]
        process = children.start_module(TRAIN, words, environment, log)
        try:
            while max(times := _times(runs), default=0) < last:
                if process.exitcode is not None and max(times := _times(runs), default=0) < last:
                    said = " ".join(log.read_text(encoding="utf-8", errors="replace").split()[-40:])
                    raise InputError(
                        f"--measure: {planned.name}: its training must reach step {last}, but ended with exit code "
                        f"{process.exitcode}; it said: {said}"
                    )
                time.sleep(POLL_S)
        finally:
            end_all([process])
    first, *_, final = sorted(times)
    return (times[final] - times[first]) / (final - first)


def _times(runs: Path) -> dict[int, float]:
    """When each logged step had ended, by its number, from FIRST on."""
    lines = [line for file in (runs / "trials").glob("*/metrics.jsonl") for line in read_metrics(file)]
    return {line["step"]: line["time"] for line in lines if line.get("kind") == "train" and line["step"] >= FIRST}
