"""Draws the trials of a search, gives them to `Launch`, and reports to the study how they end.

Several processes may share a study and its runs folder. For Optuna a diverged trial is complete, with infinity as the
worst value of every goal: its samplers learn from that, while most of them leave out failed and pruned trials.
"""

import math
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
from filelock import FileLock
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from transformer_pl.plan.plan import CostEstimate, estimate_costs
from transformer_pl.plan.queue import Outcome, Remaining, TrialQueue
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted
from transformer_pl.search import study as studies
from transformer_pl.search.space import COST_METRICS, Search
from transformer_pl.search.study import counted_trials, trial_name
from transformer_pl.task import open_corpus
from transformer_pl.trials.lock import TrialLock
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_folder import METRICS

RETRY_DRAW_S = 2.0  # wait before the study is asked again, after it had nothing to train
MOST_HELD = 4  # drawn trials that wait for others; further draws would not know how these end
VALID_CONFIG = "valid config"  # Optuna's constraint of a trial: 0 where its config is valid, 1 where it is not


@dataclass
class DrawnTrial:
    """A trial that this process has drawn and not finished."""

    drawn: optuna.Trial
    trial: Trial
    reported: int = 0  # validations that Optuna knows
    metrics_bytes: int = 0  # size of metrics.jsonl when it was last read


class SearchQueue(TrialQueue):
    """Draws trials from an Optuna study.

    A drawn trial is held while the command lives that has drawn it, or a process trains it: both hold a lock. Any other
    trial that has not ended is free, and is drawn again, with the same values. `close` frees those of this command.

    search: what the sweep file asks for.
    study: where Optuna keeps the trials.
    runs: the runs folder.
    sampler_of: takes the number of a trial and gives its sampler; None: the study's own sampler draws all.
    """

    def __init__(
        self, search: Search, study: optuna.Study, runs: Path, sampler_of: Callable[[int], BaseSampler] | None = None
    ):
        self.search, self.study, self.runs = search, study, runs
        self._sampler_of = sampler_of
        self._corpus = open_corpus(search.base.data)
        self.estimates: dict[int, CostEstimate] = {}  # by trial number; for the view
        self.draws: dict[str, DrawnTrial] = {}  # the trials that are being trained, by id
        self.held: list[DrawnTrial] = []  # trials that cannot start yet, because the same weights are being trained
        self._folders = RunsFolder(runs)
        self._lock = FileLock(runs / "search.lock")  # one process at a time draws trials or frees them
        self._lock_of = cache(TrialLock)  # cached: a lock remembers the last heartbeat
        self._next_draw = -math.inf
        self._life = ExitStack()
        self._command = runs / "searching" / secrets.token_hex(6)
        self._life.callback(shutil.rmtree, self._command, ignore_errors=True)
        self._life.enter_context(TrialLock(self._command).hold())
        with self._lock:
            for drawn in counted_trials(study):
                if drawn.state == TrialState.FAIL:  # it failed in an earlier command
                    studies.try_again(study, drawn)

    def close(self) -> None:
        """Free the trials that this process has drawn and not finished: whoever draws next resumes them."""
        self._life.close()

    def next(self, taken: set[str]) -> Trial | None:
        if time.monotonic() < self._next_draw:
            return None
        self._draw_free_again()
        for draw in self._startable():
            if draw.trial.identity.weights not in taken and not draw.trial.folder.lock.is_held():
                self.held.remove(draw)
                if self._needs_training(draw):
                    return draw.trial
        self._next_draw = time.monotonic() + RETRY_DRAW_S
        return None

    def _startable(self) -> Iterator[DrawnTrial]:
        """The trials that wait here, and then new ones; all are in `held`."""
        yield from list(self.held)
        while len(self.held) < MOST_HELD and (draw := self._draw()):
            self.held.append(draw)
            yield draw

    def hold(self, trial: Trial) -> None:
        self.held.append(self.draws.pop(trial.id))

    def waits(self) -> str | None:
        with self._lock:
            if waiting := len(self.held) + len(self._trials_of_others()):
                return f"waiting for {counted(waiting, 'trial')} of other processes"
            return "drawing trials again that no process holds" if self._has_more() else None

    def watch(self, trial: Trial) -> bool:
        """Report new validations to the pruner; True if it wants the trial to end. Base is not pruned."""
        draw, file = self.draws[trial.id], trial.folder.path / METRICS
        size = file.stat().st_size if file.exists() else 0
        if len(self.search.goals) > 1 or size == draw.metrics_bytes:
            return False
        (metric,), draw.metrics_bytes = self.search.goals, size
        values = [line[metric] for line in trial.folder.metrics() if metric in line and line.get("kind") != "final"]
        new = values[draw.reported :]
        with suppress(UpdateFinishedTrialError):  # another process may have taken it over
            for value in new:
                draw.reported += 1
                draw.drawn.report(value, draw.reported)
            return bool(new) and studies.BASE not in draw.drawn.user_attrs and draw.drawn.should_prune()
        return False

    def ended(self, trial: Trial, outcome: Outcome) -> None:
        drawn, result = self.draws.pop(trial.id).drawn, trial.folder.result()
        known = result.metrics | {key: getattr(result, key) for key in COST_METRICS} if result else {}
        values = [known.get(goal) for goal in self.search.goals]
        if outcome == "pruned":
            trial.folder.drop_checkpoints()
            trial.folder.set_status("pruned")
            self._report(drawn, state=TrialState.PRUNED)
        elif outcome == "diverged":
            worst = [math.inf if direction == "minimize" else -math.inf for direction in self.search.goals.values()]
            self._report(drawn, worst, **{studies.DIVERGED: trial.folder.diverged_at()})
        elif outcome == "failed" or None in values:
            self._report(drawn, state=TrialState.FAIL)
        else:
            self._report(drawn, values)

    def remaining(self) -> Remaining:
        """The trials that wait or are still to be drawn. Each counts with the mean cost of those drawn so far."""
        undrawn = max(0, self.search.run_cap - len(counted_trials(self.study))) + len(self.held)
        flops = [estimate.cost.flops for estimate in self.estimates.values()]
        return Remaining(undrawn, undrawn * mean(flops) if flops else 0.0)

    def ended_count(self) -> int:
        """How many trials have ended, whichever process trained them."""
        return sum(trial.state != TrialState.RUNNING for trial in counted_trials(self.study))

    def _draw(self) -> DrawnTrial | None:
        """Draw a trial with a valid config, or return None if no more may be drawn.

        An invalid config is reported to Optuna as infeasible, and another one is drawn.
        """
        while drawn := self._ask():
            try:
                name = trial_name(self._frozen(drawn))
                trial = self.search.trial(drawn.params, self._corpus, self._folders, name, drawn.number)
            except InputError as error:
                drawn.set_constraint(VALID_CONFIG, 1.0)
                self._report(drawn, state=TrialState.PRUNED, **{studies.INFEASIBLE: str(error)})
                continue
            drawn.set_constraint(VALID_CONFIG, 0.0)
            drawn.set_user_attr(studies.FOLDER, trial.folder.name)
            self.estimates |= estimate_costs([trial], [])
            return DrawnTrial(drawn, trial)
        return None

    def _ask(self) -> optuna.Trial | None:
        """Draw a trial from the study, or return None if no more may be drawn.

        The lock keeps processes that draw at the same time from exceeding `run_cap`.
        """
        with self._lock:
            if not self._has_more():
                return None
            if self._sampler_of:
                self.study.sampler = self._sampler_of(len(self.study.get_trials(deepcopy=False)))
            drawn = self.study.ask(dict(self.search.space))
            drawn.set_user_attr(studies.COMMAND, self._command.name)
            return drawn

    def _has_more(self) -> bool:
        """Whether another trial may be drawn. One that is enqueued always may, even after `run_cap` trials."""
        return bool(self._trials(TrialState.WAITING)) or len(counted_trials(self.study)) < self.search.run_cap

    def _needs_training(self, draw: DrawnTrial) -> bool:
        """Whether a trial is to be trained. If not, the study is told how it ended before."""
        trial, pruned = draw.trial, self._trials(TrialState.PRUNED)
        if any(other.user_attrs.get(studies.FOLDER) == trial.folder.name for other in pruned):
            self._report(draw.drawn, state=TrialState.PRUNED)
            return False
        self.draws[trial.id] = draw
        if trial.needs_training():
            return True
        self.ended(trial, "done" if trial.folder.result() else "diverged")
        return False

    def _report(
        self, drawn: optuna.Trial | FrozenTrial, values: Any = None, state: Any = None, **attributes: Any
    ) -> bool:
        """Report how a trial has ended. False: another process has done so."""
        try:
            for name, value in attributes.items():
                drawn.set_user_attr(name, value)
            self.study.tell(drawn.number, values, state)
        except (ValueError, UpdateFinishedTrialError):
            return False
        return True

    def _trials(self, state: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=(state,))

    def _frozen(self, drawn: optuna.Trial | FrozenTrial) -> FrozenTrial:
        """The trial as the study has it now."""
        return self.study.get_trials(deepcopy=False)[drawn.number]

    def _trials_of_others(self) -> list[FrozenTrial]:
        own = {draw.drawn.number for draw in (*self.draws.values(), *self.held)}
        return [drawn for drawn in self._trials(TrialState.RUNNING) if drawn.number not in own]

    def _draw_free_again(self) -> None:
        """Enqueue once more the trials that no living process holds.

        Without the lock, another process could see one as failed in between, find nothing left, and end.
        """
        with self._lock:
            for drawn in self._trials_of_others():
                if not self._is_held(drawn) and self._report(drawn, state=TrialState.FAIL):
                    studies.try_again(self.study, self._frozen(drawn))

    def _is_held(self, drawn: FrozenTrial) -> bool:
        """Whether a process trains a trial, or the command lives that has drawn it."""
        name, command = (drawn.user_attrs.get(key, "") for key in (studies.FOLDER, studies.COMMAND))
        is_trained = bool(name) and self._folders.trial(name).lock.is_held()
        return is_trained or self._lock_of(self.runs / "searching" / command).is_held()
