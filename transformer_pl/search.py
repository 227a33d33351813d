"""Searches: Optuna on the same sweep files, trained and kept like any other trials. The only door to optuna.

`method: random`, `bayes`, or `custom` with `scheduler: {engine: optuna}`. A study lies in a journal beside the table:
the same command goes on with it. Trial 0 is the base.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from rich.console import Console

from transformer_pl import parts
from transformer_pl.budget import matched
from transformer_pl.config import KEYS, Config, Level, known, merge, nearest, parse_variant, resolve, scale_level
from transformer_pl.cost import human
from transformer_pl.errors import InputError
from transformer_pl.plan import Estimate, Planned, estimate, planned_trial
from transformer_pl.render import Column, Table
from transformer_pl.results import Trial as Kept
from transformer_pl.sources import open_corpus

JOURNAL = "study.journal"
SCHEDULED = ("val/ppl", "val/loss")  # logged at every validation, so that a pruner can see them
AT_THE_END = ("val/bleu", "val/chrf", "params", "flops")
SAMPLERS = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "qmc": optuna.samplers.QMCSampler,
    "cma-es": optuna.samplers.CmaEsSampler,
    "gp": optuna.samplers.GPSampler,
    "nsga-ii": optuna.samplers.NSGAIISampler,
}
NEEDS = {"cma-es": "cmaes"}  # packages that Optuna itself does not ask for
PRUNERS = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}
optuna.logging.set_verbosity(optuna.logging.WARNING)  # what becomes of a trial is told by the sweep


class Search(NamedTuple):
    """A sweep file that searches."""

    path: Path
    name: str
    project: str
    scale: str
    method: str
    fixed: dict[str, Any]  # keys that every trial has
    sets: dict[str, str]
    seed: int
    space: dict[str, BaseDistribution]
    goals: dict[str, str]  # minimize or maximize, by metric
    run_cap: int
    hyperband: dict[str, Any] | None  # W&B's early_terminate
    base: Config

    def levels(self, drawn: Mapping[str, Any]) -> list[Level]:
        """What a trial is resolved from."""
        plain = {key: value for key, value in drawn.items() if key != "variant"}
        variant = [parse_variant(str(drawn["variant"]), f"{self.path}:")] if "variant" in drawn else []
        place = f"{self.path}: parameters"
        return [
            scale_level(self.scale),
            Level(place, self.fixed | plain),
            *variant,
            Level("--set", self.sets),
            Level(place, {"seed": self.seed}),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# The sweep file


def load(
    path: Path, content: Mapping[str, Any], scale: str | None, seeds: Sequence[str] | None, sets: Mapping[str, str]
) -> Search:
    """Raises one InputError for all mistakes of a file whose method is a search."""
    mistakes: list[str] = []
    method = content["method"]
    if method == "custom" and (content.get("scheduler") or {}).get("engine") != "optuna":
        mistakes.append(
            f"{path}: scheduler = {content.get('scheduler')}: must be {{engine: optuna}} for method: custom"
        )
    goals = _goals(path, content, mistakes)
    cap = content.get("run_cap")
    if not isinstance(cap, int) or isinstance(cap, bool) or cap < 1:
        mistakes.append(f"{path}: run_cap = {cap}: must be a whole number from 1, all the trials of a search")
    hyperband = content.get("early_terminate")
    if hyperband is not None:
        if not isinstance(hyperband, dict) or hyperband.get("type") != "hyperband":
            mistakes.append(f"{path}: early_terminate = {hyperband}: must be of type: hyperband")
        elif unseen := [name for name in goals if name not in SCHEDULED]:
            mistakes.append(
                f"{path}: early_terminate: needs a metric that is logged on the schedule ({', '.join(SCHEDULED)}), "
                f"but metric.name = {', '.join(unseen)}; search for one of these, or take it out"
            )
    fixed, space = _space(path, content.get("parameters"), mistakes)
    scale = scale or str(fixed.pop("scale", "demo"))
    fixed.pop("scale", None)
    seed = fixed.pop("seed", 1)
    if seeds and len(seeds) > 1:
        mistakes.append(f"--seeds {','.join(seeds)}: must be one in a search")
    if mistakes:
        raise InputError(*mistakes)
    search = Search(
        path=path,
        name=str(content.get("name", path.stem)),
        project=str(content.get("project", "transformer-pl")),
        scale=scale,
        method=method,
        fixed=fixed,
        sets=dict(sets),
        seed=int(seeds[0] if seeds else seed),
        space=space,
        goals=goals,
        run_cap=cap,
        hyperband=hyperband,
        base=resolve([]),
    )
    search = search._replace(base=resolve(search.levels({})))
    if mistakes := [*parts.check(search.base.model), *_outside(search)]:
        raise InputError(*mistakes)
    return search._replace(base=matched(search.base))


def distribution(said: Mapping[str, Any]) -> BaseDistribution:
    """What W&B's own Optuna engine makes of a parameter. Raises a ValueError with the law that is broken."""
    if strange := said.keys() - {"distribution", "min", "max", "q", "value", "values"}:
        raise ValueError(f"{', '.join(sorted(strange))}: Optuna has nothing like it; use min, max and q, or values")
    if "value" in said:
        return CategoricalDistribution([said["value"]])
    if "values" in said and said.get("distribution", "categorical") in ("categorical", "constant"):
        return CategoricalDistribution(list(said["values"]))
    low, high, q = said.get("min"), said.get("max"), said.get("q", 1)
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in (low, high, q)):
        raise ValueError("must have value, values, or numbers as min and max")
    whole = isinstance(low, int) and isinstance(high, int)
    match said.get("distribution") or ("int_uniform" if whole else "uniform"):
        case "int_uniform":
            return IntDistribution(low, high)
        case "uniform":
            return FloatDistribution(low, high)
        case "q_uniform":
            return (IntDistribution if whole and isinstance(q, int) else FloatDistribution)(low, high, step=q)
        case "log_uniform_values":
            return FloatDistribution(low, high, log=True)
        case "q_log_uniform_values":  # Optuna has steps of 1 alone on a logarithmic scale
            return (
                IntDistribution(low, high, log=True) if q == 1 and low >= 1 else FloatDistribution(low, high, log=True)
            )
        case other:
            raise ValueError(f"distribution {other}: Optuna has nothing like it; use uniform or log_uniform_values")


def _space(path: Path, parameters: Any, mistakes: list[str]) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """What is the same for all, and what is drawn."""
    fixed: dict[str, Any] = {}
    space: dict[str, BaseDistribution] = {}
    if not isinstance(parameters, dict) or not parameters:
        mistakes.append(
            f"{path}: parameters = {parameters}: must map keys to {{value: ...}}, {{values: [...]}} or a range"
        )
        return fixed, space
    for key, said in parameters.items():
        if not known(key) and key not in ("scale", "seed", "variant"):
            mistakes.append(f"{path}: parameters.{key}: no such key{nearest(key, [*KEYS, 'scale', 'seed', 'variant'])}")
            continue
        try:
            if not isinstance(said, dict):
                raise ValueError("must map to {value: ...}, {values: [...]} or {min: ..., max: ...}")
            found = distribution(said)
        except (ValueError, TypeError) as error:
            mistakes.append(f"{path}: parameters.{key} = {said}: {error}")
            continue
        if isinstance(found, CategoricalDistribution) and len(found.choices) == 1 and key != "variant":
            fixed[key] = found.choices[0]
        elif key in ("scale", "seed"):
            mistakes.append(f"{path}: parameters.{key} = {said}: must be one value in a search")
        else:
            space[key] = found
    if not space and not mistakes:
        mistakes.append(f"{path}: parameters: some key must have values or a range to search, but none has")
    return fixed, space


def _goals(path: Path, content: Mapping[str, Any], mistakes: list[str]) -> dict[str, str]:
    """One metric, or W&B's several."""
    said = content.get("metrics") or [content.get("metric")]
    goals: dict[str, str] = {}
    for one in said if isinstance(said, list) else [said]:
        name = one.get("name") if isinstance(one, dict) else None
        goal = one.get("goal", "minimize") if isinstance(one, dict) else None
        if name not in (*SCHEDULED, *AT_THE_END):
            mistakes.append(
                f"{path}: metric.name = {name}: no such metric{nearest(str(name), (*SCHEDULED, *AT_THE_END))}"
            )
        elif goal not in ("minimize", "maximize"):
            mistakes.append(f"{path}: metric.goal = {goal}: must be minimize or maximize")
        else:
            goals[name] = goal
    return goals


def _outside(search: Search) -> list[str]:
    """The keys in which base, which is trial 0, does not lie in the space."""
    mistakes = []
    for key, value in _base_draw(search).items():
        where = search.space[key]
        if isinstance(where, CategoricalDistribution):
            inside = value in where.choices
        else:
            inside = isinstance(value, int | float) and where.low <= value <= where.high
            if inside and where.step and not where.log:
                inside = abs((value - where.low) / where.step - round((value - where.low) / where.step)) < 1e-9
        if not inside:
            mistakes.append(f"{search.path}: parameters.{key}: must have {value} in it, for base is trial 0; add it")
    return mistakes


def _base_draw(search: Search) -> dict[str, Any]:
    flat = search.base.flat() | {"variant": "base"}
    return {key: flat.get(key) for key in search.space}


def show(search: Search, console: Console) -> None:
    """What would be searched."""
    goals = " and ".join(f"{goal} {name}" for name, goal in search.goals.items())
    console.print(f"{search.name} at scale {search.scale}: {search.run_cap} trials, {goals}", soft_wrap=True)
    base = _base_draw(search)
    for key, where in search.space.items():
        if isinstance(where, CategoricalDistribution):
            span = ", ".join(map(str, where.choices))
        else:
            span = f"{where.low:g} to {where.high:g}" + (", by its logarithm" if where.log else "")
            span += f", in steps of {where.step:g}" if where.step not in (None, 1) else ""
        console.print(f"  {key}: {span} (base {base[key]})", soft_wrap=True)


# ---------------------------------------------------------------------------------------------------------------------
# The study


def named(kinds: Mapping[str, Any], words: Sequence[str], what: str) -> Any:
    """`tpe n_startup_trials=5`: one of SAMPLERS or PRUNERS, with options of its constructor."""
    name, *options = words
    if name not in kinds:
        raise InputError(f"{what} {name}: no such one{nearest(name, kinds)}")
    if name in NEEDS and not find_spec(NEEDS[name]):
        raise InputError(
            f"{what} {name}: needs the package {NEEDS[name]}, which is not here; pip install {NEEDS[name]}"
        )
    try:
        return kinds[name](**{key: _value(value) for key, _, value in (option.partition("=") for option in options)})
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} {' '.join(words)}: {error}") from None


def _value(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"True": True, "False": False, "None": None}.get(text, text)


class Draw(NamedTuple):
    """A trial of the study that is being trained."""

    trial: Trial
    planned: Planned
    keys: dict[str, Any]


class Study:
    """Says what is trained next, and hears what came of it. `launch` asks and tells."""

    def __init__(self, search: Search, runs: Path, folder: Path, sampler: Any = None, pruner: Any = None):
        self.search, self.runs = search, runs
        self.corpus = open_corpus(search.base.data)
        storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        chosen = SAMPLERS["random" if search.method == "random" else "tpe"]
        self.study = optuna.create_study(
            study_name=search.name,
            storage=storage,
            sampler=sampler or chosen(),
            pruner=pruner or self._hyperband(),
            directions=list(search.goals.values()),
            load_if_exists=True,
        )
        self.estimates: dict[int, Estimate] = {}  # by the trial's number; for the view
        self.draws: dict[str, Draw] = {}  # by the trial's id, as it is on disk
        self._held: Draw | None = None  # drawn while another of the same weights is trained
        self._seen: dict[str, int] = {}  # validations that the pruner has heard of
        self._sizes: dict[str, int] = {}  # of the metrics files, as they were last read

    def begin(self) -> None:
        """Base first; and what a process that is gone was at comes first again."""
        if not self.study.get_trials(deepcopy=False):
            self.study.enqueue_trial(_base_draw(self.search))
        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if trial.user_attrs.get("host") == socket.gethostname() and not _alive(trial.user_attrs.get("pid", 0)):
                self._put_back(Trial(self.study, trial._trial_id))

    def counted(self) -> list[FrozenTrial]:
        """The trials that count against run_cap: all but those that were put back."""
        waiting = (TrialState.WAITING,)
        return [
            t for t in self.study.get_trials(deepcopy=False) if t.state not in waiting and "again" not in t.user_attrs
        ]

    def next(self, taken: set[str]) -> Planned | None:
        """One to train now; `taken` are the weights that are being trained. None: none now, or none at all."""
        while True:
            draw, self._held = self._held or self._draw(), None
            if draw is None:
                return None
            if draw.planned.who.weights in taken:
                self._held = draw
                return None
            self.draws[draw.planned.who.trial] = draw
            if draw.planned.trial.result() is None:
                return draw.planned
            self.ended(draw.planned, failed=False)

    def _draw(self) -> Draw | None:
        """None where run_cap is reached. What breaks a law is told so, and the next one drawn."""
        while len(self.counted()) < self.search.run_cap:
            trial = self.study.ask(self.search.space)
            trial.set_user_attr("host", socket.gethostname())
            trial.set_user_attr("pid", os.getpid())
            before = [one for one in self.counted() if one.number < trial.number]
            if len(before) >= self.search.run_cap:  # another process was quicker
                self._put_back(trial, again=False)
                return None
            levels = self.search.levels(trial.params)
            try:
                config = matched(_checked(resolve(levels)))
                drawn = " ".join(f"{_name(key)}={_short(value)}" for key, value in trial.params.items())
                name = f"#{trial.number} {drawn}"
                planned = planned_trial(trial.number, name, config, self.search.scale, self.runs, self.corpus)
                self.estimates |= estimate([planned], self.runs)
            except InputError as error:
                trial.set_constraint("laws", 1.0)
                trial.set_user_attr("infeasible", str(error))
                self.study.tell(trial, state=TrialState.PRUNED)
                continue
            trial.set_constraint("laws", 0.0)
            trial.set_user_attr("folder", planned.trial.folder.name)
            return Draw(trial, planned, {key: value for key, (value, _) in merge(levels[1:-1]).items()})
        return None

    def argv(self, job: Planned, runs: Path) -> list[str]:
        """What `train` is told."""
        keys = [f"--{key}={value}" for key, value in self.draws[job.who.trial].keys.items()]
        return [f"--scale={self.search.scale}", *keys, f"--seed={self.search.seed}", f"--runs={runs}"]

    def watch(self, job: Planned) -> bool:
        """Tell the pruner of every new validation; True where the trial is to end."""
        if len(self.search.goals) > 1:
            return False
        (metric,) = self.search.goals
        trial, seen = self.draws[job.who.trial].trial, self._seen.get(job.who.trial, 0)
        file = job.trial.folder / "metrics.jsonl"
        size = file.stat().st_size if file.exists() else 0
        if size == self._sizes.get(job.who.trial, 0):
            return False
        self._sizes[job.who.trial] = size
        values = [line[metric] for line in job.trial.metrics() if metric in line and "val/bleu" not in line]
        for at, value in enumerate(values[seen:], seen + 1):
            trial.report(value, at)
            self._seen[job.who.trial] = at
        return len(values) > seen and trial.should_prune()

    def ended(self, job: Planned, failed: bool, pruned: bool = False) -> None:
        trial = self.draws.pop(job.who.trial).trial
        result = job.trial.result()
        if pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
        elif failed or result is None:
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            known = result["metrics"] | {"params": result["params"], "flops": result["flops"]}
            self.study.tell(trial, [known[name] for name in self.search.goals])

    def stopped(self) -> None:
        """What was being trained is put back: the same command draws it first, and it goes on from its checkpoint."""
        for draw in [*self.draws.values(), *([self._held] if self._held else [])]:
            self._put_back(draw.trial)
        self.draws, self._held = {}, None

    def _put_back(self, trial: Trial, again: bool = True) -> None:
        """It does not count; and is drawn again."""
        trial.set_user_attr("again", again)
        self.study.tell(trial, state=TrialState.FAIL)
        if again:
            self.study.enqueue_trial(trial.params)

    def _hyperband(self) -> Any:
        said = self.search.hyperband
        if said is None:
            return PRUNERS["none"]()
        validations = max(1, self.search.base.steps // self.search.base.trainer.val_every)
        eta = int(said.get("eta", 3))
        if "s" in said:
            return PRUNERS["halving"](min_resource=int(said.get("min_iter", 1)), reduction_factor=eta)
        top = int(said.get("max_iter", validations))
        return PRUNERS["hyperband"](min_resource=int(said.get("min_iter", 1)), max_resource=top, reduction_factor=eta)


def _checked(config: Config) -> Config:
    if mistakes := parts.check(config.model):
        raise InputError(*mistakes)
    return config


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


# ---------------------------------------------------------------------------------------------------------------------
# What came out


def table_of(study: Study) -> Table:
    """A line a trial, the best first: of two goals, the front first."""
    search, done = study.search, study.counted()
    front = {trial.number for trial in study.study.best_trials} if any(t.values for t in done) else set()
    sign = -1 if next(iter(search.goals.values())) == "maximize" else 1
    done = sorted(
        done, key=lambda t: (t.values is None, t.number not in front, sign * t.values[0] if t.values else t.number)
    )
    records = [_record(study, trial, trial.number in front) for trial in done]
    keys = list(search.space)
    columns = [
        Column("trial", [f"#{r['trial']}" + (" base" if r["trial"] == 0 else "") for r in records]),
        *(Column(_name(key), [_short(r[key]) for r in records], setting=True) for key in keys),
        *(Column(goal, [_short(r[goal]) or "-" for r in records]) for goal in search.goals),
        Column("params", [human(r["params"]) if r["params"] else "-" for r in records]),
        Column("state", [r["state"] for r in records]),
    ]
    if "val/bleu" in search.goals:
        intervals = [f"{r['low']:.1f} to {r['high']:.1f}" if r["low"] is not None else "" for r in records]
        columns.insert(-2, Column("95 %", intervals))
    states = [r["state"] for r in records]
    told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    notes = [f"{len(records)} of {search.run_cap} trials: {told}."]
    if len(search.goals) > 1:
        notes.append("best: no other trial is better in one goal and not worse in another.")
    if "val/bleu" in search.goals:
        notes.append(
            "95 %: for other sentences but the same seed. The best of many trials is flattered by being chosen."
        )
    return Table([column for column in columns if any(column.cells)], records, notes)


def _record(study: Study, trial: FrozenTrial, best: bool) -> dict[str, Any]:
    from transformer_pl.stats import BLEU, estimate, sample

    folder = trial.user_attrs.get("folder")
    kept = Kept(study.runs / "trials" / folder) if folder else None
    result = kept.result() if kept else None
    state = {TrialState.COMPLETE: "done", TrialState.FAIL: "failed"}.get(trial.state, trial.state.name.lower())
    if "infeasible" in trial.user_attrs:
        state = "infeasible"
    elif best:
        state = "best"
    record = {"trial": trial.number} | {key: trial.params.get(key) for key in study.search.space}
    record |= dict(zip(study.search.goals, trial.values or [None] * len(study.search.goals), strict=True))
    record |= {"low": None, "high": None}
    sentences = kept.sentences("val") if result else None
    if sentences is not None:
        record |= dict(
            zip(("low", "high"), estimate(sample(sentences[None, :, BLEU.columns], BLEU.score)).interval(), strict=True)
        )
    return record | {"params": result and result["params"], "state": state, "folder": folder}


def _name(key: str) -> str:
    return key.partition(".")[2] or key


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
