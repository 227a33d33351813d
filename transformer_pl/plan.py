"""What a sweep will do, before it does it: every trial, its cost, and what is there already. Needs no torch."""

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from transformer_pl import parts
from transformer_pl.config import COLUMNS, Config, Data, effective, nominal, resolve, scale_level, sizes
from transformer_pl.cost import cost, training_flops
from transformer_pl.errors import together
from transformer_pl.identity import Identity, identity, words
from transformer_pl.prepare import Prepared, fingerprint_id
from transformer_pl.results import Trial, finished
from transformer_pl.sources import open_corpus
from transformer_pl.sweepfile import Sweep

ASSUMED_LENGTH = 25  # pieces a sentence, for FLOPs of a text that is not prepared yet


class Planned(NamedTuple):
    """One trial of a plan."""

    row: int
    config: Config
    who: Identity
    trial: Trial
    params: int
    flops: float  # of the whole training
    assumed: bool  # whether its FLOPs are of an assumed length of sentence, as the text is not prepared yet
    seconds: float | None  # by finished trials that differ in seed alone; None: nothing measured it


def plan(sweep: Sweep, runs: Path) -> list[Planned]:
    """The sweep's trials in order. Raises an InputError where the text cannot be found."""
    corpora = together(open_corpus, dict.fromkeys(_text(row.configs[0].data) for row in sweep.rows))
    times: dict[str, list[float]] = {}
    for result in finished(runs):
        times.setdefault(_apart_from_seed(result["config"]), []).append(result["wall_s"])
    scale = resolve([scale_level(sweep.scale)])
    planned = []
    for index, row in enumerate(sweep.rows):
        sources = parts.sources(row.configs[0].model)
        data = row.configs[0].data
        corpus = corpora[_text(data)]
        prepared = Prepared(runs / "data" / fingerprint_id(data, corpus))
        known = (prepared.folder / "meta.json").exists()
        lengths = [prepared.mean_length("train", side) if known else ASSUMED_LENGTH for side in ("source", "target")]
        model = sizes(row.configs[0].model, data.vocab_size)
        params = cost(model, 1, 1, 1).params
        flops = training_flops(model, row.configs[0].steps, data.batch_tokens, *lengths)
        for config in row.configs:
            who = identity(config, corpus.fingerprint, sources)
            trial = Trial.at(runs, who.trial, f"{Path(sweep.scale).stem}-{words(config, scale)}-s{config.seed}")
            measured = times.get(_apart_from_seed(config.flat() | effective(config)))
            seconds = statistics.median(measured) if measured else None
            planned.append(Planned(index, config, who, trial, params, flops, not known, seconds))
    return planned


def _text(data: Data) -> Data:
    """What says which text it is; how it is cut and batched is left out."""
    return data.model_copy(update={"vocab_size": 1, "batch_tokens": 1, "max_length": 1})


def show(sweep: Sweep, planned: list[Planned], console: Console) -> None:
    """Every row with its trials: what differs, nominal and effective sizes, cost, time, and what is there."""
    missing = [one for one in planned if one.trial.result() is None]
    console.print(f"{sweep.name} at scale {sweep.scale}: {len(planned)} trials, {len(missing)} to train")
    sizes = [_sizes(row.configs[0]) for row in sweep.rows]
    shared = {name: told for name, told in sizes[0].items() if all(other[name] == told for other in sizes)}
    console.print(f"every row: {', '.join(f'{name} {told}' for name, told in shared.items())}", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("row", overflow="fold")
    varied = [name for name in sizes[0] if name not in shared]
    for heading in (*varied, "params", "FLOPs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trials", no_wrap=True)
    for index, row in enumerate(sweep.rows):
        trials = [one for one in planned if one.row == index]
        states = Counter(one.trial.status()["state"] for one in trials)
        one = trials[0]
        table.add_row(
            row.name,
            *(sizes[index][name] for name in varied),
            human(one.params),
            human(one.flops),
            "unknown" if one.seconds is None else f"{one.seconds:.0f} s",
            ", ".join(f"{count} {state}" for state, count in states.items()),
        )
    console.print(table)
    known = [one.seconds for one in missing]
    total = "unknown" if None in known else f"{sum(known) / 60:.0f} min, one after the other"
    if any(">" in told for row in sizes for told in row.values()):
        console.print("a>b: what the file says, and what it comes to at this scale's width and depth")
    if any(one.assumed for one in planned):
        console.print(f"FLOPs: for sentences of {ASSUMED_LENGTH} pieces, until the text is prepared")
    console.print(f"FLOPs and time are of one trial; time to train what is missing: {total}", highlight=False)


def _sizes(config: Config) -> dict[str, str]:
    """Nominal and effective sizes, told as one where they are the same."""
    real = effective(config)
    said = nominal(config.model) | {"model.max_steps": config.optim.max_steps}
    pairs = {name: (said[f"model.{name}"], real[f"effective.{name}"]) for name in (*COLUMNS, "max_steps")}
    return {name: str(a) if a == b else f"{a}>{b}" for name, (a, b) in pairs.items()}


def as_json(sweep: Sweep, planned: list[Planned]) -> dict[str, Any]:
    """The plan as it is kept beside the table."""
    trials = [
        {
            "row": sweep.rows[one.row].name,
            "seed": one.config.seed,
            "id": one.who.trial,
            "folder": one.trial.folder.name,
            "params": one.params,
            "flops": one.flops,
            "config": one.config.flat() | effective(one.config),
        }
        for one in planned
    ]
    return {"name": sweep.name, "scale": sweep.scale, "trials": trials}


def human(number: float) -> str:
    """Three figures and a unit: 412K, 63.1M, 3.2e16."""
    if number >= 1e10:
        return f"{number:.1e}".replace("e+", "e")
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _apart_from_seed(config: dict[str, Any]) -> str:
    """What a trial's time depends on, beside the machine."""
    return json.dumps({key: value for key, value in config.items() if key not in ("seed", "data.path")}, sort_keys=True)
