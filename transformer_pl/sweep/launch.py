"""Trains what a queue gives out: several trials at once on this machine."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from transformer_pl.plan.queue import Outcome, TrialQueue
from transformer_pl.runtime.files import why_unwritable
from transformer_pl.runtime.signals import Stopped
from transformer_pl.runtime.terminal import counted
from transformer_pl.sweep.local import Workers, ask_to_end, end, end_all, grace_s
from transformer_pl.sweep.progress import ProgressView
from transformer_pl.train.wandb_run import END_S, SEND_S
from transformer_pl.trials.runs_folder import RunsFolder
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
    runs: RunsFolder
    waits: bool  # whether it waits for trials that other commands train
    running: dict[int, RunningTrial] = field(default_factory=dict)  # by worker, 0 to workers.count - 1

    def __post_init__(self) -> None:
        # The trials and their W&B processes have the second end open: the first tells when all of them have ended.
        self.ends, self.waited_for = Pipe(duplex=False)

    def run(self) -> int:
        """Train; return 0, or the exit code of the signal that stopped it, once all trials have saved and ended.

        A worker is free as soon as its trial has ended. W&B's processes are waited for at the end.
        """
        try:
            with self.view:
                self._train()
            self._wait_for_wandb(SEND_S + END_S)
        except Stopped as stopped:
            self.view.say(str(stopped))
            self._wait_for_wandb(END_S)
            return stopped.exit_code
        return 0

    def _wait_for_wandb(self, seconds: float) -> None:
        self.waited_for.close()
        if not self.ends.poll(1.0):
            self.view.say("waiting for W&B to send the rest")
            self.ends.poll(seconds)

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
            if outcome := self.queue.ended_elsewhere(trial):
                self._ended(trial, outcome, f"{_describe(outcome, trial)} (by another command)")
                continue
            worker = min(free)
            try:
                same = self.runs.with_weights(trial.identity.weights)
                process = self.workers.start(trial, worker, same, self.waited_for)
                self.running[worker] = RunningTrial(process, trial)
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
            outcome = _outcome(process, trial, asked=deadline is not None)
            if outcome == "failed":  # or dropped: another command has taken it over while this one stood still
                outcome = self.queue.ended_elsewhere(trial) or outcome
            if outcome == "failed" and (is_orphan or trial.folder.lock.is_held()):
                self.queue.hold(trial)
                self.view.ended(trial, None, "continues later" if is_orphan else "another command trains it")
            else:
                self._ended(trial, outcome, _describe(outcome, trial, process.exitcode))
        elif deadline is not None:
            if time.monotonic() > deadline:
                end(process)
        elif self.queue.watch(trial):
            self.running[worker] = RunningTrial(process, trial, time.monotonic() + grace_s(trial.config.trainer))
            ask_to_end(process)

    def _ended(self, trial: Trial, outcome: Outcome, description: str) -> None:
        if outcome == "failed" and trial.folder.state() not in ("failed", "running"):  # the trial could not say so
            with suppress(OSError):  # a full disk
                trial.folder.set_status("failed", why=description.partition(";")[0])
        self.queue.ended(trial, outcome)
        self.view.ended(trial, outcome, description)


def _outcome(process: BaseProcess, trial: Trial, asked: bool) -> Outcome:
    """How a trial ended. asked: to end early, which prunes it."""
    if process.exitcode == 0 and trial.folder.result() is not None:
        return "done"
    if trial.folder.diverged_at() is not None:
        return "diverged"
    return "pruned" if asked else "failed"


def _describe(outcome: Outcome, trial: Trial, exit_code: int | None = None) -> str:
    """One line for people; a failure has the end of its log below."""
    result = trial.folder.result()
    if outcome == "pruned":
        return outcome
    if outcome == "diverged":
        return f"diverged at step {trial.folder.diverged_at()}"
    if outcome == "done" and result is not None:
        return f"val/ppl {result.metrics['val/ppl']:.2f}  {result.main_metric} {result.main_score:.2f}"
    lines = [*trial.folder.log_end(), *filter(None, [why_unwritable(trial.folder.path.parent)])]
    how = "" if exit_code is None else f" with exit code {exit_code}"
    if exit_code == -9:
        how += KILLED
    return f"failed{how}; the end of {trial.folder.log}:\n" + "\n".join(f"    | {line}" for line in lines)
