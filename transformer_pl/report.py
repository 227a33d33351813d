"""The table of a sweep, from the results on disk:  python -m transformer_pl.report FILE... [--format md|tex|...]"""

import argparse
import hashlib
import os
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from transformer_pl.errors import InputError, Parser, run, together
from transformer_pl.plan import Planned, plan
from transformer_pl.render import Table
from transformer_pl.results import RUNS, write
from transformer_pl.sweepfile import Sweep, load
from transformer_pl.table import Row, build

FORMATS = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv, "json": Table.json}


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m transformer_pl.report", description="The table of a sweep.")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    add_sweep_options(parser)
    parser.add_argument("--format", choices=("terminal", *FORMATS, "html"), default="terminal")
    parser.add_argument(
        "--test",
        choices=("t", "randomisation"),
        default="t",
        help="of differences (%(default)s; of one seed the latter)",
    )
    options = parser.parse_args(argv)
    if not options.runs.is_dir():
        raise InputError(f"--runs {options.runs}: must be the folder that the sweep was run with, but there is none")
    sweeps = together(lambda file: load(file, options.scale, options.seeds, options.set), options.files)
    randomise = options.test == "randomisation"
    for sweep in sweeps.values():
        planned = plan(sweep, options.runs)
        table = table_of(sweep, planned, randomise)
        if options.format == "html":
            folder = sweep_folder(sweep, options.runs, options.set)
            folder.mkdir(parents=True, exist_ok=True)
            write_page(sweep, planned, table, folder)
            print(folder / "report.html")
        elif options.format == "terminal":
            Console().print(table.terminal())
        else:
            print(FORMATS[options.format](table), end="")
    return 0


def add_sweep_options(parser: Parser) -> None:
    """What says which trials are meant, beside the sweep file."""
    parser.add_argument("--scale", help="a scale's name or a YAML file; replaces the file's")
    parser.add_argument("--seeds", type=_seeds, metavar="1,2", help="replaces the file's seeds")
    parser.add_argument(
        "--set", type=_setting, nargs="+", action=_Settings, default={}, metavar="KEY=VALUE", help="wins over the file"
    )
    parser.add_argument("--runs", type=_folder, default=RUNS, metavar="DIR", help="where results lie (%(default)s)")


def table_of(sweep: Sweep, planned: list[Planned], randomise: bool = False) -> Table:
    """The table of a sweep as far as it is there."""
    rows = []
    for index, row in enumerate(sweep.rows):
        trials = [one.trial for one in planned if one.row == index]
        results = [trial.result() for trial in trials]
        sentences = _stacked([trial.sentences("val") for trial, result in zip(trials, results, strict=True) if result])
        rows.append(Row(row.configs[0], results, [trial.status()["state"] for trial in trials], sentences))
    return build(rows, sweep.base, randomise=randomise)


def write_page(sweep: Sweep, planned: list[Planned], table: Table, folder: Path) -> dict[str, Path]:
    """`report.html` in the sweep's folder, and its figures as files; returns the pictures by their captions."""
    from transformer_pl import figures, gallery, page  # which take seconds

    drawn = gallery.hang(sweep, planned, table)
    (folder / "figures").mkdir(exist_ok=True)
    pictures = {caption: figures.save(figure, folder / "figures" / name) for name, (caption, figure) in drawn.items()}
    write(folder / "report.html", page.page(sweep, planned, table, dict(drawn.values())))
    return pictures


def sweep_folder(sweep: Sweep, runs: Path, sets: dict[str, str]) -> Path:
    """`runs/sweeps/<name>@<scale>`; a --set adds a short hash, for it makes another table."""
    name = f"{sweep.name}@{Path(sweep.scale).stem}"
    if sets:
        name += "-" + hashlib.sha256(repr(sorted(sets.items())).encode()).hexdigest()[:6]
    return runs / "sweeps" / re.sub(r"[^A-Za-z0-9@._-]+", "-", name)


def _stacked(seeds: list[Any]) -> Any:
    """(seeds, sentences, 12); None where a seed's are not there, or of other text."""
    import numpy as np

    if not seeds or any(one is None or one.shape != seeds[0].shape for one in seeds):
        return None
    return np.stack(seeds)


class _Settings(argparse.Action):
    """KEY=VALUE pairs as a mapping; --set may be said several times, a key once."""

    def __call__(self, parser: Any, namespace: Any, pairs: list[tuple[str, str]], option_string: Any = None) -> None:
        settings = dict(getattr(namespace, self.dest))
        for key, value in pairs:
            if key in settings:
                raise argparse.ArgumentError(self, f"{key} is set twice; set it once")
            settings[key] = value
        setattr(namespace, self.dest, settings)


def _seeds(text: str) -> list[str]:
    seeds = text.split(",")
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text) or len(set(map(int, seeds))) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r} must be different whole numbers with commas between, such as 1,2")
    return seeds


def _folder(text: str) -> Path:
    if not text or (os.path.exists(text) and not os.path.isdir(text)):
        raise argparse.ArgumentTypeError(f"{text!r} must be a folder; choose another")
    return Path(text)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE, such as model.h=4")
    return key, value


if __name__ == "__main__":
    run(main)
