"""The sweep command for a sweep file that searches: draw trials, train them, print the table.

Imports optuna, which takes a quarter of a second: import this module only where a file searches.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console

from transformer_pl.checks.run import check_models
from transformer_pl.command_line import kept_options, refuse_options, sweep_folder
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.sources import open_corpus
from transformer_pl.experiments.launch import launch
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.texts import prepare_texts, survey_texts
from transformer_pl.launchers import slurm
from transformer_pl.launchers.local import LocalLauncher
from transformer_pl.reporting.publish import mention_offline_runs, publish
from transformer_pl.runtime.environment import set_wandb_group
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_json
from transformer_pl.runtime.signals import Stopped
from transformer_pl.runtime.terminal import counted, say
from transformer_pl.search import samplers
from transformer_pl.search import study as studies
from transformer_pl.search.queue import SearchQueue
from transformer_pl.search.results import SearchResults
from transformer_pl.search.space import Search, read_search
from transformer_pl.trials.runs_folder import check_writable


def run_search(content: dict[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Run a search, or resume it, until it has `run_cap` trials; print its table and return the exit code.

    content: the sweep file `options.file` as it was read. Raises an InputError before anything starts.
    """
    search = search_from_options(options.file, content, options)
    grids = ["beside", "measure", "rerun"]
    refuse_options(options, grids, f"is for the rows of a grid, but {options.file} searches")
    by_method = ["random" if search.method == "random" else "tpe"]
    sampler = samplers.construct(samplers.SAMPLERS, options.sampler or by_method, "--sampler")
    pruner = samplers.pruner(search, options.pruner)
    folder = sweep_folder(search, options)
    launcher = LocalLauncher(options.parallel, options.devices, options.per_device)
    configs = search.single_changes()
    trainers = [config.trainer for config in configs]
    if options.launcher == "local":
        launcher.check(trainers)
    check_models(configs, options.runs)
    if options.launcher == "slurm" and slurm.submit_workers(options, folder, console, search.run_cap):
        return 0
    goals = " and ".join(f"{direction} {metric}" for metric, direction in search.goals.items())
    say(console, f"{search.name} at scale {search.scale}: {counted(search.run_cap, 'trial')}, {goals}")
    if options.plan:
        launcher.allot(trainers, search.run_cap)
        _print_plan(search, studies.find_study(search, folder, options.storage), options.runs, console, launcher)
        return 0
    check_writable(options.runs)
    folder.mkdir(parents=True, exist_ok=True)
    study = studies.create_study(search, folder, options.storage)
    study.sampler, study.pruner = sampler, pruner
    set_wandb_group(search.name, search.project, folder.name)
    prepare_texts([search.base.data], options.runs, console)
    queue = SearchQueue(search, study, options.runs)
    left = search.run_cap - queue.counts().ended
    launcher.allot(trainers, left)
    exit_code = _train(queue, left, options, console, launcher)
    results = SearchResults(search, study, options.runs)
    if not results.records or options.worker:
        return exit_code
    from transformer_pl.search import plots  # matplotlib takes a second

    table, trained = results.table(), [record for record in results.records if record["folder"]]  # has a valid config
    plan = {"name": search.name, "scale": search.scale, "trials": trained}
    write_json(folder / "plan.json", plan | kept_options(options))
    exit_code = exit_code or int(any(record["state"] == "failed" for record in results.records))
    draw_page = partial(plots.write_search_page, results, table, folder)
    exit_code = publish(table, draw_page, folder, console, exit_code)
    trial_folders = [options.runs / "trials" / one["folder"] for one in trained]
    mention_offline_runs(trial_folders, options.runs, console)
    say(console, f"to browse the study: optuna-dashboard {options.storage or folder / studies.JOURNAL}")
    return exit_code


def search_from_options(file: Path, content: dict[str, Any], options: argparse.Namespace) -> Search:
    """The search that a sweep file describes, with the options of the command line. Raises an InputError."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the sweep prints what becomes of each trial
    studies.check_url(options.storage)
    if options.retune:
        raise InputError(f"--retune: is for the rows of a grid, but {file} searches; add the keys to its parameters")
    return read_search(file, content, options.scale, options.seeds, options.set)


def _print_plan(
    search: Search, study: optuna.Study | None, runs: Path, console: Console, launcher: LocalLauncher
) -> None:
    """Print what has been drawn already, what is to be prepared, and how many trials run at once.

    study: None where nothing has been drawn.
    """
    data, trials = search.base.data, studies.counted_trials(study) if study else []
    for trial in trials:
        say(console, f"{studies.trial_name(trial)}: {studies.state_of(trial)}")
    for line in survey_texts([(data, Prepared(runs / "data" / fingerprint_id(data, open_corpus(data))))], console):
        say(console, line)
    if left := max(0, search.run_cap - sum(studies.state_of(one) not in ("running", "failed") for one in trials)):
        say(console, launcher.workers.describe([], left))


def _train(
    queue: SearchQueue, left: int, options: argparse.Namespace, console: Console, launcher: LocalLauncher
) -> int:
    """Train until the study is complete; return 0, or the exit code of the signal that stopped it.

    left: how many trials the study lacks. launcher: allotted.
    """
    if left > 0:
        say(console, launcher.workers.describe([], left))
    try:
        with ProgressView(console, [], 0, queue.estimates, queue.counts) as view:
            launch(queue, lambda planned: queue.argv(planned, options.runs), launcher, view, waits=not options.worker)
    except Stopped as stopped:
        queue.stopped()
        console.print(stopped)
        return stopped.exit_code
    return 0
