"""The options of the sweep command."""

from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path

from transformer_pl.plan.shared_options import TableOptions, file_option, margin_option
from transformer_pl.runtime.command_line import (
    DEFAULT_RUNS,
    CommandParser,
    add_options,
    option,
    options_of,
    refuse_options,
    whole_number,
)
from transformer_pl.sweep.launchers import LAUNCHERS

EXAMPLES = """\
examples:
  python -m transformer_pl.sweep sweeps/table3_A.yaml                     train, and print the table
  python -m transformer_pl.sweep table3_A --plan                          the same file by its name; starts nothing
  python -m transformer_pl.sweep table3_A --seeds 1,2,3,4,5               five seeds; finished trials are reused
  python -m transformer_pl.sweep table3_A --set optim.warmup=800          overrides the file
  python -m transformer_pl.sweep table3_A --scale multi30k --parallel 1   a real dataset, one trial at a time

exit codes: 0 done; 1 a trial failed, or diverged in a grid, or a row was refused; 2 wrong input, nothing started;
128 and the signal's number, such as 143: stopped
"""


how_they_run = partial(option, group="how they run")
of_search = partial(option, group="a search (a file with method: random, bayes or custom)", nargs="+")


def _count_or_auto(word: str) -> int | None:
    """Read a number of trials; None for `auto`, which lets the machine decide."""
    return None if word == "auto" else whole_number()(word)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(TableOptions):
    """What the command is to do with a sweep file, and on which machines."""

    file: Path = file_option("a sweep file, or the name of a shipped one, such as table3_A", MISSING)
    plan: bool = how_they_run("print rows, sizes, cost and time, and start nothing", default=False)
    parallel: int | None = how_they_run(
        "trials at once (auto: as cores or GPUs allow); with --launcher slurm: workers",
        metavar="N|auto",
        type=_count_or_auto,
    )
    skip_broken: bool = how_they_run(
        "leave out rows whose parts break a law (refused in the table), and train the rest", default=False
    )
    margin: tuple[tuple[str, float], ...] = margin_option("how they run")
    rerun: bool = how_they_run(
        "train finished and diverged trials again; to resume after a stop, repeat the command without --rerun",
        default=False,
    )
    launcher: str = how_they_run("where trials are trained (local)", default="local", choices=LAUNCHERS)
    devices: int | None = how_they_run(
        "use N GPUs of a machine, or N CPU cores where no GPU is used (default: all)", metavar="N"
    )
    per_device: int | None = how_they_run("run K trials on each GPU, each pinned to its own CPU cores", metavar="K")
    slurm: Path | None = how_they_run(
        "for --launcher slurm: YAML file of sbatch options for one worker, setup and python", metavar="FILE"
    )
    worker: bool = how_they_run(
        "do not wait for trials that other commands train; the last command prints the table", default=False
    )
    sampler: tuple[str, ...] | None = of_search(
        "tpe, random, qmc, cma-es, gp or nsga-ii, with its options (random with method: random, else tpe)",
        metavar=("NAME", "KEY=VALUE"),
    )
    pruner: tuple[str, ...] | None = of_search(
        "none, median, halving or hyperband, with its options (the file's early_terminate, or none)",
        metavar=("NAME", "KEY=VALUE"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.retune:
            refuse_options(self, ["skip_broken"], "is for rows as they are, but --retune searches for each")
        if self.launcher != "local":
            why = f"is for the machine that trains, but --launcher {self.launcher} only submits workers"
            refuse_options(self, ["rerun", "worker"], why)
        for name in LAUNCHERS.keys() - {self.launcher}:
            if hasattr(self, name):
                refuse_options(self, [name], f"is for --launcher {name}")


def read_options(words: list[str]) -> SweepOptions | Path:
    """The options of a command line, or with --list the runs folder. Raises an InputError."""
    parser = CommandParser(
        prog="python -m transformer_pl.sweep",
        usage="%(prog)s FILE [options]\n       %(prog)s --list",
        description="Train the trials of a sweep file that are not finished, and print their table. The same command\n"
        "again continues where it was stopped. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    add_options(parser, SweepOptions)
    folder = parser.add_argument_group("without a FILE")
    listing = "list the trials of the runs folder, with state, score and size"
    folder.add_argument("--list", action="store_true", help=listing)
    given = vars(parser.parse_args(words))
    if bool(given["file"]) == (listed := given.pop("list")):
        parser.error("give one of FILE and --list")
    return (given["runs"] or DEFAULT_RUNS) if listed else options_of(SweepOptions, given)
