"""The sweep file of a search: its fixed keys, its space, its goals."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from optuna.distributions import IntDistribution
from rich.console import Console

from transformer_pl.components import default_options
from transformer_pl.config import KEYS, Config, Trainer, is_known_key, nominal_sizes, not_papers, unknown_key
from transformer_pl.experiments.sweep_file import OUR_PARAMETERS, row_levels, top_level_mistakes
from transformer_pl.experiments.trial_config import trial_config
from transformer_pl.levels import (
    DEFAULT_SCALE,
    Level,
    merge,
    parse_scalar,
    parse_variant,
    resolve,
    scale_level,
    type_errors,
)
from transformer_pl.runtime.environment import PROJECT
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.runtime.terminal import counted, say
from transformer_pl.search.distributions import (
    CategoricalDistribution,
    Distribution,
    FloatDistribution,
    choices_or_ends,
    contains,
    describe,
    distribution,
)
from transformer_pl.task import LOSSES, best_goal, task_of

OF_MODEL = ("params", "flops")  # what a model costs
SCHEDULED = "val/ppl, val/loss, val/bleu_sample"  # metrics that a pruner can use, for messages; see `is_scheduled`
Direction = Literal["minimize", "maximize"]


class EarlyTerminate(NamedTuple):
    """W&B's `early_terminate` of type hyperband, in validations."""

    min_iter: int  # the first validation after which a trial may end
    eta: int  # the factor from each of these validations to the next


class Search(NamedTuple):
    """A sweep file that searches."""

    path: Path
    name: str
    project: str
    scale: str
    method: str
    fixed: dict[str, Any]  # keys that all trials have in common, with their values
    sets: dict[str, str]  # keys and values of --set
    seed: Any  # as it is written until `base` is resolved, then a whole number
    space: dict[str, Distribution]  # by key
    goals: dict[str, Direction]  # by metric
    run_cap: int
    early: EarlyTerminate | None
    base: Config

    def config(self, drawn: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
        """Return the config of a trial, and its keys for the command line of `train` (without scale and seed).

        drawn: values by key. Raises an InputError where they are no valid config.
        """
        changes = self._changes(drawn)
        return trial_config(self._levels(changes)), {key: value for key, (value, _) in merge(changes).items()}

    def _changes(self, drawn: Mapping[str, Any]) -> list[Level]:
        return row_levels(self.path, self.fixed | dict(drawn), self.sets)

    def _levels(self, changes: Sequence[Level]) -> list[Level]:
        return [scale_level(self.scale), *changes, Level(f"{self.path}: parameters", {"seed": self.seed})]

    def single_changes(self) -> list[Config]:
        """The base, and the configs that one choice, or one end of a range, makes of it."""
        configs = [self.base]
        for key, values in self.space.items():
            for value in choices_or_ends(values):
                with suppress(InputError):  # an invalid config, which is not trained
                    configs.append(resolve(self._levels(self._changes({key: value}))))
        return configs

    def trainers(self) -> list[Trainer]:
        """The trainer sections of `single_changes`."""
        return list(dict.fromkeys(config.trainer for config in self.single_changes()))

    @property
    def base_draw(self) -> dict[str, Any]:
        """The values of the base for the keys of the space."""
        model = self.base.model
        flat = {
            f"model.{slot}.{name}": value
            for slot, component in not_papers(model).items()
            for name, value in default_options(component).items()
        }
        flat |= self.base.flat() | nominal_sizes(model) | {"variant": "base"}
        return {key: flat.get(key) for key in self.space}


def read_search(
    path: Path, content: Mapping[str, Any], scale: str | None, seeds: Sequence[str] | None, sets: Mapping[str, str]
) -> Search:
    """Read a sweep file whose method is a search.

    scale, seeds and sets are the options of the command line. Raises one InputError for all mistakes.
    """
    reader = _SearchReader(path, content)
    reader.check_method()
    goals, run_cap = reader.goals(), reader.run_cap()
    early = reader.early_terminate(goals)
    fixed, space = reader.parameters()
    if seeds and len(seeds) > 1:
        reader.mistakes.append(f"--seeds {','.join(seeds)}: must be one in a search")
    reader.check_sets(space, sets)
    if reader.mistakes:
        raise InputError(*reader.mistakes)
    scale_of_file, seed_of_file = str(fixed.pop("scale", DEFAULT_SCALE)), fixed.pop("seed", 1)
    search = Search(
        path=path,
        name=str(content.get("name", path.stem)),
        project=str(content.get("project", PROJECT)),
        scale=scale_of_file if scale is None else scale,
        method=content["method"],
        fixed=fixed,
        sets=dict(sets),
        seed=seeds[0] if seeds else seed_of_file,
        space=space,
        goals=goals,
        run_cap=run_cap,
        early=early,
        base=resolve([]),
    )
    base = search.config({})[0]
    search = search._replace(base=base, seed=base.seed)
    if mistakes := _mistakes_of_base(search):
        raise InputError(*mistakes)
    return search


def is_scheduled(goals: Iterable[str]) -> bool:
    """Whether there is one goal, and every validation measures it: a loss, or the score of a sample."""
    return [name in LOSSES or name.endswith("_sample") for name in goals] == [True]


class _SearchReader:
    """Reads the sections of a sweep file one by one, and collects the mistakes of all of them."""

    def __init__(self, path: Path, content: Mapping[str, Any]):
        self.path, self.content = path, content
        self.mistakes: list[str] = top_level_mistakes(path, content)

    def _mistake(self, message: str) -> None:
        self.mistakes.append(f"{self.path}: {message}")

    def check_method(self) -> None:
        scheduler = self.content.get("scheduler")
        has_optuna = isinstance(scheduler, dict) and scheduler.get("engine") == "optuna"
        if self.content["method"] == "custom" and not has_optuna:
            self._mistake(f"scheduler = {shown(scheduler)}: must be {{engine: optuna}} for method: custom")

    def run_cap(self) -> int:
        run_cap = self.content.get("run_cap")
        if isinstance(run_cap, int) and not isinstance(run_cap, bool) and run_cap >= 1:
            return run_cap
        self._mistake(f"run_cap = {shown(run_cap)}: must be a whole number from 1, the number of trials of a search")
        return 1

    def goals(self) -> dict[str, Direction]:
        """Read `metric`, or W&B's `metrics` for several goals."""
        if "metric" in self.content and "metrics" in self.content:
            self._mistake("metric and metrics: must not both be given; take one of them out")
        metrics = self.content.get("metrics") or [self.content.get("metric")]
        goals: dict[str, Direction] = {}
        for metric in metrics if isinstance(metrics, list) else [metrics]:
            name = metric.get("name") if isinstance(metric, dict) else None
            direction = metric.get("goal", "minimize") if isinstance(metric, dict) else None
            if metric is None:
                self._mistake("metric: must say what is searched for, such as {name: val/ppl, goal: minimize}")
            elif not isinstance(name, str) or not (name in OF_MODEL or name.startswith("val/")):
                names = (*LOSSES, "val/bleu", *OF_MODEL)
                self._mistake(f"metric.name = {shown(name)}: no such metric{suggestion(shown(name), names)}")
            elif direction not in ("minimize", "maximize"):
                self._mistake(f"metric.goal = {shown(direction)}: must be minimize or maximize")
            elif name in goals:
                self._mistake(f"metric.name = {name}: must be given once; take the other one out")
            else:
                goals[name] = direction
        return goals

    def early_terminate(self, goals: Mapping[str, Direction]) -> EarlyTerminate | None:
        """Read `early_terminate` as W&B does: min_iter, or max_iter and s; and eta."""
        section = self.content.get("early_terminate")
        if section is None:
            return None
        if not isinstance(section, dict) or section.get("type") != "hyperband":
            self._mistake(f"early_terminate = {shown(section)}: must be of type: hyperband")
            return None
        if not is_scheduled(goals):
            self._mistake(
                f"early_terminate: needs one metric that is logged on the schedule ({SCHEDULED}), "
                f"but metric.name = {', '.join(goals)}; search for one of these, or take it out"
            )
        minimums = {"min_iter": 1, "max_iter": 1, "s": 1, "eta": 2}
        given = {key: section[key] for key in minimums if key in section}
        wrong = [key for key, value in given.items() if type(value) is not int or value < minimums[key]]
        for key in wrong:
            self._mistake(f"early_terminate.{key} = {shown(given[key])}: must be a whole number from {minimums[key]}")
        if ("min_iter" in given) == ("max_iter" in given) or ("max_iter" in given and "s" not in given):
            self._mistake(f"early_terminate = {shown(section)}: must have min_iter, or else max_iter and s")
        elif not wrong:
            eta = given.get("eta", 3)
            return EarlyTerminate(given.get("min_iter") or max(1, given["max_iter"] // eta ** given["s"]), eta)
        return None

    def parameters(self) -> tuple[dict[str, Any], dict[str, Distribution]]:
        """Read the fixed values and the distributions, both by key."""
        parameters = self.content.get("parameters")
        fixed: dict[str, Any] = {}
        space: dict[str, Distribution] = {}
        if not isinstance(parameters, dict) or not parameters:
            self._mistake(
                f"parameters = {shown(parameters)}: must map keys to {{value: ...}}, {{values: [...]}} or a range"
            )
            return fixed, space
        for key, parameter in parameters.items():
            values = self._distribution(key, parameter)
            if values is None:
                continue
            if isinstance(values, CategoricalDistribution) and len(values.choices) == 1 and key != "variant":
                fixed[key] = values.choices[0]
            elif key in ("scale", "seed"):
                self._mistake(f"parameters.{key} = {shown(parameter)}: must be one value in a search")
            elif invalid := _invalid_choices(self.path, key, values):
                self.mistakes += invalid
            else:
                space[key] = values
        if not space and not self.mistakes:
            self._mistake("parameters: some key must have values or a range to search, but none has")
        return fixed, space

    def check_sets(self, space: Mapping[str, Distribution], sets: Mapping[str, str]) -> None:
        """Refuse keys that the search draws and --set fixes: trials would not be trained with what was drawn."""
        for key, values in space.items():
            drawn = [key]
            if key == "variant" and isinstance(values, CategoricalDistribution):
                drawn = [name for choice in values.choices for name in parse_variant(str(choice), "variant").values]
            for name in dict.fromkeys(drawn):
                if name in sets:
                    self.mistakes.append(
                        f"--set {name}={shown(sets[name])}: must be a key that the search does not draw, but "
                        f"parameters.{key} of {self.path} does; leave it out, or give the file one value"
                    )

    def _distribution(self, key: Any, parameter: Any) -> Distribution | None:
        """Read one parameter; None for a mistake."""
        if not isinstance(key, str) or not (is_known_key(key) or key in OUR_PARAMETERS):
            self._mistake(f"parameters.{key}: {unknown_key(str(key), parameter, [*KEYS, *OUR_PARAMETERS])}")
            return None
        try:
            if not isinstance(parameter, dict):
                raise ValueError("must map to {value: ...}, {values: [...]} or {min: ..., max: ...}")
            values = distribution(_with_numbers(parameter) if type(KEYS.get(key)) in (int, float) else parameter)
        except (ValueError, TypeError) as error:
            self._mistake(f"parameters.{key} = {shown(parameter)}: {error}")
            return None
        if key.startswith("data.") and key not in ("data.vocab_size", "data.batch_tokens") and "value" not in parameter:
            self._mistake(f"parameters.{key}: must be the same in all trials: a search uses one text")
            return None
        if isinstance(KEYS.get(key), int) and isinstance(values, FloatDistribution):
            self._mistake(
                f"parameters.{key} = {shown(parameter)}: must be whole; use whole min and max alone, or q_uniform "
                "with a whole q"
            )
            return None
        return values


def _with_numbers(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """Read numbers that YAML takes for text, such as 1e-4."""
    return {
        name: list(map(parse_scalar, value)) if isinstance(value, list) else parse_scalar(value)
        for name, value in parameter.items()
    }


def _invalid_choices(path: Path, key: str, values: Distribution) -> list[str]:
    """Return the mistakes of choices that are invalid by themselves. Constraints between keys are not checked here."""
    mistakes = []
    for choice in values.choices if isinstance(values, CategoricalDistribution) else ():
        try:
            for level in row_levels(path, {key: choice}, {}):
                mistakes += type_errors(level)
        except InputError as error:
            mistakes += error.messages
    return mistakes


def _mistakes_of_base(search: Search) -> list[str]:
    """Check what needs the base's config: the base is trial 0, and all trials are validated as often as it is."""
    mistakes = [
        f"{search.path}: parameters.{key}: must have {value} in it, base's value at this scale, for base is trial 0; "
        "widen it"
        for key, value in search.base_draw.items()
        if not contains(search.space[key], value)
    ]
    base, task = search.base, task_of(search.base.data)
    known = [*LOSSES, *task.metrics, task.sample_metric, *OF_MODEL]
    mistakes += [
        f"{search.path}: metric.name = {name}: no such metric{suggestion(name, known)}"
        for name in search.goals
        if name not in known
    ]
    mistakes += [
        f"{search.path}: metric.goal = {direction}: must be {best_goal(name)} for {name}; without a goal W&B minimizes"
        for name, direction in search.goals.items()
        if name in known and name not in OF_MODEL and direction != best_goal(name)
    ]
    if task.sample_metric in search.goals and not base.trainer.bleu_sample:
        mistakes.append(
            f"{search.path}: metric.name = {task.sample_metric}: needs trainer.bleu_sample, its number of sentences; "
            "add it to parameters, such as trainer.bleu_sample: {value: 100}"
        )
    if base.steps < base.trainer.val_every and (search.early or task.sample_metric in search.goals):
        mistakes.append(
            f"{search.path}: trainer.val_every = {base.trainer.val_every}: must be at most the {base.steps} steps of a "
            "trial, or no trial is validated before its end"
        )
    return mistakes


def print_search(search: Search, console: Console) -> None:
    """Print the size of a search, its goals, and its space with the base's values."""
    goals = " and ".join(f"{direction} {metric}" for metric, direction in search.goals.items())
    say(console, f"{search.name} at scale {search.scale}: {counted(search.run_cap, 'trial')}, {goals}")
    base = search.base_draw
    for key, values in search.space.items():
        whole = ", whole numbers" if isinstance(values, IntDistribution) and isinstance(KEYS.get(key), float) else ""
        say(console, f"  {key}: {describe(values)}{whole} (base {base[key]})")
