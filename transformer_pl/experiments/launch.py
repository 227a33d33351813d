"""Trains what a queue gives out: several trials at once, wherever the launcher trains them."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.experiments.trial_queue import Ending, TrialQueue, is_short_of_memory
from transformer_pl.launchers import Ended, Launcher, Training, with_key
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.lease import Lease
from transformer_pl.runtime.signals import GRACE_S
from transformer_pl.trials.runs_folder import check_writable, why_unwritable
from transformer_pl.trials.schemas import main_score

POLL_S = 0.2  # between two looks at the running trials
Argv = Callable[[PlannedTrial], list[str]]  # the arguments of `python -m transformer_pl.train` for a trial


def launch(queue: TrialQueue, argv: Argv, launcher: Launcher, view: ProgressView) -> None:
    """Train everything that the queue gives out.

    launcher: opened, and allotted. A signal stops the command as the launcher does that, and raises `Stopped`. Ctrl-C
    comes from a person, whom the launcher may ask.
    """
    scheduler = _Scheduler(queue, argv, launcher, view)
    try:
        while scheduler.fill_free_slots():
            view.refresh()
            time.sleep(POLL_S)
            scheduler.poll()
    finally:
        scheduler.stop_all(nobody)


def nobody(question: str) -> bool:
    """The answer where there is nobody to ask."""
    return False


class RunningTrial(NamedTuple):
    """A trial that the launcher is training, or has queued."""

    training: Training
    planned: PlannedTrial
    stated: float | None  # when its state had last been written before
    lease: Lease | None = None  # that was given to its process
    deadline: float | None = None  # if it was asked to end early: by when, on the monotonic clock


class _Scheduler:
    def __init__(self, queue: TrialQueue, argv: Argv, launcher: Launcher, view: ProgressView):
        self.queue, self.argv, self.launcher, self.view = queue, argv, launcher, view
        self.running: dict[str, RunningTrial] = {}  # by the trial's id
        self.shown: set[str] = set()  # those of them that the view shows as running
        self.short: list[PlannedTrial] = []  # ran out of a device's memory, and are to be tried once more
        self.split: set[str] = set()  # ids of the trials whose batches are split once more, since that has happened

    def fill_free_slots(self) -> bool:
        """Start a trial in every free slot, as far as the queue has any. False: everything is done."""
        if waits := self.launcher.waits():
            self.view.waits = waits
            return True
        started = False
        for _ in range(self.launcher.slots - len(self.running)):
            planned = self._next()
            if planned is None:
                break
            started |= self._start(planned)
        self.launcher.submit()
        goes_on = bool(started or self.running)
        self.view.waits = self.launcher.queued() if goes_on else self.queue.waits()
        return goes_on or self.view.waits is not None

    def poll(self) -> None:
        """Look at every running trial: has it ended, is it to end early, has it taken too long to do so?"""
        self.queue.give_heartbeat()
        for trial_id, running in list(self.running.items()):
            ended = running.training.poll()
            if running.training.begun() or ended:
                self._show(running.planned)
            elif trial_id in self.shown:
                self.shown.remove(trial_id)
                self.view.waits_again(running.planned, "queued again, and will continue")
            if ended:
                del self.running[trial_id]
                self.shown.remove(trial_id)
                if not ended.ok and running.lease and running.lease.is_lost:
                    self.queue.hold(running.planned)
                    why = "taken over by another command, as this one gave no sign of life"
                    self.view.waits_again(running.planned, why)
                    continue
                try:
                    self._take_note(running, ended)
                finally:
                    if running.lease:
                        running.lease.release()  # its process may have been killed
            elif running.deadline is not None:
                if time.monotonic() > running.deadline:
                    running.training.kill()
            elif trial_id in self.shown and self.queue.watch(running.planned):
                self.running[trial_id] = running._replace(deadline=time.monotonic() + GRACE_S)
                running.training.terminate()

    def _take_note(self, running: RunningTrial, ended: Ended) -> None:
        """Tell the queue and the view how a trial has ended, or try it once more. It still has its lease."""
        planned, ending = running.planned, _ending(ended, running)
        if ending == "failed" and planned.identity.trial not in self.split and _has_run_short_of_memory(running):
            self._try_again(planned)
            return
        self.queue.ended(planned, ending)
        self.view.ended(planned, ending, _describe_ending(ending, planned, ended))

    def stop_all(self, ask: Callable[[str], bool]) -> None:
        if self.running:
            self.launcher.stop([running.training for running in self.running.values()], self.view.say, ask)
            for running in self.running.values():
                if running.lease:
                    running.lease.release()

    def _next(self) -> PlannedTrial | None:
        """What to start now: what the queue gives out, then those that ran out of memory, each alone on its device."""
        if self.launcher.shares and not self.split.isdisjoint(self.running):
            return None
        held = [*self.short, *(running.planned for running in self.running.values())]
        if planned := self.queue.next({one.identity.weights for one in held}):
            return planned
        return self.short.pop(0) if self.short and not (self.launcher.shares and self.running) else None

    def _try_again(self, planned: PlannedTrial) -> None:
        self.split.add(planned.identity.trial)
        self.short.append(planned)
        self.view.waits_again(
            planned,
            "out of device memory: tried once more, from the beginning and alone on its device, with "
            f"trainer.accumulate={_split(planned)}; the global batch stays",
        )

    def _start(self, planned: PlannedTrial) -> bool:
        """Start a trial, or count how another command has ended it. False: another command is training it."""
        stated = planned.trial.status().get("time")
        try:
            if training := self.launcher.attach(planned):
                self._run(RunningTrial(training, planned, stated))
                return True
            check_writable(planned.trial.folder.parents[1])
            lease = planned.trial.take_lease()
            if lease is None:
                self.queue.hold(planned)
                return False
            with closing(lease):
                if ending := self.queue.ended_elsewhere(planned):
                    self._count(planned, ending, f"{_describe_ending(ending, planned)} (by another command)")
                else:
                    training = self.launcher.start(planned, self._argv(planned), lease)
                    given = lease if lease.is_given_away else None
                    self._run(RunningTrial(training, planned, stated, given))
        except (InputError, OSError) as error:  # such as a disk that has become full
            self._count(planned, "failed", f"could not be started: {error}")
        return True

    def _argv(self, planned: PlannedTrial) -> list[str]:
        """The arguments of `train`. A trial that was split when it was interrupted continues so."""
        argv, begun = self.argv(planned), planned.trial.parts_begun()
        if begun == _split(planned):
            self.split.add(planned.identity.trial)
        if planned.identity.trial not in self.split:
            return argv
        if begun != _split(planned):
            planned.trial.drop_checkpoints()  # they count parts of batches
        return with_key(argv, "trainer.accumulate", _split(planned))

    def _run(self, running: RunningTrial) -> None:
        self.running[running.planned.identity.trial] = running
        if running.training.begun():
            self._show(running.planned)

    def _show(self, planned: PlannedTrial) -> None:
        if planned.identity.trial not in self.shown:
            self.shown.add(planned.identity.trial)
            self.view.started(planned)

    def _count(self, planned: PlannedTrial, ending: Ending, description: str) -> None:
        """Tell the queue and the view of a trial that was not started here."""
        self.queue.ended(planned, ending)
        self.view.started(planned)
        self.view.ended(planned, ending, description)


def _split(planned: PlannedTrial) -> int:
    """The parts of a batch with which a trial is tried again that ran out of a device's memory."""
    return 2 * planned.config.trainer.accumulate


def _has_run_short_of_memory(running: RunningTrial) -> bool:
    """Not an earlier attempt, as where a queued one is cancelled."""
    return is_short_of_memory(running.planned) and running.planned.trial.status().get("time") != running.stated


def _ending(ended: Ended, running: RunningTrial) -> Ending:
    trial = running.planned.trial
    if ended.ok and trial.result() is not None:  # a component may end the process with 0 and without a result
        return "done"
    if trial.diverged_at() is not None:
        return "diverged"
    return "failed" if running.deadline is None else "pruned"


def _describe_ending(ending: Ending, planned: PlannedTrial, ended: Ended | None = None) -> str:
    """One line for people; a failure has the end of its log below. ended: where it is known."""
    trial = planned.trial
    if ending == "pruned":
        return ending
    if ending == "diverged":
        return f"diverged at step {trial.diverged_at()}"
    result = trial.result()
    if ending == "done" and result is not None:
        name, score = main_score(result)
        return f"val/ppl {result['metrics']['val/ppl']:.2f}  {name} {score:.2f}"
    log_end = "\n".join(f"    | {line}" for line in trial.log_end())
    if reason := why_unwritable(trial.folder.parents[1]):  # then the log may lack it
        log_end += f"\n    {reason}"
    how = "" if ended is None else f" {ended.how}{', without a result' if ended.ok else ''}"
    return f"failed{how}; the end of {trial.log}:\n{log_end}"
