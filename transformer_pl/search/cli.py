"""The sweep command for a sweep file that searches: draw trials, train them, print the table.

Imports optuna, which takes a quarter of a second: import this module only where a file searches.
"""

import argparse
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console

from transformer_pl.checks.run import check_models
from transformer_pl.command_line import kept_options, make_folder, other_table, refuse_options, sweep_folder
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.sources import open_corpus
from transformer_pl.experiments.launch import launch
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.texts import prepare_texts, survey_texts
from transformer_pl.launchers import slurm
from transformer_pl.launchers.local import LocalLauncher
from transformer_pl.reporting.publish import Publisher, mention_offline_runs
from transformer_pl.runtime.environment import set_wandb_group
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_json
from transformer_pl.runtime.signals import Stopped
from transformer_pl.runtime.terminal import say
from transformer_pl.search import samplers
from transformer_pl.search import study as studies
from transformer_pl.search.queue import SearchQueue
from transformer_pl.search.results import SearchResults
from transformer_pl.search.space import Search, print_search, read_search
from transformer_pl.trials.runs_folder import check_writable


def run_search(content: dict[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Run a search, or resume it, until it has `run_cap` trials; print its table and return the exit code.

    content: the sweep file `options.file` as it was read. Raises an InputError before anything starts.
    """
    search = search_from_options(options.file, content, options)
    grids = ["beside", "measure", "rerun"]
    refuse_options(options, grids, f"is for the rows of a grid, but {options.file} searches")
    sampler, pruner = samplers.sampler(search, options.sampler), samplers.pruner(search, options.pruner)
    folder = sweep_folder(search, options)
    launcher = LocalLauncher(options.parallel, options.devices, options.per_device)
    configs = search.single_changes()
    trainers = [config.trainer for config in configs]
    if options.launcher == "local":
        launcher.check(trainers)
    check_models(configs, options.runs)
    if options.launcher == "slurm" and slurm.submit_workers(options, folder, console, search.run_cap):
        return 0
    if options.plan:
        launcher.allot(trainers, search.run_cap)
        _print_plan(search, studies.find_study(search, folder, options.storage), options.runs, console, launcher)
        return 0
    print_search(search, console)
    check_writable(options.runs)
    if options.storage is None:  # the study lies in the folder
        make_folder(folder)
    study = studies.create_study(search, folder, options.storage, sampler, pruner)
    make_folder(folder)
    set_wandb_group(search.name, search.project, folder.name)
    try:
        prepare_texts([search.base.data], options.runs, console)
        queue = SearchQueue(search, study, options.runs)
        left = search.run_cap - queue.counts().ended
        launcher.allot(trainers, left)
        exit_code = _train(queue, left, options, console, launcher)
        results = SearchResults(search, study, options.runs)
    except studies.DATABASE_ERRORS as error:
        reason = studies.first_line(error)
        say(console, f"the study cannot be reached: {reason}; run the same command again to resume")
        return 1
    if not results.records or options.worker:
        return exit_code
    from transformer_pl.search import plots  # matplotlib takes a second

    trained = [record for record in results.records if record["folder"]]  # all but those with an invalid config
    plan = {"name": search.name, "scale": search.scale, "trials": trained}
    write_json(folder / "plan.json", plan | kept_options(options))
    exit_code = exit_code or int(any(record["state"] == "failed" for record in results.records))
    publisher, table = Publisher(search.name, search.scale, folder, console, other_table(options)), results.table()
    exit_code = publisher.publish(table, lambda: plots.write_search_page(results, table, folder), exit_code)
    trial_folders = [options.runs / "trials" / one["folder"] for one in trained]
    mention_offline_runs([*trial_folders, folder], options.runs, console)
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
    """Print the search, its text, what has been drawn already, and how many of its trials run at once.

    study: None where nothing has been drawn.
    """
    data = search.base.data
    prepared = Prepared(runs / "data" / fingerprint_id(data, open_corpus(data)))
    lines = survey_texts([(data, prepared)], console)
    print_search(search, console)
    trials = study.get_trials(deepcopy=False) if study else []
    states = studies.states_of(trials)
    counted = [trial for trial in trials if states[trial.number] not in studies.UNCOUNTED]
    for line in [*(f"{studies.trial_name(trial)}: {states[trial.number]}" for trial in counted), *lines]:
        say(console, line)
    if (left := search.run_cap - sum(states[one.number] not in ("running", "failed") for one in counted)) > 0:
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
    except InputError:
        queue.stopped()
        raise
    return 0
