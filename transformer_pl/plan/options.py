"""The options of commands on a sweep file, and the folder of a sweep's results."""

import argparse
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from transformer_pl.config.levels import DEFAULT_SCALE, read_pairs, scale_level, scale_names
from transformer_pl.runtime.command_line import (
    DEFAULT_RUNS,
    CommandParser,
    OptionGroup,
    add_runs_option,
    must_be,
    names,
    refuse_options,
    whole_number,
    whole_numbers,
)
from transformer_pl.runtime.digests import text_digest
from transformer_pl.runtime.errors import suggestion

BUDGET = 8  # tries per row of --retune
PACKAGE = Path(__file__).parents[1]
# Where the sweep files lie in a wheel, or else in a checkout of the repository
SHIPPED = next(filter(Path.is_dir, (PACKAGE / "sweeps", PACKAGE.parent / "sweeps")))

Given = TypeVar("Given", bound="TableOptions")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Which trials of a sweep file are meant, and what their table shows: the options that commands share.

    Raises an InputError for options that need others.
    """

    scale: str | None = None  # None: the file's, or demo
    set: Mapping[str, Any] = field(default_factory=dict)  # keys of the config, which win over the file's
    runs: Path = DEFAULT_RUNS
    seeds: tuple[int, ...] | None = None  # None: the file's, or 1
    retune: tuple[str, ...] = ()  # keys of which each row gets its own best value
    budget: int | None = None  # tries per row of --retune; None: BUDGET
    storage: str | None = None  # the URL of a search's database; None: a journal in its folder
    base: str | None = None  # the row that others are compared with, by name; None: the file's base
    paper: bool | None = None  # whether the table shows the paper's numbers; None: unless the dataset is the user's own

    def __post_init__(self) -> None:
        if not self.retune:
            refuse_options(self, ["budget"], "is for --retune, which is not given")

    @property
    def tries(self) -> int:
        """How many points are tried per row of --retune."""
        return self.budget or BUDGET

    @classmethod
    def read(cls: type[Given], given: Mapping[str, Any]) -> Given:
        """The options that a parser has read. Raises an InputError."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
        }
        values["set"] = read_pairs(given["set"], "--set").values
        return cls(**{name: value for name, value in values.items() if value is not None})

    def words(self) -> list[str]:
        """The command line that gives these options."""
        words: list[str] = []
        for option in fields(self):
            value, flag = getattr(self, option.name), f"--{option.name.replace('_', '-')}"
            if option.name == "file":
                words.insert(0, str(value))
            elif option.name == "paper":
                if value is not None:
                    words.append("--paper" if value else "--no-paper")
            elif isinstance(value, bool):
                if value:
                    words.append(flag)
            elif value and value != option.default:
                words += [flag, *_values(option.name, value)]
        return words


def _values(option: str, value: Any) -> list[str]:
    """The value of an option as words of a command line."""
    if isinstance(value, Mapping):
        return [f"{key}={setting}" for key, setting in value.items()]
    if option in ("seeds", "retune"):
        return [",".join(map(str, value))]
    return [*value] if isinstance(value, tuple) else [str(value)]


ONLINE_RUNS = "wandb:/"  # the beginning of wandb://ENTITY/PROJECT/GROUP as a Path, which joins the slashes


def sweep_file(word: str) -> Path:
    """Read the path of a sweep file, or, where there is no such file, the name of one that ships: `table3_A`."""
    path = Path(word)
    if path.suffix or len(path.parts) != 1 or os.path.isfile(path):
        return path
    shipped = {file.stem: file for file in sorted(SHIPPED.glob("*.yaml")) if "." not in file.stem}  # no .rows.yaml
    if word not in shipped:
        raise must_be(word, f"be a sweep file, or the name of one that ships{suggestion(word, shipped)}")
    return shipped[word]


def add_row_options(group: OptionGroup, scale: str) -> None:
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
    tuned = "give each row its own best value of these keys, by a search of the same size for each"
    group.add_argument("--retune", type=names, metavar="KEY,KEY", help=tuned)
    group.add_argument("--budget", type=whole_number(2), metavar="K", help=f"for --retune: trials per row ({BUDGET})")
    study = "URL of a database for a search (the file study.journal in the sweep's folder)"
    group.add_argument("--storage", metavar="URL", help=study)
    base = "the row that others are compared with (base)"
    group.add_argument("--base", metavar="ROW", help=base)
    paper = "whether the table shows printed numbers (yes, but not the paper's beside a dataset of your own)"
    group.add_argument("--paper", action=argparse.BooleanOptionalAction, help=paper)


def sweep_folder(sweep: Any, options: TableOptions) -> Path:
    """`runs/sweeps/<name>@<scale>`; --set, --retune and a user's scale make another table, so they add a hash."""
    name, own = f"{sweep.name}@{Path(sweep.scale).stem}", sweep.scale not in scale_names()
    differs = other_table(options) + (json.dumps(scale_level(sweep.scale).values, default=str) if own else "")
    if differs:
        name += "-" + text_digest(differs, 6)
    return options.runs / "sweeps" / name


def other_table(options: TableOptions) -> str:
    """The options that make another table of the sweep file, as they are typed."""
    words = ["--set", *(f"{key}={value}" for key, value in sorted(options.set.items()))] if options.set else []
    if options.retune:
        words += ["--retune", ",".join(options.retune), "--budget", str(options.tries)]
    return shlex.join(words)
