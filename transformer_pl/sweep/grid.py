"""The sweep command for a grid: the plan, the training of what is missing, the table."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from transformer_pl.laws.checks import Checks, checks_of
from transformer_pl.plan.plan import (
    CostEstimate,
    Plan,
    as_json,
    estimate_costs,
    plan_trials,
    print_plan,
    tested_by,
)
from transformer_pl.plan.queue import GridQueue
from transformer_pl.plan.retune import Retuning, plan_retuning
from transformer_pl.plan.shared_options import margins, sweep_folder
from transformer_pl.plan.sweep_file import Sweep, read_sweep
from transformer_pl.report.row_names import RowNames, read_row_names
from transformer_pl.runtime.command_line import refuse_options
from transformer_pl.runtime.environment import set_wandb_group
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import check_writable
from transformer_pl.runtime.terminal import counted, say
from transformer_pl.sweep.command import SweepCommand
from transformer_pl.sweep.datasets import prepare_datasets, survey_datasets
from transformer_pl.sweep.local import Workers
from transformer_pl.sweep.options import SweepOptions
from transformer_pl.sweep.power import described_looks, difference_found
from transformer_pl.table.rows import Row, with_base
from transformer_pl.task import task_of
from transformer_pl.train.wandb_run import send_report
from transformer_pl.trials.flops import Cost
from transformer_pl.trials.runs_folder import begun_plan, finished_trials, read_plan
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_config import check_match


def run_grid(content: dict[str, Any], options: SweepOptions, console: Console) -> int:
    """Train the trials of a grid, print its table and return the exit code.

    content: the sweep file `options.file` as it was read. Raises an InputError before anything starts.
    """
    refuse_options(options, ["storage", "sampler", "pruner"], f"is for a search, but {options.file} has method: grid")
    sweep = read_sweep(
        options.file, options.scale, options.seeds, options.set, content, options.looks, options.base_seeds
    )
    with_base([Row(name=row.name) for row in sweep.rows], options.base, f" of {sweep.name}")
    command = GridCommand(options, sweep_folder(sweep, options), console)
    command.margin(sweep)
    names = read_row_names(sweep, options.file, None, bool(options.set))
    if options.retune:
        return command.retune(sweep, plan_retuning(sweep, options.retune, options.tries, content.get("metric")), names)
    return command.run(sweep, names)


class GridCommand(SweepCommand):
    """The command on a grid; with --retune it plans and trains twice."""

    refused: Mapping[int, str] = {}  # by row that --skip-broken leaves out: which laws it breaks
    notes: Sequence[str] = ()  # what the laws have seen of parts that pass, which stands under the table, too

    def run(self, sweep: Sweep, names: RowNames | None, exit_code: int = 0) -> int:
        """Plan, train and print a sweep, or submit it; return the exit code.

        names: of the file beside the sweep file.
        exit_code: of what was trained before.
        """
        plan = self.show_plan(sweep)
        if self.submit(self.at_once(sweep, self.trials_to_train(sweep, plan.trials)), plan.datasets):
            return 0
        exit_code = max(exit_code, self.train(plan))
        if self.options.plan or self.others_train(plan):  # the last worker prints the table
            return exit_code
        return self.print_table(plan, names, exit_code)

    def retune(self, sweep: Sweep, tuning: Retuning, names: RowNames | None) -> int:
        """Try the points of --retune, and then `run` the sweep with each row at its best point."""
        plan, later = self.show_plan(tuning.tries(sweep)), len(sweep.configs)
        missing = len(self.trials_to_train(plan.sweep, plan.trials))
        if self.submit(missing or later, plan.datasets):
            return 0
        if self.options.plan and missing:
            say(self.console, f"then every row at its best point: {counted(later, 'trial')} more")
            return 0
        exit_code = self.train(plan)
        if exit_code not in (0, 1) or self.others_train(plan):  # the best point of a row is not known yet
            return exit_code
        return self.run(tuning.best(sweep, plan.trials), names, exit_code)

    def show_plan(self, sweep: Sweep) -> Plan:
        """Plan the sweep and print the plan. Raises an InputError for what cannot run, at all or on this machine."""
        options, trials = self.options, plan_trials(sweep, self.options.runs)
        for trial in trials:
            trial.rerun = options.rerun
        if not options.retune:
            self.looks(sweep)
        missing = self.trials_to_train(sweep, trials)
        workers = None
        if options.launcher == "local":
            workers = self.workers([trial.config for trial in missing], len(missing))
        checked = self._check(sweep)
        missing = self.trials_to_train(sweep, trials)
        # only --plan surveys the datasets here; else `train` prepares them
        used = [(trial.config.data, trial.prepared) for trial in missing if options.plan]
        lines = survey_datasets(used, self.console)
        plan = Plan(sweep, trials, self._estimates(sweep, trials, checked))
        submitted = self.worker_count(self.at_once(sweep, missing)) * (options.per_device or 1)
        at_once = workers.count if workers else submitted
        print_plan(plan, missing, self.console, at_once)
        lines += self._forecast(plan, missing, workers)
        self.notes = list(dict.fromkeys(note for found in checked for note in found.notes))
        lines += self.notes
        lines += [f"refused: {sweep.rows[row].name}: {why}" for row, why in self.refused.items()]
        for line in filter(None, lines):
            say(self.console, line)
        return plan

    def _forecast(self, plan: Plan, missing: Sequence[Trial], workers: Workers | None) -> list[str]:
        """What --plan says beside the plan: where trials are trained, when rows are looked at, and what that finds."""
        if not self.options.plan:
            return []
        where = workers.describe(len(missing)) if missing and workers else ""
        return [where, described_looks(plan.sweep), difference_found(plan)]

    def _estimates(self, sweep: Sweep, trials: Sequence[Trial], checked: Sequence[Checks]) -> dict[int, CostEstimate]:
        """What a trial of each row costs. A row that is left out costs nothing."""
        finished = [result for _, result in finished_trials(self.options.runs)]
        runnable = [trial for trial in trials if trial.place not in self.refused]
        passes = {row: found.passes for row, found in enumerate(checked)}
        nothing = {row: CostEstimate(Cost(0, 0.0), None) for row in self.refused}
        return estimate_costs(runnable, finished, passes, sweep.scale) | nothing

    def _check(self, sweep: Sweep) -> list[Checks]:
        """Check the parts of each row. Raises an InputError for what is wrong, unless such rows may be left out."""
        configs = [row.configs[0] for row in sweep.rows]
        with self.console.status("checking the components") as status:
            checked = checks_of(configs, self.options.runs, lambda what: status.update(f"checking {shown(what)}"))
        self.refused = {row: "; ".join(found.mistakes) for row, found in enumerate(checked) if found.mistakes}
        if self.refused and (not self.options.skip_broken or sweep.base_row in self.refused):
            raise InputError(*(mistake for found in checked for mistake in found.mistakes))
        if sweep.matches_flops:
            check_match((row.name, found.passes) for row, found in zip(sweep.rows, checked, strict=True))
        return checked

    def trials_to_train(self, sweep: Sweep, trials: Sequence[Trial]) -> list[Trial]:
        """Those that are not finished, and that no decision of a look has made needless."""
        needed = [trial for trial in self.needed(sweep, trials) if trial.place not in self.refused]
        return [trial for trial in needed if trial.rerun or trial.needs_training()]

    def needed(self, sweep: Sweep, trials: Sequence[Trial]) -> Sequence[Trial]:
        """All trials but those that a look has made needless."""
        if not sweep.looks:
            return trials
        from transformer_pl.report.looks import as_seen  # scipy takes half a second

        return as_seen(sweep, trials, self.folder).trials

    def at_once(self, sweep: Sweep, missing: Sequence[Trial]) -> int:
        """How many of the missing trials can be trained at the same time: with looks, those before the next one."""
        if not (sweep.looks and missing):
            return len(missing)
        from transformer_pl.report.looks import read_progress  # scipy takes half a second

        progress = read_progress(sweep, self.folder)
        return max(1, len(progress.needed(missing) if progress else missing))

    def margin(self, sweep: Sweep) -> float | None:
        """Within which a difference counts as none. Raises an InputError where it is of another metric."""
        metric = task_of(sweep.base.data).measure.name
        return margins(self.options.margin, (metric,)).get(metric)

    def others_train(self, plan: Plan) -> bool:
        """Whether this command is a worker, which waits for no others, and others still train some of the trials."""
        return self.options.worker and any(trial.lock.is_held() for trial in plan.trials)

    def train(self, plan: Plan) -> int:
        """Train what is not finished, name what failed and what diverged; return 0, 1 (failed), or a signal's code.

        With --plan it does nothing.
        """
        if self.options.plan:
            return 0
        missing = self.trials_to_train(plan.sweep, plan.trials)
        configs = [trial.config for trial in missing]
        check_writable(self.options.runs / "trials")
        prepare_datasets([config.data for config in configs], self.options.runs, self.console)
        looks = {} if self.options.retune else self.looks(plan.sweep)
        tested = {} if self.options.retune else {"tested": self.tested(plan), "looks": looks}
        self.write_plan(as_json(plan) | {"notes": self.notes} | tested)
        set_wandb_group(plan.sweep.name, plan.sweep.project, self.folder.name)
        for trial in plan.trials:
            if trial.place in self.refused and not trial.result():
                trial.make()
                trial.set_status("refused", why=self.refused[trial.place])
        queue = self.queue(plan, missing, looks.get("margin"))
        ended = len(self.needed(plan.sweep, plan.trials)) - len(missing)
        if stopped := self.launch(queue, configs, ended, waits=bool(plan.sweep.looks)):
            return stopped
        self.name_those_that_ended(plan, queue)
        return 1 if queue.failed or self.refused else 0

    def queue(self, plan: Plan, missing: Sequence[Trial], margin: float | None) -> GridQueue:
        """What gives out the missing trials. margin: that of the looks."""
        if not plan.sweep.looks:
            return GridQueue(missing, plan.estimates)
        from transformer_pl.sweep.looks import LooksQueue  # scipy takes half a second

        return LooksQueue(plan, missing, self.folder, margin)

    def name_those_that_ended(self, plan: Plan, queue: GridQueue) -> None:
        """Name the trials that failed or diverged, with the remedy."""
        for trial in queue.failed:
            say(self.console, f"failed: {trial.name}, see {trial.log}; run the same command again to retry")
        for trial in plan.trials:
            if (step := trial.diverged_at()) is not None:
                where = f"at step {step}, see {trial.log}"
                say(self.console, f"diverged: {trial.name} {where}; --rerun trains it again")

    def tested(self, plan: Plan) -> dict[str, Any]:
        """What the table tests: fixed by the first command of this sweep that trained something."""
        return begun_plan(self.folder).get("tested") or tested_by(plan.sweep)

    def looks(self, sweep: Sweep) -> dict[str, Any]:
        """What plan.json says of the looks. Raises an InputError if they are not those of the first training."""
        if not (sweep.looks or begun_plan(self.folder).get("looks")):
            return {}
        from transformer_pl.report.looks import check_looks  # scipy takes half a second

        return check_looks(self.options.file, sweep, self.folder, self.margin(sweep))

    def print_table(self, plan: Plan, names: RowNames | None, exit_code: int) -> int:
        """Print and write the table and the page; return the exit code: 1 in place of 0 if a trial diverged.

        names: of the file beside the sweep file.
        """
        from transformer_pl.report.looks import as_seen
        from transformer_pl.report.sweep_notes import notes_of
        from transformer_pl.report.sweep_table import rows_and_about  # scipy takes half a second
        from transformer_pl.table.table import make_table

        options, sweep = self.options, plan.sweep
        grid = as_seen(sweep, plan.trials, self.folder)
        task = task_of(sweep.base.data)
        rows, about = rows_and_about(
            [grid],
            task,
            names=names,
            notes=notes_of([grid], task.unit, self.folder),
            base=options.base,
            paper=options.paper,
            margin=self.margin(sweep),
        )
        table = make_table(rows, about)

        def draw_page() -> None:
            from transformer_pl.report.page import write_page  # matplotlib takes a second

            write_page(self.folder, f"{sweep.name} at scale {Path(sweep.scale).stem}", sweep.base, table, rows)

        exit_code = exit_code or int(any(trial.diverged_at() is not None for trial in grid.trials))
        send = partial(send_report, self.folder, sweep.name, sweep.project, table, read_plan(self.folder))
        return self.publish(table, draw_page, send, [trial.folder for trial in grid.trials], exit_code)
