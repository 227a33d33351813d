"""What a sweep shows while it runs: one view of all its trials in a terminal, plain lines anywhere else."""

import heapq
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from transformer_pl.experiments.plan import CostEstimate, PlannedTrial
from transformer_pl.runtime.terminal import ask, can_answer, say
from transformer_pl.trials.metrics import line_kind

DRAW_EVERY_S = 1.0  # in a terminal
PRINT_EVERY_S = 5.0  # without one; later less often, so that the log of a long sweep stays short
LOOK_EVERY_S = 5.0  # for trials that other commands train
RECENT = 10  # training lines that the speed of a trial is measured by


class Progress(NamedTuple):
    """How far the training of a trial has come."""

    step: int
    loss: float
    tokens_per_s: float
    seconds_left: float | None  # of training, at its recent speed; None: not known yet


class SearchCounts(NamedTuple):
    """How far a search is, whichever process trained its trials."""

    run_cap: int
    ended: int  # trials that count against run_cap, however they ended
    undrawn: int  # trials that are still to be drawn


class ShownTrial(NamedTuple):
    """A trial that the view shows as running."""

    planned: PlannedTrial
    started: float  # on the monotonic clock, in seconds
    started_at: float  # the date, as in metrics.jsonl: seconds since 1970
    resumed: bool  # if so, its time here is not its time in all


def read_progress(running: ShownTrial) -> Progress | None:
    """By the last lines of metrics.jsonl since the trial was started; None before the first of them."""
    trial, steps = running.planned.trial, running.planned.config.steps
    lines = trial.metrics(last=4 * RECENT)
    training = [line for line in lines if line_kind(line) == "train" and line.get("time", 0.0) >= running.started_at]
    if not training:
        return None
    training = training[-RECENT:]
    first, last = training[0], training[-1]
    seconds_left = None
    if last["step"] > first["step"]:
        seconds_per_step = (last["time"] - first["time"]) / (last["step"] - first["step"])
        seconds_left = max(0.0, seconds_per_step * (steps - last["step"]) - (time.time() - last["time"]))
    return Progress(last["step"], last["train/loss"], last["tokens_per_s"], seconds_left)


class ProgressView:
    """Shows the running trials, counts the others, and prints a line for each that ended. Use it in `with`.

    trials: those to train; empty for a search, which draws them one by one.
    cached: how many trials of the sweep needed no training.
    workers: how many trials run at once.
    estimates: by row.
    search: asks for the counts of a search; None for a grid.
    """

    def __init__(
        self,
        console: Console,
        trials: Sequence[PlannedTrial],
        cached: int,
        workers: int,
        estimates: Mapping[int, CostEstimate],
        search: Callable[[], SearchCounts] | None = None,
    ):
        self.search = search
        self.console, self.cached, self.workers, self.estimates = console, cached, workers, estimates
        self.waiting, self.running = list(trials), dict[str, ShownTrial]()  # by the trial's id
        self._elsewhere, self._looked_s = list[PlannedTrial](), -math.inf  # of those that wait; when that was looked up
        self.done = self.diverged = self.failed = 0
        self.waits: str | None = None  # what the queue waits for while nothing runs, or the launcher
        self.durations: dict[int, list[float]] = {}  # seconds of each trial that ended, by row
        self.started_s = self._shown_s = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_interactive else None

    def __enter__(self) -> "ProgressView":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.stop()

    def started(self, planned: PlannedTrial) -> None:
        if planned in self.waiting:
            self.waiting.remove(planned)
        resumed = bool(planned.trial.metrics(last=1))
        self.running[planned.identity.trial] = ShownTrial(planned, time.monotonic(), time.time(), resumed)

    def ended(self, planned: PlannedTrial, ending: str, description: str) -> None:
        """Count a trial that ended and print its line. ending: as in launch.py; description: for people."""
        running = self.running.pop(planned.identity.trial)
        seconds = time.monotonic() - running.started
        self.failed += ending == "failed"
        self.diverged += ending == "diverged"
        self.done += ending in ("done", "pruned")
        if ending in ("done", "pruned") and not running.resumed:
            self.durations.setdefault(planned.row, []).append(seconds)
        if self.search:
            total, ended, _ = self.search()
        else:
            ended = self.done + self.diverged + self.failed
            total = ended + len(self.running) + len(self.waiting)
        self.say(f"[{ended}/{total}] {planned.name}  {format_duration(seconds)}  {description}")

    def waits_again(self, planned: PlannedTrial, why: str) -> None:
        """A trial that ran here has not ended, and waits. why: for people."""
        self.running.pop(planned.identity.trial)
        self.waiting.append(planned)
        self.say(f"{planned.name}  {why}")

    def say(self, line: str) -> None:
        """Print a line above the view."""
        say(self.console, line)

    def ask(self, question: str) -> bool:
        """Ask a question of yes or no in place of the view; no where nobody can answer."""
        if self._live:
            self._live.stop()
        return can_answer() and ask(self.console, question)

    def refresh(self) -> None:
        """Draw or print the state, if it is time to. Call this often."""
        now = time.monotonic()
        interval = DRAW_EVERY_S if self._live else max(PRINT_EVERY_S, (now - self.started_s) / 20)
        if now - self._shown_s < interval:
            return
        self._shown_s = now
        if self._live:
            self._live.update(self._drawing(), refresh=True)
            return
        for running in self.running.values():
            cells = _progress_cells(running, read_progress(running))
            self.say(f"  {running.planned.name:24} {'  '.join(filter(None, cells))}")
        self.say(f"  {self._summary()}")

    def elsewhere(self) -> list[PlannedTrial]:
        """The waiting trials that another command is training."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._elsewhere = [planned for planned in self.waiting if planned.trial.locked()]
        return [planned for planned in self._elsewhere if planned in self.waiting]

    def seconds_left(self) -> float | None:
        """Until the end of the sweep; None if nothing is known about the time of some row.

        A process of another command that trains one of its trials is a worker, too, that takes the next one.
        """
        now = time.monotonic()
        progress = {trial_id: read_progress(running) for trial_id, running in self.running.items()}
        durations = self._row_durations(progress, now)
        if durations is None:
            return None
        worker_ends = []  # seconds from now until each worker is free
        for trial_id, running in self.running.items():
            at = progress[trial_id]
            training = at.seconds_left if at and at.seconds_left is not None else 0.0
            by_row = 0.0 if running.resumed and at else durations[running.planned.row] - (now - running.started)
            worker_ends.append(max(training, by_row))
        worker_ends += [0.0] * (self.workers - len(worker_ends))
        elsewhere = self.elsewhere()
        for planned in elsewhere:
            at = read_progress(ShownTrial(planned, now, 0.0, resumed=True))
            worker_ends.append(durations[planned.row] if at is None or at.seconds_left is None else at.seconds_left)
        heapq.heapify(worker_ends)
        to_start = [durations[planned.row] for planned in self.waiting if planned not in elsewhere]
        if undrawn := self.search().undrawn if self.search else 0:
            if not durations:
                return None
            to_start += [statistics.median(durations.values())] * undrawn
        for seconds in to_start:  # each on the worker that is free first
            heapq.heapreplace(worker_ends, worker_ends[0] + seconds)
        return max(worker_ends)

    def _row_durations(self, progress: Mapping[str, Progress | None], now: float) -> dict[int, float] | None:
        """Seconds of a whole trial of each row; None if nothing is known about some row.

        The best source that a row has: its trials that ended here; else a trial that runs; else finished trials that
        differ in the seed alone; else the FLOPs of its trials.
        """
        of_ended = {row: statistics.median(seconds) for row, seconds in self.durations.items()}
        of_running = {}
        for trial_id, running in reversed(self.running.items()):  # of several of a row, the one that began first
            at = progress[trial_id]
            if at and at.seconds_left is not None and not running.resumed:
                of_running[running.planned.row] = now - running.started + at.seconds_left
        estimated = {row: one.seconds for row, one in self.estimates.items() if one.seconds is not None}
        of_other_seeds = {row: seconds for row, seconds in estimated.items() if not self.estimates[row].by_flops}
        measured = of_other_seeds | of_running | of_ended

        if measured:
            per_flop = statistics.median(seconds / self.estimates[row].cost.flops for row, seconds in measured.items())
            estimated = {row: per_flop * estimate.cost.flops for row, estimate in self.estimates.items()}
        durations = estimated | measured
        return durations if durations.keys() >= self.estimates.keys() else None

    def _drawing(self) -> Group:
        """A line with a bar for each running trial, and the summary."""
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=26)
        grid.add_column(ratio=1, min_width=4)
        for _ in range(4):
            grid.add_column(justify="right", no_wrap=True)
        for running in self.running.values():
            progress = read_progress(running)
            bar = ProgressBar(total=running.planned.config.steps, completed=progress.step if progress else 0)
            grid.add_row(Text(running.planned.name), bar, *_progress_cells(running, progress))
        return Group(grid, Text(self._summary(), no_wrap=True, overflow="ellipsis"))

    def _summary(self) -> str:
        """`2 done, 1 running, 3 waiting; 1:20 so far, about 2:30 left`; of a search `2 of 12 ended, 1 running`."""
        parts, counts = [], {}
        if self.search:
            run_cap, ended, _ = self.search()
            parts.append(f"{ended} of {run_cap} ended")
        else:
            counts = {"done": self.done, "cached": self.cached}
        counts |= {"diverged": self.diverged, "failed": self.failed}
        elsewhere = len(self.elsewhere())
        counts |= {"running": len(self.running), "running elsewhere": elsewhere}
        counts |= {"waiting": len(self.waiting) - elsewhere}
        parts += [f"{count} {state}" for state, count in counts.items() if count]
        if self.waits:
            parts.append(self.waits)
        summary = f"{', '.join(parts)}; {format_duration(time.monotonic() - self.started_s)} so far"
        left = self.seconds_left()
        return summary + (f", about {format_duration(left)} left" if left else "")


def _progress_cells(running: ShownTrial, progress: Progress | None) -> list[str]:
    """Four cells: step, loss, tokens per second, time left. Before the first steps, the first says what is done."""
    planned = running.planned
    if not progress:
        return [f"{_beginning(running)}, {format_duration(time.monotonic() - running.started)}", "", "", ""]
    steps = planned.config.steps
    left = ""
    if progress.step + planned.config.trainer.log_every > steps:  # no training line will follow
        left = "evaluating"
    elif progress.seconds_left is not None:
        left = f"{format_duration(progress.seconds_left)} left"
    return [f"{progress.step}/{steps}", f"loss {progress.loss:.3f}", f"{progress.tokens_per_s:.0f} tokens/s", left]


def _beginning(running: ShownTrial) -> str:
    """What a trial does that has not logged a step here. It states that it runs once its libraries are imported."""
    status = running.planned.trial.status()
    if status.get("time", 0.0) < running.started_at:  # of an earlier command
        return "importing torch"
    return "starting" if status["state"] == "running" else "ending"


def format_duration(seconds: float) -> str:
    """1:02:03, 2:03, 0:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
