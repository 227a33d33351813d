"""How long the trials of a sweep will take, by the first steps of each row on this machine (`--plan --measure`)."""

import time
from collections.abc import Callable, Iterable, Sequence
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
        estimates = estimates | {row: estimates[row]._replace(seconds=seconds, by_flops=False)}
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
    with TemporaryDirectory(prefix="measure") as name:
        runs = Path(name)
        (runs / "data").symlink_to(planned.prepared.folder.parent.resolve())
        last = min(LAST, planned.config.steps) // EVERY * EVERY  # the last step that is logged until then
        words = with_key(argv(planned, runs), "trainer.log_every", EVERY)
        words = with_key(words, "trainer.val_every", LAST + 1)  # validations come on top
        environment = without_slurm() | {"OMP_NUM_THREADS": str(threads), "WANDB_MODE": "disabled"}
        process = children.start_module(TRAIN, words, environment, runs / "log")
        try:
            while True:
                ended = process.exitcode is not None
                times = _times(runs)
                if max(times, default=0) >= last:
                    break
                if ended:
                    raise InputError(
                        f"--measure: {planned.name}: its training must reach step {last}, but ended with exit code "
                        f"{process.exitcode}; it said: {_end(runs / 'log')}"
                    )
                time.sleep(POLL_S)
        finally:
            end_all([process])
    first, *_, final = sorted(times)
    return (times[final] - times[first]) / (final - first)


def with_key(argv: Sequence[str], key: str, value: object) -> list[str]:
    """The arguments of `train` with this value of a key, in place of another one."""
    option = f"--{key}="
    return [*(word for word in argv if not word.startswith(option)), f"{option}{value}"]


def _times(runs: Path) -> dict[int, float]:
    """When each logged step had ended, by its number, from FIRST on."""
    files = list((runs / "trials").glob("*/metrics.jsonl"))
    lines: Sequence[dict] = read_metrics(files[0]) if files else []
    return {line["step"]: line["time"] for line in lines if line.get("kind") == "train" and line["step"] >= FIRST}


def _end(log: Path) -> str:
    return " ".join(log.read_text(encoding="utf-8", errors="replace").split()[-40:]) or "nothing"
