"""How the costs of commands grow with the trials of a runs folder:

    python tests/benchmarks/growth.py [--trials 100,1000,10000] [--code CHECKOUT]

It makes runs folders with so many finished trials, half of them of one sweep of 50 rows, by the functions that plan and
finish trials, and runs commands on them, each in a process of its own. It prints CPU seconds and peak memory of each,
and the exponent of the CPU seconds over those in an empty folder. --code measures the package of another checkout.
"""

import argparse
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers import a_result

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime.command_line import whole_numbers
from transformer_pl.runtime.files import write_json
from transformer_pl.task import task_of
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_folder import METRICS, WEIGHTS

ROWS = 50  # of the sweep that the commands are given; base is the last of them
COMMANDS = {
    "--list": ("sweep", "--list"),
    "--plan of 10 trials": ("sweep", "few.yaml", "--plan"),
    "--plan of half": ("sweep", "many.yaml", "--plan"),
    "report of 10": ("report", "few.yaml"),
    "train, a finished trial": ("train", "--seed=1", "--optim.warmup=50"),
    "a page of so many rows, at most 200": ("report", "page.yaml", "--format", "html"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=whole_numbers, default=(100, 1_000, 10_000), metavar="N,N,...")
    parser.add_argument("--code", type=Path, default=Path.cwd(), metavar="CHECKOUT")
    options = parser.parse_args()
    measured: dict[str, list[tuple[int, float, float]]] = {name: [] for name in COMMANDS}
    for count in (0, *options.trials):
        with tempfile.TemporaryDirectory() as folder:
            maker = multiprocessing.Process(target=make, args=(Path(folder), count))
            maker.start()  # it imports torch, whose memory a command's peak would else begin with
            maker.join()
            for name, words in COMMANDS.items():
                if count or name == "--list" or "--plan" in words:
                    measured[name].append((count, *cost(words, Path(folder), options.code)))
    for name, costs in measured.items():
        print(name)
        empty = costs[0][1] if costs[0][0] == 0 else 0.0
        for count, seconds, memory in costs:
            print(f"  {count:6} trials: {seconds:6.1f} CPU s, {memory:5.0f} MB")
        (few, before, _), (many, after, _) = costs[-2:] if len(costs) > 1 else costs * 2
        if few and after > before > empty:
            print(f"  exponent: {math.log((after - empty) / (before - empty)) / math.log(many / few):.2f}")


def make(folder: Path, count: int) -> None:
    """Write two sweep files, and a runs folder with so many finished trials."""
    seeds = list(range(1, max(2, count // (2 * ROWS)) + 1))
    others = [f"optim.warmup={50 + number}" for number in range(ROWS - 1)]
    write(folder / "many.yaml", [*others, "base"], seeds)
    write(folder / "few.yaml", [*others[:4], "base"], [1, 2])
    runs = RunsFolder(folder / "runs")
    rest = [f"optim.beta1={0.5 + number / 100_000}" for number in range(max(0, count - ROWS * len(seeds)))]
    write(folder / "rest.yaml", ["base", *rest], [1])
    if count:
        planned = plan_trials(read_sweep(folder / "many.yaml"), runs) + plan_trials(
            read_sweep(folder / "rest.yaml"), runs
        )
        for trial in {trial.id: trial for trial in planned}.values():
            finish(trial)
        make_page(folder, min(count, 200), runs)


def make_page(folder: Path, count: int, runs: RunsFolder) -> None:
    """Write a sweep file of so many rows, and their finished trials with all that a page shows."""
    from transformer_pl.config import sizes  # what imports torch
    from transformer_pl.data.prepare import prepare
    from transformer_pl.model import Transformer

    write(folder / "page.yaml", ["base", *(f"optim.lr_scale={1 + i / 1000}" for i in range(1, count))], [1, 2])
    first, *others = plan_trials(read_sweep(folder / "page.yaml"), runs)
    prepared = prepare(first.config.data, runs.path)
    references, measure = prepared.text("val")[1], task_of(first.config.data).measure
    for trial in (first, *others):
        place = trial.place + 0.1 * trial.config.seed
        numbers = np.full((len(references), measure.numbers + 2), 40.0)
        numbers[:, :4] -= np.random.default_rng(trial.place).integers(20, size=(len(references), 4))
        bleu = float(measure.score(numbers.sum(0))) + place / 100
        losses = {step: 1 + place / 1000 + 100 / step for step in range(100, 2401, 100)}
        metrics = {"val/loss": losses[2400], "val/ppl": math.exp(losses[2400]), "val/bleu": bleu}
        finish(trial, prepared.folder.name, metrics=metrics, params=1000 + trial.place, flops=1e9 * (1 + trial.place))
        trial.folder.save_sentences("val", references[trial.place :] + references[: trial.place], measure, numbers)
        lines = [{"step": step, "kind": "validation", "val/loss": loss} for step, loss in losses.items()]
        (trial.folder.path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        if trial is first:
            trial.folder.save_weights(Transformer(sizes(trial.config.model, len(prepared.tokenizer))).state_dict())
        else:
            trial.folder.link(first.folder, WEIGHTS)


def write(path: Path, variants: Sequence[str], seeds: Sequence[int]) -> None:
    parameters = {"variant": {"values": [*variants]}, "seed": {"values": [*seeds]}}
    path.write_text(yaml.safe_dump({"program": "p.py", "name": path.stem, "method": "grid", "parameters": parameters}))


def finish(trial: Trial, data: str = "0" * 16, **keys: object) -> None:
    """Write what a finished training leaves, but for its text and weights.

    data: the folder of its text. keys: of its result, in the place of some.
    """
    trial.folder.make()
    write_json(trial.folder.path / "identity.json", trial.identity.inputs)
    write_json(trial.folder.path / "env.json", {"cpu": "none", "threads": 1, "data": data})
    trial.folder.set_status("done")
    metrics = {"val/loss": 1.1, "val/ppl": 3.0, "val/bleu": 30 + trial.config.seed % 7 / 10}
    known = {"name": trial.name, "scale": trial.origin.scale, "seed": trial.config.seed, "config": trial.settings}
    ids = {"id": trial.id, "weights_id": trial.identity.weights}
    result = {"metrics": metrics, "steps": trial.config.steps, "tokens_per_s": 1e4} | ids | known | keys
    trial.folder.finish(a_result(**result))


def cost(words: Sequence[str], folder: Path, code: Path) -> tuple[float, float]:
    """The CPU seconds of a command and of its children, and its peak memory in MB."""
    name, *rest = words
    command = [sys.executable, "-m", f"transformer_pl.{name}", *rest, "--runs", "runs"]
    with tempfile.TemporaryFile() as output:
        environment = os.environ | {"PYTHONPATH": str(code.resolve()), "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            output.seek(0)
            sys.exit(f"{' '.join(command)}: {output.read().decode()}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


if __name__ == "__main__":
    main()
