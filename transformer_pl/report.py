"""The table of a sweep, from the results on disk:  python -m transformer_pl.report FILE... [--format md|csv]"""

import argparse
from pathlib import Path

from rich.console import Console

from transformer_pl.errors import run
from transformer_pl.plan import Planned, plan
from transformer_pl.results import RUNS
from transformer_pl.sweepfile import Sweep, load
from transformer_pl.table import Row, Table, build


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m transformer_pl.report", description="The table of a sweep.")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    add_sweep_options(parser)
    parser.add_argument("--format", choices=("terminal", "md", "csv"), default="terminal")
    options = parser.parse_args(argv)
    for file in options.files:
        sweep = load(file, options.scale, options.seeds, options.set)
        table = table_of(sweep, plan(sweep, options.runs))
        if options.format == "terminal":
            Console().print(table.terminal())
        else:
            print(table.markdown() if options.format == "md" else table.csv(), end="")
    return 0


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """What says which trials are meant, beside the sweep file."""
    parser.add_argument("--scale", help="a scale's name or a YAML file; replaces the file's")
    parser.add_argument("--seeds", type=_list, metavar="1,2", help="replaces the file's seeds")
    parser.add_argument(
        "--set", type=_setting, nargs="+", action="extend", metavar="KEY=VALUE", help="wins over the file"
    )
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="DIR", help="where results lie (%(default)s)")


def table_of(sweep: Sweep, planned: list[Planned]) -> Table:
    """The table of a sweep as far as it is there."""
    rows = []
    for index, row in enumerate(sweep.rows):
        trials = [one.trial for one in planned if one.row == index]
        rows.append(Row(row.configs[0], [t.result() for t in trials], [t.status()["state"] for t in trials]))
    return build(rows, sweep.base)


def _list(text: str) -> list[str]:
    return [seed for seed in text.split(",") if seed]


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    return key, value


if __name__ == "__main__":
    run(main)
