"""The sweep file of a search: its fixed keys, its space, its goals."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from transformer_pl.config import COMPONENTS, KEYS, Component, Config, Data, is_option, nominal_sizes
from transformer_pl.config.components import before_options, option_value, options_of_class
from transformer_pl.config.help import key_schemas
from transformer_pl.config.levels import DEFAULT_SCALE, OF_SEEDS, Level, merge, resolve, scale_level, type_errors
from transformer_pl.config.types import LARGEST, Count, NoBool, mistake_in
from transformer_pl.plan.sweep_file import (
    BUDGET_KEYS,
    COST_METRICS,
    Direction,
    Goals,
    row_levels,
    top_level_mistakes,
    unknown_parameter,
)
from transformer_pl.runtime.environment import PROJECT
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.task import LOSSES, Corpus, best_goal, task_of
from transformer_pl.trials.identity import describe_difference
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial import Origin, Trial
from transformer_pl.trials.trial_config import trial_config
from transformer_pl.trials.trial_of import trial_of

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution


def _given(value: object) -> object:
    """Refuse None, the default of a number that must be in the file."""
    if value is None:
        raise ValueError("must be given, as a whole number from 1")
    return value


GivenCount = Annotated[Count, BeforeValidator(_given)]


class EarlyTerminate(BaseModel, extra="forbid"):
    """W&B's `early_terminate`: a trial may end after `min_iter` validations, after `eta` times as many, and so on."""

    type: Literal["hyperband"]
    min_iter: GivenCount = Field(None, validate_default=True)
    eta: Annotated[int, Field(ge=2), NoBool] = 3


class Search(Goals):
    """A sweep file that searches: its own fields, and those that `read_search` makes of its parameters."""

    method: Literal["random", "bayes", "custom"]
    run_cap: GivenCount = Field(None, validate_default=True)
    early_terminate: EarlyTerminate | None = None
    scheduler: dict[Literal["engine"], Literal["optuna"]] = {}
    path: Path
    name: str
    project: str
    scale: str
    written_seed: Any
    sets: dict[str, str]  # keys and values of --set
    fixed: dict[str, Any]  # keys that all trials have in common, with their values
    space: dict[str, Any]  # distributions by key

    @property
    def goals(self) -> dict[str, Direction]:
        """Which way each metric is better."""
        return {goal.name: goal.goal for goal in (*filter(None, [self.metric]), *self.metrics)}

    @cached_property
    def base(self) -> Config:
        """The config of trial 0."""
        return self.config({})[0]

    @property
    def seed(self) -> int:
        """The seed of all trials."""
        return self.base.seed

    def config(self, drawn: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
        """Return the config of a trial, and its keys for the command line of `train` (without scale and seed).

        drawn: values by key. Raises an InputError where they are no valid config.
        """
        scale, *changes, seed = self._levels(drawn)
        return trial_config([scale, *changes, seed]), {key: value for key, (value, _) in merge(changes).items()}

    @property
    def matches_flops(self) -> bool:
        """Whether a trial may have optim.match=flops."""
        return any(config.optim.match == "flops" for config in self.written)

    def trial(
        self, drawn: Mapping[str, Any], corpus: Corpus, runs: RunsFolder, name: str = "", number: int = 0
    ) -> Trial:
        """The trial of drawn values, which plans and tables call `name`. Raises an InputError as `config` does."""
        config, keys = self.config(drawn)
        trial = trial_of(config, corpus, runs, Origin(describe_difference(config, self.base)))
        return replace(trial, origin=Origin(name, name, self.scale, keys, number))

    def taken(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """The drawn values by key, and the fixed ones.

        An option that the class drawn for its slot does not have, but another class that may be drawn, is left out.
        """
        values = self.fixed | dict(drawn)
        return {key: value for key, value in values.items() if self._class_has(key, values)}

    def _class_has(self, key: str, values: Mapping[str, Any]) -> bool:
        """Whether these values use a key. False for an option that only other classes of its slot have."""
        slot, _, option = key.rpartition(".")
        if slot not in COMPONENTS or slot not in self.space:
            return True
        classes = map(str, _choices_or_ends(self.space[slot]))
        having = [path for path in classes if option in options_of_class(Component(path=path), before_options(slot))]
        return not having or values.get(slot, resolve([scale_level(self.scale)]).flat()[slot]) in having

    def _levels(self, drawn: Mapping[str, Any]) -> list[Level]:
        """The scale, the keys of a trial, and the seed."""
        changes = row_levels(self.path, self.taken(drawn), self.sets)
        return [scale_level(self.scale), *changes, Level(f"{self.path}: parameters", {"seed": self.written_seed})]

    @cached_property
    def written(self) -> list[Config]:
        """The base, and every config in which one key has another choice or an end of its range, as written."""
        configs = []
        for drawn in [{}, *self.single_draws()]:
            with suppress(InputError):  # an invalid config, which is not trained
                configs.append(resolve(self._levels(drawn)))
        return configs

    def single_changes(self) -> list[Config]:
        """The configs of `written`, base as it is trained."""
        return [self.base, *self.written[1:]]

    def single_draws(self) -> list[dict[str, Any]]:
        """Every choice of a key, or end of its range, alone."""
        return [{key: value} for key, values in self.space.items() for value in _choices_or_ends(values)]

    @property
    def base_draw(self) -> dict[str, Any]:
        """The values of the base for the keys of the space: of choices the one, however it is written, that is base."""
        base, draw = self.base, dict[str, Any]()
        flat = base.flat() | nominal_sizes(base.model)
        for key, values in self.space.items():
            equal = [choice for choice in _choices_or_ends(values) if self._is_base({key: choice})]
            draw[key] = equal[0] if equal else flat[key] if key in flat else option_value(base, key)
        return draw

    def _is_base(self, drawn: Mapping[str, Any]) -> bool:
        with suppress(InputError):
            return self.config(drawn)[0] == self.base
        return False


def read_search(
    path: Path, content: Mapping[str, Any], scale: str | None, seeds: Sequence[Any] | None, sets: Mapping[str, str]
) -> Search:
    """Read a sweep file whose method is a search.

    path: the sweep file.
    content: its content.
    scale, seeds, sets: the options of the command line, which win over the file.

    Raises one InputError for all mistakes.
    """
    fixed, space, mistakes = _read_parameters(path, content.get("parameters"))
    mistakes = [*top_level_mistakes(path, content), *mistakes]
    if not space and not mistakes:
        mistakes.append(f"{path}: parameters: some key must have values: [...], or min and max, to search")
    for key in space.keys() & sets.keys():
        remedy = "leave it out, or give it one value there"
        mistakes.append(f"--set {key}={shown(sets[key])}: {path} draws this key; {remedy}")
    if seeds and len(seeds) > 1:
        mistakes.append(f"--seeds {','.join(map(str, seeds))}: must be one in a search")
    file_scale, file_seed = str(fixed.pop("scale", DEFAULT_SCALE)), fixed.pop("seed", 1)
    fields = {
        "path": path,
        "name": str(content.get("name", path.stem)),
        "project": str(content.get("project", PROJECT)),
        "scale": file_scale if scale is None else scale,
        "written_seed": seeds[0] if seeds else file_seed,
        "sets": sets,
        "fixed": fixed,
        "space": space,
    }
    try:
        search = Search.model_validate({**content, **fields})
    except ValidationError as error:
        mistakes += [f"{path}: {mistake_in(mistake)}" for mistake in error.errors()]
    else:
        if not search.goals:
            mistakes.append(f"{path}: metric: must be given, such as metric: {{name: val/ppl, goal: minimize}}")
    if mistakes or (mistakes := [*_mistakes_of_base(search), *_not_comparable(search)]):
        raise InputError(*mistakes)
    return search


def _read_parameters(path: Path, parameters: Any) -> tuple[dict[str, Any], dict[str, Distribution], list[str]]:
    """By key, the values that all trials have, and what is searched; and the mistakes of the file's parameters."""
    fixed, space, mistakes = dict[str, Any](), dict[str, Distribution](), list[str]()
    for key, parameter in parameters.items() if isinstance(parameters, dict) else ():
        try:
            values = _read_parameter(path, key, parameter)
        except InputError as error:
            mistakes += error.messages
        except (ValueError, TypeError) as error:
            mistakes.append(f"{path}: parameters.{key} = {shown(parameter)}: {error}")
        else:
            choices = _choices_or_ends(values)
            if len(choices) > 1:
                space[key] = values
            elif choices:
                fixed[key] = choices[0]
    return fixed, space, mistakes


def _read_parameter(path: Path, key: Any, parameter: Any) -> Distribution:
    """Read one parameter of the file.

    Raises a ValueError or a TypeError with the constraint that it breaks, and an InputError for choices that are
    invalid by themselves. Constraints between keys are not checked here.
    """
    if mistake := unknown_parameter(key):
        raise ValueError(mistake)
    if key in OF_SEEDS:
        raise ValueError("is for the rows of a grid, but this file searches; leave it out")
    if not isinstance(parameter, dict):
        raise ValueError("must map to {value: ...}, {values: [...]} or {min: ..., max: ...}")
    # Optuna takes no list as a choice, but text
    if (isinstance(KEYS.get(key), list) or is_option(key)) and isinstance(parameter.get("value"), list | dict):
        parameter = parameter | {"value": json.dumps(parameter["value"])}
    values = distribution(parameter)
    choices = _choices_or_ends(values)
    if len(choices) < 2:
        return values
    if key in ("scale", "seed"):
        raise ValueError("must be one value in a search")
    if key != "variant" and any(isinstance(choice, str) and re.search(r"\s", choice) for choice in choices):
        raise ValueError("each text must be without blanks, as words of a variant are; leave them out")
    if isinstance(values, FloatDistribution) and _is_whole(key):
        raise ValueError("must be whole; use whole min and max alone, or q_uniform with a whole q")
    if isinstance(values, CategoricalDistribution):  # a range's wrong end makes trials infeasible
        levels = itertools.chain.from_iterable(row_levels(path, {key: choice}, {}) for choice in choices)
        if mistakes := [*itertools.chain.from_iterable(map(type_errors, levels))]:
            raise InputError(*mistakes)
    return values


def _is_whole(key: str) -> bool:
    """Whether the values of a key are whole numbers."""
    schema = key_schemas().get(key, {})
    return any(form.get("type") == "integer" for form in schema.get("anyOf", [schema]))


def distribution(parameter: Mapping[str, Any]) -> Distribution:
    """Return the distribution that W&B's own Optuna engine makes of a parameter.

    Raises a ValueError or TypeError with the constraint that the parameter breaks.
    """
    name, form = parameter.get("distribution"), parameter.keys() - {"distribution"}
    for key, kind in (("value", "constant"), ("values", "categorical")):
        if form == {key} and name in (None, kind):
            values = [parameter[key]] if key == "value" else parameter[key]
            if not isinstance(values, list):
                raise ValueError("values must be a list")
            if not all(isinstance(value, str | int | float | None) for value in values):
                raise ValueError("each value must be a number, text, true, false or null")
            return CategoricalDistribution(values)
    if not {"min", "max"} <= form <= {"min", "max", "q"}:
        forms = "value alone, values alone, or min and max, perhaps with q"
        raise ValueError(f"must have {forms}, and no distribution or one that fits; Optuna has nothing else")
    return _range(name, [parameter[key] for key in ("min", "max", "q") if key in form])


def _range(name: str | None, numbers: list[Any]) -> Distribution:
    """The distribution of a range. numbers: its ends, and perhaps its step q. Raises a ValueError."""
    if not all(type(number) in (int, float) and abs(number) <= LARGEST for number in numbers):
        raise ValueError(f"min, max and q must be numbers up to {LARGEST:,}")
    if name == "int_uniform":
        if any(number != int(number) for number in numbers):
            raise ValueError("int_uniform must have whole numbers")
        numbers = list(map(int, numbers))
    low, high, *q = numbers
    is_whole = set(map(type, numbers)) == {int}
    if name in ("int_uniform", "q_uniform", None if is_whole or q else ""):
        step = [*q, 1][0]
        return IntDistribution(low, high, step=step) if is_whole else FloatDistribution(low, high, step=step)
    if name not in (None, "uniform", "log_uniform_values") or q:
        form = f"{name} with q" if q else name
        raise ValueError(f"Optuna has no distribution {form}; use uniform, log_uniform_values or q_uniform")
    return FloatDistribution(low, high, log=name == "log_uniform_values")


def _choices_or_ends(distribution: Distribution) -> tuple[Any, ...]:
    """Return all choices, or the two ends of a range."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    return distribution.low, distribution.high


def _mistakes_of_base(search: Search) -> list[str]:
    """Check what needs the base's config: it is trial 0, and shows which metrics there are."""
    task = task_of(search.base.data)
    samples = [task.sample_metric] if search.base.trainer.val_sample else []
    known = [*LOSSES, *task.metrics, *samples, *COST_METRICS]
    mistakes = []
    for key, value in search.base_draw.items():
        try:
            create_trial(params={key: value}, distributions={key: search.space[key]}, value=0.0)
        except (ValueError, TypeError):
            remedy = f"must include {value}, base's value at this scale, because base is trial 0; widen it"
            mistakes.append(f"parameters.{key}: {remedy}")
    for name, direction in search.goals.items():
        if name not in known:
            hint = ": it needs trainer.val_sample" if name == task.sample_metric else suggestion(name, known)
            mistakes.append(f"metric.name = {name}: no such metric{hint}")
        elif name not in COST_METRICS and direction != (best := best_goal(name, task)):
            mistakes.append(f"metric.goal = {direction}: must be {best} for {name}; without a goal W&B minimizes")
    return mistakes


def _not_comparable(search: Search) -> Iterator[str]:
    """The mistakes of drawn values with which a goal would be of another text, of other tokens or of another budget."""
    same = {f"data.{name}": "" for name in Data.model_fields if name not in ("vocab_size", "batch_tokens", "batches")}
    if losses := [goal for goal in search.goals if goal in LOSSES]:
        same["data.vocab_size"] = f", as {' and '.join(losses)} are per token; choose another metric"
    if search.matches_flops:
        same |= dict.fromkeys(BUDGET_KEYS, " with optim.match=flops")
    for key, condition in same.items():
        of_base, *others = map(attrgetter(key), search.written)
        for value in dict.fromkeys(others).keys() - {of_base}:
            yield f"{search.path}: {key} = {shown(value)}: must be the same in all trials{condition}"
