"""What a sweep tells while it runs: one view of all its trials in a terminal, plain lines anywhere else."""

import heapq
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from transformer_pl.experiments.plan import CostEstimate, PlannedTrial
from transformer_pl.trials.metrics import line_kind

DRAW_EVERY_S = 1.0
SAY_EVERY_S = 5.0  # without a terminal; later less often, so that a long sweep's log stays short
RECENT = 10  # log lines that say how fast a trial is


class Progress(NamedTuple):
    """Where a trial is."""

    step: int
    loss: float
    tokens_per_s: float
    left_s: float | None  # of its training, as fast as lately


class RunningTrial(NamedTuple):
    one: PlannedTrial
    began: float  # by the steady clock
    since: float  # by the clock on the wall, which metrics are dated by
    resumed: bool  # so that what it takes is not what it took in all


def read_progress(running: RunningTrial) -> Progress | None:
    """By the last lines of its metrics since it was started; None before the first of them."""
    one = running.one
    lines = one.trial.metrics(last=4 * RECENT)
    trained = [line for line in lines if line_kind(line) == "train" and line.get("time", 0.0) >= running.since][
        -RECENT:
    ]
    if not trained:
        return None
    first, last = trained[0], trained[-1]
    left = None
    if last["step"] > first["step"]:
        rate = (last["time"] - first["time"]) / (last["step"] - first["step"])
        left = max(0.0, rate * (one.config.steps - last["step"]) - (time.time() - last["time"]))
    return Progress(last["step"], last["train/loss"], last["tokens_per_s"], left)


class ProgressView:
    """Draws the trials that run, counts the others, and keeps a line of each that ended. Use it in `with`."""

    def __init__(
        self,
        console: Console,
        jobs: Sequence[PlannedTrial],
        cached: int,
        slots: int,
        estimates: Mapping[int, CostEstimate],
    ):
        self.console, self.cached, self.slots, self.estimates = console, cached, slots, estimates
        self.waiting, self.running = list(jobs), dict[str, RunningTrial]()  # by the trial's id
        self.done = self.diverged = self.failed = 0
        self.waits: str | None = None  # for what, while nothing runs
        self.took: dict[int, list[float]] = {}  # seconds, by row
        self.began = self._told = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> "ProgressView":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.stop()

    def started(self, one: PlannedTrial) -> None:
        if one in self.waiting:  # a search has no list
            self.waiting.remove(one)
        resumed = bool(one.trial.metrics(last=1))
        self.running[one.who.trial] = RunningTrial(one, time.monotonic(), time.time(), resumed)

    def ended(self, one: PlannedTrial, ending: str, outcome: str) -> None:
        """`ending` is as `launch` has it; `outcome` is a line for people."""
        was = self.running.pop(one.who.trial)
        seconds = time.monotonic() - was.began
        self.failed += ending == "failed"
        self.diverged += ending == "diverged"
        self.done += ending in ("done", "pruned")
        if ending in ("done", "pruned") and not was.resumed:
            self.took.setdefault(one.row, []).append(seconds)
        ended = self.done + self.diverged + self.failed
        total = ended + len(self.running) + len(self.waiting)
        self.say(f"[{ended}/{total}] {one.name}  {format_duration(seconds)}  {outcome}")

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def refresh(self) -> None:
        """To be called often: draws and says only when it is time to."""
        now = time.monotonic()
        if now - self._told < (DRAW_EVERY_S if self._live else max(SAY_EVERY_S, (now - self.began) / 20)):
            return
        self._told = now
        if self._live:
            self._live.update(self._drawn(), refresh=True)
        else:
            for running in self.running.values():
                self.say(
                    f"  {running.one.name:24} {'  '.join(filter(None, _told(running.one, read_progress(running))))}"
                )
            self.say(f"  {self._counts()}")

    def left(self) -> float | None:
        """Seconds to the end of the sweep, each trial as long as its row's others were; None where nothing tells.

        Rows of which none is done yet are measured by what is done of them, or by their FLOPs.
        """
        now = time.monotonic()
        at_work = [(was, now - was.began, read_progress(was)) for was in self.running.values()]
        whole = {row: statistics.median(seconds) for row, seconds in self.took.items()}
        for was, elapsed, at in at_work:
            if at and at.left_s is not None and not was.resumed:
                whole.setdefault(was.one.row, elapsed + at.left_s)
        for row, estimate in self.estimates.items():
            if estimate.seconds is not None and not estimate.by_flops:
                whole.setdefault(row, estimate.seconds)
        per_flop = [seconds / self.estimates[row].cost.flops for row, seconds in whole.items()]
        for row, estimate in self.estimates.items():
            guess = statistics.median(per_flop) * estimate.cost.flops if per_flop else estimate.seconds
            if guess is None:
                return None
            whole.setdefault(row, guess)
        ends = []
        for was, elapsed, at in at_work:
            training = at.left_s if at and at.left_s is not None else 0.0
            ends.append(max(training, 0.0 if was.resumed and at else whole[was.one.row] - elapsed))
        ends += [0.0] * (self.slots - len(ends))
        heapq.heapify(ends)
        for one in self.waiting:
            heapq.heapreplace(ends, ends[0] + whole[one.row])
        return max(ends)

    def _drawn(self) -> Group:
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=26)
        grid.add_column(ratio=1, min_width=4)
        for _ in range(4):
            grid.add_column(justify="right", no_wrap=True)
        for running in self.running.values():
            one, at = running.one, read_progress(running)
            bar = ProgressBar(total=one.config.steps, completed=at.step if at else 0)
            grid.add_row(Text(one.name), bar, *_told(one, at))
        return Group(grid, Text(self._counts(), no_wrap=True, overflow="ellipsis"))

    def _counts(self) -> str:
        so_far, left = format_duration(time.monotonic() - self.began), self.left()
        counts = {"done": self.done, "cached": self.cached, "diverged": self.diverged, "failed": self.failed}
        counts |= {"running": len(self.running), "waiting": len(self.waiting)}
        told = ", ".join([*(f"{count} {what}" for what, count in counts.items() if count), *filter(None, [self.waits])])
        return f"{told}; {so_far} so far" + (f", about {format_duration(left)} left" if left else "")


def _told(one: PlannedTrial, at: Progress | None) -> list[str]:
    """Four cells: step, loss, rate, time left."""
    if not at:
        return ["starting", "", "", ""]
    logged = one.config.trainer.log_every
    over = at.step + logged > one.config.steps
    left = "evaluating" if over else format_duration(at.left_s) + " left" if at.left_s is not None else ""
    return [f"{at.step}/{one.config.steps}", f"loss {at.loss:.3f}", f"{at.tokens_per_s:.0f}/s", left]


def format_duration(seconds: float) -> str:
    """1:02:03, 2:03, 0:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
