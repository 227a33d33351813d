"""Run a sweep:  python -m transformer_pl.sweep sweeps/table3_A.yaml

Checks every trial, prints the plan, trains what is missing, prints the table beside the paper's numbers. The same
command goes on with what was interrupted and tries again what failed; what diverged stays so.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from transformer_pl.config import read_yaml
from transformer_pl.data.prepare import prepare
from transformer_pl.experiments.cli import (
    add_search_options,
    add_sweep_options,
    make_folder,
    refuse_options,
    sweep_folder,
)
from transformer_pl.experiments.launch import GridQueue, available_workers, check_machine, launch
from transformer_pl.experiments.plan import (
    COMPARED,
    CostEstimate,
    PlannedTrial,
    as_json,
    estimate_costs,
    plan_trials,
    print_plan,
)
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.publish import Publisher, mention_offline_runs, set_wandb_group
from transformer_pl.experiments.retune import plan_retuning
from transformer_pl.experiments.sweep_file import SEARCHES, Sweep, read_sweep
from transformer_pl.report import table_of, write_page
from transformer_pl.runtime.errors import CommandParser, collect_errors, run_command
from transformer_pl.runtime.signals import Stopped
from transformer_pl.trials import cleaning
from transformer_pl.trials.trial import check_writable, finished_results, runs_lock, write_json


def main(words: list[str]) -> int:
    options = read_options(words)
    console = Console(highlight=False, markup=False, emoji=False)
    if options.list:
        cleaning.list_runs(options.runs, console)
        return 0
    if options.clean:
        with runs_lock(options.runs, alone=True):
            return cleaning.clean(options.runs, console)
    console.print(f"checking {options.file}")  # a departure may take seconds to import and count
    content = read_yaml(options.file)
    if content.get("method") in SEARCHES:
        from transformer_pl.search.cli import run_search  # imports optuna, which takes a quarter of a second

        return run_search(content, options, console)
    refuse_options(options, ["storage", "sampler", "pruner"], f"is for a search, but {options.file} has method: grid")
    sweep = read_sweep(options.file, options.scale, options.seeds, options.set)
    tuning = options.retune and plan_retuning(sweep, options.retune, options.budget, content.get("metric"))
    first = tuning.tries(sweep) if tuning else sweep
    planned, estimates = show_plan(first, options, console)
    if options.plan:
        return 0
    check_writable(options.runs)
    folder = sweep_folder(sweep, options)
    with runs_lock(options.runs):
        code = train_missing(first, planned, estimates, options, folder, console)
        if tuning and code in (0, 1):
            sweep = tuning.best(sweep, planned)  # what failed by now has failed
            planned, estimates = show_plan(sweep, options, console)
            code = max(code, train_missing(sweep, planned, estimates, options, folder, console))
        elif tuning:
            return code  # no row is at its best yet
        if code == 0 and any(one.trial.diverged_at() is not None for one in planned):
            code = 1  # of the table's rows; a try of --retune may diverge
        table = table_of(sweep, planned)
        publisher = Publisher(sweep.name, sweep.scale, folder, console)
        code = publisher.publish(table, lambda: write_page(sweep, planned, table, folder), code)
    mention_offline_runs([one.trial.folder for one in planned], options.runs, console)
    return code


def show_plan(
    sweep: Sweep, options: argparse.Namespace, console: Console
) -> tuple[list[PlannedTrial], dict[int, CostEstimate]]:
    planned = plan_trials(sweep, options.runs)
    check_machine(one.config.trainer for one in missing_of(planned, options))
    estimates = estimate_costs(planned, finished_results(options.runs))
    print_plan(sweep, planned, estimates, console, options.compare)
    return planned, estimates


def missing_of(planned: Sequence[PlannedTrial], options: argparse.Namespace) -> list[PlannedTrial]:
    """The trials that are to be trained."""
    return [one for one in planned if options.rerun or one.trial.needs_training()]


def train_missing(
    sweep: Sweep,
    planned: list[PlannedTrial],
    estimates: dict[int, CostEstimate],
    options: argparse.Namespace,
    folder: Path,
    console: Console,
) -> int:
    """Train what is not there, name what failed and what diverged, and return the exit code: 0 where nothing failed."""
    missing = missing_of(planned, options)
    collect_errors(lambda data: prepare(data, options.runs), dict.fromkeys(one.config.data for one in missing))
    make_folder(folder)
    write_json(folder / "plan.json", as_json(sweep, planned, estimates))
    set_wandb_group(sweep.name, sweep.project)
    places = available_workers(options.parallel, [one.config.trainer for one in missing], len(missing))
    listed = GridQueue(missing)
    try:
        if missing:
            console.print(places.describe(missing), soft_wrap=True)
        with ProgressView(console, missing, len(planned) - len(missing), places.count, estimates) as view:
            launch(listed, lambda one: argv(sweep, one, options.runs, options.rerun), places, view)
        for one in listed.failed:
            console.print(f"failed: {one.name}, see {one.trial.log}; the same command tries it again", soft_wrap=True)
        for one in planned:
            if (step := one.trial.diverged_at()) is not None:
                about = f"at step {step}, see {one.trial.log}; --rerun trains it anew"
                console.print(f"diverged: {one.name} {about}", soft_wrap=True)
        return 1 if listed.failed else 0
    except Stopped as stopped:
        console.print(stopped)
        return stopped.exit_code


def read_options(words: list[str]) -> argparse.Namespace:
    parser = CommandParser(prog="python -m transformer_pl.sweep", description="Run a sweep and print its table.")
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="a sweep file: sweeps/table3_A.yaml")
    add_sweep_options(parser)
    add_search_options(parser)
    parser.add_argument("--plan", action="store_true", help="print the plan and start nothing")
    parser.add_argument("--compare", choices=COMPARED, help="in the plan: how far each row is from base")
    parser.add_argument(
        "--parallel", type=_parallel, metavar="N|auto", help="trials at once (auto: as cores and GPUs allow)"
    )
    parser.add_argument(
        "--rerun", action="store_true", help="train finished and diverged trials anew; to go on with that, leave it out"
    )
    parser.add_argument("--sampler", nargs="+", metavar="NAME [key=value]", help="of a search: tpe, random, gp, ...")
    parser.add_argument("--pruner", nargs="+", metavar="NAME [key=value]", help="of a search: none, median, hyperband")
    parser.add_argument("--list", action="store_true", help="what lies under the runs folder")
    parser.add_argument("--clean", action="store_true", help="remove from it, on a yes, what is of no more use")
    options = parser.parse_args(words)
    if sum((options.file is not None, options.list, options.clean)) != 1:
        parser.error("one of FILE, --list and --clean must be given")
    return options


def argv(sweep: Sweep, one: PlannedTrial, runs: Path, rerun: bool) -> list[str]:
    """What one trial is told: its merged keys, on the command line and by no other way."""
    keys = [f"--{key}={value}" for key, value in sweep.rows[one.row].keys.items()]
    rest = [f"--seed={one.config.seed}", f"--runs={runs}", *(["--rerun"] if rerun else [])]
    return [f"--scale={sweep.scale}", *keys, *rest]


def _parallel(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be auto or a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    run_command(main)
