"""What the benchmarks share: rounds of settings in turn, the rate of the train command, and trained weights."""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.nn.functional as F

from transformer_pl.config import Config, sizes
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import PAD
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.metrics import read_metrics
from transformer_pl.trials.runs_folder import RunsFolder

ROOT = Path(__file__).parents[2]
POLL_S = 0.2
Clock = Callable[[], float]  # in seconds
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
CLOCK_HELP = "the time that rates are measured in (%(default)s); cpu leaves out what other work on the machine takes"


def torch_loss(logits: torch.Tensor, target: torch.Tensor, eps_ls: float) -> torch.Tensor:
    """Torch's own smoothed loss of logits (B, L, V), summed over tokens."""
    options = {"ignore_index": PAD, "reduction": "sum", "label_smoothing": eps_ls}
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), **options)


@contextmanager
def errors_of(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the process with exit code 2 and the messages of an InputError."""
    try:
        yield
    except InputError as error:
        parser.exit(2, "".join(f"error: {message}\n" for message in error.messages))


def compare(what: str, settings: dict[str, Callable[[], float]], rounds: int, references: Sequence[str] = ()) -> None:
    """Measure the settings in turn, after their warm-up, and print a table of their rates.

    Ratios to the first setting, or to each of `references`, are taken within a round, so that a drift of the machine's
    speed does not matter.
    """
    rates = []
    for number in range(1, rounds + 1):
        rates.append({name: run() for name, run in settings.items()})
        measured = ", ".join(f"{name} {rate:.1f}" for name, rate in rates[-1].items())
        print(f"round {number} of {rounds}: {measured}", file=sys.stderr, flush=True)
    references = references or [next(iter(settings))]
    print(f"\n| {what}; {rounds} rounds, median (lowest to highest) | rate |", end="")
    print("".join(f" ratio to {reference} |" for reference in references))
    print("|---|---|" + "---|" * len(references))
    for name in settings:
        ratios = [spread([rate[name] / rate[reference] for rate in rates], 2) for reference in references]
        print(f"| {name} | {spread([rate[name] for rate in rates], 1)} | {' | '.join(ratios)} |", flush=True)


def warm_up(settings: dict[str, Callable[[], float]]) -> None:
    """Run each once: the first call allocates memory and chooses kernels."""
    for run in settings.values():
        run()


def spread(values: list[float], digits: int) -> str:
    """The median of the values, and their range."""
    median, lowest, highest = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{median} ({lowest} to {highest})"


def train_command(runs: Path, keys: dict[str, object], steps: int, threads: int, clock: str) -> Callable[[], float]:
    """The train command: a function that returns its target tokens a second.

    Each call trains a new trial (the next seed) in a process of its own, through everything that a trial has. The rate
    is that of the steps from `steps` to 2 `steps`: the first ones are its warm-up. Then the process is ended.
    runs: an empty folder. keys: those of the config, and `scale`. clock: a name in CLOCKS; cpu counts the CPU time of
    the training process alone, without W&B's.
    """
    once = {"optim.max_steps": 2 * steps, "trainer.val_every": 2 * steps, "trainer.log_every": steps}
    once |= {"trainer.threads": threads, "decode.average": 1}
    if taken := once.keys() & keys.keys():
        raise InputError(f"{', '.join(sorted(taken))}: the benchmark sets it itself; leave it out")
    seeds = itertools.count(1)

    def run() -> float:
        arguments = [f"--{key}={value}" for key, value in (once | keys | {"seed": next(seeds), "runs": runs}).items()]
        command = [sys.executable, "-m", "transformer_pl.train", *arguments]
        known = set(runs.glob("trials/*/metrics.jsonl"))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
        with (runs / "log.txt").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        warm: tuple[float, float] | None = None  # the times of the clock and of the processor after the warm-up
        try:
            while True:
                times = time.perf_counter(), cpu_seconds(process.pid)
                ended = process.poll() is not None  # asked before the file is read, which is then complete
                for metrics in set(runs.glob("trials/*/metrics.jsonl")) - known:
                    lines = [line for line in read_metrics(metrics) if "tokens_per_s" in line]
                    warm = warm or (times if lines else None)
                    if warm and lines[-1]["step"] == 2 * steps:
                        share = (times[1] - warm[1]) / max(POLL_S, times[0] - warm[0]) if clock == "cpu" else 1
                        if not share:
                            raise InputError(f"{steps} steps are too few to measure; raise --steps")
                        return lines[-1]["tokens_per_s"] / share
                if ended:
                    said = (runs / "log.txt").read_text(errors="replace").strip()[-2000:]
                    raise InputError(f"{' '.join(command)} must train {2 * steps} steps, but said:\n{said}")
                time.sleep(POLL_S)
        finally:
            process.terminate()
            process.wait()

    return run


def cpu_seconds(pid: int) -> float:
    """The CPU seconds that a process and its threads have used; 0 where the system does not tell."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def trained_model(config: Config, prepared: Prepared, runs: Path) -> Transformer | None:
    """The model of a finished trial under `runs` with this model and vocabulary, however long it was trained."""
    same = {key: value for key, value in config.flat().items() if key.startswith("model.") or key == "data.vocab_size"}
    for trial, result in RunsFolder(runs).finished():
        if same.items() <= result.config.items():
            model = Transformer(sizes(config.model, len(prepared.tokenizer))).eval()
            model.load_state_dict(trial.weights())
            return model
    return None


def first(split: Split, count: int) -> Split:
    """The first sentence pairs of a split."""
    return Split(*(Tokens(side.flat, side.offsets[: count + 1]) for side in split))


def sentences_per_s(translate: Callable[[], object], sentences: int, clock: Clock) -> Callable[[], float]:
    """A function that calls `translate`, and returns its rate in sentences per second."""

    def run() -> float:
        began = clock()
        translate()
        return sentences / (clock() - began)

    return run
