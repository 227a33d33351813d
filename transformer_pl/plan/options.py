"""The options of commands on a sweep file, and the folder of a sweep's results."""

import argparse
import hashlib
import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from transformer_pl.config.levels import DEFAULT_SCALE, read_pairs, scale_level, scale_names
from transformer_pl.runtime.command_line import (
    CommandParser,
    Options,
    add_runs_option,
    must_be,
    names,
    refuse_options,
    whole_number,
    whole_numbers,
)
from transformer_pl.runtime.errors import suggestion

BUDGET = 8  # tries per row of --retune
PACKAGE = Path(__file__).parents[1]
SHIPPED = next(filter(Path.is_dir, (PACKAGE / "sweeps", PACKAGE.parent / "sweeps")))  # of a wheel, or a checkout


def sweep_file(word: str) -> Path:
    """Read the path of a sweep file, or, where there is no such file, the name of one that ships: `table3_A`."""
    path = Path(word)
    if path.suffix or len(path.parts) != 1 or os.path.isfile(path):
        return path
    shipped = {file.stem: file for file in sorted(SHIPPED.glob("*.yaml"))}
    if word not in shipped:
        raise must_be(word, f"be a sweep file, or the name of one that ships{suggestion(word, shipped)}")
    return shipped[word]


def add_row_options(group: Options, scale: str) -> None:
    """Add the options that choose the rows of a sweep file, and the runs folder. scale: --scale's default, in words."""
    group.add_argument("--scale", metavar="S", help=f"{', '.join(scale_names())} or your own YAML ({scale})")
    keys = "values that win over the file's; for all keys: python -m transformer_pl.train --help"
    group.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=keys)
    add_runs_option(group)


def add_sweep_options(parser: CommandParser) -> None:
    """Add the options that choose the trials of a sweep file, their table, and where a search keeps its study."""
    group = parser.add_argument_group("which trials")
    add_row_options(group, f"the file's, or {DEFAULT_SCALE}")
    seeds = "the seeds of each row (the file's, or 1)"
    group.add_argument("--seeds", type=partial(whole_numbers, at_least=0), metavar="1,2", help=seeds)
    tuned = "give each row its own best value of these keys, same search budget"
    group.add_argument("--retune", type=names, metavar="KEY,KEY", help=tuned)
    group.add_argument("--budget", type=whole_number(2), metavar="K", help=f"for --retune: trials per row ({BUDGET})")
    study = "of a search: a database (the file study.journal in the sweep's folder)"
    group.add_argument("--storage", metavar="URL", help=study)
    paper = "whether the table shows the paper's numbers (it does, unless the dataset is your own)"
    group.add_argument("--paper", action=argparse.BooleanOptionalAction, help=paper)


def complete_sweep_options(options: argparse.Namespace) -> None:
    """Read --set into a mapping, and fill in the default of --budget, which is an error without --retune."""
    options.set = read_pairs(options.set, "--set").values
    if not options.retune:
        refuse_options(options, ["budget"], "is for --retune, which is not given")
    options.budget = options.budget or BUDGET


def sweep_folder(sweep: Any, options: argparse.Namespace) -> Path:
    """`runs/sweeps/<name>@<scale>`; --set, --retune and a user's scale make another table: they add a hash."""
    name, own = f"{sweep.name}@{Path(sweep.scale).stem}", sweep.scale not in scale_names()
    differs = other_table(options) + (json.dumps(scale_level(sweep.scale).values, default=str) if own else "")
    if differs:
        name += "-" + hashlib.sha256(differs.encode()).hexdigest()[:6]
    return options.runs / "sweeps" / name


def other_table(options: argparse.Namespace) -> str:
    """The options that make another table of the sweep file, as they are typed."""
    words = ["--set", *(f"{key}={value}" for key, value in sorted(options.set.items()))] if options.set else []
    if options.retune:
        words += ["--retune", ",".join(options.retune), "--budget", str(options.budget)]
    return shlex.join(words)
