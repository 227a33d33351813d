"""What the command does for a grid and for a search alike: train what a queue gives out, print and write the table."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from shlex import join, quote
from typing import Any

from filelock import FileLock
from rich.console import Console

from transformer_pl.config import Config, Data
from transformer_pl.config.levels import scale_names
from transformer_pl.plan.queue import TrialQueue
from transformer_pl.plan.shared_options import other_table, report_command
from transformer_pl.plan.sweep_file import leading_comment, located
from transformer_pl.report.tables import Report
from transformer_pl.runtime.command_line import words_of
from transformer_pl.runtime.files import check_writable, read_text, write_atomically, write_json
from transformer_pl.runtime.terminal import counted, say, say_next, table_width
from transformer_pl.sweep.datasets import prepare_datasets
from transformer_pl.sweep.launch import Launch
from transformer_pl.sweep.launchers import LAUNCHERS
from transformer_pl.sweep.local import Workers, divide_machine
from transformer_pl.sweep.progress import ProgressView
from transformer_pl.sweep.sweep_options import SweepOptions
from transformer_pl.task import open_corpus
from transformer_pl.train.wandb_run import is_disabled, link_runs, send_report, sync_command
from transformer_pl.trials.runs_folder import RunsFolder, read_plan

MOST_WORKERS = 1000  # what clusters usually allow of a job array


@dataclass(frozen=True)
class SweepCommand:
    """One command on a sweep. folder: the sweep's, `runs/sweeps/<name>@<scale>`."""

    options: SweepOptions
    folder: Path
    console: Console

    @cached_property
    def runs(self) -> RunsFolder:
        """The runs folder, as this command has found it."""
        return RunsFolder(self.options.runs)

    def workers(self, configs: Iterable[Config], trial_count: int) -> Workers:
        """This machine, divided among trials with these configs. Raises an InputError for what the machine lacks."""
        options, trainers = self.options, [config.trainer for config in configs]
        return divide_machine(trainers, trial_count, options.parallel, options.devices, options.per_device)

    def worker_count(self, trial_count: int) -> int:
        """How many workers a launcher starts for so many trials, of which --per-device share a GPU."""
        needed = -(-trial_count // (self.options.per_device or 1))
        return min(needed, self.options.parallel or MOST_WORKERS, MOST_WORKERS)

    def submit(self, trial_count: int, datasets: Iterable[Data]) -> bool:
        """Start workers for so many trials by --launcher, or with --plan print how. Returns whether the command ends.

        With --launcher local it does nothing, and where nothing is left to train, it ends only with --plan. datasets:
        of the trials; what is to be downloaded is prepared here, where the network is. Raises an InputError.
        """
        options, launcher = self.options, LAUNCHERS[self.options.launcher]
        if launcher is None:
            return False
        file, count = getattr(options, options.launcher, None), self.worker_count(trial_count)
        script = launcher.script_of(self.folder, file, max(1, count), words_of(_of_worker(options)))
        if not count:
            return options.plan
        if options.plan:
            say(self.console, f"would submit:\n{script}")
            return True
        remote = [data for data in dict.fromkeys(datasets) if not open_corpus(data).is_local]
        prepare_datasets(remote, options.runs, self.console)
        say(self.console, f"submitting {counted(count, 'worker')} to {options.launcher}")
        say(self.console, launcher.submit(self.folder, script))
        say(self.console, "the same command without --launcher prints the table, and trains here what is left")
        return True

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Write the plan.json of the sweep and its links to runs of W&B, or raise an InputError."""
        check_writable(self.folder)
        plan |= {"command": join(["python", "-m", "transformer_pl.sweep", *words_of(self.options)])}
        plan |= {"comment": leading_comment(self.options.file)}
        write_json(self.folder / "plan.json", plan | {"differs": other_table(self.options)})
        link_runs((self.options.runs / "trials" / trial["folder"] for trial in plan["trials"]), self.folder / "wandb")

    @property
    def report_command(self) -> str:
        """The command that prints the table again from the results."""
        margins = [word for name, size in self.options.margin for word in ("--margin", f"{name}={size:g}")]
        return report_command(self.options.file, self.options, *margins)

    def launch(self, queue: TrialQueue, configs: Iterable[Config], ended: int, waits: bool = False) -> int:
        """Train what the queue gives out; return 0, or the exit code of the signal that stopped it.

        configs: those of the queue's trials. ended: how many trials of the sweep need no training.
        waits: whether a worker, too, waits for other commands.
        """
        left = queue.remaining().trials
        workers = self.workers(configs, left)
        curves = self.folder / "wandb"
        if (left and not is_disabled()) or any(curves.glob("run-*")):
            say(self.console, f"curves (there, `ctrl+a y` and `/val/loss`): wandb leet {quote(str(curves))}")
        if left:
            say(self.console, f"{workers.describe(left)}\n")
        view = ProgressView(self.console, queue, ended)
        return Launch(queue, workers, view, self.runs, waits=waits or not self.options.worker).run()

    def publish(self, report: Report, trials: Iterable[Path], exit_code: int, following: str | None = None) -> int:
        """Print a table, write it with its page, send both to W&B, and say how to upload what was kept offline.

        The page is drawn and sent if the folder does not have that of this table yet, but not after an interruption
        (any exit code but 0 and 1), because an interrupted command must end soon. trials: the folders of the trials.
        following: what to do next, with its command; None: print the table for a paper.

        Returns the exit code of the command: 1 in place of 0 where nothing can be written.
        """
        table = report.table
        self.console.print(table.terminal(table_width(self.console)), crop=False)
        page, markdown = self.folder / "report.html", self.folder / "table.md"
        try:
            with FileLock(self.folder / "lock"):  # of several commands on one sweep, the first writes the page
                has_page = page.exists() and markdown.exists() and read_text(markdown) == table.markdown()
                is_new = not has_page and exit_code in (0, 1)
                write_atomically(self.folder / "table.tex", table._replace(label=self.folder.name).latex())
                write_atomically(self.folder / "results.csv", table.csv())
                if is_new:
                    with self.console.status("drawing the page"):
                        report.draw(self.folder, report.title, table)
                    send_report(self.folder, report.name, report.project, table, read_plan(self.folder))
                write_atomically(markdown, table.markdown())
        except OSError as error:  # the results themselves are safe in the folders of the trials
            say(self.console, f"table: cannot be written: {error}; run the same command again to write it")
            return exit_code or 1
        say(self.console, f"table and results: {self.folder}")
        if page.exists():
            say(self.console, f"page: {page}")
        if not is_new and any(any(folder.glob("wandb/offline-run-*")) for folder in trials):  # else `send` says it
            say(self.console, f"W&B: kept offline; to upload: {sync_command(self.options.runs)}")
        say_next(self.console, following or f"the table for a paper: {self.report_command} --format tex")
        return exit_code


def _of_worker(options: SweepOptions) -> SweepOptions:
    """The options of a worker: with absolute paths, as a launcher may let it begin in another folder."""
    given = {stated.name: getattr(options, stated.name) for stated in fields(options)}
    changed: dict[str, Any] = {name: value.absolute() for name, value in given.items() if isinstance(value, Path)}
    changed["file"] = located(options.file).absolute()
    changed |= dict.fromkeys(LAUNCHERS.keys() & given)
    if options.scale and options.scale not in scale_names():
        changed["scale"] = str(Path(options.scale).absolute())
    if options.storage:
        changed["storage"] = re.sub("^sqlite:///(?=[^/])", lambda start: f"{start[0]}{Path.cwd()}/", options.storage)
    return replace(options, **changed, launcher="local", plan=False, parallel=None, worker=True)
