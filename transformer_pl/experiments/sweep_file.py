"""Reads a sweep file, which is a W&B sweep file and nothing more, into the rows of a table and their trials."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer_pl import components
from transformer_pl.config import KEYS, SLOTS, Config, is_known_key, nominal_sizes, unknown_key
from transformer_pl.experiments.trial_config import as_trained, trial_config
from transformer_pl.levels import DEFAULT_SCALE, Level, merge, parse_variant, resolve, scale_level
from transformer_pl.runtime.environment import PROJECT
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.runtime.files import broken_name_rule
from transformer_pl.runtime.yaml_file import read_yaml
from transformer_pl.trials.identity import describe_difference, row_identity, same_row

# W&B's schema is closed: it refuses a file with any other key ("Malformed sweep config").
TOP_LEVEL = (
    *("program", "name", "description", "project", "entity", "method", "metric", "metrics", "scheduler", "parameters"),
    *("early_terminate", "command", "run_cap", "controller", "job", "image_uri", "kind", "apiVersion"),
)
SEARCHES = ("random", "bayes", "custom")  # methods that draw trials instead of listing them
# Keys that decide what optim.match=flops equalises.
OF_THE_BUDGET = ("data.batch_tokens", "data.vocab_size", "model.width", "model.depth", "optim.max_steps")
OUR_PARAMETERS = ("scale", "variant", "seed")  # parameters that are not keys of the config


MOST_TRIALS = 10_000  # of a grid

T = TypeVar("T")


class Row(NamedTuple):
    """A row of the table: one config, trained once for each seed."""

    name: str  # what differs from base: `h=4`
    configs: list[Config]  # by seed
    keys: dict[str, Any]  # the arguments of `train`, beside the scale and the seed
    written: str = ""  # what the file says of this row alone: its variant, or `model.h=4`


class Sweep(NamedTuple):
    """The rows of a grid at one scale."""

    name: str
    project: str  # at W&B
    scale: str
    base: Config  # the scale, with the keys that the file gives to every row; rows are compared with it
    rows: list[Row]
    notes: tuple[str, ...] = ()  # printed under its table

    @property
    def configs(self) -> list[Config]:
        """Of all trials, row by row."""
        return [config for row in self.rows for config in row.configs]

    @property
    def base_row(self) -> int | None:
        """The index of the row that is base; None where the sweep has none."""
        return next((i for i, row in enumerate(self.rows) if same_row(row.configs[0], self.base)), None)


def read_sweep(
    path: Path,
    scale: str | None = None,
    seeds: Sequence[str | int] | None = None,
    sets: Mapping[str, str] | None = None,
    content: Mapping[str, Any] | None = None,
) -> Sweep:
    """Read a grid and check every trial of it.

    scale, seeds: replace the file's. sets: the values of --set, which win over everything. content: the file's, where
    it was read already.

    Raises one InputError for all mistakes of the file and of all its trials.
    """
    content = read_yaml(path) if content is None else content
    parameters, unknown, errors = _read_parameters(path, content)
    scales = parameters.pop("scale", [DEFAULT_SCALE])
    if scale is None and len(scales) > 1:
        errors.append(f"{path}: parameters.scale = {shown(scales)}: must be one value; start the command once for each")
    scale = str(scales[0]) if scale is None else scale
    scale_keys = _attempt(errors, scale_level, scale)
    seeds = seeds or parameters.get("seed", [1])
    row_count = math.prod(len(values) for key, values in parameters.items() if key != "seed")
    if row_count * len(seeds) > MOST_TRIALS:
        errors.append(
            f"{path}: a grid must have at most {MOST_TRIALS:,} trials, but its parameters make {row_count:,} rows with "
            f"{len(seeds):,} seeds each; list the rows that you want in `variant`, or search with method: random"
        )
    if errors or scale_keys is None:
        raise InputError(*unknown, *errors)
    base, rows = _RowReader(path, scale_keys, seeds, sets or {}, unknown).read_all(parameters)
    return Sweep(content.get("name", path.stem), content.get("project", PROJECT), scale, base, rows)


def row_levels(path: Path, keys: Mapping[str, Any], sets: Mapping[str, str]) -> list[Level]:
    """The levels of a row or of a drawn trial, lowest first: plain keys, `variant`, --set.

    keys: of the file, `variant` among them. Raises an InputError where `variant` cannot be parsed, or where `variant`
    or --set give the seed.
    """
    plain = {key: value for key, value in keys.items() if key != "variant"}
    variant = [parse_variant(str(keys["variant"]), f"{path}:")] if "variant" in keys else []
    higher = [*variant, Level("--set", sets)]
    for place, values in higher:
        if "seed" in values:
            raise InputError(f"{place}: seed = {shown(values['seed'])}: must be given by parameters.seed or by --seeds")
    return [Level(f"{path}: parameters", plain), *higher]


# ---------------------------------------------------------------------------------------------------------------------
# The file


def top_level_mistakes(path: Path, content: Mapping[str, Any]) -> list[str]:
    """What is wrong with a sweep file outside its parameters, whatever its method."""
    unknown = [key for key in content if key not in TOP_LEVEL]
    errors = [f"{path}: {key}: no key of a W&B sweep{_remedy(str(key), content[key])}" for key in unknown]
    names = (("name", content.get("name", path.stem), ""), ("project", content.get("project", PROJECT), "#?%:"))
    for key, name, refused_by_wandb in names:
        if not isinstance(name, str):
            errors.append(f"{path}: {key} = {shown(name)}: must be text")
        elif rule := broken_name_rule(name, refused_by_wandb):
            errors.append(f"{path}: {key} = {shown(repr(name))}: {rule}; choose another")
    return errors


def _remedy(key: str, value: Any) -> str:
    if is_known_key(key):
        return f"; write it under `parameters`, as `{key}: {{value: {shown(value)}}}`"
    return suggestion(key, TOP_LEVEL)


def _read_parameters(path: Path, content: Mapping[str, Any]) -> tuple[dict[str, list], list[str], list[str]]:
    """The values of every parameter of a grid, in the file's order; unknown keys; and the other mistakes of the file.

    Where keys are unknown, the rows can be checked all the same.
    """
    errors = top_level_mistakes(path, content)
    if content.get("method") != "grid":
        methods = f"grid (a table), or {', '.join(SEARCHES[:-1])} or {SEARCHES[-1]} (a search)"
        errors.append(f"{path}: method = {shown(content.get('method'))}: must be {methods}")
    parameters = content.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        errors.append(f"{path}: parameters = {shown(parameters)}: must map keys to {{value: ...}} or {{values: [...]}}")
        return {}, [], errors
    values_by_key, unknown = {}, []
    for key, entry in parameters.items():
        if not is_known_key(str(key)) and key not in OUR_PARAMETERS:
            unknown.append(f"{path}: parameters.{key}: {unknown_key(str(key), entry, [*KEYS, *OUR_PARAMETERS])}")
        elif not isinstance(entry, dict) or len(entry) != 1 or not entry.keys() <= {"value", "values"}:
            form = "{value: ...} or {values: [...]} in a grid"
            errors.append(f"{path}: parameters.{key} = {shown(entry)}: must be {form}")
        else:
            values = entry["values"] if "values" in entry else [entry["value"]]
            if not isinstance(values, list) or not values:
                errors.append(f"{path}: parameters.{key}.values = {shown(values)}: must be a list with a value in it")
            elif wrong := [value for value in values if not isinstance(value, str | int | float | None)]:
                errors += [f"{path}: parameters.{key} = {shown(value)}: must be a plain value" for value in wrong]
            else:
                values_by_key[str(key)] = values
    return values_by_key, unknown, errors


# ---------------------------------------------------------------------------------------------------------------------
# Rows


@dataclass
class _RowReader:
    """Reads the rows of a grid and collects the errors of all of them."""

    path: Path
    scale: Level
    seeds: Sequence[str | int]
    sets: Mapping[str, str]  # the values of --set
    errors: list[str]  # grows

    def read_all(self, parameters: Mapping[str, list]) -> tuple[Config, list[Row]]:
        """The base and the rows. Raises one InputError for the errors of all."""
        shared = {k: values[0] for k, values in parameters.items() if len(values) == 1 and k not in OUR_PARAMETERS}
        varied = [key for key in parameters if key != "seed" and key not in shared]
        base_levels = _attempt(self.errors, row_levels, self.path, shared, self.sets) or []
        base = _attempt(self.errors, resolve, [self.scale, *base_levels])
        seeds, rows = self._read_seeds(), []
        for values in itertools.product(*(parameters[key] for key in varied)):
            own = dict(zip(varied, values, strict=True))
            row = self._read(shared | own, base, seeds)
            words = [str(value) if key == "variant" else f"{key}={value}" for key, value in own.items()]
            rows += [row._replace(written=" ".join(words))] if row else []
        if base is not None and not self.errors:
            rows = _tell_apart(rows, base)
            matched = [_attempt(self.errors, self._match_budget, row, rows[0]) for row in rows]
            rows = [row for row in matched if row]
        if errors := self.errors + _repeated_rows(self.path, rows, self.sets):
            raise InputError(*errors)
        return trial_config([self.scale, *base_levels]), rows

    def _read_seeds(self) -> list[int]:
        """The seeds; none of them where one has an error."""
        levels = (Level(f"{self.path}: parameters", {"seed": seed}) for seed in self.seeds)
        configs = [_attempt(self.errors, resolve, [level]) for level in levels]
        seeds = [config.seed for config in configs if config]
        if len(set(seeds)) < len(seeds):
            self.errors.append(f"{self.path}: seed = {seeds}: must differ from each other")
        return seeds if all(configs) else []

    def _read(self, keys: Mapping[str, Any], base: Config | None, seeds: Sequence[int]) -> Row | None:
        """The row with these keys of the file; None where it, base or a seed has errors."""
        levels = _attempt(self.errors, row_levels, self.path, keys, self.sets)
        if levels is None:
            return None
        config = _attempt(self.errors, resolve, [self.scale, *levels])
        named = config or _attempt([], resolve, _component_keys([self.scale, *levels]))  # the components of a wrong row
        if named is not None:
            mistakes = components.check_components(named.model)
            self.errors += [f"{self.path}: {mistake}" for mistake in mistakes]
        if base is None or config is None or not seeds:
            return None
        configs = [config.model_copy(update={"seed": seed}) for seed in seeds]
        merged = {key: value for key, (value, _) in merge(levels).items()}
        return Row(describe_difference(configs[0], base), configs, merged)

    def _match_budget(self, row: Row, first: Row) -> Row:
        """The row's configs as they are trained: with optim.match=flops, with as many steps as the budget pays for.

        Raises an InputError where a key of the budget differs from the first row's, so that FLOPs cannot be matched.
        """
        config = row.configs[0]
        flat, flat_first = config.flat(), first.configs[0].flat()
        for key in OF_THE_BUDGET if config.optim.match == "flops" else ():
            if flat[key] != flat_first[key]:
                raise InputError(
                    f"{self.path}: row `{row.name}`: {key} = {flat[key]}: must be the same in all rows with "
                    "optim.match=flops; take one of them out"
                )
        trained = as_trained(config)  # matched once for all seeds
        return row._replace(configs=[trained.model_copy(update={"seed": config.seed}) for config in row.configs])


def _tell_apart(rows: Sequence[Row], base: Config) -> list[Row]:
    """The rows; where some have the same name, as components of two modules can, their names tell the modules."""
    counts = Counter(row.name for row in rows)
    return [
        row._replace(name=describe_difference(row.configs[0], base, with_modules=True)) if counts[row.name] > 1 else row
        for row in rows
    ]


def _component_keys(levels: Sequence[Level]) -> list[Level]:
    """The levels with nothing but the keys of components and of their options."""
    prefixes = tuple(f"model.{slot}" for slot in SLOTS)
    return [
        Level(place, {key: value for key, value in values.items() if is_known_key(key) and key.startswith(prefixes)})
        for place, values in levels
    ]


def _repeated_rows(path: Path, rows: Sequence[Row], sets: Mapping[str, str]) -> list[str]:
    """Error messages for rows that are the same trials, or that no table can tell apart. sets: the values of --set."""
    errors: list[str] = []
    first_by_identity: dict[str, Row] = {}
    first_by_name: dict[str, Row] = {}
    for row in rows:
        data = row.configs[0].data
        first = first_by_identity.setdefault(row_identity(row.configs[0]), row)
        if first is not row:
            errors.append(_why_equal(path, first, row, sets))
        if data.task != rows[0].configs[0].data.task:
            errors.append(f"{path}: data.task = {data.task}: must be the same in all rows; make a file for each")
        other = first_by_name.setdefault(row.name, row).configs[0].data
        if first is row and (other.path, other.hub) != (data.path, data.hub):
            errors.append(f"{path}: two rows have the name `{row.name}`; tell their texts apart with data.name")
    return errors


def _why_equal(path: Path, first: Row, second: Row, sets: Mapping[str, str]) -> str:
    """The error message for two rows that are the same trials."""
    names = [shown(row.written or row.name) for row in (first, second)]
    models = [nominal_sizes(row.configs[0].model) for row in (first, second)]
    same = "have the same settings" if models[0] == models[1] else "have the same sizes at this scale's width and depth"
    by_set = f" (with --set {shown(' '.join(f'{key}={value}' for key, value in sets.items()))})" if sets else ""
    return f"{path}: rows `{names[0]}` and `{names[1]}` {same}{by_set}; rows must differ: leave one out"


def _attempt(errors: list[str], make: Callable[..., T], *arguments: Any) -> T | None:
    """What `make` returns; None where it raises an InputError, whose messages are added to `errors`."""
    try:
        return make(*arguments)
    except InputError as error:
        errors += error.messages
        return None
