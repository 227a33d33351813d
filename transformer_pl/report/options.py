"""The options of the report command: one dataclass for tables of sweep files, and one for those of files of runs."""

from dataclasses import MISSING, dataclass, fields
from functools import partial
from inspect import getdoc
from pathlib import Path
from typing import Any, Literal

from transformer_pl.plan.shared_options import ONLINE_RUNS, SHIPPED, TableOptions, margin_option, sweep_file
from transformer_pl.runtime.command_line import (
    CommandParser,
    add_options,
    option,
    options_of,
    refuse_options,
)
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.formats import Table

TEXT_FORMATS = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv, "json": Table.json}
FOR_PROGRAMS = ("csv", "json")  # which get one table of all files
MOST_RUNS = 10_000  # that a line with a deviation may be the mean of
UNUSED = {  # beside an option: why others would do nothing, and which these are
    "pairs": ("compares all rows", ("factors", "base", "margin", "columns", "rows", "sort", "wandb")),
    "factors": ("has a table of its own", ("columns", "rows", "sort", "wandb")),
    "together": ("makes one table of several files", ("rows", "trials")),
    "against": ("compares two scales", ("wandb", "margin", "pairs", "factors", "together")),
    "trials": ("makes no table", ("against", "rows", "sort", "wandb", "columns", "margin", "pairs", "factors")),
    "paired": ("compares rows with base", ("pairs", "factors")),
    "std": ("is of lines that are means of runs", ("se", "seed", "paired")),
    "se": ("is of lines that are means of runs", ("seed", "paired")),
}
NEEDED = {"folds": ("paired",), "paired": ("seed",), "std": ("n",), "se": ("n",), "n": ("std", "se")}  # one of these
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


@dataclass(frozen=True, kw_only=True)
class TableChoice:
    """What a table shows, whatever its rows are from."""

    format: str = printed(
        "html writes the page and prints its path (terminal)",
        default="terminal",
        choices=("terminal", *TEXT_FORMATS, "html"),
    )
    columns: tuple[str, ...] = printed("only the columns with these headings, in this order", default=(), metavar="A,B")
    caption: str | None = printed("for --format tex: the caption, in place of the summary and the notes")
    pairs: bool = printed(
        "every row against every other, with one correction, in place of the usual table", default=False
    )
    factors: bool = printed(
        "a table of the effects and interactions of two or three factors, whose combinations are the rows",
        default=False,
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
        if self.format == "html" and (self.pairs or self.factors):
            raise InputError("--format html: the page has the usual table; leave out --pairs and --factors")
        if self.format != "tex":
            refuse_options(self, ["caption"], "is for --format tex, which is not given")


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
    sort: Literal["file", "params", "score"] | None = printed("the order of rows (file)")
    rows: Path | None = printed(
        "a file with your names for the rows and headings between them (NAME.rows.yaml beside the sweep file)",
        metavar="FILE",
    )
    together: bool = printed(
        "one table of several files with the same base, with one correction for all of their rows", default=False
    )
    against: str | None = printed(
        "another scale: what the differences at this one say of those at that one, in place of the usual table",
        metavar="SCALE",
    )
    wandb: bool = printed(
        "also write the page, and send the table and its figures to W&B, as the sweep command does when it ends",
        default=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        TableOptions.__post_init__(self)
        if self.together and len(self.files) < 2:
            raise InputError("--together: is for several sweep files, but one is given; give more")
        if self.split != "val" and (self.format == "html" or self.wandb):
            raise InputError("--split test: the page shows the validation set; leave out --format html and --wandb")
        if self.format not in FOR_PROGRAMS:
            refuse_options(self, ["trials"], "is for --format csv or json, which is not given")


def _runs_file(word: str) -> Path:
    """The path of a file of runs, or, where there is no such file, of one that ships: `narang2021.csv`."""
    shipped = SHIPPED / "published" / word
    return shipped if not Path(word).exists() and Path(word).name == word and shipped.is_file() else Path(word)


@dataclass(frozen=True, kw_only=True)
class RunsReport(TableChoice):
    """Print the table of a file of runs. This trains nothing."""

    files: tuple[Path, ...] = option(
        "a .csv or .tsv file with a line for each run, or wandb://ENTITY/PROJECT/GROUP",
        default=MISSING,
        metavar="FILE",
        positional=True,
        nargs=1,
        type=_runs_file,
    )
    row: tuple[str, ...] = of_runs(
        "runs with equal values in these are one row", default=MISSING, metavar="COLUMN,...", required=True
    )
    metric: tuple[str, ...] = of_runs(
        "columns to compare, each with its own test", default=MISSING, metavar="COLUMN,...", required=True
    )
    std: tuple[str, ...] = of_runs("standard deviations, if lines are means of runs", default=(), metavar="COLUMN,...")
    se: tuple[str, ...] = of_runs("or else their standard errors", default=(), metavar="COLUMN,...")
    n: str | None = of_runs("of how many runs a line is the mean: a number, or a column", metavar="N")
    seed: str | None = of_runs("column of the seed: refuse two runs of one row and seed", metavar="COLUMN")
    paired: bool = of_runs("compare rows within each --seed, such as an environment or a data order", default=False)
    folds: bool = of_runs("for --paired: the seeds are the folds of one cross-validation", default=False)
    base: str | None = of_runs("the row that others are compared with (the one called base)", metavar="ROW")
    lower_is_better: bool = of_runs("lower values of the metrics are better", default=False)
    decimal_comma: bool = of_runs("numbers are written 0,5 or 1.234,5 in the file, not 0.5", default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        metrics = f"--metric {','.join(self.metric)}"
        if (self.pairs or self.factors) and len(self.metric) > 1:
            raise InputError(f"{metrics}: --pairs and --factors compare one metric; give one")
        if self.spreads and len(self.spreads) != len(self.metric):
            spreads = f"{'--std' if self.std else '--se'} {','.join(self.spreads)}"
            raise InputError(f"{spreads}: must be a column for each of {metrics}, in the same order; name all of them")
        if self.n and self.n.isdecimal() and not 2 <= int(self.n) <= MOST_RUNS:
            raise InputError(f"--n {self.n}: must be from 2 to {MOST_RUNS:,}, or the name of a column; correct it")

    @property
    def spreads(self) -> tuple[str, ...]:
        """The columns that say how far the runs of a line spread, one for each metric; empty: a line is a run."""
        return self.std or self.se

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of numbers."""
        return (*self.metric, *self.spreads, *([self.n] if self.n and not self.n.isdecimal() else []))


def _is_of_runs(word: str) -> bool:
    """Whether a word of the command line names runs, and not a sweep file, or is an option of theirs alone."""
    if word.startswith("-"):
        return word.partition("=")[0] == "--metric"
    return Path(word).suffix.lower() in (".csv", ".tsv") or word.startswith(ONLINE_RUNS)


def read_options(argv: list[str]) -> SweepReport | RunsReport:
    """The options of the command line. Those of the other kind of file are unknown."""
    kind: Any = RunsReport if any(map(_is_of_runs, argv)) else SweepReport
    parser = CommandParser(
        prog="python -m transformer_pl.report",
        usage="%(prog)s FILE... [options]",
        description=f"{getdoc(kind)} Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    add_options(parser, kind)
    options: SweepReport | RunsReport = options_of(kind, vars(parser.parse_args(argv)))
    return options
