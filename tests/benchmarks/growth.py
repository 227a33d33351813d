"""How training, preparing and opening a sweep grow with the model, the text and the number of trials, run by hand:

    python tests/benchmarks/growth.py [d_model] [length] [vocabulary] [corpus] [trials] [--clock cpu]
    python tests/benchmarks/growth.py corpus --sizes 1000000,4500000

Each axis is a table and a figure in --out. The model has d_model 256 and 3 + 3 layers, with one size changed. It is
trained in fp32 on random tokens without padding, about --tokens in a batch. The corpus is synthetic. The trials are
made up, five seeds in each row; the commands on them find the index of a command before.
"""

import argparse
import io
import math
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import yaml
from rounds import CLOCK_HELP, CLOCKS, ROOT, errors_of

from transformer_pl import report, sweep
from transformer_pl.command_line import whole_numbers
from transformer_pl.config import effective_sizes, sizes
from transformer_pl.data.batches import TrainStream
from transformer_pl.data.prepare import prepare
from transformer_pl.data.synthetic import sentence
from transformer_pl.data.tokenizer import EOS
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import Level, resolve, scale_level
from transformer_pl.loss import projected_loss
from transformer_pl.model import Transformer
from transformer_pl.reporting import plots
from transformer_pl.runtime import memory
from transformer_pl.runtime.environment import avoid_spinning_threads, describe_environment
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_json

sys.path.insert(0, str(ROOT / "tests"))
from helpers import a_result

AXES = {
    "d_model": (64, 128, 256, 512, 1024),
    "length": (16, 32, 64, 128, 256, 512, 1024),
    "vocabulary": (1000, 2000, 4000, 8000, 16_000, 32_000, 64_000),
    "corpus": (10_000, 30_000, 100_000),
    "trials": (100, 1000, 10_000),
}
PREPARING = ("preparing, s", "first batch, s", "memory, MB")  # what is measured of a corpus
TRAINING = ("tokens/s", "ms a token")
FEW = 20  # rows of a sweep in a runs folder with many others
OPENING = (  # what is measured of so many trials
    *("--plan of new trials, s", "--plan, s", "--list, s", "report, s"),
    *(f"--plan of {FEW} rows, s", f"report of {FEW} rows, s"),
)
NAMES = {"corpus": PREPARING, "trials": OPENING}  # by axis; else TRAINING
SEEDS = (1, 2, 3, 4, 5)
EVALUATION_PAIRS = 100

Measured = dict[int, tuple[float, ...]]  # by size


class Load(NamedTuple):
    """What a round of training is."""

    tokens: int
    steps: int
    clock: Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"of {', '.join(AXES)} (all)")
    parser.add_argument("--sizes", type=whole_numbers(1, "64,128"), metavar="64,128", help="of one axis")
    parser.add_argument("--tokens", type=int, default=1024, help="in a batch (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="training steps a round, after one of warm-up")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help=CLOCK_HELP)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "growth", help="folder of figures (%(default)s)")
    options = parser.parse_args()
    with errors_of(parser):
        run(options)


def run(options: argparse.Namespace) -> None:
    axes = options.axes or list(AXES)
    if unknown := [axis for axis in axes if axis not in AXES]:
        raise InputError(f"{unknown[0]}: must be one of {', '.join(AXES)}")
    if options.sizes and len(axes) != 1:
        raise InputError("--sizes: must be of one axis; name it before")
    avoid_spinning_threads()
    torch.set_num_threads(options.threads)
    memory.keep_freed()
    options.out.mkdir(parents=True, exist_ok=True)
    here = describe_environment(["torch"])
    print(f"{here['cpu']}, {options.threads} thread(s), torch {here['packages']['torch']}, {options.clock} time")
    load = Load(options.tokens, options.steps, CLOCKS[options.clock])
    for axis in axes:
        measured = measure(axis, options.sizes or AXES[axis], options.rounds, load)
        names = NAMES.get(axis, TRAINING)
        print("\n".join(table(axis, names, measured)), flush=True)
        print(f"figure: {plots.save(figure(axis, names, measured), options.out / axis)}")


def measure(axis: str, sizes: Sequence[int], rounds: int, load: Load) -> Measured:
    """The medians over rounds that go through all sizes in turn."""
    found: dict[int, list[tuple[float, ...]]] = {size: [] for size in sorted(sizes)}
    for number in range(1, rounds + 1):
        for size, values in found.items():
            measuring = {"corpus": preparing, "trials": opening}.get(axis)
            values.append(measuring(size, load.clock) if measuring else training(axis, size, load))
            print(f"round {number} of {rounds}: {axis} {size}", file=sys.stderr, flush=True)
    return {size: tuple(map(statistics.median, zip(*values, strict=True))) for size, values in found.items()}


def training(axis: str, size: int, load: Load) -> tuple[float, float]:
    """Target tokens a second, and milliseconds a token."""
    keys: dict[str, Any] = {"model.width": 1.0, "model.d_model": 256, "model.d_ff": 1024}
    if axis == "d_model":
        keys |= {"model.d_model": size, "model.d_ff": 4 * size}
    length = size if axis == "length" else 32
    vocabulary = size if axis == "vocabulary" else 8000
    config = resolve([scale_level("multi30k"), Level("here", keys)])
    torch.manual_seed(1)
    model = Transformer(sizes(config.model, vocabulary))
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    sentences = max(1, load.tokens // length)
    for step in range(1 + load.steps):
        if step == 1:  # the first one allocates memory
            began = load.clock()
        source, target = torch.randint(EOS + 1, vocabulary, (2, sentences, length))
        loss = projected_loss(model.embedding, model.states(source, target), target, config.optim.eps_ls)
        (loss / target.numel()).backward()
        adam.step()
        adam.zero_grad()
    seconds = (load.clock() - began) / load.steps
    return sentences * length / seconds, 1e3 * seconds / (sentences * length)


def preparing(pairs: int, clock: Callable[[], float]) -> tuple[float, ...]:
    """The values of PREPARING, measured in a process of its own."""
    with TemporaryDirectory() as folder:
        write_text(Path(folder), pairs)
        return in_a_process(_prepare, Path(folder), clock)


def in_a_process(measure: Callable[..., None], *arguments: Any) -> tuple[float, ...]:
    """What `measure` sends through the pipe that is its last argument."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise InputError("it cannot be measured; what stands above says why") from None
    finally:
        process.join()


def opening(trials: int, clock: Callable[[], float]) -> tuple[float, ...]:
    """The values of OPENING, each measured in a process of its own."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        file, few, runs = folder / "many.yaml", folder / "few.yaml", folder / "runs"
        rates = [round(0.5 + row / trials, 6) for row in range(max(1, trials // len(SEEDS)))]
        for path, values in ((file, rates), (few, rates[:FEW])):
            parameters = {"optim.lr_scale": {"values": values}, "seed": {"values": list(SEEDS)}}
            content = {"program": "transformer_pl/train.py", "method": "grid", "parameters": parameters}
            path.write_text(yaml.safe_dump(content))
        where = ["--runs", str(runs)]
        plan, plan_of_few = ((sweep.main, [str(path), "--plan", *where]) for path in (file, few))
        table, table_of_few = ((report.main, [str(path), "--format=csv", *where]) for path in (file, few))
        listing = (sweep.main, ["--list", *where])
        (new,) = in_a_process(_command, *plan, clock)
        in_a_process(_make_trials, file, runs)
        in_a_process(_command, *plan, clock)  # makes the index
        commands = (plan, listing, table, plan_of_few, table_of_few)
        return new, *(in_a_process(_command, *command, clock)[0] for command in commands)


def _command(main: Callable[[list[str]], int], words: list[str], clock: Callable[[], float], result: Any) -> None:
    began = clock()
    with redirect_stdout(io.StringIO()):
        main(words)
    result.send((clock() - began,))


def _make_trials(file: Path, runs: Path, result: Any) -> None:
    """Finish every trial of a sweep without training it: with small files, which are a minute old."""
    for planned in plan_trials(read_sweep(file), runs):
        trial, config = planned.trial, planned.config.flat() | effective_sizes(planned.config)
        trial.make()
        write_json(trial.folder / "identity.json", planned.identity.inputs)
        (trial.folder / "weights.pt").write_bytes(bytes(100))
        trial.save_sentences("val", ["a b"] * 20, "bleu", [[9, 5, 8, 3, 7, 2, 6, 1, 9, 9]] * 20, [1.0] * 20, [3] * 20)
        trial.set_status("done")
        about = {"id": planned.identity.trial, "weights_id": planned.identity.weights, "name": planned.name}
        trial.finish(a_result(**about, config=config, seed=planned.config.seed, convergence=None))
        for path in trial.folder.iterdir():
            os.utime(path, (time.time() - 60, time.time() - 60))
    result.send(())


def _prepare(folder: Path, clock: Callable[[], float], result: Any) -> None:
    config = resolve([scale_level("demo"), Level("here", {"data.path": str(folder)})])
    before, began = peak_mb(), clock()
    prepared = prepare(config.data, folder / "runs")
    done = clock()
    stream = TrainStream(prepared.split("train"), config.data.batch_tokens, config.data.max_length, 1, 1)
    next(iter(stream))
    result.send((done - began, clock() - done, peak_mb() - before))


def write_text(folder: Path, pairs: int) -> None:
    """Synthetic sentences; most of a large corpus are different."""
    for split, count in (("train", pairs), ("val", EVALUATION_PAIRS), ("test", EVALUATION_PAIRS)):
        random = Random(split)
        with (folder / f"{split}.en").open("w") as source, (folder / f"{split}.de").open("w") as target:
            for _ in range(count):
                english, german = sentence(random)
                source.write(f"{english}\n")
                target.write(f"{german}\n")


def peak_mb() -> float:
    """The most memory that this process has held: what is mapped from files and in use counts, too."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def exponents(values: Mapping[int, float]) -> Iterator[float]:
    """Between neighbouring sizes n, the p of a growth as n^p: 1 is linear."""
    for (small, low), (large, high) in pairwise(values.items()):
        yield math.log(high / low) / math.log(large / small) if min(low, high) > 0 else math.nan


def table(axis: str, names: Sequence[str], measured: Measured) -> Iterator[str]:
    """A line for each size: what was measured, and the exponents of its growth from the size before."""
    growing = [i for i, name in enumerate(names) if name != "tokens/s"]
    yield "\n| " + " | ".join([axis, *names, *(f"{names[i]}: n^p, p =" for i in growing)]) + " |"
    yield "|" + "-:|" * (1 + len(names) + len(growing))
    powers = [["", *map("{:.2f}".format, exponents({n: v[i] for n, v in measured.items()}))] for i in growing]
    for (size, values), *ps in zip(measured.items(), *powers, strict=True):
        yield "| " + " | ".join([f"{size:,}", *map("{:,.4g}".format, values), *ps]) + " |"


def figure(axis: str, names: Sequence[str], measured: Measured) -> plots.Figure:
    """What was measured over the sizes on logarithmic axes, one below the other, with a line that grows as n."""
    drawn = plots.Figure(figsize=(5, 2.4 * len(names)), layout="constrained")
    for i, (name, axes) in enumerate(zip(names, drawn.subplots(len(names), sharex=True), strict=True)):
        x, y = list(measured), [values[i] for values in measured.values()]
        axes.loglog(x, y, color=plots.COLOURS[1], marker="o", markersize=4, linewidth=1.2)
        if name != "tokens/s":
            axes.loglog(x, [y[-1] * n / x[-1] for n in x], color="0.6", linestyle="--", linewidth=0.8, zorder=0)
        axes.set(ylabel=name)
    axes.set(xlabel=axis)
    axes.set_xticks(x, [f"{n:,}" for n in x])
    axes.minorticks_off()
    return drawn


if __name__ == "__main__":
    main()
