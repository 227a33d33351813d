"""Table 1, measured:  python -m transformer_pl.complexity sweeps/layers.yaml [--n 32,64,...] [--device cpu]

Times the self-attention layer of each row of a sweep file, or what replaces it, at several sequence lengths n and a
fixed width d, and fits how the time grows with n. Without --scale the sizes are the paper's, those of scale wmt14.
"""

import argparse

from transformer_pl.checks.run import check_models
from transformer_pl.command_line import (
    CommandParser,
    add_row_options,
    make_folder,
    run_command,
    sweep_file,
    whole_numbers,
)
from transformer_pl.config import sizes
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.runtime import memory
from transformer_pl.runtime.files import write_atomically
from transformer_pl.runtime.terminal import command_console, say
from transformer_pl.trials.names import as_folder
from transformer_pl.trials.runs_folder import check_writable

SCALE = "wmt14"  # the paper's sizes, whatever the file's scale
LENGTHS = tuple(2**i for i in range(5, 13))
EXAMPLES = """\
examples:
  python -m transformer_pl.complexity sweeps/layers.yaml              the paper's width; minutes on a CPU
  python -m transformer_pl.complexity layers --n 32,64,128,256,512    shorter sentences alone
"""


def main(argv: list[str]) -> int:
    options = read_options(argv)
    from transformer_pl.reporting import plots, table_1  # torch and matplotlib take seconds

    device = table_1.device(options.device)
    sweep = read_sweep(options.file, options.scale or SCALE, sets=options.set)
    check_writable(options.runs)
    check_models((row.configs[0] for row in sweep.rows), options.runs)
    folder = options.runs / "complexity" / as_folder(sweep.name)
    make_folder(folder)
    memory.keep_freed()  # as a trial does: otherwise new pages for large tensors cost more than the computation
    if device == "cpu":
        memory.limit_memory()
    base = sizes(sweep.base.model, 1)
    layers = table_1.measure({row.name: row.configs[0] for row in sweep.rows}, options.n, device)
    machine = table_1.machine(device)
    conditions = f"d = {base.d_model} and h = {base.h} unless a row says otherwise, fp32, {machine}"
    tables = {"growth": table_1.growth_table(layers, conditions)}
    tables |= {which: table_1.times_table(layers, which, options.n) for which in table_1.PASSES}
    console = command_console()
    for table in tables.values():
        console.print(table.terminal(console.width), "")
    write_atomically(folder / "complexity.md", "\n".join(table.markdown() for table in tables.values()))
    write_atomically(folder / "complexity.csv", tables["growth"].csv())
    plots.save(plots.growth({layer.name: layer.seconds["training"] for layer in layers}), folder / "complexity")
    say(console, f"tables, times and plot: {folder}")
    return 0


def read_options(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m transformer_pl.complexity",
        usage="%(prog)s FILE [options]",
        description="Table 1, measured: how the time of the layer that mixes positions grows with the length of the\n"
        "sentence. Trains nothing. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file", metavar="FILE", type=sweep_file, help="a sweep file, or the name of one that ships: layers"
    )
    add_row_options(parser.add_argument_group("which layers"), SCALE)
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--n", type=_lengths, default=LENGTHS, metavar="32,64", help="lengths in tokens (powers of two from 32 to 4096)"
    )
    group.add_argument(
        "--device", choices=("cpu", "cuda"), help="the device to time on (cuda where there is a GPU, else cpu)"
    )
    return parser.parse_args(argv)


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(sorted(whole_numbers(1, "32,64")(text)))


if __name__ == "__main__":
    run_command(main)
