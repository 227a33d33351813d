"""Table 1, measured:  python -m transformer_pl.complexity [sweeps/layers.yaml] [--n 32,64,...]

Times the self-attention layer of each row of a sweep file, or what replaces it, at several sequence lengths n and a
fixed width d, on a GPU if there is one, and fits how the time grows with n. Without --scale the sizes are the paper's.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import scipy

from transformer_pl.config import Config, Site, sizes
from transformer_pl.config.components import build
from transformer_pl.config.levels import scale_choices
from transformer_pl.laws.checks import check_all
from transformer_pl.plan.shared_options import RowOptions, file_option, sweep_file, which_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime import machine
from transformer_pl.runtime.command_line import CommandParser, add_options, option, options_of, run_command
from transformer_pl.runtime.environment import describe_environment
from transformer_pl.runtime.files import check_writable, write_atomically
from transformer_pl.runtime.terminal import announce, command_console, say, table_width
from transformer_pl.table.formats import Column, Table

SCALE = "wmt14"  # the paper's sizes, whatever the file's scale
LENGTHS = tuple(2**i for i in range(5, 13))
RUN_S = 0.5  # seconds that each timing takes at least
FITTED_FROM = 512  # the exponent is fitted from here on; below, the overhead of a call is most of its time


@dataclass(frozen=True, kw_only=True)
class ComplexityOptions(RowOptions):
    """Whose layers are measured, and at which lengths."""

    scale: str = which_trials(f"{scale_choices()} ({SCALE})", default=SCALE, metavar="S")
    file: Path = file_option("a sweep file, or the name of one that ships (layers)", partial(sweep_file, "layers"))
    n: tuple[int, ...] = option(
        "lengths in tokens (powers of two from 32 to 4096)", default=LENGTHS, metavar="32,64", group="what is measured"
    )


def main(argv: list[str]) -> int:
    options = read_options(argv)
    import torch  # it takes seconds

    lengths = sorted(options.n)
    sweep = read_sweep(options.file, options.scale, sets=options.set)
    device = "cuda" if sweep.base.trainer.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
    folder = options.runs / "complexity" / sweep.name
    check_writable(folder)
    announce(f"measuring the layers of {options.file}")
    check_all([Config(model=row.configs[0].model) for row in sweep.rows], options.runs)
    machine.keep_freed_memory()  # as a trial does: otherwise new pages for large tensors cost more than the computation
    layers = {row.name: measure(row.configs[0], lengths, device) for row in sweep.rows}
    base = sizes(sweep.base.model, 1)
    if device == "cuda":
        hardware = torch.cuda.get_device_name()
    else:
        hardware = f"{describe_environment([])['cpu']}, {torch.get_num_threads()} threads"
    conditions = f"d = {base.d_model} and h = {base.h} unless a row says otherwise, fp32, {hardware}"
    table = growth_table(layers, lengths, conditions)
    console = command_console()
    console.print(table.terminal(table_width(console)), crop=False)
    write_atomically(folder / "complexity.md", table.markdown())
    write_atomically(folder / "complexity.csv", table.csv())
    say(console, f"table and times: {folder}")
    return 0


def read_options(argv: list[str]) -> ComplexityOptions:
    parser = CommandParser(
        prog="python -m transformer_pl.complexity",
        usage="%(prog)s [FILE] [options]",
        description="Table 1, measured: how the time of the layer that mixes positions grows with the length of the\n"
        "sentence. Trains nothing. Defaults are in parentheses.",
    )
    add_options(parser, ComplexityOptions)
    return options_of(ComplexityOptions, vars(parser.parse_args(argv)))


def measure(config: Config, lengths: Sequence[int], device: str) -> tuple[Sequence[str], dict[int, float]]:
    """The columns of Table 1 for the encoder's self-attention layer.

    Returns the orders of growth that the class of the layer states, if it does. Also returns, by length, the seconds
    that one sequence takes, forward and backward. Lengths that do not fit into memory are left out.
    """
    import torch
    from torch.utils.benchmark import Timer

    from transformer_pl.model import Mask
    from transformer_pl.model.kernels import set_up_gpu
    from transformer_pl.model.slots import InTable1

    set_up_gpu()
    model = sizes(config.model, 1)
    seconds = {}
    layer = build(model.self_attention, model, Site("encoder", 0)).to(device)
    for n in lengths:
        try:
            names = {"layer": layer, "mask": Mask(), "x": torch.randn(1, n, model.d_model, device=device)}
            timer = Timer("layer(x, mask).sum().backward()", globals=names, num_threads=torch.get_num_threads())
            seconds[n] = timer.blocked_autorange(min_run_time=RUN_S).median
        except (RuntimeError, MemoryError) as error:
            if not re.search("(?i)memory|bad_alloc", repr(error)):
                raise
    attention = getattr(layer, "attention", layer)
    return attention.table_1 if isinstance(attention, InTable1) else (), seconds


def growth(seconds: Mapping[int, float]) -> tuple[float, float] | None:
    """The exponent p of n^p and its standard error, by least squares on the logarithms from length FITTED_FROM on.

    None where fewer than three lengths are that long.
    """
    points = [(math.log(n), math.log(t)) for n, t in seconds.items() if n >= FITTED_FROM]
    if len(points) < 3:
        return None
    fit = scipy.stats.linregress(*zip(*points, strict=True))
    return float(fit.slope), float(fit.stderr)


def growth_table(
    layers: Mapping[str, tuple[Sequence[str], dict[int, float]]], lengths: Sequence[int], conditions: str
) -> Table:
    """One line per layer: the paper's orders beside the measured growth and times. One record per layer and length."""
    columns = [Column("layer", list(layers))]
    orders, times = zip(*layers.values(), strict=True)
    for i, (title, rank) in enumerate((("complexity", None), ("sequential operations", 99), ("longest path", 98))):
        cells = [f"O({layer_orders[i]})" if layer_orders else "" for layer_orders in orders]
        columns.append(Column(title, cells, drop_rank=rank))
    fits = [growth(seconds) for seconds in times]
    columns.append(Column("n^p, p =", [f"{fit[0]:.2f} ± {fit[1]:.2f}" if fit else "-" for fit in fits]))
    for rank, n in enumerate(lengths, 1):
        cells = [f"{float(f'{1e3 * seconds[n]:.3g}'):,g}" if n in seconds else "-" for seconds in times]
        columns.append(Column(f"ms, n={n}", cells, drop_rank=rank))
    records = [
        {"layer": name, "n": n, "seconds": t} for name, (_, seconds) in layers.items() for n, t in seconds.items()
    ]
    notes = [f"One layer, one sequence, forward and backward; {conditions}. n^p: fitted from n = {FITTED_FROM} on."]
    return Table(columns, records, notes)


if __name__ == "__main__":
    run_command(main)
