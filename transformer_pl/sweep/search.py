"""The sweep command for a sweep file that searches: draw trials, train them, print the table.

Imports optuna, which takes a quarter of a second: import this module only where a file searches.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from transformer_pl.check.run import check_models
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.data.prepared import Prepared
from transformer_pl.plan.options import other_table, sweep_folder
from transformer_pl.report.search_table import search_table
from transformer_pl.runtime.command_line import refuse_options
from transformer_pl.runtime.environment import set_wandb_group
from transformer_pl.runtime.files import check_writable, write_json
from transformer_pl.runtime.terminal import counted, say
from transformer_pl.search import study as studies
from transformer_pl.search.queue import SearchQueue
from transformer_pl.search.results import SearchResults
from transformer_pl.search.space import Search
from transformer_pl.sweep import slurm
from transformer_pl.sweep.datasets import prepare_datasets, survey_datasets
from transformer_pl.sweep.launch import Launch
from transformer_pl.sweep.local import Workers, divide_machine
from transformer_pl.sweep.progress import ProgressView
from transformer_pl.sweep.publish import mention_offline_runs, publish
from transformer_pl.task import open_corpus


def run_search(content: dict[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Run a search, or resume it, until it has `run_cap` trials; print its table and return the exit code.

    content: the sweep file `options.file` as it was read. Raises an InputError before anything starts.
    """
    search = studies.search_from_options(options.file, content, options)
    grids = ["paper", "measure", "rerun"]
    refuse_options(options, grids, f"is for the rows of a grid, but {options.file} searches")
    by_method = ["random" if search.method == "random" else "tpe"]
    sampler = studies.construct(studies.SAMPLERS, options.sampler or by_method, "--sampler")
    pruner = studies.pruner(search, options.pruner)
    folder = sweep_folder(search, options)
    configs = search.single_changes()

    def workers(left: int) -> Workers:
        trainers = [config.trainer for config in configs]
        return divide_machine(trainers, left, options.parallel, options.devices, options.per_device)

    if options.launcher == "local":
        workers(search.run_cap)  # raises an InputError for what this machine lacks
    check_models(configs, options.runs)
    if options.launcher == "slurm" and slurm.submit_workers(options, folder, console, search.run_cap):
        return 0
    goals = " and ".join(f"{direction} {metric}" for metric, direction in search.goals.items())
    say(console, f"{search.name} at scale {search.scale}: {counted(search.run_cap, 'trial')}, {goals}")
    if options.plan:
        if left := _print_plan(search, studies.find_study(search, folder, options.storage), options.runs, console):
            say(console, workers(left).describe([], left))
        return 0
    check_writable(options.runs / "trials")
    if options.storage is None:  # the study lies in the folder
        check_writable(folder)
    study = studies.create_study(search, folder, options.storage)
    check_writable(folder)
    study.sampler, study.pruner = sampler, pruner
    set_wandb_group(search.name, search.project, folder.name)
    prepare_datasets([search.base.data], options.runs, console)
    queue = SearchQueue(search, study, options.runs)
    ended = queue.ended_count()
    left = search.run_cap - ended
    if left > 0:
        say(console, workers(left).describe([], left))
    view = ProgressView(console, queue, ended)
    exit_code = Launch(queue, workers(left), view, waits=not options.worker).run()
    results = SearchResults(search, study, options.runs)
    if not results.records or options.worker:
        return exit_code
    from transformer_pl.report import search_page as plots  # matplotlib takes a second

    table, trained = (
        search_table(results),
        [record for record in results.records if record["folder"]],
    )  # has a valid config
    plan = {"name": search.name, "scale": search.scale, "trials": trained}
    write_json(folder / "plan.json", plan | {"differs": other_table(options)})
    exit_code = exit_code or int(any(record["state"] == "failed" for record in results.records))
    draw_page = partial(plots.write_search_page, results, table, folder)
    exit_code = publish(table, draw_page, folder, console, exit_code)
    trial_folders = [options.runs / "trials" / one["folder"] for one in trained]
    mention_offline_runs(trial_folders, options.runs, console)
    say(console, f"to browse the study: optuna-dashboard {options.storage or folder / studies.JOURNAL}")
    return exit_code


def _print_plan(search: Search, study: studies.Study | None, runs: Path, console: Console) -> int:
    """Print what has been drawn already, and what is to be prepared; return how many trials the search lacks.

    study: None where nothing has been drawn.
    """
    data, trials = search.base.data, studies.counted_trials(study) if study else []
    for trial in trials:
        say(console, f"{studies.trial_name(trial)}: {studies.state_of(trial)}")
    for line in survey_datasets([(data, Prepared(runs / "data" / fingerprint_id(data, open_corpus(data))))], console):
        say(console, line)
    return max(0, search.run_cap - sum(studies.state_of(one) not in ("running", "failed") for one in trials))
