"""Run a sweep:  python -m transformer_pl.sweep sweeps/table3_A.yaml

Checks every trial, prints the plan, trains what is missing, prints the table beside the paper's numbers. The same
command goes on with what was interrupted and tries again what failed; what diverged stays so.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from transformer_pl.config import Trainer, read_yaml
from transformer_pl.data.prepare import prepare
from transformer_pl.experiments.cli import (
    add_search_options,
    add_sweep_options,
    make_folder,
    refuse_options,
    search_of,
    sweep_folder,
)
from transformer_pl.experiments.launch import GridQueue, available_workers, launch
from transformer_pl.experiments.plan import (
    MATCHES,
    CostEstimate,
    PlannedTrial,
    as_json,
    estimate_costs,
    plan_trials,
    print_plan,
)
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.retune import plan_retuning
from transformer_pl.experiments.sweep_file import SEARCHES, Sweep, read_sweep
from transformer_pl.report import table_of, write_page, write_search_page
from transformer_pl.reporting.render import Table
from transformer_pl.runtime.errors import CommandParser, collect_errors, run_command
from transformer_pl.runtime.machine import accelerator, gpus
from transformer_pl.runtime.signals import Stopped
from transformer_pl.training.wandb_process import SEND_S, WandbRun
from transformer_pl.trials import cleaning
from transformer_pl.trials.names import sweep_title
from transformer_pl.trials.trial import check_writable, finished_results, runs_lock, write_atomically, write_json


def main(words: list[str]) -> int:
    options = read_options(words)
    console = Console(highlight=False, markup=False, emoji=False)
    if options.schema:
        from transformer_pl.experiments.schema import schema_text  # only this option needs it

        print(schema_text(options.schema))
        return 0
    if options.list:
        cleaning.list_runs(options.runs, console)
        return 0
    if options.clean:
        with runs_lock(options.runs, alone=True):
            return cleaning.clean(options.runs, console)
    console.print(f"checking {options.file}")  # a departure may take seconds to import and count
    content = read_yaml(options.file)
    if content.get("method") in SEARCHES:
        return search(content, options, console)
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
        code = tell(sweep, table, lambda: write_page(sweep, planned, table, folder), folder, code, console)
    tell_offline([one.trial.folder for one in planned], options.runs, console)
    return code


def show_plan(
    sweep: Sweep, options: argparse.Namespace, console: Console
) -> tuple[list[PlannedTrial], dict[int, CostEstimate]]:
    planned = plan_trials(sweep, options.runs)
    check_machine(one.config.trainer for one in missing_of(planned, options))
    estimates = estimate_costs(planned, finished_results(options.runs))
    print_plan(sweep, planned, estimates, console, options.match)
    return planned, estimates


def missing_of(planned: Sequence[PlannedTrial], options: argparse.Namespace) -> list[PlannedTrial]:
    """The trials that are to be trained."""
    return [one for one in planned if options.rerun or one.trial.needs_training()]


def check_machine(trainers: Iterable[Trainer]) -> None:
    """Raises one InputError for all that this machine cannot do."""
    found = len(gpus())
    collect_errors(lambda trainer: accelerator(trainer, found), dict.fromkeys(trainers))


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
    os.environ["WANDB_RUN_GROUP"] = sweep.name
    os.environ.setdefault("WANDB_PROJECT", sweep.project)
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


def tell(
    sweep: Any, table: Table, make_page: Callable[[], dict[str, Path]], folder: Path, code: int, console: Console
) -> int:
    """The table in the terminal, in the sweep's folder and at W&B, and its page; returns the exit code."""
    console.print(table.terminal())
    try:
        shown = folder / "table.md"
        as_before = shown.exists() and shown.read_bytes() == table.markdown().encode()
        write_atomically(folder / "table.tex", table.latex())
        write_atomically(folder / "results.csv", table.csv())
        if code in (0, 1) and not (
            as_before and (folder / "report.html").exists()
        ):  # an interrupted one is to end soon
            tell_wandb(sweep, table, make_page(), folder)
        write_atomically(shown, table.markdown())
        console.print(f"table and results: {folder}", soft_wrap=True)
    except OSError as error:  # the results themselves lie with their trials
        console.print(f"table: cannot be written to {folder}: {error}; the same command writes it")
        return code or 1
    return code


def tell_offline(trials: Sequence[Path], runs: Path, console: Console) -> None:
    if any(any(folder.glob("wandb/offline-run-*")) for folder in trials):
        later = f"wandb sync {runs}/*/*/wandb/offline-run-*"
        console.print(f"W&B: some runs are offline; later: {later}", soft_wrap=True)


def search(content: dict[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Go on with a search until its run_cap, print its table, and return the exit code."""
    from transformer_pl.search import results, space, storage, study  # optuna takes a quarter of a second

    found = search_of(options.file, content, options)
    refuse_options(options, ["match", "rerun"], f"is for the rows of a grid, but {options.file} searches")
    sampler, pruner = storage.sampler(found, options.sampler), storage.pruner(found, options.pruner)
    storage.try_out(found, sampler, pruner)
    check_machine(found.trainers())
    space.print_search(found, console)
    if options.plan:
        return 0
    check_writable(options.runs)
    folder = sweep_folder(found, options)
    with runs_lock(options.runs):
        make_folder(folder)
        kept = storage.create_study(found, folder, options.storage, sampler, pruner)
        prepare(found.base.data, options.runs)
        at_work = study.SearchQueue(found, kept, options.runs)
        os.environ["WANDB_RUN_GROUP"] = found.name
        os.environ.setdefault("WANDB_PROJECT", found.project)
        places = available_workers(options.parallel, found.trainers(), found.run_cap - len(study.counted_trials(kept)))
        code = 0
        try:
            with ProgressView(console, [], 0, places.count, at_work.estimates) as view:
                launch(at_work, lambda one: at_work.argv(one, options.runs), places, view)
        except Stopped as stopped:
            at_work.stopped()
            console.print(stopped)
            code = stopped.exit_code
        except storage.Unreachable as error:
            console.print(f"the study cannot be reached: {error}; the same command goes on", soft_wrap=True)
            return 1
        came_to = results.SearchResults(found, kept, options.runs)
        if not came_to.records:
            return code
        table = came_to.table()
        write_json(folder / "plan.json", {"name": found.name, "scale": found.scale, "trials": came_to.trained})
        code = code or int(any(record["state"] == "failed" for record in came_to.records))
        code = tell(found, table, lambda: write_search_page(came_to, table, folder), folder, code, console)
    tell_offline([options.runs / "trials" / one["folder"] for one in came_to.trained], options.runs, console)
    console.print(f"look at it: optuna-dashboard {storage.display_url(options.storage, folder)}", soft_wrap=True)
    return code


def tell_wandb(sweep: Any, table: Table, pictures: dict[str, Path], folder: Path) -> None:
    """The table and the figures as a run of their own, in the sweep's group."""
    name, scale = sweep_title(sweep.name, sweep.scale), Path(sweep.scale).stem
    report = WandbRun(folder=str(folder), name=name, tags=[scale], config={}, job_type="report")
    report.tell(tables={"results": table.shown()})
    report.tell(images={caption: str(path) for caption, path in pictures.items()})
    report.finish(0, wait=SEND_S)  # it has everything still to send


def read_options(words: list[str]) -> argparse.Namespace:
    parser = CommandParser(prog="python -m transformer_pl.sweep", description="Run a sweep and print its table.")
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="a sweep file: sweeps/table3_A.yaml")
    add_sweep_options(parser)
    add_search_options(parser)
    parser.add_argument("--plan", action="store_true", help="print the plan and start nothing")
    parser.add_argument("--match", choices=MATCHES, help="in the plan: how far each row is from base in that")
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
    parser.add_argument("--schema", choices=("sweep", "scale"), help="print the JSON schema of these files")
    options = parser.parse_args(words)
    if sum((options.file is not None, options.list, options.clean, options.schema is not None)) != 1:
        parser.error("one of FILE, --list and --clean, or --schema, must be given")
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
