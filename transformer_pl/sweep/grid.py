"""The sweep command for a grid: the plan, the training of what is missing, the table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import join
from typing import Any

from filelock import FileLock
from rich.console import Console

from transformer_pl.laws.checks import Checks, checks_of
from transformer_pl.plan.plan import (
    CostEstimate,
    Plan,
    as_json,
    estimate_costs,
    plan_trials,
    print_plan,
    row_costs,
    tested_by,
)
from transformer_pl.plan.queue import GridQueue
from transformer_pl.plan.retune import Retuning, plan_retuning
from transformer_pl.plan.shared_options import sweep_folder
from transformer_pl.plan.sweep_file import Sweep, read_sweep
from transformer_pl.report.decisions import Decisions, read_decisions
from transformer_pl.report.published import RowsFile, read_row_names
from transformer_pl.report.sweep_rows import Grid
from transformer_pl.report.sweeps import margin_of, report_of
from transformer_pl.runtime.command_line import refuse_options
from transformer_pl.runtime.environment import set_wandb_group
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import check_writable
from transformer_pl.runtime.terminal import counted, say, waiting
from transformer_pl.sweep.datasets import prepare_datasets, survey_datasets
from transformer_pl.sweep.local import Workers
from transformer_pl.sweep.looks_queue import LooksQueue
from transformer_pl.sweep.power import described_looks, difference_found
from transformer_pl.sweep.starts import described_starts
from transformer_pl.sweep.sweep_command import SweepCommand
from transformer_pl.sweep.sweep_options import SweepOptions
from transformer_pl.table.row import Row, with_base
from transformer_pl.trials.flops import Cost
from transformer_pl.trials.runs_folder import begun_plan
from transformer_pl.trials.trial import Trial, with_trunks
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
    margin_of(sweep, options.margin)
    names = read_row_names(sweep, options.file, None, bool(options.set))
    if options.retune:
        return command.retune(sweep, plan_retuning(sweep, options.retune, options.tries, content.get("metric")), names)
    return command.run(sweep, names)


class GridCommand(SweepCommand):
    """The command on a grid; with --retune it plans and trains twice."""

    refused: Mapping[int, str] = {}  # by row that --skip-broken leaves out: which laws it breaks
    decisions: Decisions | None = None  # of the looks, as they were read last; None for a sweep without looks
    notes: Sequence[str] = ()  # what the laws have seen of parts that pass, which stands under the table, too

    def run(self, sweep: Sweep, names: RowsFile | None, exit_code: int = 0) -> int:
        """Plan, train and print a sweep, or submit it; return the exit code.

        names: of the file beside the sweep file.
        exit_code: of what was trained before.
        """
        plan = self.show_plan(sweep)
        if self.submit(self.at_once(self.trials_to_train(plan.trials)), plan.datasets):
            return 0
        exit_code = max(exit_code, self.train(plan))
        if self.options.plan or self.others_train(plan):  # the last worker prints the table
            return exit_code
        return self.print_table(plan, names, exit_code)

    def retune(self, sweep: Sweep, tuning: Retuning, names: RowsFile | None) -> int:
        """Try the points of --retune, and those beyond the lowest and highest ones that were best, and then `run` the
        sweep with each row at its best point."""
        tuning, *_ = tuning.as_far_as_known(sweep, lambda tries: plan_trials(tries, self.runs))
        plan, later = self.show_plan(tuning.tries(sweep)), len(sweep.configs)
        missing = len(self.trials_to_train(plan.trials))
        if self.submit(missing or later, plan.datasets):
            return 0
        if self.options.plan and missing:
            say(self.console, f"then every row at its best point: {counted(later, 'trial')} more")
            return 0
        exit_code = self.train(plan)
        if exit_code not in (0, 1) or self.others_train(plan):  # the best point of a row is not known yet
            return exit_code
        again = replace(self)  # which lists the runs folder again
        if tuning.further(sweep, plan.trials):
            return max(exit_code, again.retune(sweep, tuning, names))
        return again.run(tuning.best(sweep, plan.trials), names, exit_code)

    def show_plan(self, sweep: Sweep) -> Plan:
        """Plan the sweep and print the plan. Raises an InputError for what cannot run, at all or on this machine."""
        options = self.options
        trials = plan_trials(sweep, self.runs, rerun=options.rerun)
        self.decisions = self.read_decisions(sweep, trials)
        if self.decisions and not self.decisions.lacking:
            self.decisions.looked_at()  # raises an InputError for a decision that its results do not show
        missing = self.trials_to_train(trials)
        plan = Plan(sweep, trials, {}, [trial for trial in missing if trial.place >= len(sweep.rows)])
        is_here = options.launcher == "local"
        workers = self.workers([trial.config for trial in missing], len(missing)) if is_here else None
        # The cheapest check first: the text, one run of each row, and the laws.
        used = [(trial.config.data, trial.prepared) for trial in missing if not options.worker]
        datasets = survey_datasets(used, self.console)  # which `train` prints, once it has prepared them
        costs: Mapping[int, tuple[Cost, bool]] = {}
        if not options.skip_broken:
            with waiting(self.console, "running each row once"):
                costs = row_costs(plan.planned)
        checked = self._check(plan, missing)
        missing = self.trials_to_train(trials)
        begun = described_starts(missing)
        plan = plan._replace(estimates=self._estimates(plan, checked, costs))
        at_once = workers.count if workers else self.worker_count(self.at_once(missing)) * (options.per_device or 1)
        print_plan(plan, missing, self.console, self.runs, at_once)
        lines = [*datasets, *self._forecast(plan, missing, workers)] if options.plan else []
        self.notes = list(dict.fromkeys(note for found in checked.values() for note in found.notes))
        for line in filter(None, [*begun, *lines, *self.notes, *self._refusals(sweep)]):
            say(self.console, line)
        return plan

    def _refusals(self, sweep: Sweep) -> list[str]:
        """Which rows are left out, and why, each reason once."""
        rows: dict[str, list[str]] = {}
        for row, why in self.refused.items():
            rows.setdefault(why, []).append(sweep.planned[row].title)
        return [f"refused: {', '.join(names)}: {why}" for why, names in rows.items()]

    def _forecast(self, plan: Plan, missing: Sequence[Trial], workers: Workers | None) -> list[str]:
        """What --plan says beside the plan: where trials are trained, when rows are looked at, and what that finds."""
        where = workers.describe(len(missing)) if missing and workers else ""
        return [where, described_looks(plan.sweep), difference_found(plan)]

    def _estimates(
        self, plan: Plan, checked: Mapping[int, Checks], costs: Mapping[int, tuple[Cost, bool]]
    ) -> dict[int, CostEstimate]:
        """What a trial of each row costs. A row that is left out costs nothing. costs: those that are known."""
        finished = [result for _, result in self.runs.finished()]
        runnable = [trial for trial in plan.planned if trial.place not in self.refused]
        passes: dict[int, float | None] = {row: found.passes for row, found in checked.items()}
        nothing = {row: CostEstimate(Cost(0, 0.0), None) for row in self.refused}
        return estimate_costs(runnable, finished, passes, by_scale=True, costs=costs) | nothing

    def _check(self, plan: Plan, missing: Sequence[Trial]) -> dict[int, Checks]:
        """Check the parts of each row, by its place. Raises an InputError for what is wrong, unless such rows may be
        left out."""
        rows = plan.rows
        configs, names = [row.configs[0] for row in rows.values()], [row.title for row in rows.values()]
        with waiting(self.console, "checking the components, which takes seconds for each new one") as status:
            on_check = lambda what: status.update(f"checking {shown(what)}")  # noqa: E731
            students = {[*rows].index(trial.place) for trial in missing}
            found = checks_of(configs, self.options.runs, on_check, students, names)
        checked = dict(zip(rows, found, strict=True))
        self.refused = {row: "; ".join(checks.mistakes) for row, checks in checked.items() if checks.mistakes}
        if self.refused and (not self.options.skip_broken or plan.sweep.base_row in self.refused):
            raise InputError(*(mistake for checks in found for mistake in checks.mistakes))
        matching = [(row, place) for place, row in rows.items() if (row.of or plan.sweep).matches_flops]
        check_match((row.title, checked[place].passes) for row, place in matching)
        return checked

    def trials_to_train(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that are not finished, and that no decision of a look has made needless, and what they start from."""
        needed = [trial for trial in with_trunks(self.needed(trials)) if trial.place not in self.refused]
        return [trial for trial in needed if trial.needs_training()]

    def needed(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """All trials but those that a look has made needless."""
        return self.decisions.trials if self.decisions else trials

    def at_once(self, missing: Sequence[Trial]) -> int:
        """How many of the missing trials can be trained at the same time: with looks, those before the next one.

        Those that others start from are no longer trained when these are.
        """
        starts = {trial.start.id for trial in missing if trial.start}
        last = [trial for trial in missing if trial.id not in starts]
        return max(1, len(self.decisions.needed(last))) if self.decisions and missing else len(last)

    def read_decisions(self, sweep: Sweep, trials: Sequence[Trial]) -> Decisions | None:
        """What the looks have decided. Raises an InputError if they are not those of the first training."""
        return read_decisions(self.options.file, sweep, trials, self.folder, margin_of(sweep, self.options.margin))

    def others_train(self, plan: Plan) -> bool:
        """Whether this command is a worker, which waits for no others, and others still train some of the trials."""
        return self.options.worker and any(trial.folder.lock.is_held() for trial in plan.planned)

    def train(self, plan: Plan) -> int:
        """Train what is not finished, name what failed and what diverged; return 0, 1 (failed), or a signal's code.

        With --plan it does nothing.
        """
        if self.options.plan:
            return 0
        missing = self.trials_to_train(plan.trials)
        configs = [trial.config for trial in missing]
        check_writable(self.options.runs / "trials")
        prepare_datasets([config.data for config in configs], self.options.runs, self.console)
        self.begin(plan)
        set_wandb_group(plan.sweep.name, plan.sweep.project, self.folder.name)
        for trial in plan.planned:
            if trial.place in self.refused and not trial.folder.result():
                trial.folder.make()
                trial.folder.set_status("refused", why=self.refused[trial.place])
        queue = GridQueue(missing, plan.estimates)
        if self.decisions:
            queue = LooksQueue(plan, missing, self.decisions)
        ended = len([*self.needed(plan.trials), *plan.trunks]) - len(missing)
        waits = bool(plan.sweep.looks) or any(trial.trunk for trial in missing)  # else a worker ends, which others need
        if stopped := self.launch(queue, configs, ended, waits=waits):
            return stopped
        self.name_those_that_ended(plan, queue)
        return 1 if queue.failed or self.refused or queue.stranded() else 0

    def begin(self, plan: Plan) -> None:
        """Write plan.json. What the table tests is fixed by the first command of this sweep that trained something."""
        check_writable(self.folder)
        with FileLock(self.folder / "lock"):  # of commands that start together, all have the looks of the first
            self.decisions = self.read_decisions(plan.sweep, plan.trials)
            looks = self.decisions.plan if self.decisions else None
            first = begun_plan(self.folder).get("tested") or tested_by(plan.sweep)
            tested = {} if self.options.retune else {"tested": first, "looks": looks}
            self.write_plan(as_json(plan) | {"notes": self.notes} | tested)

    def name_those_that_ended(self, plan: Plan, queue: GridQueue) -> None:
        """Name the trials that failed or diverged, with the remedy, and those that wait for these."""
        for trial in queue.failed:
            say(self.console, f"failed: {trial.name}, see {trial.folder.log}; run the same command again to retry")
        for trial in plan.planned:
            if (step := trial.folder.diverged_at()) is not None:
                where = f"at step {step}, see {trial.folder.log}"
                again = join(["python", "-m", "transformer_pl.train", *trial.argv, "--rerun"])
                say(self.console, f"diverged: {trial.name} {where}; to train it again: {again}")
        if stranded := [trial.name for trial in queue.stranded()]:
            say(self.console, f"not trained, as their start has no weights: {', '.join(stranded)}")

    def print_table(self, plan: Plan, names: RowsFile | None, exit_code: int) -> int:
        """Print and write the table and the page; return the exit code: 1 in place of 0 if a trial diverged.

        names: of the file beside the sweep file.
        """
        options, sweep = self.options, plan.sweep
        decisions = self.read_decisions(sweep, plan.trials)
        grid = Grid(sweep, decisions.trials, decisions.looked_at()) if decisions else Grid(sweep, plan.trials)
        report = report_of(options.file, grid, names, margin_of(sweep, options.margin), options)
        exit_code = exit_code or int(any(trial.folder.diverged_at() is not None for trial in grid.trials))
        return self.publish(report, [trial.folder.path for trial in grid.trials], exit_code)
