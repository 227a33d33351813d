"""The plan of a sweep: every trial, its cost, and what has been done of it. Needs no torch for the paper's components.

`plan_trials` finds the trials and their folders, `estimate_costs` their FLOPs and time; `print_plan` prints them.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from transformer_pl.config import COMPONENTS, KEYS, SIZE_NAMES, STACKS, Config, Data, effective_sizes, nominal_sizes
from transformer_pl.config.levels import resolve, scale_level, scale_measured
from transformer_pl.data.prepared import Prepared
from transformer_pl.plan.sweep_file import Sweep, SweepRow
from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.runtime.machine import gpus
from transformer_pl.runtime.terminal import counted, duration_range, format_duration, say, short_number, short_numbers
from transformer_pl.task import LOSSES, Corpus, open_corpus, task_of
from transformer_pl.trials.flops import ASSUMED_LENGTH, Cost, training_costs
from transformer_pl.trials.identity import path_notes
from transformer_pl.trials.result import Result
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import Origin, Trial
from transformer_pl.trials.trial_folder import TrialFolder
from transformer_pl.trials.trial_of import code_digests, trial_of
from transformer_pl.trials.why_new import why_new

SHORT = 100  # steps: a shorter trial is mostly start and evaluation, and its time says little about longer ones
SLOWS_NOTHING = (
    *("data.name", "data.test", "data.sets", "data.bleu"),
    *("trainer.threads", "trainer.checkpoint_minutes", "trainer.keep_state", "trainer.log_every"),
)


class CostEstimate(NamedTuple):
    """What one trial of a row costs."""

    cost: Cost
    seconds: float | None  # None: not known
    processor: str = ""  # where it takes so long, if the scale's file says so; empty: trials that finished here do
    is_sure: bool = True  # False: how many FLOPs it takes is known when it has been trained
    at_most: float | None = None  # seconds on the slowest processor of several; `seconds` are then on the fastest

    @property
    def shown(self) -> tuple[str, str]:
        """Its FLOPs and its time."""
        times = [format_duration(seconds) for seconds in (self.seconds, self.at_most) if seconds is not None]
        time = f"~{' to '.join(times)}" if times else "unknown"
        return short_number(self.cost.flops) if self.is_sure else "unknown", time


class Plan(NamedTuple):
    """A sweep with its trials, in the order of its rows and seeds, and an estimate for each row."""

    sweep: Sweep
    trials: list[Trial]
    estimates: dict[int, CostEstimate]
    trunks: Sequence[Trial] = ()  # of other files, which are to be trained before them

    @property
    def planned(self) -> list[Trial]:
        """The trials and the trunks."""
        return [*self.trials, *self.trunks]

    @property
    def rows(self) -> dict[int, SweepRow]:
        """The rows, and those of `trunks`, by their places."""
        places = dict.fromkeys([*range(len(self.sweep.rows)), *(trial.place for trial in self.trunks)])
        return {place: self.sweep.planned[place] for place in places}

    @property
    def datasets(self) -> list[Data]:
        """The dataset of each row."""
        return [row.configs[0].data for row in self.rows.values()]


def plan_trials(
    sweep: Sweep, runs: RunsFolder, corpus_of: Callable[[Data], Corpus] = open_corpus, rerun: bool = False
) -> list[Trial]:
    """The trials of the sweep's rows in order. Raises an InputError where a dataset or a start cannot be found.

    corpus_of: opens the dataset of a config.
    rerun: whether finished trials are trained again; those of other files are not.
    """
    rows, digests = sweep.planned, cache(code_digests)
    corpora = collect_errors(corpus_of, dict.fromkeys(row.configs[0].data for row in rows))
    kept = {row.start for row in rows if row.configs[0].model.start_with == "all"}

    @cache
    def trial(place: int, seed: int) -> Trial:
        row = rows[place]
        keeps = {"trainer.keep_state": "on"} if place in kept else {}
        config = row.configs[0].model_copy(update={"seed": seed}).with_values(keeps)
        name = f"{row.title} s{seed}" if row.of else ""
        origin = Origin(row.name, name, (row.of or sweep).scale, row.keys | keeps, place, rerun and not row.of)
        trunk = None if row.start is None else trial(row.start, seed)
        return trial_of(config, corpora[config.data], runs, origin, digests, trunk)

    wanted = [(place, config.seed) for place, row in enumerate(sweep.rows) for config in row.configs]
    return [*collect_errors(lambda of: trial(*of), wanted).values()]


def row_costs(trials: Sequence[Trial]) -> dict[int, tuple[Cost, bool]]:
    """What one trial of each row costs, and whether a finished one has recorded it. For others models are run.

    Where the dataset is not prepared yet, sentences have ASSUMED_LENGTH. Raises one InputError for all that do not run.
    """
    costs: dict[int, tuple[Cost, bool]] = {}
    for trial in trials:
        result = None if trial.place in costs else trial.folder.result()
        if result and result.steps and result.flops is not None:
            own_steps = [max(1, steps - trial.begins_after()) for steps in (trial.config.steps, result.steps)]
            costs[trial.place] = Cost(result.params, result.flops * own_steps[0] / own_steps[1]), True
    lengths = cache(_lengths)
    rows = {
        trial.place: (trial.config, lengths(trial.prepared)) for trial in reversed(trials) if trial.place not in costs
    }
    try:
        counted_costs = training_costs([*rows.values()])
    except InputError:
        collect_errors(lambda row: training_costs([rows[row]]), rows)
        raise
    shares = {trial.place: _own_share(trial) for trial in trials if trial.place in rows}
    counted_here = {
        row: cost._replace(flops=cost.flops * shares[row]) for row, cost in zip(rows, counted_costs, strict=True)
    }
    return costs | {row: (cost, False) for row, cost in counted_here.items()}


def _own_share(trial: Trial) -> float:
    """The share of its steps that a trial trains itself: less than 1 where it goes on from another's last state."""
    planned = trial.trunk.config.steps if trial.continued and trial.trunk else 0
    return max(0.0, 1.0 - (trial.begins_after() or planned) / trial.config.steps)


def estimate_costs(
    trials: Sequence[Trial],
    finished: Sequence[Result],
    passes: Mapping[int, float | None] | None = None,
    by_scale: bool = False,
    costs: Mapping[int, tuple[Cost, bool]] | None = None,
) -> dict[int, CostEstimate]:
    """The cost of a trial of each row, and its time.

    finished: results of finished trials. The time of a FLOP is the median of those with the same components, dataset
    and trainer; else of those with the same dataset and trainer; else what the scale's file states of base. The steps
    after which callbacks have ended these trials early are those of others, too.
    passes: by row, how many passes a batch costs, where a loss, an optimizer or a callback needs several; None: that is
    known after a training.
    by_scale: whether the file of the scale tells the time; else only finished trials do.
    costs: by row, what `row_costs` has returned.

    Raises an InputError that names a component which does not run.
    """
    rate_of, rates_of_scale, estimates = _rate_of_finished(finished), cache(_rates_of_scale), {}
    costs = costs or row_costs(trials)
    for row, trial in {trial.place: trial for trial in reversed(trials)}.items():
        cost, is_recorded = costs[row]
        of_batch = 1.0 if is_recorded else (passes or {}).get(row, 1.0)
        cost = cost._replace(flops=cost.flops * (of_batch or 1.0))
        (alike, trained_alike), processor = _speed_keys(trial.config.flat()), ""
        rate = rate_of(alike, trial.config.steps) or rate_of(trained_alike, trial.config.steps)
        rates = [rate] if rate else []
        if not rates and by_scale:
            of_scale = trial.origin.scale, trained_alike, trial.config.trainer.accelerator, trial.prepared
            rates, processor = rates_of_scale(*of_scale)
        seconds = [rate * cost.flops for rate in rates]
        at_most = max(seconds) if len(seconds) > 1 else None
        estimates[row] = CostEstimate(cost, min(seconds, default=None), processor, of_batch is not None, at_most)
    return estimates


def _rate_of_finished(finished: Sequence[Result]) -> Callable[[str, int], float | None]:
    """Gives the median seconds of a FLOP by a speed key and a number of steps; None where no such trial is finished."""
    # Their steps, those that another one would have at most, and their seconds per FLOP.
    rates: dict[str, list[tuple[int, float, float]]] = {}
    trained = [result for result in finished if result.flops is not None and not result.weights_of]
    for result in trained:
        most = result.steps if result.stopped_early else math.inf
        for key in _speed_keys(result.config):
            rates.setdefault(key, []).append((result.steps, most, result.wall_s / (result.flops or 1.0)))

    @cache
    def rate_of(key: str, steps: int) -> float | None:
        known = [rate * min(1, most / steps) for n, most, rate in rates.get(key, ()) if n >= min(SHORT, steps, most)]
        return statistics.median(known) if known else None

    return rate_of


def _speed_keys(config: Mapping[str, Any]) -> tuple[str, str]:
    """The values of all keys that the time of a FLOP depends on, and of these those of the dataset and the trainer.

    The machine and the trial's threads matter, too.
    """
    keys = [key for key in KEYS if key.startswith(("data.", "trainer.")) and key not in (*COMPONENTS, *SLOWS_NOTHING)]
    parts = [key for key in COMPONENTS if not key.startswith("decode.")]
    return repr([config.get(key) for key in [*keys, *parts]]), repr([config.get(key) for key in keys])


def _rates_of_scale(scale: str, speed_key: str, accelerator: str, prepared: Prepared) -> tuple[list[float], str]:
    """The seconds that a FLOP takes on each processor by what a scale's file states of base, and what these are.

    Empty where it states nothing, and where the trial is of another dataset or trainer, or is trained on a GPU.
    """
    measured, base = scale_measured(scale), resolve([scale_level(scale)])
    if not measured.seconds or (gpus() and accelerator != "cpu") or _speed_keys(base.flat())[1] != speed_key:
        return [], ""
    (cost,) = training_costs([(base, _lengths(prepared))])
    return [seconds / cost.flops for seconds in measured.seconds], measured.processor


def _lengths(prepared: Prepared) -> tuple[float, float]:
    """The mean lengths of a dataset's sentences, or ASSUMED_LENGTH."""
    return prepared.mean_lengths if prepared.is_counted() else (ASSUMED_LENGTH, ASSUMED_LENGTH)


def as_json(plan: Plan) -> dict[str, Any]:
    """The content of plan.json."""
    costs = {
        row: estimate.cost._asdict() | ({} if estimate.is_sure else {"flops": None})
        for row, estimate in plan.estimates.items()
    }
    trials = [
        {
            "row": plan.rows[trial.place].title,
            "seed": trial.config.seed,
            "id": trial.id,
            "folder": trial.folder.name,
            **costs[trial.place],
            "config": trial.settings,
        }
        for trial in plan.planned
    ]
    return {"name": plan.sweep.name, "scale": plan.sweep.scale, "trials": trials}


def tested_by(sweep: Sweep) -> dict[str, Any]:
    """What the table of a sweep tests: which rows, with which seeds, by which metric."""
    seeds = sorted({config.seed for config in sweep.configs})
    return {"rows": [row.name for row in sweep.rows], "seeds": seeds, "metric": [main_metric(sweep)]}


def main_metric(sweep: Sweep) -> str:
    """What the rows of a sweep are looked at by, and what is drawn and summarised first: val/loss where the file's
    metric is a loss, else the score of the task.

    Raises an InputError for a metric that tables do not test.
    """
    score = task_of(sweep.base.data).metrics[0]
    if sweep.metric not in (None, score, *LOSSES):
        rule = f"must be {score}, {' or '.join(LOSSES)}, by which the rows of a grid are compared; correct it"
        raise InputError(f"{sweep.name}: metric.name = {sweep.metric}: {rule}")
    return "val/loss" if sweep.metric in LOSSES else score


def print_plan(plan: Plan, missing: Sequence[Trial], console: Console, runs: RunsFolder, at_once: int = 1) -> None:
    """Print every row with its trials: what differs, nominal and effective sizes, cost, time, and what is done.

    missing: the trials that are to be trained.
    runs: the runs folder, whose finished trials the new ones are compared with.
    at_once: how many are trained at the same time.
    """
    sweep, trials, estimates, rows = plan.sweep, plan.planned, plan.estimates, plan.rows.values()
    trainings, states = _trainings(missing, runs), list[str]()
    planned = dict.fromkeys((trial.id for trial in missing), "to evaluate") | {trial.id: "new" for trial in trainings}
    for trial in trials:  # a row that is refused, or was decided at a look, leaves some out
        state = trial.folder.state()
        states.append(planned.get(trial.id, "left out") if state == "new" else state)
    evaluations = f", {n} to evaluate" if (n := len(missing) - len(trainings)) else ""
    left = f"{counted(len(trials), 'trial')}, {len(trainings)} to train{evaluations}"
    say(console, f"{sweep.name} at scale {sweep.scale}: {left}")
    base = _sizes(sweep.base)
    scaled = ", as written → at this scale" if "→" in "".join(base) else ""
    say(console, f"base{scaled}: {', '.join(base)}")
    console.print(_table(plan, states, base))
    lines = _new_beside_finished([trials[i] for i, state in enumerate(states) if state == "new"], runs)
    if trainings:
        lines.append(_time_left([estimates[trial.place] for trial in trainings], at_once))
    lines += path_notes(row.configs[0] for row in rows)
    if endless := [row.title for row in rows if row.configs[0].optim.warmup > row.configs[0].steps]:
        lines.append(f"the warm-up does not end within the steps of {', '.join(endless)}; lower optim.warmup")
    for line in lines:
        say(console, line)


def _new_beside_finished(new: Sequence[Trial], runs: RunsFolder) -> list[str]:
    """A line about new trials that resemble finished ones."""
    reasons: dict[str, list[str]] = {}
    for trial in new:
        if reason := why_new(trial, runs):
            reasons.setdefault(reason, []).append(trial.name)
    why = "; ".join(f"{reason} ({shown(', '.join(names))})" for reason, names in reasons.items())
    return [f"new beside finished trials: {why}"] if why else []


def _time_left(trainings: Sequence[CostEstimate], at_once: int) -> str:
    """How long the trainings take together, so far as is known; a range over processors, if none was trained here."""
    known = [estimate for estimate in trainings if estimate.seconds is not None]
    unknown = len(trainings) - len(known)
    fastest = [estimate.seconds or 0.0 for estimate in known]
    slowest = [estimate.at_most or estimate.seconds or 0.0 for estimate in known]
    if unknown and not known:
        return "time: unknown, as no finished trial is comparable; the sweep tells it as it trains"
    low, high = (max([sum(seconds) / at_once, *seconds]) for seconds in (fastest, slowest))
    left = format_duration(low) if low == high else duration_range(low, high)
    processors = [f", if each runs as fast as on {cost.processor}" for cost in trainings if cost.processor]
    more = f", and that of {counted(unknown, 'trial')} of which it is unknown" if unknown else ""
    return f"time: about {left} of training left{more}, {at_once} at a time{''.join(processors[:1])}"


def _trainings(missing: Sequence[Trial], runs: RunsFolder) -> list[Trial]:
    """The missing trials that must be trained; the others are only evaluated.

    Of those that share weights, the first is trained for all, and none where a finished trial has the weights.
    """
    there: dict[str, list[TrialFolder]] = {}
    for folder, _ in runs.finished() if missing else ():
        there.setdefault(folder.weights_id, []).append(folder)
    # The last is that which the queue gives out first.
    by_state = sorted(reversed(missing), key=lambda trial: trial.keeps_state)
    sharing = {trial.identity.weights: trial for trial in by_state if trial.can_share}
    first = [trial for weights, trial in sharing.items() if not any(map(trial.can_use, there.get(weights, ())))]
    return [*first, *(trial for trial in missing if not trial.can_share)]


def _table(plan: Plan, states: Sequence[str], base: Sequence[str]) -> Table:
    """The table of the rows.

    states: the state of each trial.
    base: the sizes of base; a row shows the sizes that differ.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    rows = plan.rows
    differing = [", ".join(size for size in _sizes(row.configs[0]) if size not in base) for row in rows.values()]
    for heading, cells in (("row", [row.title for row in rows.values()]), ("sizes", differing)):
        longest = max(len(word) for cell in cells for word in (cell or heading).split())  # is not broken
        table.add_column(heading, min_width=longest)
    for heading in ("params", "FLOPs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trials", no_wrap=True)
    counts = Counter((trial.place, state) for trial, state in zip(plan.planned, states, strict=True))
    params = short_numbers([plan.estimates[place].cost.params for place in rows])
    for index, (place, row) in enumerate(rows.items()):
        counted_states = ", ".join(f"{count} {state}" for (of, state), count in counts.items() if of == place)
        is_left_out = not plan.estimates[place].cost.params
        known = [""] * 4 if is_left_out else [differing[index], params[index], *plan.estimates[place].shown]
        table.add_row(row.title, *known, counted_states)
    return table


def _sizes(config: Config) -> list[str]:
    """The sizes as the file has them and as this scale builds them: `N=6 → 3`, or `h=8` where the two are equal."""
    nominal = nominal_sizes(config.model) | {"model.max_steps": config.optim.max_steps}
    effective, words = effective_sizes(config), []
    for name in (*SIZE_NAMES, *(stack for stack in STACKS if f"effective.{stack}" in effective), "max_steps"):
        written, built = nominal[f"model.{name}"], effective[f"effective.{name}"]
        words.append(f"{name}={written}" if written == built else f"{name}={written} → {built}")
    return words
