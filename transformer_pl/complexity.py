"""Table 1, measured:  python -m transformer_pl.complexity sweeps/layers.yaml [--n 32,64,...] [--device cpu]

Times the layer that each row of a sweep file has in the place of self-attention, over the length n of a sequence at
fixed width d, and fits how its time grows. Without --scale at the paper's own sizes, those of scale wmt14.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from scipy.optimize import nnls
from torch.utils.benchmark import Timer

from transformer_pl.components import build
from transformer_pl.config import Config, Sizes, sizes
from transformer_pl.experiments.cli import add_sweep_options, make_folder
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.model import Mask
from transformer_pl.reporting import plots
from transformer_pl.reporting.render import Column, Table
from transformer_pl.runtime import memory
from transformer_pl.runtime.errors import CommandParser, InputError, run_command
from transformer_pl.trials.names import as_folder
from transformer_pl.trials.trial import check_writable, describe_environment, write_atomically

LENGTHS = tuple(2**i for i in range(5, 13))
PASSES = ("forward", "training")  # training: forward and backward
ROUNDS = 3
RUN_S = 0.2  # of each timing, at least
LONG = 512  # growth is told from here on: below, what a call costs by itself is most of its time
OF_A_LAYER = ("self_attention", "attention", "d_model", "h", "d_k", "d_v")
ORDERS = {"complexity": None, "sequential operations": 2, "longest path": 1}  # columns of Table 1: Column.drop_rank


class Layer(NamedTuple):
    """A layer in the place of self-attention, and what was measured of it."""

    name: str
    table_1: tuple[str, ...]  # its ORDERS, where its class states them
    seconds: dict[str, dict[int, float]]  # by pass and length; a length that memory had no room for is missing


class Growth(NamedTuple):
    """How time grows with n."""

    exponent: float  # p of n^p, by least squares on the logarithms of the long lengths
    error: float  # its standard error
    quadratic: float  # what c n^2 is of a + b n + c n^2 at the greatest length


def main(argv: list[str]) -> int:
    parser = CommandParser(prog="python -m transformer_pl.complexity", description="Table 1, measured.")
    parser.add_argument("file", metavar="FILE", type=Path, help="a sweep file: sweeps/layers.yaml")
    add_sweep_options(parser)
    parser.add_argument("--n", type=_lengths, default=LENGTHS, metavar="32,64", help="lengths (32 to 4096)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="(cuda where there is a GPU)")
    options = parser.parse_args(argv)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: must be a GPU that torch finds, but there is none; leave it out")
    sweep = read_sweep(options.file, options.scale or "wmt14", options.seeds, options.set)
    check_writable(options.runs)
    folder = options.runs / "complexity" / as_folder(sweep.name)
    make_folder(folder)
    memory.keep_freed()  # as a trial does: fresh pages for every large tensor cost more than what is done with it
    if device == "cpu":
        memory.limit_memory()
    base = sizes(sweep.base.model, 1)
    layers = measure({row.name: row.configs[0] for row in sweep.rows}, options.n, device)
    of = f"d = {base.d_model} and h = {base.h} where no row says otherwise, fp32, {_machine(device)}"
    tables = {"growth": growth_table(layers, of)}
    tables |= {which: times_table(layers, which, options.n) for which in PASSES}
    console = Console(highlight=False, markup=False, emoji=False)
    for table in tables.values():
        console.print(table.terminal(), "")
    write_atomically(folder / "complexity.md", "\n".join(table.markdown() for table in tables.values()))
    write_atomically(folder / "complexity.csv", tables["growth"].csv())
    plots.save(plots.growth({layer.name: layer.seconds["training"] for layer in layers}), folder / "complexity")
    console.print(f"tables, times and plot: {folder}", soft_wrap=True)
    return 0


def measure(rows: Mapping[str, Config], lengths: Sequence[int], device: str) -> list[Layer]:
    """The encoder's layer of each row, each layer once, under the name of its class where that means one.

    Layers alternate within a round: a machine that drifts favours none.
    """
    different = {}
    for row, config in rows.items():
        model = sizes(config.model, 1)
        different.setdefault(str([getattr(model, size) for size in OF_A_LAYER]), (row, model))
    models = [model for _, model in different.values()]
    built = [build(model.self_attention, model, "encoder").to(device) for model in models]
    found = [_described(layer, model) for layer, model in zip(built, models, strict=True)]
    if len({layer.name for layer in found}) < len(found):
        found = [layer._replace(name=row) for layer, (row, _) in zip(found, different.values(), strict=True)]
    for n in lengths:
        print(f"n = {n}", file=sys.stderr, flush=True)
        for which in PASSES:
            runs = [_one(layer, model.d_model, n, device, which) for layer, model in zip(built, models, strict=True)]
            rounds = [[_seconds(once) for once in runs] for _ in range(ROUNDS)]
            for layer, seconds in zip(found, zip(*rounds, strict=True), strict=True):
                if None not in seconds:
                    layer.seconds[which][n] = statistics.median(seconds)
    return found


def growth(seconds: dict[int, float]) -> Growth | None:
    """The terms a, b, c are fitted by least squares on relative errors, none negative; None for under three lengths."""
    n, t = np.array(list(seconds), float), np.array(list(seconds.values()))
    if (n >= LONG).sum() < 3:
        return None
    x, y = np.log(n[n >= LONG]), np.log(t[n >= LONG])
    x, y = x - x.mean(), y - y.mean()
    exponent = x @ y / (x @ x)
    error = np.sqrt(np.sum((y - exponent * x) ** 2) / (len(x) - 2) / (x @ x))
    terms = np.stack([n**0, n, n**2], 1)
    at_the_end = terms[-1] * nnls(terms / t[:, None], np.ones_like(t))[0]
    return Growth(float(exponent), float(error), float(at_the_end[2] / at_the_end.sum()))


def growth_table(layers: Sequence[Layer], of: str) -> Table:
    """A line a layer: the paper's orders beside the measured growth. A record a layer, pass and length."""
    columns = [Column("layer", [layer.name for layer in layers])]
    for i, (order, drop_rank) in enumerate(ORDERS.items()):
        cells = [f"O({layer.table_1[i]})" if layer.table_1 else "" for layer in layers]
        columns.append(Column(order, cells, drop_rank=drop_rank))
    for which in PASSES:
        fits = [growth(layer.seconds[which]) for layer in layers]
        columns.append(Column(f"{which} n^p, p =", [f"{f.exponent:.2f} ± {f.error:.2f}" if f else "-" for f in fits]))
        columns.append(Column("n² part", [f"{f.quadratic:.0%}" if f else "-" for f in fits]))
    notes = [
        f"One layer, one sequence; {of}.",
        f"Orders: Table 1 of the paper. n^p: from n = {LONG} on, ± the standard error of the fit.",
        "n² part: of a + b n + c n² at the greatest n. Projections of queries, keys and values are O(n d²) themselves.",
    ]
    records = [
        {"layer": layer.name, "pass": which, "n": n, "seconds": seconds}
        for layer in layers
        for which in PASSES
        for n, seconds in layer.seconds[which].items()
    ]
    return Table(columns, records, notes)


def times_table(layers: Sequence[Layer], which: str, lengths: Sequence[int]) -> Table:
    """A line a layer, a column a length."""
    columns = [Column(f"{which}, ms, at n =", [layer.name for layer in layers])]
    for n in lengths:
        found = [layer.seconds[which].get(n) for layer in layers]
        columns.append(Column(f"{n}", [_milliseconds(seconds) for seconds in found]))
    return Table(columns, [], [f"Medians of {ROUNDS} rounds that alternate the layers."])


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{float(f'{1e3 * seconds:.3g}'):,g}"


def _described(layer: torch.nn.Module, model: Sizes) -> Layer:
    """By its class and options, or its attention's; either may state its orders as `table_1`."""
    part, named = (layer.attention, model.attention) if hasattr(layer, "attention") else (layer, model.self_attention)
    options = "".join(f" {option}={value}" for option, value in named.options.items())
    return Layer(type(part).__name__ + options, getattr(part, "table_1", ()), {which: {} for which in PASSES})


def _one(layer: torch.nn.Module, d_model: int, n: int, device: str, which: str) -> Callable[[], None]:
    """A pass of the layer over one sequence of n positions, nothing padded."""
    x = torch.randn(1, n, d_model, device=device, requires_grad=True)

    def forward() -> None:
        with torch.no_grad():
            layer(x, Mask())

    def training() -> None:
        layer(x, Mask()).sum().backward()

    return forward if which == "forward" else training


def _seconds(once: Callable[[], None]) -> float | None:
    """None where memory has no room for it."""
    timer = Timer("once()", globals={"once": once}, num_threads=torch.get_num_threads())
    try:
        return timer.blocked_autorange(min_run_time=RUN_S).median
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in ("memory", "bad_alloc")):
            raise
        return None


def _machine(device: str) -> str:
    here = describe_environment(["torch"])
    where = torch.cuda.get_device_name() if device == "cuda" else f"{here['cpu']}, {torch.get_num_threads()} threads"
    return f"{where}, torch {here['packages']['torch']}"


def _lengths(text: str) -> tuple[int, ...]:
    if not all(word.isdigit() and int(word) for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers from 1 with commas between, such as 32,64")
    return tuple(sorted(set(map(int, text.split(",")))))


if __name__ == "__main__":
    run_command(main)
