"""Run a sweep:  python -m transformer_pl.sweep sweeps/table3_A.yaml

Checks every trial, prints the plan, trains what is not finished yet, and prints the table beside the paper's numbers.
The same command again resumes interrupted trials and tries failed ones again. A diverged trial is a result: only
--rerun trains it again.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from transformer_pl.checks.run import check_models
from transformer_pl.command_line import (
    CommandParser,
    add_sweep_options,
    complete_sweep_options,
    other_table,
    refuse_options,
    run_command,
    sweep_file,
    sweep_folder,
    whole_number,
)
from transformer_pl.experiments.launch import Launch
from transformer_pl.experiments.measure import measured
from transformer_pl.experiments.plan import (
    Plan,
    PlannedTrial,
    as_json,
    estimate_costs,
    longest_first,
    plan_trials,
    print_plan,
)
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.retune import plan_retuning
from transformer_pl.experiments.sweep_file import SEARCHES, Sweep, read_sweep
from transformer_pl.experiments.texts import prepare_texts, survey_texts
from transformer_pl.experiments.trial_queue import GridQueue
from transformer_pl.launchers import slurm
from transformer_pl.launchers.local import Workers, divide_machine
from transformer_pl.reporting.publish import mention_offline_runs, publish
from transformer_pl.runtime.environment import set_wandb_group
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import check_writable, write_json
from transformer_pl.runtime.terminal import command_console, counted, say
from transformer_pl.runtime.yaml_file import read_yaml
from transformer_pl.trials import cleaning
from transformer_pl.trials.runs_folder import finished_results

LAUNCHERS = ("local", "slurm")
EXAMPLES = """\
examples:
  python -m transformer_pl.sweep sweeps/table3_A.yaml                     train, and print the table
  python -m transformer_pl.sweep table3_A --plan                          the same file by its name; starts nothing
  python -m transformer_pl.sweep table3_A --seeds 1,2,3,4,5               two more seeds; finished trials are reused
  python -m transformer_pl.sweep table3_A --set optim.warmup=800          overrides the file
  python -m transformer_pl.sweep table3_A --scale multi30k --parallel 1   real text, one trial at a time

exit codes: 0 done; 1 a trial failed, or diverged in a grid; 2 the input is wrong, nothing was started; 130, 143 stopped
"""


def main(words: list[str]) -> int:
    options = read_options(words)
    console = command_console()
    if options.schema:
        from transformer_pl.experiments.schema import schema_text  # only this option needs it

        print(schema_text(options.schema))
        return 0
    if options.list:
        cleaning.list_runs(options.runs, console)
        return 0
    if options.clean:
        return cleaning.clean(options.runs, console)
    say(console, f"checking {options.file}")  # an ablation may take seconds to import and to count
    content = read_yaml(options.file)
    if options.measure and not options.plan:
        raise InputError("--measure: is for --plan, which prints the times; add --plan")
    if content.get("method") in SEARCHES:
        from transformer_pl.search.cli import run_search  # imports optuna, which takes a quarter of a second

        return run_search(content, options, console)
    return run_grid(content, options, console)


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
            prepare_texts([data for data, _ in texts], self.options.runs, self.console)
        elif self.options.plan:
            lines = survey_texts(texts, self.console)
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
        prepare_texts([planned.config.data for planned in missing], self.options.runs, self.console)
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
        from transformer_pl.reporting.table import table_of  # scipy takes half a second

        table = table_of(plan.sweep, plan.trials, self.options.beside)

        def draw_page() -> None:
            from transformer_pl.reporting.page_files import write_page  # matplotlib takes a second

            write_page(plan.sweep, plan.trials, table, self.folder)

        return publish(table, draw_page, self.folder, self.console, exit_code)

    def _workers(self, missing: Sequence[PlannedTrial]) -> Workers:
        options, trainers = self.options, [planned.config.trainer for planned in missing]
        return divide_machine(trainers, len(missing), options.parallel, options.devices, options.per_device)


def read_options(words: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m transformer_pl.sweep",
        usage="%(prog)s FILE [options]\n       %(prog)s --list | --clean | --schema sweep|scale",
        description="Train the trials of a sweep file that are not finished, and print their table. The same command\n"
        "again continues where it was stopped. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file", metavar="FILE", type=sweep_file, nargs="?", help="a sweep file, or the name of one that ships: table3_A"
    )
    add_sweep_options(parser)
    run = parser.add_argument_group("how they run")
    run.add_argument("--plan", action="store_true", help="print rows, sizes, cost and time, and start nothing")
    run.add_argument(
        "--measure",
        action="store_true",
        help="for --plan: train the first 50 steps of each row to estimate its time; prepares the text",
    )
    run.add_argument(
        "--parallel",
        type=whole_number(),
        metavar="N",
        help="trials at once (as cores or GPUs allow); with --launcher slurm: workers",
    )
    run.add_argument(
        "--rerun",
        action="store_true",
        help="train finished and diverged trials again; to resume after a stop, repeat the command without --rerun",
    )
    run.add_argument("--launcher", choices=LAUNCHERS, default="local", help="where trials are trained (%(default)s)")
    run.add_argument(
        "--devices",
        type=whole_number(),
        metavar="N",
        help="use N GPUs of this machine, or N CPU cores where no GPU is used (default: all)",
    )
    run.add_argument(
        "--per-device",
        type=whole_number(),
        metavar="K",
        help="run K trials on each GPU, each pinned to its own CPU cores",
    )
    sbatch = "for --launcher slurm: YAML file of sbatch options for one worker"
    run.add_argument("--slurm", type=Path, metavar="FILE", help=sbatch)
    run.add_argument("--wait", action="store_true", help="for --launcher slurm: wait for the job, print the table")
    run.add_argument(
        "--worker", action="store_true", help="end when nothing is left that no other command trains; no table"
    )
    search = parser.add_argument_group("a search (a file with method: random, bayes or custom)")
    search.add_argument(
        "--sampler",
        nargs="+",
        metavar=("NAME", "KEY=VALUE"),
        help="tpe, random, qmc, cma-es, gp or nsga-ii, with its options (random with method: random, else tpe)",
    )
    search.add_argument(
        "--pruner",
        nargs="+",
        metavar=("NAME", "KEY=VALUE"),
        help="none, median, halving or hyperband, with its options (the file's early_terminate, or none)",
    )
    folder = parser.add_argument_group("without a FILE")
    folder.add_argument("--list", action="store_true", help="list the sweeps and trials in the runs folder")
    folder.add_argument("--clean", action="store_true", help="remove what the runs folder no longer needs; asks first")
    folder.add_argument("--schema", choices=("sweep", "scale"), help="print the JSON schema of these files")
    options = parser.parse_args(words)
    complete_sweep_options(options)
    if sum(map(bool, (options.file, options.list, options.clean, options.schema))) != 1:
        parser.error("give one of FILE, --list, --clean and --schema")
    if options.launcher == "slurm" and options.worker:  # one that was submitted
        options.launcher, options.parallel, options.slurm, options.wait = "local", None, None, False
    elif options.launcher == "slurm":
        here = ["devices", "per_device", "measure", "rerun"]
        refuse_options(options, here, "is for the machine that trains, but --launcher slurm only submits workers")
    else:
        refuse_options(options, ["slurm", "wait"], "is for --launcher slurm")
    return options


if __name__ == "__main__":
    run_command(main)
