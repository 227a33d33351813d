"""The options of the sweep command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformer_pl.plan.options import TableOptions, add_sweep_options, sweep_file
from transformer_pl.runtime.command_line import CommandParser, refuse_options, whole_number

EXAMPLES = """\
examples:
  python -m transformer_pl.sweep sweeps/table3_A.yaml                     train, and print the table
  python -m transformer_pl.sweep table3_A --plan                          the same file by its name; starts nothing
  python -m transformer_pl.sweep table3_A --seeds 1,2,3,4,5               five seeds; finished trials are reused
  python -m transformer_pl.sweep table3_A --set optim.warmup=800          overrides the file
  python -m transformer_pl.sweep table3_A --scale multi30k --parallel 1   a real dataset, one trial at a time

exit codes: 0 done; 1 a trial failed, or diverged in a grid, or a row was refused; 2 wrong input, nothing started;
129, 130, 143 stopped
"""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(TableOptions):
    """What the command is to do with a sweep file, and on which machines."""

    file: Path
    plan: bool = False  # print the plan, and start nothing
    parallel: int | None = None  # trials at once, or workers of SLURM; None: as the machine allows
    skip_broken: bool = False  # leave out rows whose parts break a law, and train the rest
    rerun: bool = False  # train finished and diverged trials again
    launcher: Literal["local", "slurm"] = "local"
    devices: int | None = None  # GPUs, or CPU cores where no GPU is used; None: all
    per_device: int | None = None  # trials on each GPU
    slurm: Path | None = None  # a YAML file of sbatch options
    worker: bool = False  # do not wait for trials that other commands train
    sampler: tuple[str, ...] | None = None  # of a search: its name, and KEY=VALUE; None: the file's
    pruner: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.retune:
            refuse_options(self, ["skip_broken"], "is for rows as they are, but --retune searches for each")
        if self.launcher == "slurm":
            here = ["devices", "per_device", "rerun", "worker"]
            refuse_options(self, here, "is for the machine that trains, but --launcher slurm only submits workers")
        else:
            refuse_options(self, ["slurm"], "is for --launcher slurm")


def read_options(words: list[str]) -> SweepOptions | Path:
    """The options of a command line, or with --list the runs folder. Raises an InputError."""
    parser = CommandParser(
        prog="python -m transformer_pl.sweep",
        usage="%(prog)s FILE [options]\n       %(prog)s --list",
        description="Train the trials of a sweep file that are not finished, and print their table. The same command\n"
        "again continues where it was stopped. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    file = "a sweep file, or the name of a shipped one, such as table3_A"
    parser.add_argument("file", metavar="FILE", type=sweep_file, nargs="?", help=file)
    add_sweep_options(parser)
    run = parser.add_argument_group("how they run")
    run.add_argument("--plan", action="store_true", help="print rows, sizes, cost and time, and start nothing")
    parallel = "trials at once (auto: as cores or GPUs allow); with --launcher slurm: workers"
    run.add_argument("--parallel", type=_count_or_auto, metavar="N|auto", help=parallel)
    skip = "leave out rows whose parts break a law (refused in the table), and train the rest"
    run.add_argument("--skip-broken", action="store_true", help=skip)
    rerun = "train finished and diverged trials again; to resume after a stop, repeat the command without --rerun"
    run.add_argument("--rerun", action="store_true", help=rerun)
    launchers = ("local", "slurm")
    run.add_argument("--launcher", choices=launchers, help="where trials are trained (local)")
    devices = "use N GPUs of this machine, or N CPU cores where no GPU is used (default: all)"
    run.add_argument("--devices", type=whole_number(), metavar="N", help=devices)
    per_device = "run K trials on each GPU, each pinned to its own CPU cores"
    run.add_argument("--per-device", type=whole_number(), metavar="K", help=per_device)
    sbatch = "for --launcher slurm: YAML file of sbatch options for one worker"
    run.add_argument("--slurm", type=Path, metavar="FILE", help=sbatch)
    worker = "do not wait for trials that other commands train; the last command prints the table"
    run.add_argument("--worker", action="store_true", help=worker)
    with_pairs = ("NAME", "KEY=VALUE")
    search = parser.add_argument_group("a search (a file with method: random, bayes or custom)")
    sampler = "tpe, random, qmc, cma-es, gp or nsga-ii, with its options (random with method: random, else tpe)"
    search.add_argument("--sampler", nargs="+", metavar=with_pairs, help=sampler)
    pruner = "none, median, halving or hyperband, with its options (the file's early_terminate, or none)"
    search.add_argument("--pruner", nargs="+", metavar=with_pairs, help=pruner)
    folder = parser.add_argument_group("without a FILE")
    listing = "list what is in the runs folder, how large it is, and what is no longer needed"
    folder.add_argument("--list", action="store_true", help=listing)
    given = vars(parser.parse_args(words))
    if bool(given["file"]) == (listed := given.pop("list")):
        parser.error("give one of FILE and --list")
    return given["runs"] if listed else SweepOptions.read(given)


def _count_or_auto(word: str) -> int | None:
    """Read a number of trials; None for `auto`, which lets the machine decide."""
    return None if word == "auto" else whole_number()(word)
