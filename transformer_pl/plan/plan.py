"""The plan of a sweep: every trial, its cost, and what has been done of it. Needs no torch for the paper's components.

`plan_trials` finds the trials and their folders, `estimate_costs` their FLOPs and time; `print_plan` prints them.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from transformer_pl.config import COMPONENTS, KEYS, SIZE_NAMES, STACKS, Config, Data, effective_sizes, nominal_sizes
from transformer_pl.config.levels import resolve, scale_level, scale_measured
from transformer_pl.data.prepared import Prepared
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.runtime.errors import collect_errors, shown
from transformer_pl.runtime.machine import gpus
from transformer_pl.runtime.terminal import counted, format_duration, say, short_number, short_numbers
from transformer_pl.task import Corpus, open_corpus, task_of
from transformer_pl.trials.flops import ASSUMED_LENGTH, Cost, training_costs
from transformer_pl.trials.identity import path_notes
from transformer_pl.trials.result import Result
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_of import code_digests, trial_of
from transformer_pl.trials.why_new import why_new

SHORT = 100  # steps: a shorter trial is mostly start and evaluation, and its time says little about longer ones
SLOWS_NOTHING = ("data.name", "trainer.threads", "trainer.checkpoint_minutes", "trainer.log_every")


class CostEstimate(NamedTuple):
    """What one trial of a row costs."""

    cost: Cost
    seconds: float | None  # None: not known
    processor: str = ""  # where it takes so long, if the scale's file says so; empty: trials that finished here do


class Plan(NamedTuple):
    """A sweep with its trials, in the order of its rows and seeds, and an estimate for each row."""

    sweep: Sweep
    trials: list[Trial]
    estimates: dict[int, CostEstimate]

    @property
    def datasets(self) -> list[Data]:
        """The dataset of each row."""
        return [row.configs[0].data for row in self.sweep.rows]


def plan_trials(sweep: Sweep, runs: Path, corpus_of: Callable[[Data], Corpus] = open_corpus) -> list[Trial]:
    """The sweep's trials in order. Raises an InputError where a dataset cannot be found.

    corpus_of: opens the dataset of a config.
    """
    corpora = collect_errors(corpus_of, dict.fromkeys(config.data for config in sweep.configs))
    digests = cache(code_digests)
    return [
        trial_of(config, corpora[config.data], runs, row.name, digests, scale=sweep.scale, keys=row.keys, place=place)
        for place, row in enumerate(sweep.rows)
        for config in row.configs
    ]


def estimate_costs(
    trials: Sequence[Trial],
    finished: Sequence[Result],
    passes: Mapping[int, float] | None = None,
    scale: str | None = None,
) -> dict[int, CostEstimate]:
    """The cost of a trial of each row. Where the dataset is not prepared yet, sentences have ASSUMED_LENGTH.

    finished: results of finished trials. The time of a FLOP is the median of those with the same components, dataset
    and trainer; else of those with the same dataset and trainer; else what the scale's file states of base. The steps
    after which callbacks have ended these trials early are those of others, too.
    passes: by row, how often the model is called for each batch, where an optimizer or a callback needs several calls.
    scale: of the sweep; None: only finished trials tell the time.

    Raises an InputError that names a component which does not run.
    """
    # Of finished trials: their steps, those that another one would have at most, and their seconds per FLOP.
    rates: dict[str, list[tuple[int, float, float]]] = {}
    slowest = {result.weights_id: result for result in sorted(finished, key=lambda result: result.wall_s)}
    for result in slowest.values():  # others with the same weights were only decoded
        for with_components in (True, False):
            key = _speed_key(result.config, with_components)
            most = result.steps if result.stopped_early else math.inf
            rates.setdefault(key, []).append((result.steps, most, result.wall_s / result.flops))
    first_of_row = {trial.place: trial for trial in reversed(trials)}
    costs = training_costs([(trial.config, _lengths(trial.prepared)) for trial in first_of_row.values()])
    estimates = {}
    for (row, trial), cost in zip(first_of_row.items(), costs, strict=True):
        cost = cost._replace(flops=cost.flops * (passes or {}).get(row, 1.0))
        for with_components in (True, False):
            alike, whole = rates.get(_speed_key(trial.config.flat(), with_components), ()), trial.config.steps
            if known := [rate * min(1, most / whole) for n, most, rate in alike if n >= min(SHORT, whole, most)]:
                estimates[row] = CostEstimate(cost, statistics.median(known) * cost.flops)
                break
        else:
            rate, processor = (scale and _rate_of_scale(scale, trial)) or (None, "")
            estimates[row] = CostEstimate(cost, rate and rate * cost.flops, processor)
    return estimates


def _speed_key(config: Mapping[str, Any], with_components: bool = True) -> str:
    """The values of all keys that the time of a FLOP depends on. The machine and the trial's threads matter, too."""
    keys = [key for key in KEYS if key.startswith(("data.", "trainer.")) and key not in COMPONENTS]
    keys += [key for key in COMPONENTS if with_components and not key.startswith("decode.")]
    return repr([config.get(key) for key in keys if key not in SLOWS_NOTHING])


def _rate_of_scale(scale: str, trial: Trial) -> tuple[float, str] | None:
    """The seconds that a FLOP takes by what a scale's file states of base, and the processor on which it was measured.

    None where it states nothing, and where the trial is of another dataset or trainer, or is trained on a GPU.
    """
    measured, base = scale_measured(scale), resolve([scale_level(scale)])
    if not measured.seconds or (gpus() and trial.config.trainer.accelerator != "cpu"):
        return None
    if _speed_key(base.flat(), with_components=False) != _speed_key(trial.config.flat(), with_components=False):
        return None
    (cost,) = training_costs([(base, _lengths(trial.prepared))])
    return measured.seconds / cost.flops, measured.processor


def _lengths(prepared: Prepared) -> tuple[float, float]:
    """The mean lengths of a dataset's sentences, or ASSUMED_LENGTH."""
    return prepared.mean_lengths if prepared.is_counted() else (ASSUMED_LENGTH, ASSUMED_LENGTH)


def as_json(plan: Plan) -> dict[str, Any]:
    """The content of plan.json."""
    trials = [
        {
            "row": trial.row,
            "seed": trial.config.seed,
            "id": trial.id,
            "folder": trial.folder.name,
            **plan.estimates[trial.place].cost._asdict(),
            "config": trial.settings,
        }
        for trial in plan.trials
    ]
    return {"name": plan.sweep.name, "scale": plan.sweep.scale, "trials": trials}


def tested_by(sweep: Sweep) -> dict[str, Any]:
    """What the table of a sweep tests: which rows, with which seeds, by which metric."""
    seeds, metric = sorted({config.seed for config in sweep.configs}), f"val/{task_of(sweep.base.data).measure.name}"
    return {"rows": [row.name for row in sweep.rows], "seeds": seeds, "metric": [metric]}


def print_plan(plan: Plan, missing: Sequence[Trial], console: Console, at_once: int = 1) -> None:
    """Print every row with its trials: what differs, nominal and effective sizes, cost, time, and what is done.

    missing: the trials that are to be trained.
    at_once: how many are trained at the same time.
    """
    sweep, trials, estimates = plan
    to_train, states = {trial.id for trial in missing}, list[str]()
    for trial in trials:  # a row that is refused, or was decided at a look, leaves some out
        state = trial.state()
        states.append("left out" if state == "new" and trial.id not in to_train else state)
    say(console, f"{sweep.name} at scale {sweep.scale}: {counted(len(trials), 'trial')}, {len(missing)} to train")
    base = _sizes(sweep.base)
    scaled = ", as written → at this scale" if "→" in "".join(base) else ""
    say(console, f"base{scaled}: {', '.join(base)}")
    console.print(_table(plan, states, base))
    new, done = ([trials[i] for i, state in enumerate(states) if state == wanted] for wanted in ("new", "done"))
    lines = _new_beside_finished(new)
    if missing:
        lines.append(_time_left([estimates[trial.place] for trial in _trainings(missing, done)], at_once))
    lines += path_notes(row.configs[0] for row in sweep.rows)
    if rows := [row.name for row in sweep.rows if row.configs[0].optim.warmup > row.configs[0].steps]:
        lines.append(f"the warm-up does not end within the steps of {', '.join(rows)}; lower optim.warmup")
    for line in lines:
        say(console, line)


def _new_beside_finished(new: Sequence[Trial]) -> list[str]:
    """A line about new trials that resemble finished ones."""
    reasons: dict[str, list[str]] = {}
    for trial in new:
        if reason := why_new(trial):
            reasons.setdefault(reason, []).append(trial.name)
    why = "; ".join(f"{shown(reason)} ({shown(', '.join(names))})" for reason, names in reasons.items())
    return [f"new beside finished trials: {why}"] if why else []


def _time_left(trainings: Sequence[CostEstimate], at_once: int) -> str:
    """How long the trainings take together."""
    seconds = [estimate.seconds or math.nan for estimate in trainings]
    if math.isnan(sum(seconds)):
        return "time: unknown, as no finished trial is comparable; the sweep tells it as it trains"
    left = format_duration(max([sum(seconds) / at_once, *seconds]))
    processors = [f", if each runs as fast as on {cost.processor}" for cost in trainings if cost.processor]
    return f"time: about {left} of training left, {at_once} at a time{''.join(processors[:1])}"


def _trainings(missing: Sequence[Trial], done: Sequence[Trial]) -> Iterable[Trial]:
    """The missing trials that must be trained. Of those that share weights, one is trained for all.

    If finished trials are among the missing ones, to be trained again, then all of them do.
    """
    if {trial.id for trial in done} & {trial.id for trial in missing}:
        return missing
    there = {trial.identity.weights for trial in done}
    return {trial.identity.weights: trial for trial in missing if trial.identity.weights not in there}.values()


def _table(plan: Plan, states: Sequence[str], base: Sequence[str]) -> Table:
    """The table of the rows.

    states: the state of each trial.
    base: the sizes of base; a row shows the sizes that differ.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    differing = [", ".join(size for size in _sizes(row.configs[0]) if size not in base) for row in plan.sweep.rows]
    for heading, cells in (("row", [row.name for row in plan.sweep.rows]), ("sizes", differing)):
        longest = max(len(word) for cell in cells for word in (cell or heading).split())  # is not broken
        table.add_column(heading, min_width=longest)
    for heading in ("params", "FLOPs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trials", no_wrap=True)
    counts = Counter((trial.place, state) for trial, state in zip(plan.trials, states, strict=True))
    params = short_numbers([plan.estimates[index].cost.params for index in range(len(plan.sweep.rows))])
    for index, row in enumerate(plan.sweep.rows):
        estimate = plan.estimates[index]
        time = "unknown" if estimate.seconds is None else f"~{format_duration(estimate.seconds)}"
        trials = ", ".join(f"{count} {state}" for (of_row, state), count in counts.items() if of_row == index)
        table.add_row(row.name, differing[index], params[index], short_number(estimate.cost.flops), time, trials)
    return table


def _sizes(config: Config) -> list[str]:
    """The sizes as the file has them and as this scale builds them: `N=6 → 3`, or `h=8` where the two are equal."""
    nominal = nominal_sizes(config.model) | {"model.max_steps": config.optim.max_steps}
    effective, words = effective_sizes(config), []
    for name in (*SIZE_NAMES, *(stack for stack in STACKS if f"effective.{stack}" in effective), "max_steps"):
        written, built = nominal[f"model.{name}"], effective[f"effective.{name}"]
        words.append(f"{name}={written}" if written == built else f"{name}={written} → {built}")
    return words
