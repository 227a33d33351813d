"""The queue of a search: it draws trials, gives them to `launch`, and tells the study how they end.

Several processes may share a study. Optuna is told that a diverged trial is complete, with infinity as the worst value
of every goal: its samplers learn from that, while most of them leave out failed and pruned trials.
"""

import math
import os
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from transformer_pl.experiments.plan import CostEstimate, PlannedTrial, corpus_opener, estimate_costs, plan_trial
from transformer_pl.experiments.progress import SearchCounts
from transformer_pl.experiments.trial_queue import Ending
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.processes import process_id
from transformer_pl.runtime.terminal import counted
from transformer_pl.search import states
from transformer_pl.search.heartbeat import Heartbeats
from transformer_pl.search.space import Search
from transformer_pl.search.states import State, counted_trials, states_of, trial_name
from transformer_pl.search.storage import UNANSWERED, Patience, Unreachable
from transformer_pl.trials.metrics import line_kind
from transformer_pl.trials.runs_folder import finished_results

RETRY_DRAW_S = 2.0  # after finding nothing to train, until the study is asked again
MOST_HELD = 4  # drawn trials that cannot start yet; more would be drawn without knowing how they end
REPEATS_PER_TRIAL = 2  # times run_cap: after so many repeated draws, the space is taken to have no more trials


@dataclass
class DrawnTrial:
    """A trial that this process has drawn and not finished."""

    trial: Trial
    planned: PlannedTrial
    keys: dict[str, Any]  # for the command line of `train`
    reported: int = 0  # validations that Optuna was told of
    metrics_bytes: int = 0  # size of metrics.jsonl when it was last read


class SearchQueue:
    """A `TrialQueue` that draws trials from an Optuna study.

    is_attached: whether the launcher has been training a trial since an earlier command. clock: seconds that only
    increase. Raises Unreachable where the storage of the study does not answer for PATIENCE_S.
    """

    def __init__(
        self,
        search: Search,
        study: optuna.Study,
        runs: Path,
        is_attached: Callable[[PlannedTrial], bool] = lambda planned: False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.search, self.study, self.runs, self._is_attached = search, study, runs, is_attached
        self._open_corpus = corpus_opener()
        self._open_corpus(search.base.data)  # raises an InputError where it is missing
        self.estimates: dict[int, CostEstimate] = {}  # by trial number; for the view
        self.draws: dict[str, DrawnTrial] = {}  # that are being trained, by the name of their folder
        self.held: list[DrawnTrial] = []  # cannot start yet: other training of the same weights is under way
        self.heartbeats = Heartbeats(clock)
        self.patience = Patience(clock)
        self._past_results = finished_results(runs)  # for the estimates
        self._clock = clock
        self._next_draw = -math.inf
        self._counts = SearchCounts(search.run_cap, 0, search.run_cap)
        trials = study.get_trials(deepcopy=False)
        if not trials:
            study.enqueue_trial(search.base_draw, user_attrs={states.BASE: True})
        trial_states = states_of(trials)
        for trial in trials:
            if trial_states[trial.number] == State.FAILED:  # in an earlier command
                self._enqueue_retry(trial, deaths=0)

    # -----------------------------------------------------------------------------------------------------------------
    # What `launch` calls

    def next(self, taken: set[str]) -> PlannedTrial | None:
        """Return a trial to train now, or None if there is none now. taken: ids of weights that are being trained."""
        if self._clock() < self._next_draw:
            return None
        try:
            self.retry_orphans()
            planned = self._next_to_train(taken)
            self.patience.answered()
            if planned:
                return planned
        except UNANSWERED as error:
            self.patience.unanswered(error)
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
        try:
            if self.held:
                return f"{self.held[0].planned.name}: waiting for another process, which trains it"
            if others := self._trials_of_others():
                return f"waiting for {counted(len(others), 'trial')} of other processes"
            return "drawing trials that were put back" if self._has_more() else None
        except UNANSWERED as error:
            self.patience.unanswered(error)
            return "waiting for the storage of the study, which does not answer"

    def give_heartbeat(self) -> None:
        """Of every trial that this process has drawn, queued ones too; none while the storage does not answer."""
        with suppress(*UNANSWERED):
            self.heartbeats.beat(draw.trial for draw in self.own_draws())

    def watch(self, planned: PlannedTrial) -> bool:
        """Report new validations to the pruner; True if it wants the trial to end."""
        with suppress(*UNANSWERED, UpdateFinishedTrialError):  # ask again next time; or another process took it over
            return len(self.search.goals) == 1 and self._should_prune(self.draws[planned.trial.folder.name])
        return False

    def ended(self, planned: PlannedTrial, ending: Ending) -> None:
        """Tell the study how a trial ended."""
        draw = self.draws.pop(planned.trial.folder.name)
        number = draw.trial.number
        values = self._values(planned)
        if ending == "pruned":
            planned.trial.drop_checkpoints()
            planned.trial.set_status("pruned")
            self._tell(number, state=TrialState.PRUNED)
        elif ending == "diverged":
            with suppress(*UNANSWERED, UpdateFinishedTrialError):  # without it, the report says `done`, with infinity
                draw.trial.set_user_attr(states.DIVERGED, planned.trial.diverged_at())
            worst = [math.inf if direction == "minimize" else -math.inf for direction in self.search.goals.values()]
            self._tell(number, values=worst)
        elif ending == "failed" or None in values:
            self._tell(number, state=TrialState.FAIL)
        else:
            self._tell(number, values=values)

    def stopped(self) -> None:
        """Put back all trials of this process: whoever draws next resumes them from their checkpoints."""
        with suppress(*UNANSWERED, Unreachable):  # then the others miss the heartbeats
            for draw in self.own_draws():
                self.put_back(draw.trial)
        self.draws, self.held = {}, []

    def argv(self, planned: PlannedTrial, runs: Path) -> list[str]:
        """Return the command line of `train` for a trial."""
        keys = [f"--{key}={value}" for key, value in self.draws[planned.trial.folder.name].keys.items()]
        return [f"--scale={self.search.scale}", *keys, f"--seed={self.search.seed}", f"--runs={runs}"]

    def counts(self) -> SearchCounts:
        """How far the study is; as when it was last read, where its storage does not answer."""
        with suppress(*UNANSWERED):
            trials = counted_trials(self.study)
            ended = sum(trial.state != TrialState.RUNNING for trial in trials)
            self._counts = SearchCounts(self.search.run_cap, ended, max(0, self.search.run_cap - len(trials)))
        return self._counts

    # -----------------------------------------------------------------------------------------------------------------
    # Drawing

    def _next_to_train(self, taken: set[str]) -> PlannedTrial | None:
        """Look at the held trials, then draw until one needs training.

        None where no more may be drawn, or where MOST_HELD have to wait.
        """
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
        return None

    def _has_to_wait(self, draw: DrawnTrial, taken: set[str]) -> bool:
        """Whether the same config, or the same weights, are being trained, other than by a job that can be attached."""
        earlier = self._earlier_trial(draw)
        if draw.planned.identity.weights in taken or (earlier and earlier.state == TrialState.RUNNING):
            return True
        return draw.planned.trial.locked() and not self._is_attached(draw.planned)

    def _needs_training(self, draw: DrawnTrial) -> bool:
        """Whether it is to be trained; if not, the study is told the outcome that is known."""
        if earlier := self._earlier_trial(draw):
            with suppress(UpdateFinishedTrialError):  # another process has taken over a trial that was held
                draw.trial.set_user_attr(states.REPEATS, earlier.number)
            values = earlier.values if earlier.state == TrialState.COMPLETE else None
            self._tell(draw.trial.number, values=values, state=earlier.state)
            return False
        self.draws[draw.planned.trial.folder.name] = draw
        if draw.planned.trial.needs_training():
            return True
        self.ended(draw.planned, "done" if draw.planned.trial.result() else "diverged")
        return False

    def draw(self) -> DrawnTrial | None:
        """Draw a trial with a valid config, or return None if no more may be drawn.

        An invalid config is reported to Optuna as infeasible, and another one is drawn.
        """
        while self._has_more():
            with warnings.catch_warnings():  # a Gaussian process replaces infinity by the worst finite value
                warnings.filterwarnings("ignore", "Clip non-finite values")
                trial = self.study.ask(dict(self.search.space))
            trial.set_user_attr(states.HOST, socket.gethostname())
            trial.set_user_attr(states.PROCESS, process_id(os.getpid()))
            if self._is_surplus(trial):
                trial.set_user_attr(states.SURPLUS, True)
                self._tell(trial.number, state=TrialState.FAIL)
                continue
            try:
                draw = self._plan(trial)
            except InputError as error:
                self._tell_infeasible(trial, error)
                continue
            trial.set_constraint(states.VALID_CONFIG, 0.0)
            trial.set_user_attr(states.FOLDER, draw.planned.trial.folder.name)
            return draw
        return None

    def _plan(self, trial: Trial) -> DrawnTrial:
        """Raises an InputError where the drawn values are no valid config."""
        config, keys = self.search.config(trial.params)
        corpus = self._open_corpus(config.data)
        planned = plan_trial(trial.number, trial_name(trial), config, self.search.scale, self.runs, corpus)
        self.estimates |= estimate_costs([planned], self._past_results)
        return DrawnTrial(trial, planned, keys)

    def _tell_infeasible(self, trial: Trial, error: InputError) -> None:
        trial.set_constraint(states.VALID_CONFIG, 1.0)
        trial.set_user_attr(states.INFEASIBLE, str(error))
        same = [
            other
            for other in counted_trials(self.study)
            if states.INFEASIBLE in other.user_attrs and other.params == trial.params
        ]
        if same[0].number != trial.number:
            trial.set_user_attr(states.REPEATS, same[0].number)
        self._tell(trial.number, state=TrialState.PRUNED)

    def _has_more(self) -> bool:
        """Whether another trial may be drawn: always where a retry waits, whatever has been drawn since."""
        trials, run_cap = self.study.get_trials(deepcopy=False), self.search.run_cap
        if any(trial.state == TrialState.WAITING and states.RETRY_OF in trial.user_attrs for trial in trials):
            return True
        trial_states = states_of(trials).values()
        repeats = sum(states.REPEATS in trial.user_attrs for trial in trials)
        return sum(state.counts for state in trial_states) < run_cap and repeats < REPEATS_PER_TRIAL * run_cap

    def _is_surplus(self, trial: Trial) -> bool:
        """Processes that draw at once may draw one trial too many, or the base twice: the lower number stays."""
        earlier = [other for other in counted_trials(self.study) if other.number < trial.number]
        is_second_base = states.BASE in trial.user_attrs and any(states.BASE in other.user_attrs for other in earlier)
        return is_second_base or (len(earlier) >= self.search.run_cap and states.RETRY_OF not in trial.user_attrs)

    def _earlier_trial(self, draw: DrawnTrial) -> FrozenTrial | None:
        """Return an earlier trial of the same config that runs, or has an outcome to repeat."""
        for trial in counted_trials(self.study):
            is_same = states.trial_id(trial) == draw.planned.identity.trial and trial.number < draw.trial.number
            if is_same and trial.state in (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED):
                return trial
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
        lines = draw.planned.trial.metrics()
        values = [line[metric] for line in lines if metric in line and line_kind(line) != "final"]
        has_new = len(values) > draw.reported
        for validation, value in enumerate(values[draw.reported :], draw.reported + 1):
            draw.trial.report(value, validation)
            draw.reported = validation
        draw.metrics_bytes = size
        return has_new and states.BASE not in draw.trial.user_attrs and draw.trial.should_prune()

    def _values(self, planned: PlannedTrial) -> list[float | None]:
        """Return the value of every goal from a trial's result; None where it is missing."""
        result = planned.trial.result() or {"metrics": {}}
        known = result["metrics"] | {key: result.get(key) for key in ("params", "flops")}
        return [known.get(goal) for goal in self.search.goals]

    def _tell(self, number: int, **outcome: Any) -> bool:
        """Tell the study an outcome, as long as patience lasts. False where another process has told it already."""
        until_answered = Patience(self._clock)
        while True:
            try:
                self.study.tell(number, **outcome)
                return True
            except (ValueError, UpdateFinishedTrialError):
                return False
            except UNANSWERED as error:
                until_answered.unanswered(error)
                time.sleep(RETRY_DRAW_S)

    # -----------------------------------------------------------------------------------------------------------------
    # Trials of this process and of others

    def own_draws(self) -> list[DrawnTrial]:
        """Return the trials that this process has drawn and not finished."""
        return [*self.draws.values(), *self.held]

    def _trials_of_others(self) -> list[FrozenTrial]:
        own = {draw.trial.number for draw in self.own_draws()}
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [trial for trial in running if trial.number not in own]

    def retry_orphans(self) -> None:
        """Put back the trials of other processes that died."""
        for orphan in self.heartbeats.orphans(self._trials_of_others()):
            self.put_back(orphan, deaths=1)

    def put_back(self, trial: Trial | FrozenTrial, deaths: int = 0) -> None:
        """End a trial and enqueue its retry, unless another process has told its outcome."""
        if self._tell(trial.number, state=TrialState.FAIL):
            self._enqueue_retry(trial, deaths)

    def _enqueue_retry(self, trial: Trial | FrozenTrial, deaths: int) -> None:
        """Enqueue a trial with the same values; not if more than states.RETRIES processes have died of it."""
        attributes: Mapping[str, Any] = trial.user_attrs
        deaths += attributes.get(states.DEATHS, 0)
        if deaths > states.RETRIES:
            return
        kept = {states.BASE: True} if states.BASE in attributes else {}
        first = attributes.get(states.FIRST, trial.number)
        retry = kept | {states.RETRY_OF: trial.number, states.FIRST: first, states.DEATHS: deaths}
        self.study.enqueue_trial(dict(trial.params), user_attrs=retry)
