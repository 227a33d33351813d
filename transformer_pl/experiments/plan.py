"""The plan of a sweep: every trial, its cost, and what has been done of it. Needs no torch for the paper's components.

`plan_trials` finds the trials and their folders, `estimate_costs` their FLOPs and time.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.component_sources import is_own_task, source_digests, task_digest
from transformer_pl.config import KEYS, SLOTS, Config, Data, effective_sizes, sizes
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

SHORT = 100  # steps: a trial with fewer is mostly start and evaluation, and does not tell the time of others


class PlannedTrial(NamedTuple):
    """One trial of a sweep."""

    row: int  # index into the sweep's rows; of a search: the trial's number
    name: str  # what differs from base, and the seed: `h=4 s1`
    config: Config
    identity: Identity
    trial: Trial  # its folder, which need not exist yet
    argv: list[str]  # of `python -m transformer_pl.train`: the only way in which it gets its config
    prepared: Prepared  # its text, which need not be prepared yet


class CostEstimate(NamedTuple):
    """What one trial of a row costs."""

    cost: Cost
    assumed: bool  # FLOPs are for sentences of ASSUMED_LENGTH, because the text is not prepared yet
    seconds: float | None  # by finished trials, or by --measure; None: not known


class Plan(NamedTuple):
    """A sweep with its trials, in the order of its rows and seeds, and an estimate for each row."""

    sweep: Sweep
    trials: list[PlannedTrial]
    estimates: dict[int, CostEstimate]


# ---------------------------------------------------------------------------------------------------------------------
# Trials


def plan_trials(sweep: Sweep, runs: Path) -> list[PlannedTrial]:
    """The sweep's trials in order. Raises an InputError where the text cannot be found."""
    corpora = collect_errors(corpus_opener(), dict.fromkeys(config.data for config in sweep.configs))
    return [
        plan_trial(index, f"{row.name} s{config.seed}", config, row.keys, sweep.scale, runs, corpora[config.data])
        for index, row in enumerate(sweep.rows)
        for config in row.configs
    ]


def plan_trial(
    row: int, name: str, config: Config, keys: Mapping[str, Any], scale: str, runs: Path, corpus: Corpus
) -> PlannedTrial:
    """The trial of this config: its identity, its folder under `runs`, and the folder of its prepared text.

    keys: the arguments of `train`, beside the scale and the seed.
    """

    def readable() -> str:
        return f"{Path(scale).stem}-{describe_difference(config, _scale_config(scale))}-s{config.seed}"

    trial_identity = identity(config, corpus.fingerprint, source_digests(config.model) | task_digest(config.data))
    trial = Trial.at(runs, trial_identity.trial, readable)
    prepared = Prepared(runs / "data" / fingerprint_id(config.data, corpus))
    options = [f"--{key}={value}" for key, value in keys.items()]
    argv = [f"--scale={scale}", *options, f"--seed={config.seed}", f"--runs={runs}"]
    return PlannedTrial(row, name, config, trial_identity, trial, argv, prepared)


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

    finished: results of finished trials. The time of a FLOP is the median of those with the same components, text and
    trainer.

    Raises an InputError that names a component which does not run.
    """
    rates: dict[str, list[float]] = {}  # seconds per FLOP
    slowest = {result["weights_id"]: result for result in sorted(finished, key=lambda result: result["wall_s"])}
    for result in slowest.values():  # the others decoded alone
        if result["steps"] >= SHORT:
            rates.setdefault(_of_the_speed(result["config"]), []).append(result["wall_s"] / result["flops"])
    first_of_row = {trial.row: trial for trial in reversed(planned)}
    return collect_errors(lambda row: _estimate(first_of_row[row], rates), sorted(first_of_row))


def _estimate(planned: PlannedTrial, rates: Mapping[str, list[float]]) -> CostEstimate:
    config, text = planned.config, planned.prepared
    assumed = not text.is_counted()
    source, target = (ASSUMED_LENGTH if assumed else text.mean_length("train", side) for side in ("source", "target"))
    model = sizes(config.model, config.data.vocab_size)
    cost = training_cost(model, config.steps, config.data.batch_tokens, source, target)
    known = rates.get(_of_the_speed(config.flat()))
    return CostEstimate(cost, assumed, statistics.median(known) * cost.flops if known else None)


def _of_the_speed(config: Mapping[str, Any]) -> str:
    """The keys that the time of a FLOP depends on, beside the machine and the threads that the sweep gave a trial."""
    keys = [f"model.{slot}" for slot in SLOTS] + [key for key in KEYS if key.startswith(("data.", "trainer."))]
    return repr([config.get(key) for key in keys if key not in ("data.name", "trainer.threads")])


def longest_first(planned: Sequence[PlannedTrial], estimates: Mapping[int, CostEstimate]) -> list[PlannedTrial]:
    """In the order in which they are started, so that no long trial is alone at the end; equal ones as they are.

    estimates: by row. By FLOPs, then by heads: the softmax of more heads takes more time, but few FLOPs.
    """
    return sorted(planned, key=lambda one: (-estimates[one.row].cost.flops, -one.config.model.h))


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
