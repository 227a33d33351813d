"""A study at work: what is trained next, and what came of it. Several processes may share one.

Optuna is told that a trial which diverged is complete, with infinity as the worst value of every goal: its samplers
learn from that. Most of them leave out what failed or was pruned.
"""

import math
import os
import socket
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from transformer_pl.config import without_section
from transformer_pl.data.sources import open_corpus
from transformer_pl.experiments.launch import Ending
from transformer_pl.experiments.plan import CostEstimate, PlannedTrial, estimate_costs, plan_trial
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.space import Search
from transformer_pl.search.storage import LOST, Unreachable, first_line
from transformer_pl.trials.metrics import line_kind
from transformer_pl.trials.runs_folder import finished_results

RETRY_DRAW_S = 2.0  # from finding nothing to do to asking again
HEARTBEAT_S = 20.0  # from one sign of life to the next
HEARTBEAT_TIMEOUT_S = 120.0  # without one a trial is taken over
PATIENCE_S = 60.0  # for a storage that does not answer, when a trial is done
RETRIES = 1  # of a trial whose process died
REPEATS = 2  # times run_cap; then the space is taken to have no more trials in it


class DrawnTrial(NamedTuple):
    """A trial of the study that is being trained."""

    trial: Trial
    planned: PlannedTrial
    keys: dict[str, Any]  # what `train` is told


def counted_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that count against run_cap: none that waits, was put back, was one too many, or repeats another."""
    trials = study.get_trials(deepcopy=False)
    again = {trial.user_attrs.get("again") for trial in trials}
    return [
        trial
        for trial in trials
        if trial.state != TrialState.WAITING
        and trial.number not in again
        and not trial.user_attrs.keys() & {"surplus", "repeats"}
    ]


class SearchQueue:
    """Says what is trained next, and hears what came of it. `launch` asks and tells."""

    def __init__(self, search: Search, study: optuna.Study, runs: Path):
        self.search, self.study, self.runs = search, study, runs
        self.corpus = open_corpus(search.base.data)
        self.estimates: dict[int, CostEstimate] = {}  # by the trial's number; for the view
        self._past = finished_results(runs)  # which estimates are made by
        self.draws: dict[str, DrawnTrial] = {}  # by the trial's id, as it is on disk
        self._held: DrawnTrial | None = (
            None  # drawn while another process, or another trial here, is at the same weights
        )
        self._validated: dict[str, int] = {}  # validations that the pruner has heard of
        self._sizes: dict[str, int] = {}  # of the metrics files, as they were last read
        self._heard: dict[int, tuple[Any, float]] = {}  # others' last signs of life, and when they came
        self._beat_at, self._asked_at = 0.0, -RETRY_DRAW_S
        self._silent_since: float | None = None  # when the storage was first found to be lost
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(search.base_draw, user_attrs={"base": True})
        for trial in counted_trials(study):
            if trial.state == TrialState.FAIL:  # in an earlier command: tried again
                self._enqueue(trial.number, trial.params, trial.user_attrs, died=0)

    def next(self, taken: set[str]) -> PlannedTrial | None:
        """One to train now; `taken` are the weights that are being trained. None: none now, or none at all."""
        if time.monotonic() < self._asked_at + RETRY_DRAW_S:
            return None
        try:
            self._take_over()
            while draw := self._held or self._draw():
                self._held, self._silent_since = None, None
                twin = self._twin(draw)
                if (
                    draw.planned.identity.weights in taken
                    or draw.planned.trial.locked()
                    or (twin and twin.state == TrialState.RUNNING)
                ):
                    self._held = draw
                    break
                if twin:
                    draw.trial.set_user_attr("repeats", twin.number)
                    values = twin.values if twin.state == TrialState.COMPLETE else None
                    self._tell(draw.trial.number, values=values, state=twin.state)
                    continue
                self.draws[draw.planned.identity.trial] = draw
                if draw.planned.trial.needs_training():
                    return draw.planned
                self.ended(draw.planned, "done" if draw.planned.trial.result() else "diverged")
            self._silent_since = None
        except LOST as error:
            self._be_patient(error)
        self._asked_at = time.monotonic()
        return None

    def _twin(self, draw: DrawnTrial) -> FrozenTrial | None:
        """An earlier trial of the same config, which is at work or has told what it came to."""
        told = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
        folder, before = draw.planned.trial.folder.name, draw.trial.number
        same = [t for t in counted_trials(self.study) if t.user_attrs.get("folder") == folder and t.number < before]
        return next((trial for trial in same if trial.state in told), None)

    def _be_patient(self, error: Exception) -> None:
        """To be called where one of LOST was caught. Raises Unreachable when that has gone on for too long."""
        self._silent_since = self._silent_since or time.monotonic()
        if time.monotonic() > self._silent_since + PATIENCE_S:
            raise Unreachable(first_line(error)) from error

    def _draw(self) -> DrawnTrial | None:
        """None where run_cap is reached. What breaks a law is told so, and the next one drawn."""
        while self._is_open():
            with warnings.catch_warnings():  # a Gaussian process takes the worst that is finite in place of infinity
                warnings.filterwarnings("ignore", "Clip non-finite values")
                trial = self.study.ask(self.search.space)
            trial.set_user_attr("host", socket.gethostname())
            trial.set_user_attr("process", f"{_here()} {os.getpid()}")
            if self._is_surplus(trial):  # another process was quicker
                trial.set_user_attr("surplus", True)
                self._tell(trial.number, state=TrialState.FAIL)
                continue
            try:
                config, keys = self.search.config(trial.params)
                planned = plan_trial(trial.number, trial_name(trial), config, self.search.scale, self.runs, self.corpus)
                self.estimates |= estimate_costs([planned], self._past)
            except InputError as error:
                trial.set_constraint("laws", 1.0)
                trial.set_user_attr("infeasible", str(error))
                same = [
                    t for t in counted_trials(self.study) if "infeasible" in t.user_attrs and t.params == trial.params
                ]
                if same[0].number != trial.number:
                    trial.set_user_attr("repeats", same[0].number)
                self._tell(trial.number, state=TrialState.PRUNED)
                continue
            trial.set_constraint("laws", 0.0)
            trial.set_user_attr("folder", planned.trial.folder.name)
            return DrawnTrial(trial, planned, keys)
        return None

    def _is_open(self) -> bool:
        """Whether there is more to draw. What was put back is drawn again, whatever has been drawn since."""
        trials, cap = self.study.get_trials(deepcopy=False), self.search.run_cap
        if any(trial.state == TrialState.WAITING and "again" in trial.user_attrs for trial in trials):
            return True
        return len(counted_trials(self.study)) < cap and sum("repeats" in t.user_attrs for t in trials) < REPEATS * cap

    def _is_surplus(self, trial: Trial) -> bool:
        """Processes that draw at once may draw one too many, or base twice: the lower number stays."""
        before = [one for one in counted_trials(self.study) if one.number < trial.number]
        twice = "base" in trial.user_attrs and any("base" in one.user_attrs for one in before)
        return twice or (len(before) >= self.search.run_cap and "again" not in trial.user_attrs)

    def argv(self, job: PlannedTrial, runs: Path) -> list[str]:
        """What `train` is told."""
        keys = [f"--{key}={value}" for key, value in self.draws[job.identity.trial].keys.items()]
        return [f"--scale={self.search.scale}", *keys, f"--seed={self.search.seed}", f"--runs={runs}"]

    def waits(self) -> str | None:
        """For what, when nothing can be started and nothing runs here. None: all is done."""
        try:
            self._beat()
            if self._held:
                return f"{self._held.planned.name}: another process trains it, waiting for that"
            if others := self._others():
                return f"{len(others)} trials are at work elsewhere, waiting for them"
            return "trials were put back" if self._is_open() else None
        except LOST as error:
            self._be_patient(error)
            return "the study does not answer, waiting for it"

    def watch(self, job: PlannedTrial) -> bool:
        """Tell the pruner of every new validation; True where the trial is to end."""
        with suppress(*LOST, UpdateFinishedTrialError):  # the next time will do; or another process has taken over
            self._beat()
            return len(self.search.goals) == 1 and self._is_pruned(job)
        return False

    def _is_pruned(self, job: PlannedTrial) -> bool:
        (metric,) = self.search.goals
        trial, seen = self.draws[job.identity.trial].trial, self._validated.get(job.identity.trial, 0)
        file = job.trial.folder / "metrics.jsonl"
        size = file.stat().st_size if file.exists() else 0
        if size == self._sizes.get(job.identity.trial, 0):
            return False
        values = [line[metric] for line in job.trial.metrics() if metric in line and line_kind(line) != "final"]
        for at, value in enumerate(values[seen:], seen + 1):
            trial.report(value, at)
            self._validated[job.identity.trial] = at
        self._sizes[job.identity.trial] = size
        is_base = "base" in trial.user_attrs  # which the others are read beside
        return len(values) > seen and not is_base and trial.should_prune()

    def ended(self, job: PlannedTrial, ending: Ending) -> None:
        draw = self.draws.pop(job.identity.trial)
        self._validated.pop(job.identity.trial, None)
        self._sizes.pop(job.identity.trial, None)
        result = job.trial.result() or {"metrics": {}}
        known = result["metrics"] | {key: result.get(key) for key in ("params", "flops")}
        values = [known.get(goal) for goal in self.search.goals]
        if ending == "pruned":
            job.trial.drop_checkpoints()
            self._tell(draw.trial.number, state=TrialState.PRUNED)
        elif ending == "diverged":
            with suppress(*LOST, UpdateFinishedTrialError):  # then the report says `done`, with an infinite value
                draw.trial.set_user_attr("diverged", job.trial.diverged_at())
            worst = [math.inf if way == "minimize" else -math.inf for way in self.search.goals.values()]
            self._tell(draw.trial.number, values=worst)
        elif ending == "failed" and job.trial.locked():  # another process was quicker to begin with it
            self._held = draw
        elif ending == "failed" or None in values:
            self._tell(draw.trial.number, state=TrialState.FAIL)
        else:
            self._tell(draw.trial.number, values=values)

    def stopped(self) -> None:
        """What was being trained is put back: whoever draws next goes on with it, from its checkpoint."""
        with suppress(*LOST, Unreachable):  # then others take it over, in time
            for draw in self._mine():
                self._put_back(draw.trial.number, draw.trial.params, draw.trial.user_attrs)
        self.draws, self._held = {}, None

    # What several processes have to know of each other: each trial's process gives a sign of life, a number that
    # changes. No clocks are compared, so these may differ from machine to machine.

    def _mine(self) -> list[DrawnTrial]:
        return [*self.draws.values(), *([self._held] if self._held else [])]

    def _others(self) -> list[FrozenTrial]:
        mine = {draw.trial.number for draw in self._mine()}
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [trial for trial in running if trial.number not in mine]

    def _beat(self) -> None:
        if (now := time.monotonic()) >= self._beat_at + HEARTBEAT_S:
            self._beat_at = now
            for draw in self._mine():
                with suppress(UpdateFinishedTrialError):  # another process has taken it over
                    draw.trial.set_user_attr("beat", now)

    def _take_over(self) -> None:
        """Put back what a process was at that is gone."""
        now = time.monotonic()
        for trial in self._others():
            sign = trial.user_attrs.get("beat")
            last, since = self._heard.setdefault(trial.number, (sign, now))
            if sign != last:
                self._heard[trial.number] = sign, now
            elif now > since + HEARTBEAT_TIMEOUT_S or _is_gone(trial.user_attrs.get("process", "")):
                self._put_back(trial.number, trial.params, trial.user_attrs, died=1)

    def _put_back(self, number: int, params: Mapping[str, Any], attributes: Mapping[str, Any], died: int = 0) -> None:
        """It does not count, and is drawn again; but not for ever, if process after process dies of it."""
        if self._tell(number, state=TrialState.FAIL):
            self._enqueue(number, params, attributes, died)

    def _enqueue(self, number: int, params: Mapping[str, Any], attributes: Mapping[str, Any], died: int) -> None:
        died += attributes.get("died", 0)
        kept = {key: True for key in ("base",) if key in attributes}
        if died <= RETRIES:
            self.study.enqueue_trial(dict(params), user_attrs=kept | {"again": number, "died": died})

    def _tell(self, number: int, **what: Any) -> bool:
        """False where another process has told already. Raises Unreachable where the storage stays silent."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.study.tell(number, **what)
                return True
            except (ValueError, UpdateFinishedTrialError):
                return False
            except LOST as error:
                if time.monotonic() > until:
                    raise Unreachable(first_line(error)) from error
                time.sleep(RETRY_DRAW_S)


def trial_name(trial: Trial | FrozenTrial) -> str:
    """`#3 h=4 p_drop=0.12`."""
    drawn = [f"{without_section(key)}={short_value(value)}" for key, value in trial.params.items()]
    return " ".join([f"#{trial.number}", *drawn])


def short_value(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _here() -> str:
    """Where a process's number means something: this boot of this machine, this container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()


def _is_gone(process: str) -> bool:
    """Whether it was one of this machine, and is no more."""
    here, _, pid = process.rpartition(" ")
    if here != _here():
        return False
    try:
        os.kill(int(pid), 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return state == "Z"  # it has ended, and its parent has not asked how: in a container nobody may ever
