"""The sweep file of a search: its fixed keys, its space, its goals."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from rich.console import Console

from transformer_pl.config import (
    KEYS,
    Config,
    Level,
    Trainer,
    is_known_key,
    merge,
    resolve,
    scale_level,
    suggestion,
    type_errors,
)
from transformer_pl.experiments.sweep_file import row_levels, top_level_mistakes
from transformer_pl.experiments.trial_config import trial_config
from transformer_pl.runtime.errors import InputError
from transformer_pl.training.wandb_process import PROJECT

SCHEDULED = ("val/ppl", "val/loss", "val/bleu_sample")  # logged at every validation, so that a pruner can see them
AT_THE_END = ("val/bleu", "val/chrf", "params", "flops")


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
    early: dict[str, int] | None  # W&B's early_terminate: `first` and `eta`, in validations
    base: Config

    def config(self, drawn: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
        """A trial's config; and its keys, which `train` is told beside the scale and the seed.

        Raises an InputError where what was drawn breaks a law.
        """
        changes = row_levels(self.path, self.fixed | drawn, self.sets)
        return trial_config(self._levels(changes)), {key: value for key, (value, _) in merge(changes).items()}

    def _levels(self, changes: Sequence[Level]) -> list[Level]:
        return [scale_level(self.scale), *changes, Level(f"{self.path}: parameters", {"seed": self.seed})]

    def trainers(self) -> list[Trainer]:
        """How base is trained, then how it would be with each choice of a key, or with the ends of its range."""
        trainers = [self.base.trainer]
        for key, where in self.space.items():
            categorical = isinstance(where, CategoricalDistribution)
            for choice in where.choices if categorical else (where.low, where.high):
                with suppress(InputError):  # it breaks a law: it will not be trained
                    changes = row_levels(self.path, self.fixed | {key: choice}, self.sets)
                    trainers.append(resolve(self._levels(changes)).trainer)
        return list(dict.fromkeys(trainers))

    @property
    def base_draw(self) -> dict[str, Any]:
        """Where base lies in the space."""
        flat = self.base.flat() | {"variant": "base"}
        return {key: flat.get(key) for key in self.space}


def read_search(
    path: Path, content: Mapping[str, Any], scale: str | None, seeds: Sequence[str] | None, sets: Mapping[str, str]
) -> Search:
    """Raises one InputError for all mistakes of a file whose method is a search."""
    mistakes = top_level_mistakes(path, content)
    method = content["method"]
    scheduler = content.get("scheduler")
    if method == "custom" and not (isinstance(scheduler, dict) and scheduler.get("engine") == "optuna"):
        mistakes.append(f"{path}: scheduler = {scheduler}: must be {{engine: optuna}} for method: custom")
    goals = _goals(path, content, mistakes)
    cap = content.get("run_cap")
    if not isinstance(cap, int) or isinstance(cap, bool) or cap < 1:
        mistakes.append(f"{path}: run_cap = {cap}: must be a whole number from 1, all the trials of a search")
    early = _early(path, content.get("early_terminate"), goals, mistakes)
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
        project=str(content.get("project", PROJECT)),
        scale=scale,
        method=method,
        fixed=fixed,
        sets=dict(sets),
        seed=seeds[0] if seeds else seed,
        space=space,
        goals=goals,
        run_cap=cap,
        early=early,
        base=resolve([]),
    )
    base = search.config({})[0]
    search = search._replace(base=base, seed=base.seed)
    mistakes = _outside(search)
    if "val/bleu_sample" in search.goals and not search.base.trainer.bleu_sample:
        mistakes.append(
            f"{path}: metric.name = val/bleu_sample: needs trainer.bleu_sample, of how many sentences it is; add it to "
            "parameters, such as trainer.bleu_sample: {value: 100}"
        )
    if base.steps < base.trainer.val_every and (early or "val/bleu_sample" in search.goals):
        mistakes.append(
            f"{path}: trainer.val_every = {base.trainer.val_every}: must be at most the {base.steps} steps of a trial, "
            "or nothing is seen on the schedule"
        )
    if mistakes:
        raise InputError(*mistakes)
    return search


def _early(path: Path, said: Any, goals: Mapping[str, str], mistakes: list[str]) -> dict[str, int] | None:
    """The first validation at which a trial may end, and how many times as many the next is, as W&B says these."""
    if said is None:
        return None
    place = f"{path}: early_terminate"
    if not isinstance(said, dict) or said.get("type") != "hyperband":
        mistakes.append(f"{place} = {said}: must be of type: hyperband")
        return None
    if len(goals) > 1 or not goals.keys() <= set(SCHEDULED):
        mistakes.append(
            f"{place}: needs one metric that is logged on the schedule ({', '.join(SCHEDULED)}), "
            f"but metric.name = {', '.join(goals)}; search for one of these, or take it out"
        )
    least = {"min_iter": 1, "max_iter": 1, "s": 1, "eta": 2}
    told = {key: said[key] for key in least if key in said}
    wrong = [key for key, value in told.items() if type(value) is not int or value < least[key]]
    mistakes += [f"{place}.{key} = {told[key]}: must be a whole number from {least[key]}" for key in wrong]
    if ("min_iter" in told) == ("max_iter" in told) or ("max_iter" in told and "s" not in told):
        mistakes.append(f"{place} = {said}: must have min_iter, or else max_iter and s")
    elif not wrong:
        eta = told.get("eta", 3)
        return {"first": told.get("min_iter") or max(1, told["max_iter"] // eta ** told["s"]), "eta": eta}
    return None


def distribution(said: Mapping[str, Any]) -> BaseDistribution:
    """What W&B's own Optuna engine makes of a parameter. Raises a ValueError with the law that is broken."""
    if strange := said.keys() - {"distribution", "min", "max", "q", "value", "values"}:
        raise ValueError(f"{', '.join(sorted(strange))}: Optuna has nothing like it; use min, max and q, or values")
    if "value" in said or ("values" in said and said.get("distribution", "categorical") in ("categorical", "constant")):
        values = [said["value"]] if "value" in said else list(said["values"])
        if any(not isinstance(value, str | int | float | None) for value in values):
            raise ValueError("each value must be a number, text, true, false or null")
        return CategoricalDistribution(values)
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
        if not isinstance(key, str) or not (is_known_key(key) or key in ("scale", "seed", "variant")):
            names = [*KEYS, "scale", "seed", "variant"]
            mistakes.append(f"{path}: parameters.{key}: no such key{suggestion(str(key), names)}")
            continue
        try:
            if not isinstance(said, dict):
                raise ValueError("must map to {value: ...}, {values: [...]} or {min: ..., max: ...}")
            found = distribution(said)
        except (ValueError, TypeError) as error:
            mistakes.append(f"{path}: parameters.{key} = {said}: {error}")
            continue
        if key.startswith("data.") and key not in ("data.vocab_size", "data.batch_tokens") and "value" not in said:
            mistakes.append(f"{path}: parameters.{key}: must be the same in all trials: they are of one text")
            continue
        if isinstance(KEYS.get(key), int) and isinstance(found, FloatDistribution):
            mistakes.append(
                f"{path}: parameters.{key} = {said}: must be whole; use whole min and max alone, or q_uniform with "
                "a whole q"
            )
            continue
        if isinstance(found, CategoricalDistribution) and len(found.choices) == 1 and key != "variant":
            fixed[key] = found.choices[0]
        elif key in ("scale", "seed"):
            mistakes.append(f"{path}: parameters.{key} = {said}: must be one value in a search")
        elif wrong := _wrong_choices(path, key, found):
            mistakes += wrong
        else:
            space[key] = found
    if not space and not mistakes:
        mistakes.append(f"{path}: parameters: some key must have values or a range to search, but none has")
    return fixed, space


def _wrong_choices(path: Path, key: str, where: BaseDistribution) -> list[str]:
    """Choices that no draw could be made of, whatever else it has: laws between keys are another matter."""
    mistakes = []
    for choice in where.choices if isinstance(where, CategoricalDistribution) else ():
        try:
            for level in row_levels(path, {key: choice}, {}):
                mistakes += type_errors(level)
        except InputError as error:
            mistakes += error.messages
    return mistakes


def _goals(path: Path, content: Mapping[str, Any], mistakes: list[str]) -> dict[str, str]:
    """One metric, or W&B's several."""
    said = content.get("metrics") or [content.get("metric")]
    goals: dict[str, str] = {}
    for one in said if isinstance(said, list) else [said]:
        name = one.get("name") if isinstance(one, dict) else None
        goal = one.get("goal", "minimize") if isinstance(one, dict) else None
        if name not in (*SCHEDULED, *AT_THE_END):
            mistakes.append(
                f"{path}: metric.name = {name}: no such metric{suggestion(str(name), (*SCHEDULED, *AT_THE_END))}"
            )
        elif goal not in ("minimize", "maximize"):
            mistakes.append(f"{path}: metric.goal = {goal}: must be minimize or maximize")
        else:
            goals[name] = goal
    return goals


def _outside(search: Search) -> list[str]:
    """The keys in which base, which is trial 0, does not lie in the space."""
    mistakes = []
    for key, value in search.base_draw.items():
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


def print_search(search: Search, console: Console) -> None:
    """What would be searched."""
    goals = " and ".join(f"{goal} {name}" for name, goal in search.goals.items())
    console.print(f"{search.name} at scale {search.scale}: {search.run_cap} trials, {goals}", soft_wrap=True)
    base = search.base_draw
    for key, where in search.space.items():
        if isinstance(where, CategoricalDistribution):
            span = ", ".join(map(str, where.choices))
        else:
            span = f"{where.low:g} to {where.high:g}" + (", by its logarithm" if where.log else "")
            span += f", in steps of {where.step:g}" if where.step not in (None, 1) else ""
        console.print(f"  {key}: {span} (base {base[key]})", soft_wrap=True)
