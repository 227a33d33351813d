"""The options of the report command: one dataclass for tables of sweep files, and one for those of files of runs."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_pl.plan.options import ONLINE_RUNS, TableOptions, add_sweep_options, sweep_file
from transformer_pl.runtime.command_line import CommandParser, must_be, names, refuse_options
from transformer_pl.runtime.errors import InputError, suggestion
from transformer_pl.task import EVALUATION

FORMATS = ("terminal", "md", "tex", "csv", "json", "html")
FOR_PROGRAMS = ("csv", "json")
EXAMPLES = """\
examples:
  python -m transformer_pl.report sweeps/table3_A.yaml                 the table in the terminal
  python -m transformer_pl.report table3_A --format md > table.md      also tex, csv and json
  python -m transformer_pl.report table3_A --format html               write the page, print its path
  python -m transformer_pl.report table3_A table3_B --scale multi30k   two tables
  python -m transformer_pl.report runs.csv --row model,lr --metric acc --seed seed --base "model=a lr=0.1"

The options of files of runs: python -m transformer_pl.report runs.csv --help
"""


@dataclass(frozen=True, kw_only=True)
class TableChoice:
    """What a table shows, whatever its rows are from."""

    format: str = "terminal"
    margin: tuple[tuple[str, float], ...] = ()  # by metric: differences within the margin count as none
    columns: tuple[str, ...] = ()  # headings of the columns to show; empty: all that fit
    pairs: bool = False  # every row against every other, in place of the usual table
    factors: bool = False  # the effects and interactions of factors, in place of the usual table

    def refuse_unused(self) -> None:
        """Raise an InputError for options that would do nothing."""
        if self.pairs and self.factors:
            raise InputError("--pairs, --factors: each makes a table of its own; give one of them")
        if (self.pairs or self.factors) and self.format == "html":
            raise InputError("--format html: the page has the usual table; leave out --pairs and --factors")
        if self.pairs:
            refuse_options(self, ["base", "margin"], "is for differences from base, and not for --pairs")
        if self.pairs or self.factors:
            refuse_options(self, ["columns"], "is for the usual table, and not for --pairs or --factors")

    def margins(self, metrics: "tuple[str, ...]") -> dict[str, float]:
        """The margins by metric. Raises an InputError for a margin of a metric that is not in `metrics`."""
        if unknown := [name for name, _ in self.margin if name not in metrics]:
            rule = f"must be of {' or '.join(metrics)}, which the table compares"
            raise InputError(*(f"--margin {name}: {rule}{suggestion(name, metrics)}" for name in unknown))
        return dict(self.margin)


@dataclass(frozen=True, kw_only=True)
class SweepReport(TableChoice, TableOptions):
    """The table of sweep files."""

    files: tuple[Path, ...]
    trials: bool = False  # a line for each trial, not for each row
    split: str = "val"  # the set whose scores are compared
    rows: Path | None = None  # a file of names for the rows; None: the one beside the sweep file, if there is one
    sort: str | None = None  # the order of rows: file, params or score; None: file
    together: bool = False  # one table of several sweep files
    wandb: bool = False  # also send the table and the figures of the page to W&B

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_unused()
        if self.together and len(self.files) < 2:
            raise InputError("--together: is for several sweep files, but one is given; give more")
        if self.split != "val" and (self.format == "html" or self.wandb):
            raise InputError("--split test: the page shows the validation set; leave out --format html and --wandb")
        if self.trials and self.format not in FOR_PROGRAMS:
            raise InputError("--trials: is for --format csv or json, which is not given; leave it out")
        of_table = ["rows", "columns", "sort", "wandb", "margin"]
        unused = {"together": ["rows", "trials"], "trials": [*of_table, "pairs", "factors"]}
        unused |= {"pairs": of_table[:4], "factors": of_table[:4]}
        for option, others in unused.items():
            if getattr(self, option):
                refuse_options(self, others, f"is not for --{option}")


@dataclass(frozen=True, kw_only=True)
class RunsReport(TableChoice):
    """The table of runs that were trained elsewhere: a file with a line for each run, or runs at W&B."""

    files: tuple[Path, ...]
    row: tuple[str, ...]  # columns of the file: runs with equal values in them are one row
    metric: tuple[str, ...]
    seed: str | None = None
    base: str | None = None  # the name of a row; None: the row that is called base
    lower_is_better: bool = False
    decimal_comma: bool = False  # whether numbers have a comma in place of the decimal point

    def __post_init__(self) -> None:
        if len(self.files) > 1:
            raise InputError(f"{', '.join(map(str, self.files))}: a CSV file of runs must stand alone; give one file")
        self.refuse_unused()
        if (self.pairs or self.factors) and len(self.metric) > 1:
            raise InputError(f"--metric {','.join(self.metric)}: --pairs and --factors compare one metric; give one")


def is_of_runs(word: str) -> bool:
    """Whether an argument of the command names runs, and not a sweep file."""
    return Path(word).suffix in (".csv", ".tsv") or word.startswith(ONLINE_RUNS)


def read_options(argv: list[str]) -> SweepReport | RunsReport:
    """The options of the command line. Those of the other kind of file are unknown."""
    of_runs = any(is_of_runs(word) for word in argv if not word.startswith("-"))
    what, same = ("files of runs", "") if of_runs else ("sweep files", " Give the same\noptions as the sweep had.")
    parser = CommandParser(
        prog="python -m transformer_pl.report",
        usage="%(prog)s FILE... [options]",
        description=f"Print the table of {what} from the results that are there. This trains nothing.{same}\n"
        "Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    if of_runs:
        file = "a .csv or .tsv file with a line for each run, or wandb://ENTITY/PROJECT/GROUP"
        parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help=file)
        _add_runs_options(parser)
    else:
        files = "sweep files, or names of shipped ones, such as table3_A; or a .csv file of runs, which has --help"
        parser.add_argument("files", metavar="FILE", nargs="+", type=sweep_file, help=files)
        add_sweep_options(parser)
    table = parser.add_argument_group("what is printed")
    page = "html writes the page and prints its path (%(default)s)"
    table.add_argument("--format", choices=FORMATS, default="terminal", help=page)
    chosen = "only the columns with these headings, in this order"
    table.add_argument("--columns", type=names, metavar="A,B", help=chosen)
    pairs = "every row against every other, with one correction, in place of the usual table"
    table.add_argument("--pairs", action="store_true", help=pairs)
    factors = "a table of the effects and interactions of two or three factors, whose combinations are the rows"
    table.add_argument("--factors", action="store_true", help=factors)
    margin = "also say which rows are equal to base within this margin, chosen before the results are seen"
    table.add_argument("--margin", type=_margin, action="append", metavar="METRIC=X", help=margin)
    if of_runs:
        given = {key: value for key, value in vars(parser.parse_args(argv)).items() if value is not None}
        return RunsReport(**given | {key: tuple(given.get(key, ())) for key in ("files", "margin")})
    _add_table_options(table)
    return SweepReport.read(vars(parser.parse_args(argv)))


def _add_runs_options(parser: CommandParser) -> None:
    runs = parser.add_argument_group("what the columns of the file mean")
    row = "runs with equal values in these are one row"
    runs.add_argument("--row", type=names, metavar="COLUMN,...", required=True, help=row)
    metric = "columns to compare, each with its own test"
    runs.add_argument("--metric", type=names, metavar="COLUMN,...", required=True, help=metric)
    runs.add_argument("--seed", metavar="COLUMN", help="column of the seed: refuse two runs of one row and seed")
    runs.add_argument("--base", metavar="ROW", help="the row that others are compared with (the one called base)")
    runs.add_argument("--lower-is-better", action="store_true", help="lower values of the metrics are better")
    comma = "numbers have a comma in place of the decimal point"
    runs.add_argument("--decimal-comma", action="store_true", help=comma)


def _add_table_options(table: Any) -> None:
    trials = "for --format csv or json: a line for each trial, not for each row"
    table.add_argument("--trials", action="store_true", help=trials)
    table.add_argument("--split", choices=EVALUATION, default="val", help="the set that is compared (%(default)s)")
    table.add_argument("--sort", choices=("file", "params", "score"), help="the order of rows (file)")
    own = "a file with your names for the rows and headings between them (NAME.rows.yaml beside the sweep file)"
    table.add_argument("--rows", type=Path, metavar="FILE", help=own)
    together = "one table of several files with the same base, with one correction for all of their rows"
    table.add_argument("--together", action="store_true", help=together)
    send = "also write the page, and send the table and its figures to W&B, as the sweep command does when it ends"
    table.add_argument("--wandb", action="store_true", help=send)


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
