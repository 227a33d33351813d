"""How long the trials of a sweep will take, by the first steps of each row on this machine (`--plan --measure`)."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from transformer_pl.plan.plan import CostEstimate, PlannedTrial
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import say
from transformer_pl.sweep.local import Workers, end_all
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.trial import Trial

EVERY = 10  # steps between two lines of metrics
FIRST, LAST = 10, 50  # the steps between which time is taken: in the first ones memory is found, and layers compiled
POLL_S = 0.2


def measured(
    estimates: Mapping[int, CostEstimate], missing: Sequence[PlannedTrial], workers: Workers, console: Console
) -> dict[int, CostEstimate]:
    """The estimates, with the time of the training steps of each row that has a trial left to train.

    It trains each such row for LAST steps, one after the other, in a folder that is removed. The dataset must be
    prepared. A row of fewer than FIRST + EVERY steps is left out.

    Raises an InputError where a row ends before its last step.
    """
    with_times = dict(estimates)
    for row, planned in sorted({planned.row: planned for planned in reversed(missing)}.items()):
        if planned.config.steps >= FIRST + EVERY:
            say(console, f"measuring {planned.name}: its first {min(LAST, planned.config.steps)} steps")
            seconds = planned.config.steps * _seconds_a_step(planned, workers)
            with_times[row] = with_times[row]._replace(seconds=seconds)
    return with_times


def _seconds_a_step(planned: PlannedTrial, workers: Workers) -> float:
    last = min(LAST, planned.config.steps) // EVERY * EVERY  # the last step that is logged until then
    with TemporaryDirectory(prefix="measure") as name:
        runs = Path(name)
        (runs / "data").symlink_to(planned.prepared.folder.parent.resolve())
        ours = {"runs": runs, "trainer.log_every": EVERY, "trainer.val_every": LAST + 1}  # validations come on top
        words = [word for word in planned.argv if not word.startswith(tuple(f"--{key}=" for key in ours))]
        words += [f"--{key}={value}" for key, value in ours.items()]
        identity = Identity({**planned.identity.inputs, "trainer.val_every": LAST + 1})
        trial = Trial(runs / "trials" / f"measured-{identity.trial}")
        process = workers.start(planned._replace(argv=words, identity=identity, trial=trial), 0, WANDB_MODE="disabled")
        try:
            while max(times := _times(trial), default=0) < last:
                if process.exitcode is not None and max(times := _times(trial), default=0) < last:
                    raise InputError(
                        f"--measure: {planned.name}: its training must reach step {last}, but ended with exit code "
                        f"{process.exitcode}; it said: {' '.join(trial.log_end())}"
                    )
                time.sleep(POLL_S)
        finally:
            end_all([process])
    first, *_, final = sorted(times)
    return (times[final] - times[first]) / (final - first)


def _times(trial: Trial) -> dict[int, float]:
    """When each logged step had ended, by its number, from FIRST on."""
    lines = [line for line in trial.metrics() if line.get("kind") == "train" and line["step"] >= FIRST]
    return {line["step"]: line["time"] for line in lines}
