"""The sweep file: a W&B sweep, nothing more, read as rows of a table and their trials."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl import components
from transformer_pl.config import (
    KEYS,
    SLOTS,
    Config,
    Level,
    is_known_key,
    merge,
    nominal_sizes,
    parse_variant,
    read_yaml,
    resolve,
    scale_level,
    suggestion,
)
from transformer_pl.experiments.trial_config import trial_config
from transformer_pl.runtime.errors import InputError
from transformer_pl.training.wandb_process import PROJECT
from transformer_pl.trials.identity import describe_difference, row_identity
from transformer_pl.trials.names import broken_rule

# W&B's schema is closed: a key beyond these would draw "Malformed sweep config" there.
TOP_LEVEL = (
    *("program", "name", "description", "project", "entity", "method", "metric", "metrics", "scheduler", "parameters"),
    *("early_terminate", "command", "run_cap", "controller", "job", "image_uri", "kind", "apiVersion"),
)
SEARCHES = ("random", "bayes", "custom")  # methods that draw trials rather than list them
OUR_PARAMETERS = ("scale", "variant", "seed")  # parameters that are no keys of the config


class Row(NamedTuple):
    """A row of the table: one config, trained once for each seed."""

    name: str  # what differs from the base
    configs: list[Config]  # by seed
    keys: dict[str, Any]  # what `train` is told beside the scale and the seed


class Sweep(NamedTuple):
    name: str
    project: str
    scale: str
    base: Config  # what the rows are changes of: the scale, and what the file gives to all
    rows: list[Row]
    notes: tuple[str, ...] = ()  # what must be read beside its table

    @property
    def configs(self) -> list[Config]:
        return [config for row in self.rows for config in row.configs]


def read_sweep(
    path: Path, scale: str | None = None, seeds: Sequence[str] | None = None, sets: Mapping[str, str] | None = None
) -> Sweep:
    """Every trial of a sweep file, checked. `scale` and `seeds` replace the file's, `sets` wins over everything.

    Raises one InputError for all mistakes of the file and of all its trials.
    """
    content = read_yaml(path)
    grid, mistakes = _parameters(path, content)
    if scale is None and len(grid.get("scale", ["demo"])) > 1:
        mistakes.append(
            f"{path}: parameters.scale = {grid['scale']}: must be one value; start the command once for each"
        )
    unknown = [key for key in grid if not is_known_key(key) and key not in OUR_PARAMETERS]
    strange = [
        f"{path}: parameters.{key}: no such key{suggestion(key, dict.fromkeys([*KEYS, *OUR_PARAMETERS]))}"
        for key in unknown
    ]
    if mistakes:
        raise InputError(*strange, *mistakes)
    mistakes += strange
    grid = {key: values for key, values in grid.items() if key not in unknown}
    scale = scale or str(grid.get("scale", ["demo"])[0])
    seeds = seeds or grid.get("seed", [1])
    shared = {key: values[0] for key, values in grid.items() if len(values) == 1 and key not in OUR_PARAMETERS}
    varied = [key for key in grid if key not in ("scale", "seed") and key not in shared]

    given = _attempt(mistakes, lambda: scale_level(scale))
    if given is None:
        raise InputError(*mistakes)
    base = _attempt(mistakes, lambda: resolve([given, *row_levels(path, shared, sets or {})]))
    rows = []
    for values in itertools.product(*(grid[key] for key in varied)):
        row = dict(zip(varied, values, strict=True))
        changes = _attempt(mistakes, lambda row=row: row_levels(path, shared | row, sets or {}))
        if changes is None:
            continue
        seeded = [[given, *changes, Level(f"{path}: parameters", {"seed": seed})] for seed in seeds]
        configs = [_attempt(mistakes, lambda one=one: resolve(one)) for one in seeded]
        if base is not None and None not in configs:
            keys = {key: value for key, (value, _) in merge(changes).items()}
            rows.append(Row(describe_difference(configs[0], base), configs, keys))
        chosen = _attempt([], lambda changes=changes: resolve(_of_parts([given, *changes])))
        if chosen is not None:  # checked even where something else is wrong with the row
            mistakes += [f"{path}: {mistake}" for mistake in components.check_components(chosen.model)]
    if not mistakes:
        rows = [_attempt(mistakes, lambda row=row: _of_equal_budget(path, given, row, rows[0])) for row in rows]
    if mistakes := mistakes or _equal(path, rows):
        raise InputError(*mistakes)
    base = trial_config([given, *row_levels(path, shared, sets or {})])
    return Sweep(content.get("name", path.stem), content.get("project", PROJECT), scale, base, rows)


def row_levels(path: Path, said: Mapping[str, Any], sets: Mapping[str, str]) -> list[Level]:
    """What a row or a draw says: its keys, over these its variant, over both `--set`.

    Raises an InputError where it cannot be read, or says the seed.
    """
    plain = {key: value for key, value in said.items() if key != "variant"}
    variant = [parse_variant(str(said["variant"]), f"{path}:")] if "variant" in said else []
    over = [*variant, Level("--set", sets)]
    for place, values in over:
        if "seed" in values:
            raise InputError(f"{place}: seed = {values['seed']}: must be said by parameters.seed or by --seeds")
    return [Level(f"{path}: parameters", plain), *over]


def _of_equal_budget(path: Path, scale: Level, row: Row, first: Row) -> Row:
    """The row's configs as they are trained: with optim.match=flops, with as many steps as the budget pays for."""
    config = row.configs[0]
    for key in ("batch_tokens", "vocab_size") if config.optim.match == "flops" else ():
        if getattr(config.data, key) != getattr(first.configs[0].data, key):
            raise InputError(
                f"{path}: row `{row.name}`: data.{key} = {getattr(config.data, key)}: must be the same in all rows "
                f"with optim.match=flops; take one of them out"
            )
    trained = trial_config([scale, Level(f"{path}: parameters", row.keys)])  # matched once for all seeds
    return row._replace(configs=[trained.model_copy(update={"seed": config.seed}) for config in row.configs])


def top_level_mistakes(path: Path, content: Mapping[str, Any]) -> list[str]:
    """What is wrong with a sweep file beside its parameters, whatever its method."""
    strange = [key for key in content if key not in TOP_LEVEL]
    mistakes = [f"{path}: {key}: no key of a W&B sweep{suggestion(str(key), TOP_LEVEL)}" for key in strange]
    names = (("name", content.get("name", path.stem), ""), ("project", content.get("project", PROJECT), "#?%:"))
    for key, name, without in names:  # `without`: what W&B refuses
        if not isinstance(name, str):
            mistakes.append(f"{path}: {key} = {name}: must be text")
        elif rule := broken_rule(name, without):
            mistakes.append(f"{path}: {key} = {name!r}: {rule}; choose another")
    return mistakes


def _parameters(path: Path, content: Mapping[str, Any]) -> tuple[dict[str, list], list[str]]:
    """The values of every parameter, in the file's order; and what is wrong with the file itself."""
    mistakes = top_level_mistakes(path, content)
    if content.get("method") != "grid":
        mistakes.append(f"{path}: method = {content.get('method')}: must be grid")
    parameters = content.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        mistakes.append(f"{path}: parameters = {parameters}: must map keys to {{value: ...}} or {{values: [...]}}")
        return {}, mistakes
    grid = {}
    for key, said in parameters.items():
        if not isinstance(said, dict) or len(said) != 1 or not said.keys() <= {"value", "values"}:
            mistakes.append(f"{path}: parameters.{key} = {said}: must be {{value: ...}} or {{values: [...]}} in a grid")
            continue
        values = said["values"] if "values" in said else [said["value"]]
        if not isinstance(values, list) or not values:
            mistakes.append(f"{path}: parameters.{key}.values = {values}: must be a list with a value in it")
            continue
        wrong = [value for value in values if not isinstance(value, str | int | float | None)]
        mistakes += [f"{path}: parameters.{key} = {value}: must be a plain value" for value in wrong]
        grid[str(key)] = values
    return grid, mistakes


def _of_parts(levels: Sequence[Level]) -> list[Level]:
    """The levels with the keys of parts and of their options alone."""
    of_parts = tuple(f"model.{seam}" for seam in SLOTS)
    return [
        Level(place, {key: value for key, value in values.items() if is_known_key(key) and key.startswith(of_parts)})
        for place, values in levels
    ]


def _equal(path: Path, rows: Sequence[Row]) -> list[str]:
    """Rows that are the same trial, and seeds given twice."""
    mistakes, seen = [], {}
    for row in rows:
        seeds = [config.seed for config in row.configs]
        if len(set(seeds)) < len(seeds):
            mistakes.append(f"{path}: seed = {seeds}: must differ from each other")
        config = row.configs[0]
        other = seen.setdefault(row_identity(config), row)
        if other is not row:
            same = nominal_sizes(other.configs[0].model) == nominal_sizes(config.model)
            why = "say the same" if same else "come to the same sizes at this scale's width and depth"
            mistakes.append(f"{path}: rows `{other.name}` and `{row.name}` {why}; rows must differ: leave one out")
    return mistakes


def _attempt(mistakes: list[str], made: Any) -> Any:
    """What is made, or None with its mistakes taken down: one bad row must not hide another's."""
    try:
        return made()
    except InputError as error:
        mistakes += error.messages
        return None
