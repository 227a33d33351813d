"""The queue of a search: it draws trials, gives them to `launch`, and tells the study how they end.

Several processes may share a study. Optuna is told that a diverged trial is complete, with infinity as the worst value
of every goal: its samplers learn from that, while most of them leave out failed and pruned trials.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import JournalStorage, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState

from transformer_pl.experiments.plan import CostEstimate, PlannedTrial, corpus_opener, estimate_costs, plan_trial
from transformer_pl.experiments.progress import SearchCounts
from transformer_pl.experiments.trial_queue import Ending
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted
from transformer_pl.search import states
from transformer_pl.search.space import OF_MODEL, Search
from transformer_pl.search.states import UNCOUNTED, counted_trials, states_of, trial_id, trial_name
from transformer_pl.search.storage import BEAT_S, enqueue_again, retry_once, without_warnings
from transformer_pl.trials.metrics import line_kind
from transformer_pl.trials.runs_folder import finished_results
from transformer_pl.trials.trial import Trial as TrialFolder

RETRY_DRAW_S = 2.0  # after finding nothing to train, until the study is asked again
MOST_HELD = 4  # drawn trials that cannot start yet; more would be drawn without knowing how they end
SKIPPED_PER_TRIAL = 2  # times run_cap: after so many repeated draws, the space is taken to have no more trials
UNLOCKED_S = 30.0  # a drawn trial may need this time to begin; then its process is taken for dead


@dataclass
class DrawnTrial:
    """A trial that this process has drawn and not finished."""

    trial: Trial
    planned: PlannedTrial
    keys: dict[str, Any]  # for the command line of `train`
    reported: int = 0  # validations that Optuna was told of
    metrics_bytes: int = 0  # size of metrics.jsonl when it was last read


class SearchQueue:
    """A `TrialQueue` that draws trials from an Optuna study. clock: seconds that only increase."""

    def __init__(self, search: Search, study: optuna.Study, runs: Path, clock: Callable[[], float] = time.monotonic):
        self.search, self.study, self.runs, self._clock = search, study, runs, clock
        self._open_corpus = corpus_opener()
        self._open_corpus(search.base.data)  # raises an InputError where it is missing
        self.estimates: dict[int, CostEstimate] = {}  # by trial number; for the view
        self.draws: dict[str, DrawnTrial] = {}  # that are being trained, by the name of their folder
        self.held: list[DrawnTrial] = []  # cannot start yet: other training of the same weights is under way
        self._is_journal = isinstance(study._storage, JournalStorage)
        self._past_results = finished_results(runs)  # for the estimates
        self._unlocked: dict[int, float] = {}  # since when others' running trials have been without a lock, by number
        self._next_draw = self._next_beat = -math.inf
        self._busy_at = clock()  # when there was last something to wait for, or to train
        known = study.get_trials(deepcopy=False)
        if not known:
            study.enqueue_trial(search.base_draw, user_attrs={states.BASE: True})
        known_states = states_of(known)
        for trial in known:
            if known_states[trial.number] == "failed":  # in an earlier command
                enqueue_again(study, trial)

    # -----------------------------------------------------------------------------------------------------------------
    # What `launch` calls

    def next(self, taken: set[str]) -> PlannedTrial | None:
        """Return a trial to train now, or None if there is none now. taken: ids of weights that are being trained."""
        if self._clock() < self._next_draw:
            return None
        self.retry_orphans()
        running = {trial.number for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))}
        self.held = [held for held in self.held if held.trial.number in running]  # no other process has ended it
        for held in list(self.held):
            if not self._has_to_wait(held, taken):
                self.held.remove(held)
                if self._needs_training(held):
                    return held.planned
        while len(self.held) < MOST_HELD and (draw := self.draw()):
            if self._has_to_wait(draw, taken):
                self.held.append(draw)
            elif self._needs_training(draw):
                return draw.planned
        self._next_draw = self._clock() + RETRY_DRAW_S
        return None

    def hold(self, planned: PlannedTrial) -> None:
        """Hold a trial that another process has begun to train, until that is over."""
        self.held.append(self.draws.pop(planned.trial.folder.name))

    def ended_elsewhere(self, planned: PlannedTrial) -> Ending | None:
        """None: `next` has looked, and the trial's process looks again."""
        return None

    def waits(self) -> str | None:
        """What is waited for when nothing runs and nothing can be started; None if the search is finished."""
        if waiting := len(self.held) + len(self._trials_of_others()):
            what = f"waiting for {counted(waiting, 'trial')} of other processes"
        elif self._has_more():
            what = "drawing trials that were put back"
        else:  # a trial whose process died is told to have failed just before it is enqueued again
            has_failed = "failed" in states_of(self.study.get_trials(deepcopy=False)).values()
            is_soon = self._clock() < self._busy_at + RETRY_DRAW_S
            return "looking for trials that were put back" if has_failed and is_soon else None
        self._busy_at = self._clock()
        return what

    def give_heartbeat(self) -> None:
        """Give one to every trial that this process has drawn, where the study is in a database."""
        storage: Any = self.study._storage
        if self._is_journal or self._clock() < self._next_beat:
            return
        self._next_beat = self._clock() + BEAT_S
        for draw in self.own_draws():
            storage.record_heartbeat(draw.trial._trial_id)

    def watch(self, planned: PlannedTrial) -> bool:
        """Report new validations to the pruner; True if it wants the trial to end."""
        with suppress(UpdateFinishedTrialError):  # another process took it over
            return len(self.search.goals) == 1 and self._should_prune(self.draws[planned.trial.folder.name])
        return False

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        """Tell the study how a trial ended."""
        trial = self.draws.pop(planned.trial.folder.name).trial
        values = self._values(planned)
        self._busy_at = self._clock()
        if ending == "pruned":
            planned.trial.drop_checkpoints()
            planned.trial.set_status("pruned")
            self._tell(trial, state=TrialState.PRUNED)
        elif ending == "diverged":
            worst = [math.inf if direction == "minimize" else -math.inf for direction in self.search.goals.values()]
            self._tell(trial, worst, attributes={states.DIVERGED: planned.trial.diverged_at()})
        elif ending == "failed" or None in values:
            self._tell(trial, state=TrialState.FAIL)
        else:
            self._tell(trial, values)

    def stopped(self) -> None:
        """Put back all trials of this process: whoever draws next resumes them from their checkpoints."""
        for draw in self.own_draws():
            if self._tell(draw.trial, state=TrialState.FAIL):
                enqueue_again(self.study, draw.trial)
        self.draws, self.held = {}, []

    def argv(self, planned: PlannedTrial, runs: Path) -> list[str]:
        """Return the command line of `train` for a trial."""
        keys = [f"--{key}={value}" for key, value in self.draws[planned.trial.folder.name].keys.items()]
        return [f"--scale={self.search.scale}", *keys, f"--seed={self.search.seed}", f"--runs={runs}"]

    def counts(self) -> SearchCounts:
        """How far the study is."""
        known = counted_trials(self.study)
        ended = sum(trial.state != TrialState.RUNNING for trial in known)
        return SearchCounts(self.search.run_cap, ended, max(0, self.search.run_cap - len(known)))

    # -----------------------------------------------------------------------------------------------------------------
    # Drawing

    @without_warnings()
    def draw(self) -> DrawnTrial | None:
        """Draw a trial with a valid config, or return None if no more may be drawn.

        An invalid config is reported to Optuna as infeasible, and another one is drawn.
        """
        while self._has_more():
            trial = self.study.ask(dict(self.search.space))
            if self._is_surplus(trial):
                self._tell(trial, state=TrialState.FAIL, attributes={states.SKIPPED: "run_cap is reached"})
                continue
            try:
                draw = self._plan(trial)
            except InputError as error:
                self._tell_infeasible(trial, error)
                continue
            trial.set_constraint(states.VALID_CONFIG, 0.0)
            trial.set_user_attr(states.FOLDER, draw.planned.trial.folder.name)
            self._next_beat = -math.inf
            return draw
        return None

    def _has_more(self) -> bool:
        """Whether another trial may be drawn: always where one is enqueued, whatever has been drawn since."""
        known = states_of(self.study.get_trials(deepcopy=False)).values()
        if "waiting" in known:
            return True
        skipped = sum(state == "skipped" for state in known)
        return sum(state not in UNCOUNTED for state in known) < self.search.run_cap > skipped / SKIPPED_PER_TRIAL

    def _is_surplus(self, trial: Trial) -> bool:
        """Processes that draw at once may draw one trial too many: those with the lower numbers stay."""
        earlier = sum(other.number < trial.number for other in counted_trials(self.study))
        return earlier >= self.search.run_cap and states.FIRST not in trial.user_attrs

    def _plan(self, trial: Trial) -> DrawnTrial:
        """Raises an InputError where the drawn values are no valid config."""
        config, keys = self.search.config(trial.params)
        corpus = self._open_corpus(config.data)
        planned = plan_trial(trial.number, trial_name(trial), config, self.search.scale, self.runs, corpus)
        self.estimates |= estimate_costs([planned], self._past_results)
        return DrawnTrial(trial, planned, keys)

    def _tell_infeasible(self, trial: Trial, error: InputError) -> None:
        trial.set_constraint(states.VALID_CONFIG, 1.0)
        attributes: dict[str, Any] = {states.INFEASIBLE: str(error)}
        if earlier := self._earlier_trial(trial, None):
            attributes[states.SKIPPED] = f"repeats #{states.shown_number(earlier)}"
        self._tell(trial, state=TrialState.PRUNED, attributes=attributes)

    def _has_to_wait(self, draw: DrawnTrial, taken: set[str]) -> bool:
        """Whether the same config, or the same weights, are being trained."""
        identity = draw.planned.identity
        earlier = self._earlier_trial(draw.trial, identity.trial)
        is_running = earlier is not None and earlier.state == TrialState.RUNNING
        return is_running or identity.weights in taken or draw.planned.trial.locked()

    def _needs_training(self, draw: DrawnTrial) -> bool:
        """Whether it is to be trained; if not, the study is told the outcome that is known."""
        if earlier := self._earlier_trial(draw.trial, draw.planned.identity.trial):
            attributes = {states.SKIPPED: f"repeats #{states.shown_number(earlier)}"}
            self._tell(draw.trial, earlier.values, None if earlier.values else earlier.state, attributes)
            return False
        self.draws[draw.planned.trial.folder.name] = draw
        if draw.planned.trial.needs_training():
            return True
        self.ended(draw.planned, "done" if draw.planned.trial.result() else "diverged")
        return False

    def _earlier_trial(self, trial: Trial, identity: str | None) -> FrozenTrial | None:
        """Return an earlier trial of the same config that runs, or has an outcome to repeat.

        identity: the trial's id; None where its config is invalid, so that the drawn values alone tell.
        """
        for other in counted_trials(self.study):
            is_earlier = other.number < trial.number and other.state not in (TrialState.WAITING, TrialState.FAIL)
            if is_earlier and trial_id(other) == identity and (identity or other.params == trial.params):
                return other
        return None

    # -----------------------------------------------------------------------------------------------------------------
    # Reporting

    def _should_prune(self, draw: DrawnTrial) -> bool:
        """Report the validations that are new in metrics.jsonl; the base is never pruned: it is the reference."""
        (metric,) = self.search.goals
        file = draw.planned.trial.folder / "metrics.jsonl"
        size = file.stat().st_size if file.exists() else 0
        if size == draw.metrics_bytes:
            return False
        draw.metrics_bytes = size
        lines = draw.planned.trial.metrics()
        values = [line[metric] for line in lines if metric in line and line_kind(line) != "final"]
        new, draw.reported = values[draw.reported :], len(values)
        for validation, value in enumerate(new, draw.reported - len(new) + 1):
            draw.trial.report(value, validation)
        return bool(new) and states.BASE not in draw.trial.user_attrs and draw.trial.should_prune()

    def _values(self, planned: PlannedTrial) -> list[float | None]:
        """Return the value of every goal from a trial's result; None where it is missing."""
        result = planned.trial.result() or {"metrics": {}}
        known = result["metrics"] | {key: result.get(key) for key in OF_MODEL}
        return [known.get(goal) for goal in self.search.goals]

    def _tell(
        self,
        trial: Trial | FrozenTrial,
        values: Any = None,
        state: TrialState | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> bool:
        """Tell the study how a trial has ended. False: another process has told it already."""
        try:
            for name, value in (attributes or {}).items():
                trial.set_user_attr(name, value)
            self.study.tell(trial.number, values, state)
        except (ValueError, UpdateFinishedTrialError):
            return False
        return True

    # -----------------------------------------------------------------------------------------------------------------
    # Trials of this process and of others

    def own_draws(self) -> list[DrawnTrial]:
        """Return the trials that this process has drawn and not finished."""
        return [*self.draws.values(), *self.held]

    def _trials_of_others(self) -> list[FrozenTrial]:
        own = {draw.trial.number for draw in self.own_draws()}
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [trial for trial in running if trial.number not in own]

    @without_warnings()
    def retry_orphans(self) -> None:
        """Enqueue the trials of other processes that died once more.

        In a database Optuna's heartbeats tell, beside the table the locks of the trials' folders.
        """
        others, now = self._trials_of_others(), self._clock()
        self._busy_at = now if others else self._busy_at
        fail_stale_trials(self.study)
        unlocked = [trial for trial in others if not self._is_alive(trial)]
        self._unlocked = {trial.number: self._unlocked.get(trial.number, now) for trial in unlocked}
        for trial in unlocked:
            if now > self._unlocked[trial.number] + UNLOCKED_S and self._tell(trial, state=TrialState.FAIL):
                retry_once(self.study, trial)

    def _is_alive(self, trial: FrozenTrial) -> bool:
        """Whether a running trial shows that its process lives: by its lock, or in a database by having been begun."""
        identity = trial_id(trial)
        if identity is None:  # it is being drawn
            return False
        folder = TrialFolder.at(self.runs, identity, lambda: trial.user_attrs[states.FOLDER])
        return not self._is_journal or folder.locked()
