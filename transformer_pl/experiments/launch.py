"""Trains what a queue gives out: several trials at once, wherever the launcher trains them."""

import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Literal, NamedTuple, Protocol

from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.progress import ProgressView
from transformer_pl.launchers import Ended, Launcher, Training, with_key
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.lease import Lease
from transformer_pl.runtime.signals import GRACE_S, Stopped
from transformer_pl.trials.runs_folder import check_writable, why_unwritable
from transformer_pl.trials.schemas import main_score

POLL_S = 0.2  # between two looks at the running trials
MOST_NAMED = 4  # trials of other commands
Argv = Callable[[PlannedTrial], list[str]]  # the arguments of `python -m transformer_pl.train` for a trial
Ending = Literal["done", "failed", "diverged", "pruned"]  # of a trial


# ---------------------------------------------------------------------------------------------------------------------
# Queues: what is trained


class TrialQueue(Protocol):
    """Decides what is trained next, and is told how each trial ended."""

    def next(self, taken: set[str]) -> PlannedTrial | None:
        """A trial to start now, or None if there is none at the moment.

        taken: the weights ids that are being trained here; no second trial may write to the same weights.
        """

    def hold(self, planned: PlannedTrial) -> None:
        """Take back a trial that `next` returned: another command has begun to train it, or has taken it over."""

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        """How another command has ended a trial that `next` returned; None: it is to be trained here."""

    def waits(self) -> str | None:
        """What the queue waits for when nothing runs and nothing can be started; None if everything is done."""

    def watch(self, planned: PlannedTrial) -> bool:
        """Called at every poll of a running trial; True asks the trial to end early, which prunes it."""

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        """A trial that `next` returned has ended, here or elsewhere, or could not be started (`failed`)."""


class GridQueue:
    """A list of trials, in its order; no trial is pruned.

    Several commands share the work: a trial that another one is training waits until that is over. If it has ended
    then, well or badly, its ending counts here too; if it was stopped, this command continues it. Trials that differ in
    decoding alone share weights and run one after the other.
    """

    def __init__(self, trials: Sequence[PlannedTrial], attached: Collection[PlannedTrial] = ()):
        """attached: those among the trials that the launcher has been training since an earlier command."""
        self.waiting, self.failed = list(trials), list[PlannedTrial]()
        self._attached = {planned.identity.weights for planned in attached}
        self._sharing: dict[str, list[PlannedTrial]] = {}  # by weights
        for planned in trials:
            self._sharing.setdefault(planned.identity.weights, []).append(planned)
        self._earlier = {planned.identity.trial: planned.trial.status() for planned in trials}

    def next(self, taken: set[str]) -> PlannedTrial | None:
        taken = set(taken)
        for planned in self.waiting:
            weights = planned.identity.weights
            if weights not in taken:
                if weights in self._attached or not any(one.trial.locked() for one in self._sharing[weights]):
                    self.waiting.remove(planned)
                    return planned
                taken.add(weights)
        return None

    def hold(self, planned: PlannedTrial) -> None:
        self.waiting.append(planned)

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        status = planned.trial.status()
        state = status["state"]
        has_ended = state in ("done", "failed", "diverged") and status != self._earlier[planned.identity.trial]
        return state if has_ended and not _is_short_of_memory(planned) else None

    def waits(self) -> str | None:
        if not self.waiting:
            return None
        theirs = [(planned.name, holder.host) for planned in self.waiting if (holder := planned.trial.holder())]
        named = [f"{name} on {host}" for name, host in theirs[:MOST_NAMED]]
        more = [f"{len(theirs) - MOST_NAMED} more"] if len(theirs) > MOST_NAMED else []
        which = f": {', '.join(named + more)}" if named else ""
        return f"waiting for another command, which trains {len(self.waiting)} of these{which}"

    def watch(self, planned: PlannedTrial) -> bool:
        return False

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        if ending == "failed":
            self.failed.append(planned)


# ---------------------------------------------------------------------------------------------------------------------
# The scheduling loop


def launch(queue: TrialQueue, argv: Argv, launcher: Launcher, view: ProgressView) -> None:
    """Train everything that the queue gives out.

    launcher: opened, and allotted. A signal stops the command as the launcher does that, and raises `Stopped`. Ctrl-C
    comes from a person, whom the launcher may ask.
    """
    scheduler, ask = _Scheduler(queue, argv, launcher, view), nobody
    try:
        while scheduler.fill_free_slots():
            view.refresh()
            time.sleep(POLL_S)
            scheduler.poll()
    except Stopped as stopped:
        if stopped.signum == signal.SIGINT:
            ask = view.ask
        raise
    finally:
        scheduler.stop_all(ask)


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
                    self.view.waits_again(running.planned, "taken over by another command: no sign of life from here")
                    continue
                if running.lease:
                    running.lease.release()  # its process may have been killed
                ending = _ending(ended, running)
                if ending == "failed" and trial_id not in self.split and _has_run_short_of_memory(running):
                    self._try_again(running.planned)
                    continue
                self.queue.ended(running.planned, ending)
                self.view.ended(running.planned, ending, _describe_ending(ending, running.planned, ended))
            elif running.deadline is not None:
                if time.monotonic() > running.deadline:
                    running.training.kill()
            elif trial_id in self.shown and self.queue.watch(running.planned):
                self.running[trial_id] = running._replace(deadline=time.monotonic() + GRACE_S)
                running.training.terminate()

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


def _is_short_of_memory(planned: PlannedTrial) -> bool:
    """Whether the trial ran out of a device's memory with as many parts of a batch as its config says."""
    return planned.trial.out_of_memory_with() == planned.config.trainer.accumulate


def _has_run_short_of_memory(running: RunningTrial) -> bool:
    """Not an earlier attempt, as where a queued one is cancelled."""
    return _is_short_of_memory(running.planned) and running.planned.trial.status().get("time") != running.stated


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
