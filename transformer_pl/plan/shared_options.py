"""The options of commands on a sweep file, and the folder of a sweep's results."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from transformer_pl.config.levels import DEFAULT_SCALE, OF_SEEDS, read_pairs, scale_choices, scale_level, scale_names
from transformer_pl.plan.sweep_file import SHIPPED, located
from transformer_pl.runtime.command_line import (
    must_be,
    option,
    refuse_options,
    runs_option,
    whole_number,
    whole_numbers,
    words_of,
)
from transformer_pl.runtime.digests import text_digest
from transformer_pl.runtime.errors import InputError, suggestion

BUDGET = 8  # tries per row of --retune
TRIALS = "which trials"  # the heading of these options in the help


def sweep_file(word: str) -> Path:
    """Read the path of a sweep file, or the name of one that ships (see `located`)."""
    path = Path(word)
    shipped = sorted(file.stem for file in SHIPPED.glob("*.yaml") if "." not in file.stem)  # no .rows.yaml
    if located(path) != path and word not in shipped:
        raise must_be(word, f"be a sweep file, or the name of one that ships{suggestion(word, shipped)}")
    return path


def _margin(word: str) -> tuple[str, float]:
    """Read a margin such as bleu=0.5."""
    metric, _, text = word.rpartition("=")
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not metric or not 0 < size < math.inf:
        raise must_be(word, "be METRIC=X with X above 0, such as bleu=0.5")
    return metric, size


def margin_option(group: str) -> Any:
    """The option that gives margins by metric."""
    return option(
        "also say which rows are equal to base within this margin, chosen before the results are seen",
        default=(),
        group=group,
        metavar="METRIC=X",
        type=_margin,
        action="append",
    )


def margins(given: Sequence[tuple[str, float]], metrics: tuple[str, ...]) -> dict[str, float]:
    """The margins by metric. Raises an InputError for a margin of a metric that is not in `metrics`."""
    if unknown := [name for name, _ in given if name not in metrics]:
        rule = f"must be of {' or '.join(metrics)}, which the table compares"
        raise InputError(*(f"--margin {name}: {rule}{suggestion(name, metrics)}" for name in unknown))
    return dict(given)


which_trials = partial(option, group=TRIALS)
file_option = partial(option, metavar="FILE", positional=True, type=sweep_file, nargs="?")


def _pairs(words: Sequence[str]) -> Mapping[str, Any]:
    return read_pairs(words, "--set").values


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Which rows of a sweep file are meant, and where their trials lie."""

    scale: str | None = which_trials(f"{scale_choices()} (the file's, or {DEFAULT_SCALE})", metavar="S")
    set: Mapping[str, Any] = which_trials(
        "values that win over the file's; for all keys: python -m transformer_pl.train --help",
        default=dict,
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        convert=_pairs,
    )
    runs: Path = runs_option(TRIALS)


@dataclass(frozen=True, kw_only=True)
class TableOptions(RowOptions):
    """Which trials of a sweep file are meant, and what their table shows: the options that commands share.

    Raises an InputError for options that need others.
    """

    seeds: tuple[int, ...] | None = which_trials(
        "the seeds of each row, base too (the file's, or 1)", metavar="1,2", type=partial(whole_numbers, at_least=0)
    )
    looks: tuple[int, ...] | None = which_trials(
        "look at the rows after so many seeds, and train only those on that are not decided (the file's, or none)",
        metavar="3,5",
        type=partial(whole_numbers, at_least=2),
    )
    base_seeds: int | None = which_trials(
        "how many seeds base has, whose error all rows share (the file's, beside its own seeds, or those of a row)",
        metavar="N",
        type=whole_number(at_least=2),
    )
    retune: tuple[str, ...] = which_trials(
        "give each row its own best value of these keys, by a search of the same size for each",
        default=(),
        metavar="KEY,KEY",
    )
    budget: int | None = which_trials(
        f"for --retune: trials per row ({BUDGET})", metavar="K", type=whole_number(at_least=2)
    )
    storage: str | None = which_trials(
        "URL of a database for a search (the file study.journal in the sweep's folder)", metavar="URL"
    )
    base: str | None = which_trials("the row that others are compared with (base)", metavar="ROW")
    paper: bool | None = which_trials(
        "whether the table shows printed numbers (yes, but not the paper's beside a dataset of your own)"
    )

    def __post_init__(self) -> None:
        if self.retune:
            refuse_options(self, OF_SEEDS, "is for rows as they are, but --retune searches for each")
        else:
            refuse_options(self, ["budget"], "is for --retune, which is not given")

    @property
    def tries(self) -> int:
        """How many points are tried per row of --retune."""
        return self.budget or BUDGET


ONLINE_RUNS = "wandb:/"  # the beginning of wandb://ENTITY/PROJECT/GROUP as a Path, which joins the slashes


def sweep_folder(sweep: Any, options: TableOptions) -> Path:
    """`runs/sweeps/<name>@<scale>`; --set, --retune and a user's scale make another table, so they add a hash."""
    name, own = f"{sweep.name}@{Path(sweep.scale).stem}", sweep.scale not in scale_names()
    differs = other_table(options) + (json.dumps(scale_level(sweep.scale).values, default=str) if own else "")
    if differs:
        name += "-" + text_digest(differs, 6)
    return options.runs / "sweeps" / name


def other_table(options: TableOptions) -> str:
    """The options that make another table of the sweep file, as they are typed."""
    changed, budget = dict(sorted(options.set.items())), options.tries if options.retune else None
    return shlex.join(words_of(TableOptions(set=changed, retune=options.retune, budget=budget)))


def report_command(file: Path, options: TableOptions, *words: str, **changed: Any) -> str:
    """The command that prints the table of a sweep file with these options, some of them changed, and further words."""
    own = {stated.name: getattr(options, stated.name) for stated in fields(TableOptions)}
    return shlex.join(
        ["python", "-m", "transformer_pl.report", str(file), *words_of(TableOptions(**own | changed)), *words]
    )
