"""The sweep command for a sweep file that searches: draw trials, train them, print the table.

Imports optuna, which takes a quarter of a second: import this module only where a file searches.
"""

from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from shlex import join, quote
from typing import Any

import yaml
from filelock import FileLock
from rich.console import Console

from transformer_pl.config import Config
from transformer_pl.data.prepare import prepared_dataset
from transformer_pl.laws.checks import check_all
from transformer_pl.plan.shared_options import sweep_folder
from transformer_pl.runtime.command_line import refuse_options
from transformer_pl.runtime.environment import set_wandb_group
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import check_writable, write_atomically
from transformer_pl.runtime.terminal import counted, say, waiting
from transformer_pl.search import samplers
from transformer_pl.search import study as studies
from transformer_pl.search.drawing import SearchQueue
from transformer_pl.search.results import BEST_FILE, ENDED, SearchResults
from transformer_pl.search.space import Search
from transformer_pl.search.table import search_report
from transformer_pl.sweep.datasets import prepare_datasets, survey_datasets
from transformer_pl.sweep.starts import described_starts
from transformer_pl.sweep.sweep_command import SweepCommand
from transformer_pl.sweep.sweep_options import SweepOptions
from transformer_pl.task import open_corpus
from transformer_pl.trials.identity import describe_difference, path_notes
from transformer_pl.trials.trial import Origin
from transformer_pl.trials.trial_config import check_match
from transformer_pl.trials.trial_of import trial_of


def run_search(content: dict[str, Any], options: SweepOptions, console: Console) -> int:
    """Run a search, or resume it, until it has `run_cap` trials; print its table and return the exit code.

    content: the sweep file `options.file` as it was read. Raises an InputError before anything starts.
    """
    search = studies.search_from_options(options.file, content, options)
    grids = ["base", "paper", "rerun", "skip_broken", "margin", "looks", "base_seeds"]
    refuse_options(options, grids, f"is for the rows of a grid, but {options.file} searches")
    pruner, sampler_of = samplers.pruner(search, options.pruner), partial(samplers.sampler, search, options.sampler)
    samplers.check_drawing(search, sampler_of(0), pruner)
    command = SweepCommand(options, sweep_folder(search, options), console)
    folder, configs = command.folder, search.single_changes()
    place = options.storage or folder / studies.JOURNAL  # of the study
    if options.launcher == "local":
        command.workers(configs, search.run_cap)  # raises an InputError for what this machine lacks
    _check(command, search, configs)
    if command.submit(search.run_cap, [search.base.data]):
        return 0
    goals = " and ".join(f"{direction} {metric}" for metric, direction in search.goals.items())
    say(console, f"{search.name} at scale {search.scale}: {counted(search.run_cap, 'trial')}, {goals}")
    if options.plan:
        drawn, stopped = type(sampler_of(0)).__name__, type(pruner).__name__
        say(console, f"sampler: {drawn}; pruner: {stopped}; study: {place}")
        if left := _print_plan(command, search):
            say(console, command.workers(configs, left).describe(left))
        return 0
    study = _open_study(command, search)
    check_writable(options.runs / "trials")
    study.sampler, study.pruner = sampler_of(0), pruner
    prepare_datasets([search.base.data], options.runs, console)
    set_wandb_group(search.name, search.project, folder.name)
    is_seeded = samplers.seed_of(options.sampler) is not None
    queue = SearchQueue(search, study, options.runs, sampler_of if is_seeded else None)
    try:
        with studies.answering_database(), closing(queue):
            _write_plan(command, SearchResults(search, study, options.runs))
            exit_code = command.launch(queue, configs, queue.ended_count())
            if options.worker and queue.waits():  # the last worker prints the table
                return exit_code
            results = SearchResults(search, study, options.runs)
    except InputError as error:
        say(console, f"error: {error}")
        return 1
    say(console, f"to browse the study, at any time: optuna-dashboard {quote(str(place))}")
    return _publish(command, results, exit_code)


def _open_study(command: SweepCommand, search: Search) -> studies.Study:
    """The study of a search. Trials whose code or text is no longer that of the file are named, and drawn again."""
    options, folder = command.options, command.folder
    check_writable(folder)
    with studies.answering_database(), FileLock(folder / "lock"):
        study = studies.create_study(search, folder, options.storage)
        results = SearchResults(search, study, options.runs)
        for drawn in results.trials:
            if drawn.number in results.outdated:
                say(command.console, f"{studies.trial_name(drawn)}: had other code or text, and is drawn again")
        return studies.renew(study, results.outdated, folder, options.storage) if results.outdated else study


def _check(command: SweepCommand, search: Search, configs: Sequence[Config]) -> None:
    """Raise an InputError for what is wrong with the parts and the starts of the configs that may be drawn."""
    with waiting(command.console, "checking the components, which takes seconds for each new one") as status:
        checked = check_all(
            configs, command.options.runs, on_check=lambda what: status.update(f"checking {shown(what)}")
        )
    names = [describe_difference(config, search.base) for config in configs]
    starting = [(config, name) for config, name in zip(configs, names, strict=True) if config.model.start]
    trials = [trial_of(config, open_corpus(config.data), command.runs, Origin(name)) for config, name in starting]
    for line in described_starts(trials):
        say(command.console, line)
    if search.matches_flops:
        check_match((name, found.passes) for name, found in zip(names, checked, strict=True))
    unknown = [name for name, found in zip(names, checked, strict=True) if found.passes is None]
    if "flops" in search.goals and unknown:
        rule = "the goal flops must be known for each trial, but how many passes it computes is not"
        raise InputError(*(f"{search.path}: row `{name}`: {rule}; choose another goal" for name in unknown))


def _publish(command: SweepCommand, results: SearchResults, exit_code: int) -> int:
    """Print and write the table and the page; return the exit code: 1 in place of 0 if a trial has failed."""
    if not results.records:
        return exit_code
    search, folder, runs = results.search, command.folder, command.options.runs
    trained = _write_plan(command, results)
    exit_code = exit_code or int(any(record["state"] == "failed" for record in results.records))
    folders = [runs / "trials" / record["folder"] for record in trained]
    following, best, content = None, folder / BEST_FILE, results.best_sweep
    with suppress(OSError):  # publishing says so
        if content:
            write_atomically(best, yaml.safe_dump(content, sort_keys=False))
            words = ["python", "-m", "transformer_pl.sweep", str(best), "--runs", str(runs)]
            what = "front" if len(search.goals) > 1 else "best"
            following = f"train base and the {what} with new seeds: {join(words)}"
        else:
            best.unlink(missing_ok=True)  # base has become the best
    return command.publish(search_report(results), folders, exit_code, following)


def _write_plan(command: SweepCommand, results: SearchResults) -> list[dict[str, Any]]:
    """Write plan.json, and return the trials that it has: the drawn ones that have a valid config, and so a folder."""
    trials = [record for record in results.records if record["folder"]]
    command.write_plan({"name": results.search.name, "scale": results.search.scale, "trials": trials})
    return trials


def _print_plan(command: SweepCommand, search: Search) -> int:
    """Print what has been drawn already, and what is to be prepared; return how many trials the search lacks."""
    options, data, console, states = command.options, search.base.data, command.console, list[str]()
    with studies.answering_database():
        if study := studies.find_study(search, command.folder, options.storage):
            results = SearchResults(search, study, options.runs)
            for trial in sorted(results.trials, key=studies.shown_number):
                states.append(results.state_of(trial))
                say(console, f"{studies.trial_name(trial)}: {states[-1]}")
    lines = survey_datasets([(data, prepared_dataset(data, options.runs, open_corpus(data)))], console)
    for line in [*lines, *path_notes(search.single_changes())]:
        say(console, line)
    return max(0, search.run_cap - sum(state in ENDED for state in states))
