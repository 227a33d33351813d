"""What a sweep will do, before it does it: every trial, its cost, and what is there already. Needs no torch."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from transformer_pl import components
from transformer_pl.config import (
    KEYS,
    SIZE_NAMES,
    Config,
    Data,
    effective_sizes,
    nominal_sizes,
    resolve,
    scale_level,
    sizes,
)
from transformer_pl.data.prepare import Prepared, fingerprint_id
from transformer_pl.data.sources import Corpus, open_corpus
from transformer_pl.experiments.cost import ASSUMED_LENGTH, Cost, short_number, training_cost
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.runtime.errors import collect_errors
from transformer_pl.trials.identity import Identity, describe_difference, identity
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.why_new import reasons_by_names

MATCHES = ("params", "flops", "steps")


class PlannedTrial(NamedTuple):
    """One trial of a sweep: its row, who it is, and where it lies."""

    row: int
    name: str  # what differs from base, and the seed
    config: Config
    who: Identity
    trial: Trial
    text: Prepared  # there already, or to be


class CostEstimate(NamedTuple):
    """What a trial of a row costs."""

    cost: Cost
    assumed: bool  # whether FLOPs are of an assumed length of sentence, as the text is not prepared yet
    seconds: float | None  # by finished trials; None: nothing measured it
    by_flops: bool  # whether none of these differs in its seed alone, and FLOPs take the time they took in the others


def plan_trials(sweep: Sweep, runs: Path) -> list[PlannedTrial]:
    """The sweep's trials in order. Raises an InputError where the text cannot be found."""
    corpora = collect_errors(open_corpus, dict.fromkeys(_text(row.configs[0].data) for row in sweep.rows))
    return [
        plan_trial(index, f"{row.name} s{config.seed}", config, sweep.scale, runs, corpora[_text(config.data)])
        for index, row in enumerate(sweep.rows)
        for config in row.configs
    ]


def plan_trial(row: int, name: str, config: Config, scale: str, runs: Path, corpus: Corpus) -> PlannedTrial:
    who = identity(config, corpus.fingerprint, components.source_digests(config.model))
    differs = describe_difference(config, _of_scale(scale))
    trial = Trial.at(runs, who.trial, f"{Path(scale).stem}-{differs}-s{config.seed}")
    return PlannedTrial(row, name, config, who, trial, Prepared(runs / "data" / fingerprint_id(config.data, corpus)))


@cache
def _of_scale(scale: str) -> Config:
    """What a scale alone comes to: what a trial's folder is named against. Read once for all trials."""
    return resolve([scale_level(scale)])


def estimate_costs(planned: list[PlannedTrial], past: Sequence[dict[str, Any]]) -> dict[int, CostEstimate]:
    """The cost of each row's trials, their time by the results of `past` ones.

    Raises an InputError that names a part which does not run.
    """
    times: dict[str, list[float]] = {}
    per_flop: dict[str, list[float]] = {}
    trained = {}  # of those that share weights, the one that trained them
    for result in sorted(past, key=lambda result: result["wall_s"]):
        times.setdefault(_apart_from_seed(result["config"]), []).append(result["wall_s"])
        trained[result["weights_id"]] = result
    for result in trained.values():
        per_flop.setdefault(_conditions(result["config"]), []).append(result["wall_s"] / result["flops"])

    def of_row(index: int) -> CostEstimate:
        config, text = next((one.config, one.text) for one in planned if one.row == index)
        known = text.is_counted()
        lengths = [text.mean_length("train", side) if known else ASSUMED_LENGTH for side in ("source", "target")]
        model = sizes(config.model, config.data.vocab_size)
        cost = training_cost(model, config.steps, config.data.batch_tokens, *lengths)
        if measured := times.get(_apart_from_seed(config.flat() | effective_sizes(config))):
            return CostEstimate(cost, not known, statistics.median(measured), False)
        rates = per_flop.get(_conditions(config.flat()))
        return CostEstimate(cost, not known, statistics.median(rates) * cost.flops if rates else None, True)

    return collect_errors(of_row, dict.fromkeys(one.row for one in planned))


def _text(data: Data) -> Data:
    """What says which text it is; how it is cut and batched is left out."""
    return data.model_copy(update={"vocab_size": 1, "batch_tokens": 1, "max_length": 1})


def print_plan(
    sweep: Sweep,
    planned: list[PlannedTrial],
    estimates: dict[int, CostEstimate],
    console: Console,
    match: str | None = None,
) -> None:
    """Every row with its trials: what differs, nominal and effective sizes, cost, time, and what is there.

    `match` (one of MATCHES) adds how far each row is from base in that.
    """
    missing = [one for one in planned if one.trial.needs_training()]
    console.print(f"{sweep.name} at scale {sweep.scale}: {len(planned)} trials, {len(missing)} to train")
    base, rows = _sizes(sweep.base), [_sizes(row.configs[0]) for row in sweep.rows]
    varied = [name for name in base if any(row[name] != rows[0][name] for row in rows)]
    if shared := [f"{name} {_told(*rows[0][name])}" for name in base if name not in varied]:
        console.print(f"every row: {', '.join(shared)}", highlight=False)
    columns = {name: [_told(*row[name]) for row in rows] for name in varied}
    off = {f"{match} off": _off(sweep, match)} if match else {}
    table = _table(sweep, planned, estimates, columns | off)
    if Measurement.get(console, console.options.update(width=1000), table).minimum > console.width:
        console.print(f"base: {', '.join(f'{name} {_told(*base[name])}' for name in varied)}", highlight=False)
        differing = [[f"{name} {row[name][1]}" for name in varied if row[name] != base[name]] for row in rows]
        table = _table(sweep, planned, estimates, {"comes to": [", ".join(told) for told in differing]} | off)
    console.print(table)
    of_missing = [estimates[one.row] for one in missing]
    total = "unknown"
    if all(one.seconds is not None for one in of_missing):
        about = "about " if any(one.by_flops for one in of_missing) else ""
        total = f"{about}{sum(one.seconds for one in of_missing) / 60:.0f} min of training"
    if any(said != real for row in rows for said, real in row.values()):
        console.print("a>b: what the file says, and what it comes to at this scale's width and depth")
    if any(one.assumed for one in estimates.values()):
        console.print(f"FLOPs: for sentences of {ASSUMED_LENGTH} pieces, until the text is prepared")
    if any(one.by_flops and one.seconds is not None for one in estimates.values()):
        console.print("~: by the time that the FLOPs of finished trials took")
    console.print(f"FLOPs (of matrix products) and time are of one trial; what is missing: {total}", highlight=False)
    new = {one.name: one.who.inputs for one in planned if one.trial.status()["state"] == "new"}
    runs = planned[0].trial.folder.parents[1]
    for reason, names in reasons_by_names(new, [one.who.inputs for one in planned], runs).items():
        console.print(f"new, unlike a finished trial ({reason}): {', '.join(names)}", highlight=False, soft_wrap=True)


def _table(
    sweep: Sweep, planned: list[PlannedTrial], estimates: dict[int, CostEstimate], sizes: dict[str, list[str]]
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("row", overflow="fold")
    for heading in sizes:
        folds = heading == "comes to"
        table.add_column(heading, justify="left" if folds else "right", no_wrap=not folds)
    for heading in ("params", "FLOPs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trials", no_wrap=True)
    for index, row in enumerate(sweep.rows):
        states = Counter(one.trial.status()["state"] for one in planned if one.row == index)
        cost, _, seconds, by_flops = estimates[index]
        table.add_row(
            row.name,
            *(cells[index] for cells in sizes.values()),
            short_number(cost.params),
            short_number(cost.flops),
            "unknown" if seconds is None else f"{'~' if by_flops else ''}{seconds:.0f} s",
            ", ".join(f"{count} {state}" for state, count in states.items()),
        )
    return table


def _off(sweep: Sweep, match: str) -> list[str]:
    """How much more than base each row has of it."""

    def spent(config: Config) -> float:
        if match == "steps":
            return config.steps
        model = sizes(config.model, config.data.vocab_size)
        return getattr(training_cost(model, config.steps, config.data.batch_tokens, *[ASSUMED_LENGTH] * 2), match)

    return [f"{spent(row.configs[0]) / spent(sweep.base) - 1:+.0%}" for row in sweep.rows]


def _sizes(config: Config) -> dict[str, tuple[int, int]]:
    """What the file says, and what it comes to at this scale."""
    real = effective_sizes(config)
    said = nominal_sizes(config.model) | {"model.max_steps": config.optim.max_steps}
    return {name: (said[f"model.{name}"], real[f"effective.{name}"]) for name in (*SIZE_NAMES, "max_steps")}


def _told(said: int, real: int) -> str:
    return f"{said}" if said == real else f"{said}>{real}"


def as_json(sweep: Sweep, planned: list[PlannedTrial], estimates: dict[int, CostEstimate]) -> dict[str, Any]:
    """The plan as it is kept beside the table."""
    trials = [
        {
            "row": sweep.rows[one.row].name,
            "seed": one.config.seed,
            "id": one.who.trial,
            "folder": one.trial.folder.name,
            **estimates[one.row].cost._asdict(),
            "config": one.config.flat() | effective_sizes(one.config),
        }
        for one in planned
    ]
    return {"name": sweep.name, "scale": sweep.scale, "trials": trials}


def _apart_from_seed(config: dict[str, Any]) -> str:
    """What a trial's time depends on, beside the machine and the threads that a sweep gave it there.

    Keys at their default are left out: a key that was added later tells no old result apart.
    """
    left_out = ("seed", "data.path", "trainer.threads")
    said = {key: value for key, value in config.items() if key not in left_out and value != KEYS.get(key, ...)}
    return json.dumps(said, sort_keys=True)


def _conditions(config: dict[str, Any]) -> str:
    """What the time of a FLOP depends on, beside the model and what `_apart_from_seed` leaves out, too."""
    return _apart_from_seed({key: value for key, value in config.items() if key.startswith(("data.", "trainer."))})
