"""Reads a sweep file, which is a W&B sweep file and nothing more, into the rows of a table and their trials."""

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from transformer_pl.config import KEYS, Config, is_known_key, is_option, unknown_key
from transformer_pl.config.levels import DEFAULT_SCALE, OF_SEEDS, Level, merge, parse_variant, read_levels, scale_level
from transformer_pl.config.types import FORMS, PLAIN_NAME, SEEDS, mistake_in
from transformer_pl.runtime.environment import PROJECT
from transformer_pl.runtime.errors import InputError, collect_errors, shown, suggestion
from transformer_pl.runtime.files import read_text, read_yaml
from transformer_pl.task import LOSSES
from transformer_pl.trials.identity import describe_difference, row_identity
from transformer_pl.trials.trial_config import as_trained, mistakes_of_parts

# W&B's schema is closed: it refuses a file with any other key ("Malformed sweep config").
TOP_LEVEL = (
    *("program", "name", "description", "project", "entity", "method", "metric", "metrics", "scheduler", "parameters"),
    *("early_terminate", "command", "run_cap", "controller", "job", "image_uri", "kind", "apiVersion"),
)
SEARCHES = ("random", "bayes", "custom")  # methods that draw trials instead of listing them
# Keys that decide what optim.match=flops equalises.
BUDGET_KEYS = ("data.batch_tokens", "data.vocab_size", "model.width", "model.depth", "optim.max_steps")
OUR_PARAMETERS = ("scale", "variant", "seed", *OF_SEEDS)  # parameters that are not keys of the config
MOST_TRIALS = 10_000  # trials that a grid may have
LONGEST_NAME = 128  # characters: W&B's limit for a project and a group
PACKAGE = Path(__file__).parents[1]
# Where the sweep files lie in a wheel, or else in a checkout of the repository
SHIPPED = next(filter(Path.is_dir, (PACKAGE / "sweeps", PACKAGE.parent / "sweeps")))


TRIAL_ID = "[0-9a-f]{12}"
WORDS = r"\+(?=[^+=]*=)"  # between the words of a `model.start`, but not inside a number such as 1e+30
ROW_OF_FILE = r"(.+?\.ya?ml):(.+)"  # a `model.start` that is a row of another file
COST_METRICS = ("params", "flops")  # goals that need no score: what a model costs
Direction = Literal["minimize", "maximize"]


def _metric(name: str) -> str:
    if name not in COST_METRICS and not name.startswith("val/"):
        raise ValueError(
            f"must be a metric of the validation set, such as val/bleu or val/ppl, or {' or '.join(COST_METRICS)}"
        )
    return name


class Goal(BaseModel, extra="forbid"):
    """What a sweep is for: `metric`, or an entry of `metrics`."""

    name: Annotated[str, AfterValidator(_metric)] = Field("", validate_default=True)
    goal: Direction = "minimize"


class Goals(BaseModel):
    """The goals of a sweep file: one, or several of a search."""

    metric: Goal | None = None
    metrics: list[Goal] = []


class SweepRow(NamedTuple):
    """A row of the table: one config, trained once for each seed."""

    name: str  # what differs from base: `h=4`
    configs: list[Config]  # by seed
    keys: dict[str, Any]  # the arguments of `train`, beside the scale and the seed
    start: int | None = None  # the place in `Sweep.planned` of the row whose trials its own start from (`model.start`)
    of: "Sweep | None" = None  # the sweep of another file that it is a row of; None: this one

    @property
    def title(self) -> str:
        """Its name, behind that of its file where this is another one."""
        return f"{self.of.path}:{self.name}" if self.of else self.name


@dataclass(frozen=True)
class Sweep:
    """The rows of a grid at one scale."""

    name: str
    project: str  # at W&B
    scale: str
    base: Config  # the scale, with the keys that the file gives to every row; rows are compared with it
    rows: list[SweepRow]
    path: Path  # the file
    matches_flops: bool = False  # whether a row has optim.match=flops
    notes: tuple[str, ...] = ()  # printed under its table
    tried: tuple[tuple[str, Mapping[str, Any], float], ...] = ()  # of --retune: row, point and value of its metric
    metric: str | None = None  # the file's, which `main_metric` reads
    looks: tuple[int, ...] = ()  # after how many seeds the rows are looked at; empty: once, at the end

    @property
    def configs(self) -> list[Config]:
        """The configs of all trials, row by row."""
        return [config for row in self.rows for config in row.configs]

    @cached_property
    def planned(self) -> list[SweepRow]:
        """The rows, and behind them those of other files that they start from, each of these with one config.

        The other files are read as they are. Raises an InputError for a start that is no row, and for rows that start
        from themselves.
        """
        return _with_starts(self)

    @property
    def of_base(self) -> SweepRow | None:
        """The row that is base; None where the sweep has none."""
        return None if self.base_row is None else self.rows[self.base_row]

    @cached_property
    def base_row(self) -> int | None:
        """The index of the row that is base; None where the sweep has none."""
        base = row_identity(self.base)
        return next((i for i, row in enumerate(self.rows) if row_identity(row.configs[0]) == base), None)

    def without_looks(self) -> "Sweep":
        """The same sweep as a W&B agent trains it, which takes the grid as it is: base has the seeds of the others."""
        rows = [row._replace(configs=row.configs[: self.looks[-1]]) for row in self.rows]
        note = "The looks that the file plans were not taken: whoever trained this did not use the sweep command."
        return replace(self, rows=rows, looks=(), notes=(*self.notes, note))


def located(file: Path) -> Path:
    """Where a sweep file lies. A name such as `table3_A`, where there is no such file, means one that ships.

    Messages and printed commands have the file as it was typed; only what reads it asks for the place.
    """
    is_path = file.suffix or len(file.parts) != 1 or os.path.isfile(file)
    return file if is_path else SHIPPED / f"{file}.yaml"


def leading_comment(path: Path) -> str:
    """What the comment at the top of a sweep file says, without its indented commands; empty if the file is gone."""
    try:
        lines = itertools.takewhile(lambda line: line.startswith("#"), read_text(located(path)).splitlines())
    except (OSError, InputError):
        return ""
    return " ".join(line[1:].strip() for line in lines if not line.startswith("#  "))


def read_sweep(
    path: Path,
    scale: str | None = None,
    seeds: Sequence[str | int] | None = None,
    sets: Mapping[str, str] | None = None,
    content: Mapping[str, Any] | None = None,
    looks: Sequence[int] | None = None,
    base_seeds: int | None = None,
) -> Sweep:
    """Read a grid and check every trial of it.

    path: the sweep file.
    scale, seeds, looks, base_seeds: these replace those of the file. Its base_seeds are for its own seeds or looks.
    sets: the values of --set, which win over everything.
    content: the content of the file, where it was read already.

    Raises one InputError for all mistakes of the file and of all its trials.
    """
    content = read_yaml(located(path)) if content is None else content
    parameters, mistakes = _read_parameters(path, content)
    scales = parameters.pop("scale", [DEFAULT_SCALE])
    if scale is None and len(scales) > 1:
        mistakes.append(
            f"{path}: parameters.scale = {shown(scales)}: must be one value; start the command once for each"
        )
    goal = _goal(content, scale is not None)
    scale = str(scales[0]) if scale is None else scale
    seeds, planned, more = _seeds(path, parameters, seeds, looks, base_seeds, mistakes)
    row_count = math.prod(len(values) for key, values in parameters.items() if key != "seed")
    if row_count * len(seeds) > MOST_TRIALS:
        made = f"{row_count:,} rows with {len(seeds):,} seeds each"
        rule = f"{path}: a grid must have at most {MOST_TRIALS:,} trials, not {made}; list rows in `variant`"
        raise InputError(*mistakes, rule)
    try:
        scale_keys = scale_level(scale)
    except InputError as error:
        raise InputError(*mistakes, *error.messages) from None
    reader = _RowReader(path, scale_keys, seeds, sets or {}, mistakes)
    base, rows = reader.read_all(parameters)
    name, project = content.get("name", path.stem), content.get("project", PROJECT)
    matches = reader.matches_flops
    sweep = Sweep(name, project, scale, base, rows, path, matches, metric=goal, looks=planned)
    return _with_more_of_base(sweep, path, more) if planned or more else sweep


def _with_more_of_base(sweep: Sweep, path: Path, more: int) -> Sweep:
    """The sweep, whose base has so many more seeds than its other rows. Raises an InputError where it has no base."""
    if (of_base := sweep.of_base) is None:
        raise InputError(f"{path}: looks and base_seeds are of base, which is not a row; add base to variant")
    if sweep.looks and len(sweep.rows) == 1:
        raise InputError(f"{path}: looks are at differences from base, which is the only row; add rows to variant")
    last = max(config.seed for config in of_base.configs)
    if last + more >= SEEDS:
        rule = f"must leave {more} further seeds below {SEEDS:,} for base, but has {last:,}"
        raise InputError(f"{path}: parameters.seed: {rule}; choose lower seeds")
    configs = [*of_base.configs, *_with_seeds(of_base.configs[0], range(last + 1, last + more + 1))]
    return replace(sweep, rows=[row._replace(configs=configs) if row is of_base else row for row in sweep.rows])


def row_levels(path: Path, keys: Mapping[str, Any], sets: Mapping[str, str]) -> list[Level]:
    """The levels of a row or of a drawn trial, lowest first: plain keys, `variant`, --set.

    path: the sweep file.
    keys: the keys of the row in the file, which may hold `variant`.
    sets: the values of --set.

    Raises an InputError where `variant` cannot be parsed, or where `variant` or --set give the seed.
    """
    plain = {key: value for key, value in keys.items() if key != "variant"}
    variant = [parse_variant(str(keys["variant"]), f"{path}:")] if "variant" in keys else []
    higher = [*variant, Level("--set", sets)]
    for place, values in higher:
        if "seed" in values:
            raise InputError(f"{place}: seed = {shown(values['seed'])}: must be given by parameters.seed or by --seeds")
    return [Level(f"{path}: parameters", plain), *higher]


def top_level_mistakes(path: Path, content: Mapping[str, Any]) -> list[str]:
    """What is wrong with a sweep file outside its parameters, whatever its method."""
    errors = []
    try:
        Goals.model_validate(content)
    except ValidationError as error:
        errors += [f"{path}: {mistake_in(mistake)}" for mistake in error.errors()]
    for key in [str(key) for key in content if key not in TOP_LEVEL]:
        remedy = "; write it under `parameters`" if is_known_key(key) else suggestion(key, TOP_LEVEL)
        errors.append(f"{path}: {key}: no key of a W&B sweep{remedy}")
    for key, name in (("name", content.get("name", path.stem)), ("project", content.get("project", PROJECT))):
        if not isinstance(name, str) or not re.fullmatch(PLAIN_NAME, name) or len(name) > LONGEST_NAME:
            rule = f"must be {FORMS[PLAIN_NAME]}, at most {LONGEST_NAME} characters"
            errors.append(f"{path}: {key} = {shown(repr(name))}: {rule}; choose another")
    return errors


def unknown_parameter(key: Any) -> str:
    """What is wrong with a parameter's name; empty for a key, and for OUR_PARAMETERS."""
    return "" if is_known_key(str(key)) or key in OUR_PARAMETERS else unknown_key(str(key))


def _read_parameters(path: Path, content: Mapping[str, Any]) -> tuple[dict[str, list], list[str]]:
    """The values of every parameter of a grid that can be read, in the file's order; and the mistakes of the file."""
    errors = top_level_mistakes(path, content)
    if content.get("method") != "grid":
        methods = f"grid (a table), or {', '.join(SEARCHES[:-1])} or {SEARCHES[-1]} (a search)"
        errors.append(f"{path}: method = {shown(content.get('method'))}: must be {methods}")
    parameters = content.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        errors.append(f"{path}: parameters = {shown(parameters)}: must map keys to {{value: ...}} or {{values: [...]}}")
        return {}, errors
    values_by_key = {}
    for key, entry in parameters.items():
        if mistake := unknown_parameter(key):
            errors.append(f"{path}: parameters.{key}: {mistake}")
            continue
        values = None
        if isinstance(entry, dict) and entry.keys() in ({"value"}, {"values"}):
            values = entry.get("values", [entry.get("value")])
        nested = (list, dict) if isinstance(KEYS.get(key), list) or is_option(str(key)) else ()
        kinds = (str, int, float, type(None), *nested)
        if values and isinstance(values, list) and all(isinstance(value, kinds) for value in values):
            values_by_key[str(key)] = values
        else:
            form = "{value: ...} or {values: [...]} in a grid, with plain values"
            errors.append(f"{path}: parameters.{key} = {shown(entry)}: must be {form}")
    return values_by_key, errors


def _goal(content: Mapping[str, Any], has_other_scale: bool) -> str | None:
    """The metric of a file; at another scale than the file's, which may have another task, only one of all tasks."""
    metric = content.get("metric")
    name = metric.get("name") if isinstance(metric, dict) else None  # else `top_level_mistakes` says so
    return None if has_other_scale and name not in LOSSES else name


def _seeds(
    path: Path,
    parameters: dict[str, list],
    seeds: Sequence[str | int] | None,
    looks: Sequence[int] | None,
    base_seeds: int | None,
    mistakes: list[str],
) -> tuple[Sequence[str | int], tuple[int, ...], int]:
    """The seeds of a row, the looks, and how many more seeds base has, as `read_sweep` is given them or the file says.

    parameters: of the file; those of looks and base_seeds are taken out. mistakes: collects them.
    """
    own_seeds = parameters.get("seed", [1])
    # --seeds are those of base, too; but with looks those of base are planned with these.
    replaces_all = bool(seeds) and base_seeds is None and "looks" not in parameters
    seeds = seeds or own_seeds
    of_looks = parameters.pop("looks", [None])
    of_looks = of_looks if looks is None else [" ".join(map(str, looks))]
    planned, of_base = _looks(path, of_looks, len(seeds), mistakes), parameters.pop("base_seeds", [None])
    of_base = of_base if base_seeds is None else [base_seeds]
    more = _more_of_base(path, of_base, len(own_seeds if replaces_all else seeds), mistakes) * (not replaces_all)
    return seeds, planned, more


def _looks(path: Path, values: list, seeds: int, mistakes: list[str]) -> tuple[int, ...]:
    """After how many seeds the rows are looked at; none for [None]. seeds: of each row. mistakes: collects them."""
    if values == [None]:
        return ()
    words = str(values[0] or "").split()
    counts = [int(word) for word in words if re.fullmatch("[0-9]{1,9}", word)]
    is_right = len(counts) == len(words) and counts == sorted({*counts}) and counts[:1] >= [2] and counts[-1] == seeds
    if len(values) > 1 or not is_right:
        rule = f"must be increasing numbers of seeds, the first 2 or more and the last those of each row, here {seeds}"
        last, given = max(3, seeds), shown(values if len(values) > 1 else values[0])
        more = f" --seeds {','.join(map(str, range(1, last + 1)))}" if seeds < last else ""
        example = f'looks: {{value: "2 {last}"}} in the file, or --looks 2,{last}{more}'
        remedy = f"such as {example}; change looks or the seeds"
        mistakes.append(f"{path}: looks = {given}: {rule}, {remedy}")
    return tuple(counts)


def _more_of_base(path: Path, values: list, seeds: int, mistakes: list[str]) -> int:
    """How many more seeds base has than the rows, which have `seeds`; 0 for [None]. mistakes: collects them."""
    of_base = values[0]
    if len(values) == 1 and type(of_base) is int and seeds <= of_base <= MOST_TRIALS:
        return of_base - seeds
    if values != [None]:
        rule = f"must be one whole number of at least {seeds}, the seeds of a row"
        mistakes.append(f"{path}: base_seeds = {shown(values if len(values) > 1 else of_base)}: {rule}")
    return 0


def _with_starts(sweep: Sweep) -> list[SweepRow]:
    """The rows of `Sweep.planned`, which know the place that they start from."""
    rows, places, files, errors = [*sweep.rows], dict[tuple[Path, str], int](), dict[str, Sweep](), list[str]()
    for place, row in enumerate(rows):  # which grows by the rows of other files
        name, of = row.configs[0].model.start, row.of or sweep
        if name is None or re.fullmatch(TRIAL_ID, name):
            continue
        try:
            found, start = _named_row(name, row, of, files)
        except InputError as error:
            errors += [f"{of.path}: row `{row.name}`: model.start = {name}: {message}" for message in error.messages]
            continue
        if found is not sweep:
            trunk = found.rows[start]
            if (start := places.setdefault((found.path, trunk.name), len(rows))) == len(rows):
                rows.append(trunk._replace(configs=trunk.configs[:1], of=found))
        rows[place] = row._replace(start=start)
    endless = "must not start, over whatever rows, from itself; name another row"
    errors += [f"{sweep.path}: row `{row.title}`: {endless}" for row in rows if _is_endless(row, rows)]
    if errors:
        raise InputError(*errors)
    return rows


def _named_row(name: str, row: SweepRow, sweep: Sweep, files: dict[str, Sweep]) -> tuple[Sweep, int]:
    """The sweep and the place there of the row that a `model.start` names.

    row: whose start it is, of that sweep. files: the other sweeps, which are kept.
    """
    wanted, found = name, _rows_with_words(name, sweep, row)
    if not found and (elsewhere := re.fullmatch(ROW_OF_FILE, name)):
        file, wanted = elsewhere.groups()
        if file not in files:
            files[file] = read_sweep(Path(file))
        sweep = files[file]
        found = _rows_with_words(wanted, sweep)
    if not found:
        known = [other.name.replace(" ", "+") for other in sweep.rows]
        raise InputError(f"is no other row of {sweep.path}{suggestion(wanted, known)}")
    if len(found) > 1:
        few = " and ".join(f"`{sweep.rows[place].name}`" for place in found[:2])
        raise InputError(f"must name one row, but {len(found)} have these words, such as {few}; write more of them")
    return sweep, found[0]


def _rows_with_words(name: str, sweep: Sweep, asking: SweepRow | None = None) -> list[int]:
    """The places of the rows with all words of a name, but for the one that asks; or of that with no other words."""
    words, by_place = {*re.split(WORDS, name)}, [{*row.name.split()} for row in sweep.rows]
    whole = [n for n, has in enumerate(by_place) if has == words or sweep.rows[n].name.replace(" ", "+") == name]
    return whole or [n for n, has in enumerate(by_place) if has > words and sweep.rows[n] is not asking]


def _is_endless(row: SweepRow, rows: Sequence[SweepRow]) -> bool:
    """Whether the starts of a row, one before the other, do not end."""
    for _ in rows:
        if row.start is None:
            return False
        row = rows[row.start]
    return True


@dataclass
class _RowReader:
    """Reads the rows of a grid and collects the errors of all of them."""

    path: Path
    scale: Level
    seeds: Sequence[str | int]
    sets: Mapping[str, str]  # the values of --set
    errors: list[str]  # collects the mistakes of all rows
    matches_flops: bool = False  # whether a row that was read has optim.match=flops

    def read_all(self, parameters: Mapping[str, list]) -> tuple[Config, list[SweepRow]]:
        """The base and the rows. Raises one InputError for the mistakes of all rows."""
        shared = {k: values[0] for k, values in parameters.items() if len(values) == 1 and k not in OUR_PARAMETERS}
        varied = [key for key in parameters if key != "seed" and key not in shared]
        (base, _), seeds, rows = self._read(shared, whole=False), self._read_seeds(), list[SweepRow]()
        written: list[str] = []  # what the file says of each row alone
        for values in itertools.product(*map(parameters.__getitem__, varied)):
            own = dict(zip(varied, values, strict=True))
            config, keys = self._read(shared | own)
            if base and config and seeds:
                rows.append(SweepRow(describe_difference(config, base), [config], keys))
                written.append(_written(own))
        base, rows = self._checked(base, rows, written)
        return base, [row._replace(configs=_with_seeds(row.configs[0], seeds)) for row in rows]

    def _checked(
        self, base: Config | None, rows: list[SweepRow], written: Sequence[str]
    ) -> tuple[Config, list[SweepRow]]:
        """Base and the rows, of one config each, as they are trained. Raises an InputError for all mistakes.

        written: for each row, what the file says of it alone.
        """
        self.matches_flops = any(row.configs[0].optim.match == "flops" for row in rows)
        if not self.errors:
            self.errors += self._mixed(rows)
        if base and not self.errors:
            base, rows = _as_trained(base, rows)
        self.errors += self._equal(rows, written)
        if self.errors or not base:
            raise InputError(*self.errors)
        return base, rows

    def _read_seeds(self) -> list[int]:
        """The seeds, or an empty list where one of them has an error."""
        read = [read_levels([Level(f"{self.path}: parameters", {"seed": seed})]) for seed in self.seeds]
        mistakes = [mistake for _, seed_mistakes in read for mistake in seed_mistakes]
        seeds = [config.seed for config, seed_mistakes in read if not seed_mistakes]
        if len(set(seeds)) < len(seeds):
            mistakes.append(f"{self.path}: seed = {seeds}: must differ from each other")
        self.errors += mistakes
        return [] if mistakes else seeds

    def _read(self, keys: Mapping[str, Any], whole: bool = True) -> tuple[Config | None, dict[str, Any]]:
        """The config of a row with these keys of the file, or None if it has errors; and the arguments of `train`.

        whole: whether options without a default must be given, which may differ between the rows of a base.
        """
        try:
            levels = row_levels(self.path, keys, self.sets)
        except InputError as error:
            self.errors += error.messages
            return None, {}
        config, mistakes = read_levels([self.scale, *levels])
        mistakes += [f"{self._origin(mistake)}: {mistake}" for mistake in mistakes_of_parts(config, whole)]
        self.errors += mistakes
        return None if mistakes else config, {key: value for key, (value, _) in merge(levels).items()}

    def _origin(self, mistake: str) -> str:
        """The place that a mistake comes from, --set or the file, by the key in it: `model.ffn = a.B: ...`."""
        slot = mistake.partition(" = ")[0]
        return "--set" if any(f"{key}.".startswith(f"{slot}.") for key in self.sets) else str(self.path)

    def _mixed(self, rows: Sequence[SweepRow]) -> Iterator[str]:
        """Error messages for rows that one table cannot hold, or with which FLOPs cannot be matched."""
        first = rows[0].configs[0].flat()
        sets = dict[str, str]()
        for row in rows:
            flat = row.configs[0].flat()
            for name, written in zip(row.configs[0].data.further, flat["data.sets"], strict=True):
                if sets.setdefault(name, written) != written:
                    yield f"{self.path}: row `{row.name}`: data.sets: {name} must be the same set in all rows"
            for key in ("data.task", *(BUDGET_KEYS if flat["optim.match"] == "flops" else ())):
                if flat[key] != first[key]:
                    condition = "" if key == "data.task" else " with optim.match=flops"
                    rule = f"must be the same in all rows{condition}"
                    yield f"{self.path}: row `{row.name}`: {key} = {flat[key]}: {rule}"

    def _equal(self, rows: Sequence[SweepRow], written: Sequence[str]) -> Iterator[str]:
        """Error messages for rows that are the same trials, or that have the same name.

        written: for each row, what the file says of it alone.
        """
        by_identity, by_name = dict[str, int](), dict[str, int]()
        for index, row in enumerate(rows):
            equal = by_identity.setdefault(row_identity(row.configs[0]), index)
            namesake = by_name.setdefault(row.name, index)
            if min(equal, namesake) < index:
                first, second = (shown(written[i]) for i in (min(equal, namesake), index))
                why = "are equal, at this scale and with this --set; leave one out"
                if rows[equal].configs[0].trainer.extensions != row.configs[0].trainer.extensions:
                    why = "differ only in loggers, or in callbacks with in_identity: false, which make no other trial"
                if equal == index:
                    why = f"have the same name, `{row.name}`; set data.name, or rename a class"
                yield f"{self.path}: rows `{first}` and `{second}` must differ, but {why}"


def _written(keys: Mapping[str, Any]) -> str:
    """The keys of a row, as the file has them."""
    return " ".join(f"{value}" if key == "variant" else f"{key}={value}" for key, value in keys.items())


def _with_seeds(config: Config, seeds: Iterable[int]) -> list[Config]:
    return [config.model_copy(update={"seed": seed}) for seed in seeds]


def _as_trained(base: Config, rows: Sequence[SweepRow]) -> tuple[Config, list[SweepRow]]:
    """Base, and the rows of one config each, with as many steps as optim.match=flops stands for."""
    configs = [base, *(row.configs[0] for row in rows)]
    of_base, *others = collect_errors(lambda index: as_trained(configs[index]), range(len(configs))).values()
    return of_base, [row._replace(configs=[config]) for row, config in zip(rows, others, strict=True)]
