"""The plan of a sweep: every trial, its cost, and what has been done of it. Needs no torch for the paper's components.

`plan_trials` finds the trials and their folders, `estimate_costs` their FLOPs and time.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.component_sources import is_own_task, source_digests, task_digest
from transformer_pl.config import KEYS, Config, Data, effective_sizes, sizes
from transformer_pl.data.corpus import Corpus
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.sources import open_corpus
from transformer_pl.experiments.cost import ASSUMED_LENGTH, Cost, training_cost
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.levels import resolve, scale_level
from transformer_pl.runtime.errors import collect_errors
from transformer_pl.trials.identity import Identity, describe_difference, identity
from transformer_pl.trials.trial import Trial

SETUP, MODEL = ("data.", "trainer."), ("model.", "decode.")  # sections that the time of a FLOP depends on
SHORT = 100  # steps: a trial with fewer is mostly start and evaluation, and does not tell the time of other models
HARDLY_SLOWER = tuple(  # keys that change it so little that a trial with another value still tells it
    f"trainer.{name}"
    for name in ("val_every", "log_every", "checkpoint_minutes", "bleu_sample", "tokenised_bleu", "eval_tokens")
)


class PlannedTrial(NamedTuple):
    """One trial of a sweep."""

    row: int  # index into the sweep's rows; of a search: the trial's number
    name: str  # what differs from base, and the seed: `h=4 s1`
    config: Config
    identity: Identity
    trial: Trial  # its folder, which need not exist yet
    prepared: Prepared  # its text, which need not be prepared yet


class CostEstimate(NamedTuple):
    """What one trial of a row costs."""

    cost: Cost
    assumed: bool  # FLOPs are for sentences of ASSUMED_LENGTH, because the text is not prepared yet
    seconds: float | None  # by finished trials, or by --measure; None: not known
    by_flops: bool  # `seconds` is scaled by FLOPs, as no finished trial differs in its seed alone


class Plan(NamedTuple):
    """A sweep with its trials, in the order of its rows and seeds, and an estimate for each row."""

    sweep: Sweep
    trials: list[PlannedTrial]
    estimates: dict[int, CostEstimate]


# ---------------------------------------------------------------------------------------------------------------------
# Trials


def plan_trials(sweep: Sweep, runs: Path) -> list[PlannedTrial]:
    """The sweep's trials in order. Raises an InputError where the text cannot be found."""
    keys = [_corpus_keys(row.configs[0].data) for row in sweep.rows]
    corpora = collect_errors(open_corpus, dict.fromkeys(keys))
    planned: list[PlannedTrial] = []
    for index, row in enumerate(sweep.rows):
        first = plan_trial(index, "", row.configs[0], sweep.scale, runs, corpora[keys[index]])
        planned += [
            _with_seed(first, f"{row.name} s{config.seed}", config, sweep.scale, runs) for config in row.configs
        ]
    return planned


def plan_trial(row: int, name: str, config: Config, scale: str, runs: Path, corpus: Corpus) -> PlannedTrial:
    """The trial of this config: its identity, its folder under `runs`, and the folder of its prepared text."""
    trial_identity = identity(config, corpus.fingerprint, source_digests(config.model) | task_digest(config.data))
    trial = _trial_at(runs, scale, trial_identity, config)
    prepared = Prepared(runs / "data" / fingerprint_id(config.data, corpus))
    return PlannedTrial(row, name, config, trial_identity, trial, prepared)


def _with_seed(other: PlannedTrial, name: str, config: Config, scale: str, runs: Path) -> PlannedTrial:
    """The trial of a config that differs from another trial's in its seed alone: faster than by `plan_trial`."""
    trial_identity = other.identity.with_seed(config.seed)
    trial = _trial_at(runs, scale, trial_identity, config)
    return other._replace(name=name, config=config, identity=trial_identity, trial=trial)


def _trial_at(runs: Path, scale: str, trial_identity: Identity, config: Config) -> Trial:
    def readable() -> str:
        return f"{Path(scale).stem}-{describe_difference(config, _scale_config(scale))}-s{config.seed}"

    return Trial.at(runs, trial_identity.trial, readable)


@cache
def _scale_config(scale: str) -> Config:
    """The config of a scale alone. The readable part of a trial's folder says what differs from it."""
    return resolve([scale_level(scale)])


def corpus_opener() -> Callable[[Data], Corpus]:
    """`open_corpus`, which opens each text once, for the trials that a search draws. Raises its InputErrors."""
    opened = cache(open_corpus)
    return lambda data: opened(_corpus_keys(data))


def _corpus_keys(data: Data) -> Data:
    """The keys that a corpus is opened by: without those of tokens and batches. A task of one's own may read all."""
    if is_own_task(data):
        return data
    return data.model_copy(update={"name": None, "vocab_size": 1, "batch_tokens": 1, "max_length": 1})


# ---------------------------------------------------------------------------------------------------------------------
# Estimates


def estimate_costs(planned: Sequence[PlannedTrial], finished: Sequence[dict[str, Any]]) -> dict[int, CostEstimate]:
    """The cost of a trial of each row.

    finished: results of finished trials, which the time is estimated by.

    Raises an InputError that names a component which does not run.
    """
    timings = _Timings(finished)
    first_of_row: dict[int, PlannedTrial] = {}
    for trial in planned:
        first_of_row.setdefault(trial.row, trial)
    return collect_errors(lambda row: _estimate(first_of_row[row], timings), first_of_row)


def _estimate(planned: PlannedTrial, timings: "_Timings") -> CostEstimate:
    config, text = planned.config, planned.prepared
    assumed = not text.is_counted()
    source, target = (ASSUMED_LENGTH if assumed else text.mean_length("train", side) for side in ("source", "target"))
    model = sizes(config.model, config.data.vocab_size)
    cost = training_cost(model, config.steps, config.data.batch_tokens, source, target)
    seconds = timings.of_other_seeds(config)
    if seconds is not None:
        return CostEstimate(cost, assumed, seconds, by_flops=False)
    return CostEstimate(cost, assumed, timings.by_flops(config, cost.flops), by_flops=True)


def longest_first(planned: Sequence[PlannedTrial], estimates: Mapping[int, CostEstimate]) -> list[PlannedTrial]:
    """In the order in which they are started, so that no long trial is alone at the end; equal ones as they are.

    estimates: by row. By time where it is known of every row, else by FLOPs, then by heads: the softmax of more heads
    takes more time, but few FLOPs.
    """
    seconds = {row: estimate.seconds for row, estimate in estimates.items() if estimate.seconds is not None}
    lengths = seconds if len(seconds) == len(estimates) else {row: one.cost.flops for row, one in estimates.items()}
    return sorted(planned, key=lambda one: (-lengths[one.row], -one.config.model.h))


class _Timings:
    """The wall-clock time of finished trials, in seconds."""

    def __init__(self, finished: Sequence[dict[str, Any]]):
        self._finished = sorted(finished, key=lambda result: result["wall_s"])
        self._seconds: dict[str, list[float]] = {}  # by everything but the seed
        for result in self._finished:
            self._seconds.setdefault(_without_seed(result["config"]), []).append(result["wall_s"])

    @cached_property
    def _paces(self) -> dict[str, list["_Pace"]]:
        """By the model and the batches, and by the batches alone; of short trials by the model at most."""
        trained = {result["weights_id"]: result for result in self._finished}  # the slowest: the others decoded alone
        found: dict[str, list[_Pace]] = {}
        for result in trained.values():
            pace = _pace(result)
            with_model, without = _speed_settings(result["config"])
            is_long = result["steps"] >= SHORT
            if is_long or (result["tokens_per_s"] and pace.fixed < result["wall_s"] / 2):
                found.setdefault(with_model, []).append(pace)
            if is_long:
                found.setdefault(without, []).append(pace)
        return found

    def of_other_seeds(self, config: Config) -> float | None:
        """The median time of the trials that differ in their seed at most."""
        seconds = self._seconds.get(_without_seed(config.flat() | effective_sizes(config)))
        return statistics.median(seconds) if seconds else None

    def by_flops(self, config: Config, flops: float) -> float | None:
        """The median time that trials of the same model, or else of the same text and trainer, need for these FLOPs.

        They may be shorter or longer.
        """
        for settings in _speed_settings(config.flat()):
            if paces := self._paces.get(settings):
                return statistics.median(pace.fixed + pace.per_flop * flops for pace in paces)
        return None


class _Pace(NamedTuple):
    """The time of a finished trial."""

    fixed: float  # seconds that do not depend on the number of steps: start, evaluation
    per_flop: float  # seconds


def _pace(result: dict[str, Any]) -> _Pace:
    """By the rate of its training, or by all of its time where that was too short to have one."""
    wall, rate = result["wall_s"], result["tokens_per_s"]
    batch = result["config"].get("data.batch_tokens", KEYS["data.batch_tokens"])
    training = min(wall, result["steps"] * batch / rate) if rate else wall
    return _Pace(wall - training, training / result["flops"])


def _without_seed(config: dict[str, Any]) -> str:
    """What a trial's time depends on, beside the machine and the threads that the sweep gave it.

    Keys at their default are left out: then older results, which lack keys that were added later, still match.
    """
    left_out = ("seed", "data.path", "data.name", "trainer.threads")
    return repr(
        sorted((key, value) for key, value in config.items() if key not in left_out and value != KEYS.get(key, ...))
    )


def _speed_settings(config: dict[str, Any]) -> tuple[str, str]:
    """What the time of a FLOP depends on: with the model, and without it."""
    relevant = {key: value for key, value in config.items() if key not in HARDLY_SLOWER}
    with_model, without = (
        _without_seed({key: value for key, value in relevant.items() if key.startswith(sections)})
        for sections in ((*SETUP, *MODEL), SETUP)
    )
    return f"model {with_model}", without


# ---------------------------------------------------------------------------------------------------------------------
# Keeping


def as_json(plan: Plan) -> dict[str, Any]:
    """The content of plan.json."""
    trials = [
        {
            "row": plan.sweep.rows[planned.row].name,
            "seed": planned.config.seed,
            "id": planned.identity.trial,
            "folder": planned.trial.folder.name,
            **plan.estimates[planned.row].cost._asdict(),
            "config": planned.config.flat() | effective_sizes(planned.config),
        }
        for planned in plan.trials
    ]
    return {"name": plan.sweep.name, "scale": plan.sweep.scale, "trials": trials}
