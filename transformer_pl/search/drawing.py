"""Draws the trials of a search, gives them to `Launch`, and reports to the study how they end.

Several processes may share a study and its runs folder. For Optuna a diverged trial is complete, with infinity as the
worst value of every goal: its samplers learn from that, while most of them leave out failed and pruned trials.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
from filelock import FileLock
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from transformer_pl.plan.plan import CostEstimate, estimate_costs
from transformer_pl.plan.queue import Ending, Remaining, TrialQueue
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted
from transformer_pl.search import study as studies
from transformer_pl.search.space import COST_METRICS, Search
from transformer_pl.search.study import counted_trials, trial_name
from transformer_pl.task import open_corpus
from transformer_pl.trials.trial import METRICS, Trial
from transformer_pl.trials.trial_of import trial_of

RETRY_DRAW_S = 2.0  # wait before the study is asked again, after it had nothing to train
MOST_HELD = 4  # drawn trials that wait for others; further draws would not know how these end
UNLOCKED_S = 30.0  # a drawn trial must lock its folder in this time; otherwise its process counts as dead
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

    search: what the sweep file asks for.
    study: where Optuna keeps the trials.
    runs: the runs folder.
    sampler_of: takes the number of a trial and gives its sampler; None: the study's own sampler draws all.
    clock: gives seconds that only increase.
    """

    def __init__(
        self,
        search: Search,
        study: optuna.Study,
        runs: Path,
        sampler_of: Callable[[int], BaseSampler] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.search, self.study, self.runs, self._clock = search, study, runs, clock
        self._sampler_of = sampler_of
        self._open_corpus = cache(open_corpus)
        self.estimates: dict[int, CostEstimate] = {}  # by trial number; for the view
        self.draws: dict[str, DrawnTrial] = {}  # the trials that are being trained, by id
        self.held: list[DrawnTrial] = []  # trials that cannot start yet, because the same weights are being trained
        self._folder = cache(partial(Trial.at, runs))  # cached: its lock remembers the last heartbeat
        self._lock = FileLock(runs / "search.lock")  # one process at a time draws trials or puts them back
        self._unlocked: dict[int, float] = {}  # by number of another process's trial: since when it has had no lock
        self._next_draw = -math.inf
        with self._lock:
            for drawn in counted_trials(study):
                if drawn.state == TrialState.FAIL:  # it failed in an earlier command
                    studies.try_again(study, drawn)

    def next(self, taken: set[str]) -> Trial | None:
        if self._clock() < self._next_draw:
            return None
        self._retry_orphans()
        for held in list(self.held):
            if not _has_to_wait(held, taken):
                self.held.remove(held)
                if self._needs_training(held):
                    return held.trial
        while len(self.held) < MOST_HELD and (draw := self._draw()):
            if _has_to_wait(draw, taken):
                self.held.append(draw)
            elif self._needs_training(draw):
                return draw.trial
        self._next_draw = self._clock() + RETRY_DRAW_S
        return None

    def hold(self, trial: Trial) -> None:
        self.held.append(self.draws.pop(trial.id))

    def waits(self) -> str | None:
        with self._lock:
            if waiting := len(self.held) + len(self._trials_of_others()):
                return f"waiting for {counted(waiting, 'trial')} of other processes"
            return "drawing trials that were put back" if self._has_more() else None

    def watch(self, trial: Trial) -> bool:
        """Report new validations to the pruner; True if it wants the trial to end. Base is not pruned."""
        draw, file = self.draws[trial.id], trial.folder / METRICS
        size = file.stat().st_size if file.exists() else 0
        if len(self.search.goals) > 1 or size == draw.metrics_bytes:
            return False
        (metric,), draw.metrics_bytes = self.search.goals, size
        values = [line[metric] for line in trial.metrics() if metric in line and line.get("kind") != "final"]
        new = values[draw.reported :]
        with suppress(UpdateFinishedTrialError):  # another process may have taken it over
            for value in new:
                draw.reported += 1
                draw.drawn.report(value, draw.reported)
            return bool(new) and studies.BASE not in draw.drawn.user_attrs and draw.drawn.should_prune()
        return False

    def ended(self, trial: Trial, ending: Ending) -> None:
        drawn, result = self.draws.pop(trial.id).drawn, trial.result()
        known = result.metrics | {key: getattr(result, key) for key in COST_METRICS} if result else {}
        values = [known.get(goal) for goal in self.search.goals]
        if ending == "pruned":
            trial.drop_checkpoints()
            trial.set_status("pruned")
            self._report(drawn, state=TrialState.PRUNED)
        elif ending == "diverged":
            worst = [math.inf if direction == "minimize" else -math.inf for direction in self.search.goals.values()]
            self._report(drawn, worst, **{studies.DIVERGED: trial.diverged_at()})
        elif ending == "failed" or None in values:
            self._report(drawn, state=TrialState.FAIL)
        else:
            self._report(drawn, values)

    def stopped(self) -> None:
        """Put back all trials of this process: whoever draws next resumes them from their checkpoints."""
        for draw in self._own_draws():
            self._put_back(draw.drawn, studies.try_again)
        self.draws, self.held = {}, []

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
                config, keys = self.search.config(drawn.params)
                corpus, row = self._open_corpus(config.data), self.search.row_name(config)
                number, scale = drawn.number, self.search.scale
                trial = trial_of(config, corpus, self.runs, row, scale=scale, keys=keys, place=number)
                trial.row = trial.name = trial_name(self._frozen(drawn))
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
            return self.study.ask(dict(self.search.space))

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
        self.ended(trial, "done" if trial.result() else "diverged")
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

    def _own_draws(self) -> list[DrawnTrial]:
        return [*self.draws.values(), *self.held]

    def _trials_of_others(self) -> list[FrozenTrial]:
        own = {draw.drawn.number for draw in self._own_draws()}
        return [drawn for drawn in self._trials(TrialState.RUNNING) if drawn.number not in own]

    def _retry_orphans(self) -> None:
        """Enqueue once more the trials of dead processes: those whose folders had no lock for UNLOCKED_S."""
        now = self._clock()
        for drawn in self._trials_of_others():
            folder = drawn.user_attrs.get(studies.FOLDER)
            if folder and self._folder(folder).lock.is_held():
                self._unlocked.pop(drawn.number, None)
            elif now > self._unlocked.setdefault(drawn.number, now) + UNLOCKED_S:
                self._put_back(drawn, studies.try_once_more)

    def _put_back(self, drawn: optuna.Trial | FrozenTrial, enqueue: RetryHeartbeatStaleTrialCallback) -> None:
        """Enqueue a running trial once more.

        Without the lock, another process could see the trial as failed in between, find nothing left, and end.
        """
        with self._lock:
            if self._report(drawn, state=TrialState.FAIL):
                enqueue(self.study, self._frozen(drawn))


def _has_to_wait(draw: DrawnTrial, taken: set[str]) -> bool:
    """Whether the same weights are being trained, here (`taken`) or by another command."""
    return draw.trial.identity.weights in taken or draw.trial.lock.is_held()
