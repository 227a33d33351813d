"""The sweep command for a grid: the plan, the training of what is missing, the table."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from transformer_pl.check.run import check_models
from transformer_pl.plan.options import other_table, sweep_folder
from transformer_pl.plan.plan import (
    Plan,
    PlannedTrial,
    as_json,
    estimate_costs,
    longest_first,
    plan_trials,
    print_plan,
)
from transformer_pl.plan.queue import GridQueue
from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.sweep_file import Sweep, read_sweep
from transformer_pl.runtime.command_line import refuse_options
from transformer_pl.runtime.environment import set_wandb_group
from transformer_pl.runtime.files import check_writable, write_json
from transformer_pl.runtime.terminal import counted, say
from transformer_pl.sweep import slurm
from transformer_pl.sweep.datasets import prepare_datasets, survey_datasets
from transformer_pl.sweep.launch import Launch
from transformer_pl.sweep.local import Workers, divide_machine
from transformer_pl.sweep.measure import measured
from transformer_pl.sweep.progress import ProgressView
from transformer_pl.sweep.publish import mention_offline_runs, publish
from transformer_pl.trials.runs_folder import finished_results


def run_grid(content: dict[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Train the trials of a grid, print its table and return the exit code.

    content: the sweep file `options.file` as it was read. Raises an InputError before anything starts.
    """
    refuse_options(options, ["storage", "sampler", "pruner"], f"is for a search, but {options.file} has method: grid")
    sweep = read_sweep(options.file, options.scale, options.seeds, options.set, content)
    folder = sweep_folder(sweep, options)
    command = GridCommand(options, folder, console)
    retuning = None
    if options.retune:
        retuning = plan_retuning(sweep, options.retune, options.budget, content.get("metric"))
    plan = command.show_plan(retuning.tries(sweep) if retuning else sweep)
    missing = len(command.trials_to_train(plan.trials))
    to_train = missing or (len(sweep.configs) if retuning else 0)
    if options.launcher == "slurm" and slurm.submit_workers(options, folder, console, to_train):
        return 0
    if options.plan:
        if retuning and missing:
            say(console, f"then every row at its best point: {counted(len(sweep.configs), 'trial')} more")
        elif retuning:
            command.show_plan(retuning.best(sweep, plan.trials))
        return 0
    check_writable(options.runs / "trials")
    exit_code = command.train(plan)
    if retuning:
        if exit_code not in (0, 1) or command.others_train(plan):  # the best point of a row is not known yet
            return exit_code
        plan = command.show_plan(retuning.best(sweep, plan.trials))
        exit_code = max(exit_code, command.train(plan))
    if command.others_train(plan):  # the last worker prints the table
        return exit_code
    exit_code = command.publish(plan, exit_code)
    mention_offline_runs([planned.trial.folder for planned in plan.trials], options.runs, console)
    return exit_code


@dataclass(frozen=True)
class GridCommand:
    """The steps of the command on a grid; with --retune it plans and trains twice.

    folder: the sweep's folder, `runs/sweeps/<name>@<scale>`.
    """

    options: argparse.Namespace
    folder: Path
    console: Console

    def show_plan(self, sweep: Sweep) -> Plan:
        """Plan the sweep and print the plan. Raises an InputError for what cannot run, or not on this machine."""
        trials = plan_trials(sweep, self.options.runs)
        missing = self.trials_to_train(trials)
        workers = self._workers(missing) if self.options.launcher == "local" else None
        check_models((row.configs[0] for row in sweep.rows), self.options.runs)
        texts = [(planned.config.data, planned.prepared) for planned in missing]
        lines: list[str] = []  # of texts that are not prepared here; else `train` prepares them
        if self.options.measure:
            prepare_datasets([data for data, _ in texts], self.options.runs, self.console)
        elif self.options.plan:
            lines = survey_datasets(texts, self.console)
        estimates = estimate_costs(trials, finished_results(self.options.runs))
        if self.options.measure and workers:
            estimates = measured(estimates, missing, workers, self.console)
        plan = Plan(sweep, trials, estimates)
        print_plan(plan, missing, self.console, workers.count if workers else 1)
        for line in lines:
            say(self.console, line)
        if self.options.plan and missing and workers:
            say(self.console, workers.describe(missing))
        return plan

    def trials_to_train(self, trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
        if self.options.rerun:
            return [planned._replace(argv=[*planned.argv, "--rerun"]) for planned in trials]
        return [planned for planned in trials if planned.trial.needs_training()]

    def others_train(self, plan: Plan) -> bool:
        """Of a worker, which does not wait for them: whether other commands still train some of the trials."""
        return self.options.worker and any(planned.trial.locked() for planned in plan.trials)

    def train(self, plan: Plan) -> int:
        """Train what is not finished, name what failed and what diverged; return 0, 1 (failed), or a signal's code."""
        missing = longest_first(self.trials_to_train(plan.trials), plan.estimates)
        queue = GridQueue(missing, plan.estimates)
        prepare_datasets([planned.config.data for planned in missing], self.options.runs, self.console)
        check_writable(self.folder)
        write_json(self.folder / "plan.json", as_json(plan) | {"differs": other_table(self.options)})
        set_wandb_group(plan.sweep.name, plan.sweep.project, self.folder.name)
        if missing:
            workers = self._workers(missing)
            say(self.console, workers.describe(missing))
            view = ProgressView(self.console, queue, len(plan.trials) - len(missing))
            if stopped := Launch(queue, workers, view, waits=not self.options.worker).run():
                return stopped
        for planned in queue.failed:
            say(self.console, f"failed: {planned.name}, see {planned.trial.log}; run the same command again to retry")
        for planned in plan.trials:
            if (step := planned.trial.diverged_at()) is not None:
                where = f"at step {step}, see {planned.trial.log}"
                say(self.console, f"diverged: {planned.name} {where}; --rerun trains it again")
        return 1 if queue.failed else 0

    def publish(self, plan: Plan, exit_code: int) -> int:
        """Print and write the table and the page; return the exit code: 1 in place of 0 if a trial diverged."""
        if exit_code == 0 and any(planned.trial.diverged_at() is not None for planned in plan.trials):
            exit_code = 1
        from transformer_pl.report.table import table_of  # scipy takes half a second

        table = table_of(plan.sweep, plan.trials, self.options.paper)

        def draw_page() -> None:
            from transformer_pl.report.page import write_page  # matplotlib takes a second

            write_page(plan.sweep, plan.trials, table, self.folder)

        return publish(table, draw_page, self.folder, self.console, exit_code)

    def _workers(self, missing: Sequence[PlannedTrial]) -> Workers:
        options, trainers = self.options, [planned.config.trainer for planned in missing]
        return divide_machine(trainers, len(missing), options.parallel, options.devices, options.per_device)
