"""Trains what a queue gives out: several trials at once on this machine."""

import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.trial_queue import Ending, TrialQueue
from transformer_pl.launchers.local import LocalLauncher, ask_to_end, end, end_all
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import check_writable, why_unwritable
from transformer_pl.runtime.signals import GRACE_S
from transformer_pl.runtime.terminal import counted
from transformer_pl.trials.metrics import main_score

POLL_S = 0.2  # between two looks at the running trials
Argv = Callable[[PlannedTrial], list[str]]  # the arguments of `python -m transformer_pl.train` for a trial


class RunningTrial(NamedTuple):
    """A trial that this command is training."""

    process: BaseProcess
    planned: PlannedTrial
    deadline: float | None = None  # if it was asked to end early: by when, on the monotonic clock


def launch(queue: TrialQueue, argv: Argv, launcher: LocalLauncher, view: ProgressView, waits: bool = True) -> None:
    """Train everything that the queue gives out.

    waits: whether to wait for trials that other commands train. launcher: allotted. A signal raises `Stopped`, once all
    trials have saved and ended.
    """
    running: dict[str, RunningTrial] = {}  # by the trial's id
    try:
        while True:
            _fill_free_workers(running, queue, argv, launcher, view)
            view.waits = None if running else queue.waits()
            if not running and not (waits and view.waits):
                return
            view.refresh()
            time.sleep(POLL_S)
            queue.give_heartbeat()
            _look_at(running, queue, view)
    finally:
        if running:
            trials = counted(len(running), "trial")
            view.say(f"stopping: waiting for {trials} to save and end; Ctrl-C again kills what is left")
            end_all([one.process for one in running.values()])


def _fill_free_workers(
    running: dict[str, RunningTrial], queue: TrialQueue, argv: Argv, launcher: LocalLauncher, view: ProgressView
) -> None:
    """Start a trial on every free worker, as far as the queue has any."""
    while len(running) < launcher.workers.count:
        planned = queue.next({one.planned.identity.weights for one in running.values()})
        if planned is None:
            return
        if ending := queue.ended_elsewhere(planned):
            _count(planned, ending, f"{_describe(ending, planned)} (by another command)", queue, view)
            continue
        try:
            check_writable(planned.trial.folder.parent)
            process = launcher.start(planned, argv(planned))
        except (InputError, OSError) as error:  # such as a disk that has become full
            _count(planned, "failed", f"could not be started: {error}", queue, view)
            continue
        running[planned.identity.trial] = RunningTrial(process, planned)
        view.started(planned)


def _look_at(running: dict[str, RunningTrial], queue: TrialQueue, view: ProgressView) -> None:
    """Look at every running trial: has it ended, is it to end early, has it taken too long to do so?"""
    for trial_id, (process, planned, deadline) in list(running.items()):
        if process.exitcode is not None:
            del running[trial_id]
            end(process)
            ending = _ending(process, planned, asked=deadline is not None)
            if ending == "failed":  # or dropped, as this command stood still and another one has taken the trial over
                ending = queue.ended_elsewhere(planned) or ending
            if ending == "failed" and planned.trial.locked():
                queue.hold(planned)
                view.waits_again(planned, "another command trains it")
            else:
                queue.ended(planned, ending)
                view.ended(planned, ending, _describe(ending, planned, process.exitcode))
        elif deadline is not None:
            if time.monotonic() > deadline:
                end(process)
        elif queue.watch(planned):
            running[trial_id] = RunningTrial(process, planned, time.monotonic() + GRACE_S)
            ask_to_end(process)


def _count(planned: PlannedTrial, ending: Ending, description: str, queue: TrialQueue, view: ProgressView) -> None:
    """Tell the queue and the view of a trial that was not started here."""
    queue.ended(planned, ending)
    view.started(planned)
    view.ended(planned, ending, description)


def _ending(process: BaseProcess, planned: PlannedTrial, asked: bool) -> Ending:
    """How a trial ended. asked: to end early, which prunes it."""
    if process.exitcode == 0 and planned.trial.result() is not None:
        return "done"
    if planned.trial.diverged_at() is not None:
        return "diverged"
    return "pruned" if asked else "failed"


def _describe(ending: Ending, planned: PlannedTrial, exit_code: int | None = None) -> str:
    """One line for people; a failure has the end of its log below."""
    trial, result = planned.trial, planned.trial.result()
    if ending == "pruned":
        return ending
    if ending == "diverged":
        return f"diverged at step {trial.diverged_at()}"
    if ending == "done" and result is not None:
        name, score = main_score(result)
        return f"val/ppl {result['metrics']['val/ppl']:.2f}  {name} {score:.2f}"
    lines = [*trial.log_end(), *filter(None, [why_unwritable(trial.folder.parent)])]
    how = "" if exit_code is None else f" with exit code {exit_code}"
    return f"failed{how}; the end of {trial.log}:\n" + "\n".join(f"    | {line}" for line in lines)
