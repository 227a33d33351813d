"""The options of the report command: one dataclass for tables of sweep files, and one for those of files of runs."""

from dataclasses import MISSING, dataclass, fields
from functools import partial
from inspect import getdoc
from pathlib import Path
from typing import Any, Literal

from transformer_pl.plan.shared_options import ONLINE_RUNS, TableOptions, margin_option, sweep_file, which_trials
from transformer_pl.report.reading import INDEX, clean, words_in
from transformer_pl.runtime.command_line import (
    CommandParser,
    add_options,
    must_be,
    names,
    option,
    options_of,
    refuse_options,
)
from transformer_pl.runtime.errors import InputError, suggestion
from transformer_pl.table.formats import Table

TEXT_FORMATS = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv, "json": Table.json}
FOR_PROGRAMS = ("csv", "json")  # which get one table of all files
MOST_RUNS = 10_000  # that a line with a deviation may be the mean of
UNUSED = {  # beside an option: why others would do nothing, and which these are
    "pairs": ("compares all rows", ("base", "margin", "columns", "rows", "wandb")),
    "against": ("compares two scales", ("wandb", "margin", "pairs")),
    "trials": ("makes no table", ("against", "rows", "wandb", "columns", "margin", "pairs")),
    "paired": ("compares rows with base", ("pairs",)),
    "std": ("is of lines that are means of runs", ("se", "seed", "item", "cluster", "paired")),
    "se": ("is of lines that are means of runs", ("seed", "item", "cluster", "paired")),
}
LOSSES = {  # the last words of metrics of which lower values are better
    *("loss", "ppl", "perplexity", "bpb", "nll", "error", "mse", "rmse", "mae", "wer", "cer", "ter")
}
NEEDED = {"paired": ("seed",), "cluster": ("item",), "std": ("n",), "se": ("n",), "n": ("std", "se")}  # one of these
EXAMPLES = """\
examples:
  python -m transformer_pl.report sweeps/table3_A.yaml                 the table in the terminal
  python -m transformer_pl.report table3_A --format md > table.md      also tex, csv and json
  python -m transformer_pl.report table3_A --format html               write the page, print its path
  python -m transformer_pl.report table3_A table3_B --scale multi30k   two tables
  python -m transformer_pl.report runs.csv --row model,lr --metric acc --seed seed --base "model=a lr=0.1"

A file of runs has options of its own: python -m transformer_pl.report runs.csv --help
"""


printed = partial(option, group="what is printed")
of_runs = partial(option, group="what the columns of the file mean")


def _columns(word: str) -> tuple[str, ...]:
    """Read the names of columns, as they are read in the file."""
    if not word or _is_of_runs(word):
        raise must_be(word, f"name columns, of which a first one without a heading is called {INDEX}; FILE comes first")
    return tuple(map(clean, names(word)))


of_columns = partial(of_runs, type=_columns, metavar="COLUMN,...")


@dataclass(frozen=True, kw_only=True)
class TableChoice:
    """What a table shows, whatever its rows are from."""

    format: str = printed(
        "html writes the page and prints its path (terminal)",
        default="terminal",
        choices=("terminal", *TEXT_FORMATS, "html"),
    )
    columns: tuple[str, ...] = printed("only the columns with these headings, in this order", default=(), metavar="A,B")
    caption: str | None = printed("for --format tex: the caption, in place of what the table shows")
    pairs: bool = printed(
        "every row against every other, with one correction, in place of the usual table", default=False
    )
    margin: tuple[tuple[str, float], ...] = margin_option("what is printed")

    def __post_init__(self) -> None:
        given = [stated.name for stated in fields(self) if getattr(self, stated.name) not in (None, False, ())]
        for name in filter(given.__contains__, UNUSED):
            why, others = UNUSED[name]
            refuse_options(self, [other for other in others if other in given], f"is not for --{name}, which {why}")
        for name in filter(given.__contains__, NEEDED):
            if not any(other in given for other in NEEDED[name]):
                needed = " or ".join(f"--{other}" for other in NEEDED[name])
                raise InputError(f"--{name}: must be given with {needed}; add it, or leave --{name} out")
        if self.format == "html" and self.pairs:
            raise InputError("--format html: the page has the usual table; leave out --pairs")
        if self.format != "tex":
            refuse_options(self, ["caption"], "is for --format tex, which is not given")
        if self.format in FOR_PROGRAMS:
            refuse_options(self, ["columns"], f"is for tables to read; --format {self.format} has every column")

    @property
    def has_page(self) -> bool:
        """Whether there is a page of the table that is asked for."""
        return not self.pairs

    @property
    def draws_page(self) -> bool:
        return self.format == "html"


@dataclass(frozen=True, kw_only=True)
class SweepReport(TableChoice, TableOptions):
    """Print the table of each sweep file from the results on disk. This trains nothing. Give the same
    options with which the sweep ran."""

    files: tuple[Path, ...] = option(
        "sweep files, or names of shipped ones, such as table3_A; or a .csv file of runs",
        default=MISSING,
        metavar="FILE",
        positional=True,
        nargs="+",
        type=sweep_file,
    )
    trials: bool = printed("for --format csv or json: a line for each trial, not for each row", default=False)
    split: Literal["val", "test"] = printed("the set that is compared (val)", default="val")
    rows: Path | None = printed(
        "a file with your names for the rows and headings between them (NAME.rows.yaml beside the sweep file)",
        metavar="FILE",
    )
    against: str | None = printed(
        "another scale: what the differences at this one say of those at that one, in place of the usual table",
        metavar="SCALE",
    )
    shipped: bool = which_trials(
        "the trials that ship with the project, in place of those of --runs; nothing is written", default=False
    )
    wandb: bool = printed(
        "also write the page, and send the table and its figures to W&B, as the sweep command does when it ends",
        default=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        TableOptions.__post_init__(self)
        if self.shipped and self.draws_page:
            raise InputError("--shipped: writes nothing, and so no page; leave out --format html and --wandb")
        if self.split != "val" and (self.format == "html" or self.wandb):
            raise InputError("--split test: the page shows the validation set; leave out --format html and --wandb")
        if self.format not in FOR_PROGRAMS:
            refuse_options(self, ["trials"], "is for --format csv or json, which is not given")

    @property
    def has_page(self) -> bool:
        return super().has_page and self.split == "val" and not self.shipped

    @property
    def draws_page(self) -> bool:
        return super().draws_page or self.wandb


@dataclass(frozen=True, kw_only=True)
class RunsReport(TableChoice):
    """Print the table of a file of runs. This trains nothing."""

    files: tuple[Path, ...] = option(
        "a .csv or .tsv file with a line for each run, or wandb://ENTITY/PROJECT/GROUP",
        default=MISSING,
        metavar="FILE",
        positional=True,
        nargs=1,
        type=Path,
    )
    row: tuple[str, ...] = of_columns("runs with equal values in these are one row", MISSING, required=True)
    metric: tuple[str, ...] = of_columns("columns to compare, each with its own test", MISSING, required=True)
    std: tuple[str, ...] = of_columns("standard deviations, if lines are means of runs", ())
    se: tuple[str, ...] = of_columns("or else their standard errors", ())
    n: str | None = of_runs("of how many runs a line is the mean: a number, or a column", metavar="N", type=clean)
    seed: str | None = of_runs("the seed: refuse two runs of one row and seed", metavar="COLUMN", type=clean)
    item: tuple[str, ...] = of_columns("what tells questions or other items apart, if runs have a line for each", ())
    cluster: tuple[str, ...] = of_columns("what tells clusters of items apart, such as documents or templates", ())
    paired: bool = of_runs("compare rows within each --seed, such as an environment or a data order", default=False)
    base: str | None = of_runs("the row that others are compared with (base)", metavar="ROW", type=clean)
    lower_is_better: bool | tuple[str, ...] = of_runs(
        "lower is better, for these or all metrics", False, metavar="METRIC,...", nargs="?", const=True, type=_columns
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        metrics = f"--metric {','.join(self.metric)}"
        if self.pairs and len(self.metric) > 1:
            raise InputError(f"{metrics}: --pairs compares one metric; give one")
        self._check_directions()
        if self.spreads and len(self.spreads) != len(self.metric):
            spreads = f"{'--std' if self.std else '--se'} {','.join(self.spreads)}"
            raise InputError(f"{spreads}: must be a column for each of {metrics}, in the same order; name all of them")
        if self.n and self.n.isdecimal() and not 2 <= int(self.n) <= MOST_RUNS:
            raise InputError(f"--n {self.n}: must be from 2 to {MOST_RUNS:,}, or the name of a column; correct it")

    def is_lower_better(self, metric: str) -> bool:
        """Whether a lower value of a metric is better."""
        return self.lower_is_better if isinstance(self.lower_is_better, bool) else metric in self.lower_is_better

    def _check_directions(self) -> None:
        """Raise an InputError for a metric that is surely a loss, but is not said to be one."""
        told = () if isinstance(self.lower_is_better, bool) else self.lower_is_better
        if unknown := [name for name in told if name not in self.metric]:
            raise InputError(f"--lower-is-better {unknown[0]}: must be a --metric{suggestion(unknown[0], self.metric)}")
        losses = [name for name in self.metric if {*words_in(name)[-1:]} & LOSSES and not self.is_lower_better(name)]
        if losses:
            rule = "must say whether lower values are better, which they are by its name"
            raise InputError(f"--metric {losses[0]}: {rule}; add --lower-is-better {','.join([*told, *losses])}")

    @property
    def spreads(self) -> tuple[str, ...]:
        """The columns that say how far the runs of a line spread, one for each metric; empty: a line is a run."""
        return self.std or self.se

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of numbers."""
        return (*self.metric, *self.spreads, *([self.n] if self.n and not self.n.isdecimal() else []))


def _is_of_runs(word: str) -> bool:
    """Whether a word names runs, and not a sweep file."""
    return Path(word).suffix.lower() in (".csv", ".tsv") or word.startswith(ONLINE_RUNS)


def read_options(argv: list[str]) -> SweepReport | RunsReport:
    """The options of the command line. Those of the other kind of file are unknown.

    It is of runs if its first word names some, or if it has a --metric, which a table of runs alone has and needs.
    """
    of_runs_alone = any(_is_of_runs(word) for word in argv[:1]) or any(
        word.partition("=")[0] == "--metric" for word in argv
    )
    kind: Any = RunsReport if of_runs_alone else SweepReport
    parser = CommandParser(
        prog="python -m transformer_pl.report",
        usage="%(prog)s FILE... [options]",
        description=f"{getdoc(kind)} Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    add_options(parser, kind)
    options: SweepReport | RunsReport = options_of(kind, vars(parser.parse_args(argv)))
    return options
