"""Table 1, measured:  python -m transformer_pl.complexity sweeps/layers.yaml [--n 32,64,...] [--device cpu]

Times the self-attention layer of each row of a sweep file, or what replaces it, at several sequence lengths n and a
fixed width d, and fits how the time grows with n. Without --scale the sizes are the paper's, those of scale wmt14.
"""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformer_pl.checks.run import check_models
from transformer_pl.command_line import (
    CommandParser,
    add_row_options,
    run_command,
    sweep_file,
    whole_numbers,
)
from transformer_pl.components import build
from transformer_pl.config import Config, sizes
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import read_pairs
from transformer_pl.reporting.render import Column, Table
from transformer_pl.runtime import memory
from transformer_pl.runtime.environment import describe_environment
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_atomically
from transformer_pl.runtime.terminal import command_console, say
from transformer_pl.trials.runs_folder import as_folder, check_writable

SCALE = "wmt14"  # the paper's sizes, whatever the file's scale
LENGTHS = tuple(2**i for i in range(5, 13))
RUN_S = 0.5  # seconds that each timing takes at least
LONG = 512  # the exponent is fitted from here on; below, the overhead of a call is most of its time


class Layer(NamedTuple):
    """A layer in the place of self-attention, and its times."""

    name: str  # of its row
    table_1: Sequence[str]  # complexity, sequential operations, longest path, where its class states them
    seconds: dict[int, float]  # by length; lengths that did not fit into memory are missing


def main(argv: list[str]) -> int:
    options = read_options(argv)
    import torch  # it takes seconds, and matplotlib one

    from transformer_pl.reporting import plots

    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch must find a GPU, but there is none; leave it out")
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    sets = read_pairs(options.set, "--set").values
    sweep = read_sweep(options.file, options.scale or SCALE, sets=sets)
    check_writable(options.runs)
    check_models((row.configs[0] for row in sweep.rows), options.runs)
    folder = options.runs / "complexity" / as_folder(sweep.name)
    folder.mkdir(parents=True, exist_ok=True)
    memory.keep_freed()  # as a trial does: otherwise new pages for large tensors cost more than the computation
    layers = [measure(row.name, row.configs[0], sorted(options.n), device) for row in sweep.rows]
    base, cpu = sizes(sweep.base.model, 1), f"{describe_environment([])['cpu']}, {torch.get_num_threads()} threads"
    conditions = f"d = {base.d_model} and h = {base.h} unless a row says otherwise, fp32, "
    conditions += torch.cuda.get_device_name() if device == "cuda" else cpu
    table = growth_table(layers, sorted(options.n), conditions)
    console = command_console()
    console.print(table.terminal(console.width))
    write_atomically(folder / "complexity.md", table.markdown())
    write_atomically(folder / "complexity.csv", table.csv())
    plots.save(plots.growth({layer.name: layer.seconds for layer in layers}), folder / "complexity")
    say(console, f"table, times and plot: {folder}")
    return 0


def read_options(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m transformer_pl.complexity",
        usage="%(prog)s FILE [options]",
        description="Table 1, measured: how the time of the layer that mixes positions grows with the length of the\n"
        "sentence. Trains nothing. Defaults are in parentheses.",
    )
    parser.add_argument("file", metavar="FILE", type=sweep_file, help="a sweep file, or one that ships: layers")
    add_row_options(parser.add_argument_group("which layers"), SCALE)
    group = parser.add_argument_group("what is measured")
    lengths = "lengths in tokens (powers of two from 32 to 4096)"
    group.add_argument("--n", type=whole_numbers, default=LENGTHS, metavar="32,64", help=lengths)
    group.add_argument("--device", choices=("cpu", "cuda"), help="where to time (cuda where there is a GPU, else cpu)")
    return parser.parse_args(argv)


def measure(name: str, config: Config, lengths: Sequence[int], device: str) -> Layer:
    """Time the encoder's self-attention layer, forward and backward, over one sequence of each length."""
    import torch
    from torch.utils.benchmark import Timer

    from transformer_pl.model import Mask

    model, seconds = sizes(config.model, 1), {}
    layer = build(model.self_attention, model, "encoder").to(device)
    for n in lengths:
        try:
            names = {"layer": layer, "mask": Mask(), "x": torch.randn(1, n, model.d_model, device=device)}
            timer = Timer("layer(x, mask).sum().backward()", globals=names, num_threads=torch.get_num_threads())
            seconds[n] = timer.blocked_autorange(min_run_time=RUN_S).median
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and not re.search("memory|bad_alloc", str(error)):
                raise
    return Layer(name, getattr(getattr(layer, "attention", layer), "table_1", ()), seconds)


def growth(seconds: Mapping[int, float]) -> tuple[float, float] | None:
    """The exponent p of n^p, by least squares on the logarithms from length LONG on, and its standard error; None where
    fewer than three lengths are that long."""
    from scipy.stats import linregress

    points = [(math.log(n), math.log(t)) for n, t in seconds.items() if n >= LONG]
    if len(points) < 3:
        return None
    fit = linregress(*zip(*points, strict=True))
    return float(fit.slope), float(fit.stderr)


def growth_table(layers: Sequence[Layer], lengths: Sequence[int], conditions: str) -> Table:
    """One line per layer: the paper's orders beside the measured growth and times. One record per layer and length."""
    columns = [Column("layer", [layer.name for layer in layers])]
    for i, (order, rank) in enumerate((("complexity", None), ("sequential operations", 99), ("longest path", 98))):
        columns.append(Column(order, [f"O({one.table_1[i]})" if one.table_1 else "" for one in layers], drop_rank=rank))
    fits = [growth(layer.seconds) for layer in layers]
    columns.append(Column("n^p, p =", [f"{fit[0]:.2f} ± {fit[1]:.2f}" if fit else "-" for fit in fits]))
    for rank, n in enumerate(lengths, 1):
        cells = [f"{float(f'{1e3 * one.seconds[n]:.3g}'):,g}" if n in one.seconds else "-" for one in layers]
        columns.append(Column(f"ms, n={n}", cells, drop_rank=rank))
    records = [{"layer": one.name, "n": n, "seconds": t} for one in layers for n, t in one.seconds.items()]
    notes = [f"One layer, one sequence, forward and backward; {conditions}. n^p: fitted from n = {LONG} on."]
    return Table(columns, records, notes)


if __name__ == "__main__":
    run_command(main)
