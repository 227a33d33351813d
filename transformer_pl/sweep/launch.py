"""Trains what a queue gives out: several trials at once on this machine."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from transformer_pl.plan.queue import Ending, TrialQueue
from transformer_pl.runtime.files import why_unwritable
from transformer_pl.runtime.signals import Stopped
from transformer_pl.runtime.terminal import counted
from transformer_pl.sweep.local import Workers, ask_to_end, end, end_all, grace_s
from transformer_pl.sweep.progress import ProgressView
from transformer_pl.trials.trial import Trial

KILLED = " (SIGKILL, mostly out of memory: lower --parallel, or increase trainer.accumulate)"
POLL_S = 0.2  # between two looks at the running trials


class RunningTrial(NamedTuple):
    """A trial that this command is training."""

    process: BaseProcess
    trial: Trial
    deadline: float | None = None  # if it was asked to end early: by when, on the monotonic clock


@dataclass
class Launch:
    """Trains everything that a queue gives out, and shows it."""

    queue: TrialQueue
    workers: Workers
    view: ProgressView
    waits: bool  # whether it waits for trials that other commands train
    running: dict[int, RunningTrial] = field(default_factory=dict)  # by worker, 0 to workers.count - 1

    def run(self) -> int:
        """Train; return 0, or the exit code of the signal that stopped it, once all trials have saved and ended."""
        try:
            with self.view:
                self._train()
        except Stopped as stopped:
            self.queue.stopped()
            self.view.say(str(stopped))
            return stopped.exit_code
        return 0

    def _train(self) -> None:
        try:
            while True:
                self._fill_free_workers()
                for line in self.queue.news():
                    self.view.say(line)
                self.view.waits = None if self.running else self.queue.waits()
                if not self.running and not (self.waits and self.view.waits):
                    return
                self.view.refresh()
                time.sleep(POLL_S)
                for worker in list(self.running):
                    self._look_at(worker)
        finally:
            if running := self.running.values():
                trials = counted(len(running), "trial")
                self.view.say(f"stopping: waiting for {trials} to save and end; Ctrl-C again kills what is left")
                seconds = max(grace_s(trial.config.trainer) for _, trial, _ in running)
                end_all([process for process, _, _ in running], seconds)

    def _fill_free_workers(self) -> None:
        """Start a trial on every free worker, as far as the queue has any."""
        while free := set(range(self.workers.count)) - self.running.keys():
            trial = self.queue.next({trial.identity.weights for _, trial, _ in self.running.values()})
            if trial is None:
                return
            self.view.started(trial)
            if ending := self.queue.ended_elsewhere(trial):
                self._ended(trial, ending, f"{_describe(ending, trial)} (by another command)")
                continue
            worker = min(free)
            try:
                self.running[worker] = RunningTrial(self.workers.start(trial, worker), trial)
            except OSError as error:  # such as a disk that has become full
                self._ended(trial, "failed", f"could not be started: {error}")

    def _look_at(self, worker: int) -> None:
        """Look at a running trial: has it ended, is it to end early, has it taken too long to do so?"""
        process, trial, deadline = self.running[worker]
        if process.exitcode is not None:
            del self.running[worker]
            # Where the server of processes was killed, a new one continues its trials, which still run (Linux).
            is_orphan = Path(f"/proc/{process.pid}").exists()
            end(process)
            ending = _ending(process, trial, asked=deadline is not None)
            if ending == "failed":  # or dropped: another command has taken it over while this one stood still
                ending = self.queue.ended_elsewhere(trial) or ending
            if ending == "failed" and (is_orphan or trial.lock.is_held()):
                self.queue.hold(trial)
                self.view.ended(trial, None, "continues later" if is_orphan else "another command trains it")
            else:
                self._ended(trial, ending, _describe(ending, trial, process.exitcode))
        elif deadline is not None:
            if time.monotonic() > deadline:
                end(process)
        elif self.queue.watch(trial):
            self.running[worker] = RunningTrial(process, trial, time.monotonic() + grace_s(trial.config.trainer))
            ask_to_end(process)

    def _ended(self, trial: Trial, ending: Ending, description: str) -> None:
        if ending == "failed" and trial.state() not in ("failed", "running"):  # the trial could not say so
            with suppress(OSError):  # a full disk
                trial.set_status("failed", why=description.partition(";")[0])
        self.queue.ended(trial, ending)
        self.view.ended(trial, ending, description)


def _ending(process: BaseProcess, trial: Trial, asked: bool) -> Ending:
    """How a trial ended. asked: to end early, which prunes it."""
    if process.exitcode == 0 and trial.result() is not None:
        return "done"
    if trial.diverged_at() is not None:
        return "diverged"
    return "pruned" if asked else "failed"


def _describe(ending: Ending, trial: Trial, exit_code: int | None = None) -> str:
    """One line for people; a failure has the end of its log below."""
    result = trial.result()
    if ending == "pruned":
        return ending
    if ending == "diverged":
        return f"diverged at step {trial.diverged_at()}"
    if ending == "done" and result is not None:
        return f"val/ppl {result.metrics['val/ppl']:.2f}  {result.main_metric} {result.main_score:.2f}"
    lines = [*trial.log_end(), *filter(None, [why_unwritable(trial.folder.parent)])]
    how = "" if exit_code is None else f" with exit code {exit_code}"
    if exit_code == -9:
        how += KILLED
    return f"failed{how}; the end of {trial.log}:\n" + "\n".join(f"    | {line}" for line in lines)
