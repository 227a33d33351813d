"""What a sweep shows while it runs: one view of all its trials in a terminal, plain lines anywhere else."""

import math
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, Task
from rich.text import Text

from transformer_pl.plan.queue import Outcome, TrialQueue
from transformer_pl.runtime.terminal import format_duration, say
from transformer_pl.trials.trial import Trial

DRAW_EVERY_S = 1.0  # in a terminal
PRINT_EVERY_S = 60.0  # without one
FIRST_STEPS = 50  # of a trial, after which a sweep says how long it takes on this machine


class _Bars(Progress):
    """A bar for each running trial, and a line below them."""

    summary = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(self.summary, no_wrap=True, overflow="ellipsis")


class ProgressView:
    """Shows the running trials of a queue, counts the others, and prints a line for each that ended. Use it in `with`.

    cached: how many trials of the sweep needed no training.
    """

    def __init__(self, console: Console, queue: TrialQueue, cached: int):
        self.console, self.queue, self.cached = console, queue, cached
        self.running = dict[str, Task]()  # by the trial's id
        self.counts = dict.fromkeys(("done", "pruned", "diverged", "failed"), 0)  # of those that ended here
        self.waits: str | None = None  # what the queue waits for while nothing runs
        self._trained = 0.0  # FLOPs of the trials that ended here
        self._looked_s = self._shown_s = time.monotonic()
        self._has_estimated = False
        columns = "{task.description}", BarColumn(bar_width=None), "{task.fields[state]}"
        self.bars = _Bars(*columns, console=console, auto_refresh=False, transient=True, expand=True)
        self.bars.speed_estimate_period = 3600.0  # seconds: long, because steps are seen only when they are logged
        self.bars.add_task("the sweep", total=1.0, visible=False)  # as a share of its FLOPs
        (self.whole,) = self.bars.tasks

    def __enter__(self) -> "ProgressView":
        if self.console.is_interactive:
            self.bars.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bars.stop()

    def started(self, trial: Trial) -> None:
        first = trial.begins_after()
        begun = max(first, _last_line(trial).get("step", 0))  # where its start, or an earlier command, ended
        fields = {"trial": trial, "begun": begun, "started_at": time.time(), "state": "starting"}
        fields["flops_of_step"] = self.queue.estimates[trial.place].cost.flops / max(1, trial.config.steps - first)
        self.bars.add_task(trial.name, total=trial.config.steps, completed=begun, **fields)
        self.running[trial.id] = self.bars.tasks[-1]

    def ended(self, trial: Trial, outcome: Outcome | None, description: str) -> None:
        """Count a trial that ended, and print its line. outcome: None where it waits again. description: for people."""
        task = self.running.pop(trial.id)
        self.bars.remove_task(task.id)
        if outcome:
            self.counts[outcome] += 1
        if outcome == "done":
            self._trained += task.fields["flops_of_step"] * (trial.config.steps - task.fields["begun"])
        ended = self.cached + sum(self.counts.values())
        total = ended + len(self.running) + self.queue.remaining().trials
        self.say(f"[{ended}/{total}] {trial.name}  {format_duration(task.elapsed or 0.0)}  {description}")

    def say(self, line: str) -> None:
        """Print a line above the view."""
        say(self.console, line)

    def refresh(self) -> None:
        """Draw or print the state, if it is time to. Call this often."""
        now, draws = time.monotonic(), self.console.is_interactive
        shows = now - self._shown_s >= (DRAW_EVERY_S if draws else PRINT_EVERY_S)
        if not shows and (self._has_estimated or now - self._looked_s < DRAW_EVERY_S):
            return
        self._looked_s = now
        for task in self.running.values():
            self._look_at(task)
        self.bars.summary = self._summary()
        steps = max((task.completed - task.fields["begun"] for task in self.running.values()), default=0)
        if not self._has_estimated and steps >= FIRST_STEPS and self.whole.time_remaining:
            self._has_estimated, left = True, format_duration(self.whole.time_remaining)
            if draws or not shows:  # else the line below says it
                self.say(f"time, by the first {steps:.0f} steps on this machine: about {left} of training left")
        if not shows:
            return
        self._shown_s = now
        if draws:
            self.bars.refresh()
        else:
            self.say(f"  {self.bars.summary}")

    def _look_at(self, task: Task) -> None:
        """Update the bar of a trial by the last line of its metrics since it was started."""
        trial: Trial = task.fields["trial"]
        last, steps = _last_line(trial), trial.config.steps
        if last.get("time", 0.0) < task.fields["started_at"]:
            return
        translated = trial.folder.status().get("translated", "")  # a callback may have ended the training early
        self.bars.update(task.id, completed=steps if translated else last["step"])
        left = f"{format_duration(task.time_remaining)} left" if task.time_remaining else ""
        if translated or last["step"] + trial.config.trainer.log_every > steps:  # no training line will follow
            left = f"evaluating {translated}"
        loss = last.get("train/loss", math.nan)
        state = f"{last['step']}/{steps}  loss {loss:.3f}  {last['tokens_per_s']:.0f} tokens/s  {left}"
        self.bars.update(task.id, state=state.rstrip())

    def _summary(self) -> str:
        """`2 done, 1 running, 3 waiting; 1:20 so far, about 2:30 left`."""
        (waiting, to_do), trained = self.queue.remaining(), self._trained
        for task in self.running.values():
            to_do += task.fields["flops_of_step"] * (task.remaining or 0)
            trained += task.fields["flops_of_step"] * (task.completed - task.fields["begun"])
        counts = self.counts | {"cached": self.cached, "running": len(self.running), "waiting": waiting}
        parts = [*(f"{count} {state}" for state, count in counts.items() if count), self.waits]
        self.bars.update(self.whole.id, completed=trained / max(1.0, trained + to_do))
        remaining, elapsed = self.whole.time_remaining, format_duration(self.whole.elapsed or 0.0)
        left = f", about {format_duration(remaining)} left" if remaining else ""
        return f"{', '.join(filter(None, parts))}; {elapsed} so far{left}"


def _last_line(trial: Trial) -> dict[str, Any]:
    """The last line of a trial's metrics that the training itself has logged; empty where there is none."""
    lines = [line for line in trial.folder.metrics() if "tokens_per_s" in line]
    return lines[-1] if lines else {}
