"""The sweep file of a search: its fixed keys, its space, its goals."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BaseModel, Field, ValidationError
from rich.console import Console

from transformer_pl.components import default_options
from transformer_pl.config import KEYS, Config, Trainer, is_known_key, nominal_sizes, not_papers, unknown_key
from transformer_pl.experiments.sweep_file import OUR_PARAMETERS, row_levels, top_level_mistakes
from transformer_pl.experiments.trial_config import trial_config
from transformer_pl.key_types import Count, NoBool, constraint_of
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
from transformer_pl.search.distributions import Distribution, choices_or_ends, contains, describe, distribution
from transformer_pl.task import LOSSES, best_goal, task_of

OF_MODEL = ("params", "flops")  # what a model costs
SCHEDULED = "val/ppl, val/loss, val/bleu_sample"  # metrics that a pruner can use, for messages; see `is_scheduled`
Direction = Literal["minimize", "maximize"]


class Goal(BaseModel):
    """What is searched for: `metric`, or an entry of `metrics`."""

    name: str = Field(None, validate_default=True, pattern=r"^(val/.+|params|flops)$")
    goal: Direction = "minimize"


class EarlyTerminate(BaseModel):
    """W&B's `early_terminate`, in validations: `min_iter`, or `max_iter` and `s`; and `eta`."""

    type: Literal["hyperband"]
    min_iter: Count | None = None
    max_iter: Count | None = None
    s: Count | None = None
    eta: Annotated[int, Field(ge=2), NoBool] = (
        3  # the factor from each validation after which a trial may end to the next
    )

    @property
    def first(self) -> int:
        """The first validation after which a trial may end; 0 where the file does not say it."""
        if self.max_iter and self.s and not self.min_iter:
            return max(1, self.max_iter // self.eta**self.s)
        return 0 if self.max_iter else self.min_iter or 0


class Engine(BaseModel):
    """What draws the trials for `method: custom`."""

    engine: Literal["optuna"]


class Sections(BaseModel):
    """What a sweep file that searches has beside its parameters."""

    method: Literal["random", "bayes", "custom"]
    run_cap: Count = Field(None, validate_default=True)
    metric: Goal | None = None
    metrics: list[Goal] = []
    early_terminate: EarlyTerminate | None = None
    scheduler: Engine | None = None

    @property
    def goals(self) -> dict[str, Direction]:
        """Which way each metric is better."""
        return {goal.name: goal.goal for goal in (*filter(None, [self.metric]), *self.metrics)}

    def mistakes(self) -> list[str]:
        """What is wrong between sections that are right by themselves."""
        mistakes = []
        if bool(self.metric) == bool(self.metrics):
            mistakes.append("metric: must be given, or else metrics, such as metric: {name: val/ppl, goal: minimize}")
        if len(self.goals) < len(self.metrics):
            mistakes.append("metrics: each name must be given once; take the other one out")
        if self.method == "custom" and not self.scheduler:
            mistakes.append("scheduler = None: must be {engine: optuna} for method: custom")
        if self.early_terminate and not is_scheduled(self.goals):
            mistakes.append(f"early_terminate: needs one metric that is logged on the schedule ({SCHEDULED})")
        if self.early_terminate and not self.early_terminate.first:
            mistakes.append("early_terminate: must have min_iter, or else max_iter and s")
        return mistakes


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
    mistakes, fixed, space = top_level_mistakes(path, content), dict[str, Any](), dict[str, Distribution]()
    try:
        sections = Sections.model_validate(content)
        mistakes += [f"{path}: {mistake}" for mistake in sections.mistakes()]
    except ValidationError as error:
        for one in error.errors():
            mistakes.append(f"{path}: {'.'.join(map(str, one['loc']))} = {shown(one['input'])}: {constraint_of(one)}")
    parameters = content.get("parameters")
    for key, parameter in parameters.items() if isinstance(parameters, dict) else ():
        try:
            values = _distribution(key, parameter)
        except (ValueError, TypeError) as error:
            mistakes.append(f"{path}: parameters.{key} = {shown(parameter)}: {error}")
            continue
        if isinstance(values, CategoricalDistribution) and len(values.choices) == 1 and key != "variant":
            fixed[key] = values.choices[0]
        else:
            space[key] = values
            mistakes += _invalid_choices(path, key, values)
    if not space and not mistakes:
        mistakes.append(
            f"{path}: parameters = {shown(parameters)}: some key must have values: [...], or min and max, to search"
        )
    if seeds and len(seeds) > 1:
        mistakes.append(f"--seeds {','.join(seeds)}: must be one in a search")
    if mistakes := mistakes or _drawn_sets(path, space, sets):
        raise InputError(*mistakes)
    scale_of_file, seed_of_file = str(fixed.pop("scale", DEFAULT_SCALE)), fixed.pop("seed", 1)
    search = Search(
        path=path,
        name=str(content.get("name", path.stem)),
        project=str(content.get("project", PROJECT)),
        scale=scale_of_file if scale is None else scale,
        method=sections.method,
        fixed=fixed,
        sets=dict(sets),
        seed=seeds[0] if seeds else seed_of_file,
        space=space,
        goals=sections.goals,
        run_cap=sections.run_cap,
        early=sections.early_terminate,
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


def _distribution(key: Any, parameter: Any) -> Distribution:
    """Read one parameter. Raises a ValueError or a TypeError with the constraint that it breaks."""
    if not isinstance(key, str) or not (is_known_key(key) or key in OUR_PARAMETERS):
        raise ValueError(unknown_key(str(key), parameter, [*KEYS, *OUR_PARAMETERS]))
    if not isinstance(parameter, dict):
        raise ValueError("must map to {value: ...}, {values: [...]} or {min: ..., max: ...}")
    values = distribution(_with_numbers(parameter) if type(KEYS.get(key)) in (int, float) else parameter)
    is_text = key.startswith("data.") and key not in ("data.vocab_size", "data.batch_tokens")
    if (key in ("scale", "seed") or is_text) and len(choices_or_ends(values)) > 1:
        raise ValueError("must be one value in a search")
    if isinstance(KEYS.get(key), int) and isinstance(values, FloatDistribution):
        raise ValueError("must be whole; use whole min and max alone, or q_uniform with a whole q")
    return values


def _drawn_sets(path: Path, space: Mapping[str, Distribution], sets: Mapping[str, str]) -> list[str]:
    """Refuse keys that the search draws and --set fixes: trials would not be trained with what was drawn."""
    mistakes = []
    for key, values in space.items():
        drawn = [key]
        if key == "variant":
            drawn = [name for choice in choices_or_ends(values) for name in parse_variant(str(choice), key).values]
        mistakes += [
            f"--set {name}={shown(sets[name])}: must be a key that the search does not draw, but parameters.{key} of "
            f"{path} does; leave it out, or give the file one value"
            for name in dict.fromkeys(drawn)
            if name in sets
        ]
    return mistakes


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
    base, task = search.base, task_of(search.base.data)
    known = [*LOSSES, *task.metrics, task.sample_metric, *OF_MODEL]
    mistakes = [
        f"parameters.{key}: must have {value} in it, base's value at this scale, for base is trial 0; widen it"
        for key, value in search.base_draw.items()
        if not contains(search.space[key], value)
    ]
    for name, direction in search.goals.items():
        if name not in known:
            mistakes.append(f"metric.name = {name}: no such metric{suggestion(name, known)}")
        elif name not in OF_MODEL and direction != (best := best_goal(name)):
            mistakes.append(f"metric.goal = {direction}: must be {best} for {name}; without a goal W&B minimizes")
    if task.sample_metric in search.goals and not base.trainer.bleu_sample:
        mistakes.append(
            f"metric.name = {task.sample_metric}: needs trainer.bleu_sample, its number of sentences; add it to "
            "parameters, such as trainer.bleu_sample: {value: 100}"
        )
    if base.steps < base.trainer.val_every and (search.early or task.sample_metric in search.goals):
        mistakes.append(
            f"trainer.val_every = {base.trainer.val_every}: must be at most the {base.steps} steps of a trial, or no "
            "trial is validated before its end"
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
