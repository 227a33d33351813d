"""What a file says of rows: their names, headings between them, and numbers that others have printed of them.

    source: Vaswani et al. 2017, Table 3
    rows:
      - heading: Heads
      - {row: base, name: eight heads, published: {bleu: 25.8}}
      - {row: h=4, name: four heads, published: {bleu: 25.5}}

`row` is what differs from base, as the table calls it. A file whose numbers stand beside the rows of many sweeps, as
those of `published/` do, says by keys what differs from the paper's base: `differs: {model.h: 4}`. An entry with a
label alone is a system that is no row. Numbers are of the validation set, or with `split: test` of the test set, and
stand beside the table in place of the paper's. A file changes only what is printed: ids and folders stay the same.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from transformer_pl.config import Config, Data, Section, custom_components, nominal_sizes
from transformer_pl.config.levels import SCALES, Level, resolve, scale_level
from transformer_pl.config.types import NoBool, mistake_in
from transformer_pl.plan.sweep_file import Sweep, located
from transformer_pl.runtime.errors import InputError, shown, suggestion, warn
from transformer_pl.runtime.files import read_yaml
from transformer_pl.table.row import Printed, PrintedTable, Row, decimals_of
from transformer_pl.task import Measure, task_of

FOLDER = Path(__file__).parent / "published"
NO_VALUES = "compare differences from base, not values."
BESIDE_SCORE = ("ppl", "params", "flops")  # numbers that a row of any task may have; params are in millions


class Published(Section):
    """Numbers that others have printed for a row, each under the name of its metric: `bleu: 25.5`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Annotated[float, Field(allow_inf_nan=False), NoBool]]

    split: Literal["val", "test"] | None = Field(None, description="the set that the score is of (the file's)")
    source: str = Field("", description="where they were printed (the file's)")

    @model_validator(mode="after")
    def _is_possible(self) -> "Published":
        if not self.numbers:
            raise ValueError("must have a metric with its number, such as bleu: 25.5")
        if (ppl := self.numbers.get("ppl", 1.0)) <= 0:
            raise ValueError(f"ppl = {ppl:g}: must be above 0; correct it")
        return self

    @property
    def numbers(self) -> dict[str, float]:
        """By metric."""
        return self.__pydantic_extra__


class Entry(Section):
    """A heading; a row with its name and its numbers; or a system that is no row, with its label and its numbers."""

    heading: str = ""
    row: str = ""
    differs: dict[str, Any] | None = Field(None, description="from the paper's base, whatever the scale")
    name: str = ""
    label: str = Field("", description="what the printed table calls the row: `base`, or a letter such as A")
    published: Published | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "Entry":
        kinds = [bool(self.heading), bool(self.row), self.differs is not None]
        if sum(kinds) > 1 or not (any(kinds) or (self.label and self.published)):
            raise ValueError("must have either heading, or row (or differs) and what is said of it")
        return self

    @property
    def is_row(self) -> bool:
        return bool(self.row) or self.differs is not None

    @cached_property
    def config(self) -> Config:
        """The row's config at the paper's own scale."""
        return resolve([Level(f"published row {self.label}", self.differs or {})])


class RowsFile(Section):
    """The content of a file."""

    rows: Annotated[list[Entry], Field(min_length=1)]
    source: str = Field("", description="where numbers were printed that name no source of their own")
    split: Literal["val", "test"] = Field("val", description="the set that scores are of that name none of their own")
    hub: str | None = Field(None, description="the dataset, as data.hub names it; empty: not known")

    @model_validator(mode="after")
    def _is_consistent(self) -> "RowsFile":
        for kind in ("row", "name"):
            counts = Counter(value for entry in self.rows if (value := getattr(entry, kind)))
            if twice := [value for value, count in counts.items() if count > 1]:
                raise ValueError(f"{kind} = {shown(twice[0])}: stands there twice; change one")
        for entry, below in zip(self.rows, [*self.rows[1:], None], strict=True):
            if entry.heading and (below is None or below.heading):
                raise ValueError(f"heading = {shown(entry.heading)}: must have a row below it")
        return self

    def find(self, config: Config) -> Entry | None:
        """The row that differs from the paper's base as this config does, whatever its scale; None if there is none."""
        wanted = _matched_settings(config)
        entries = (entry for entry in self.rows if entry.differs is not None)
        return next((entry for entry in entries if _matched_settings(entry.config) == wanted), None)

    def places(self, sweep: Sweep) -> dict[str, int]:
        """The places in the file of what it says of the rows of a sweep, by the names of these.

        An entry with `differs` is said once, of the config that is trained as base is, or of the first. A config that
        differs from base in its data or in a component of its training has none.
        """
        base, found = sweep.base, {entry.row: place for place, entry in enumerate(self.rows) if entry.row}
        configs = {row.name: row.configs[0] for row in sweep.rows}
        for name in sorted(configs, key=lambda name: _unmatched_settings(configs[name]) != _unmatched_settings(base)):
            config = configs[name]
            is_alike = (config.data, custom_components(config.optim)) == (base.data, custom_components(base.optim))
            if is_alike and (entry := self.find(config)) and (place := self.rows.index(entry)) not in found.values():
                found[name] = place
        return found

    def printed(
        self, sweep: Sweep, metric: str, split: str = "val", is_paper: bool = False
    ) -> tuple[dict[str, Printed], PrintedTable | None]:
        """The printed numbers beside the rows of a sweep, by the names of these, and where they are from.

        metric: the sweep's score. The numbers are those of this set, or else those of the test set; none where there
        are none of either. is_paper: whether they are from "Attention Is All You Need".
        """
        sets = [entry.published and (entry.published.split or self.split) for entry in self.rows]
        of_set = split if split in sets else "test"
        numbers = {n: self._numbers(entry, metric) for n, entry in enumerate(self.rows) if sets[n] == of_set}
        beside = {name: numbers[place] for name, place in self.places(sweep).items() if place in numbers}
        return beside, self._table(sweep, numbers, of_set, is_paper) if numbers else None

    def _table(self, sweep: Sweep, numbers: Mapping[int, Printed], split: str, is_paper: bool) -> PrintedTable:
        """Where numbers are from. numbers: by their places in the file."""
        kinds = {True: list[Printed](), False: list[Printed]()}
        for place, printed in numbers.items():
            kinds[self.rows[place].is_row].append(printed)
        bases = {sweep.of_base.name} if sweep.of_base else set()
        is_base = (place for place in numbers if self.rows[place].differs == {} or self.rows[place].row in bases)
        base = next((numbers[place] for place in is_base), None)
        source = "; ".join(dict.fromkeys(printed.source for printed in numbers.values()))
        note = self._unlike(sweep.base)
        if not is_paper:  # a user's file does not say on which data its numbers were measured
            note = f"Printed numbers: {source}. {NO_VALUES.capitalize()}"
            note += "" if base else " Base has none, and so there are no differences between them."
        return PrintedTable(source, base, split, decimals_of(kinds[True]), kinds[False], is_paper, note)

    def _numbers(self, entry: Entry, metric: str) -> Printed:
        assert entry.published
        numbers, source = entry.published.numbers, entry.published.source or self.source
        params = round(numbers["params"] * 1e6) if "params" in numbers else None
        return Printed(entry.label, numbers.get(metric), numbers.get("ppl"), params, numbers.get("flops"), source)

    def _unlike(self, base: Config) -> str:
        """In what a sweep is unlike the paper's table."""
        is_scaled = (base.model.width, base.model.depth) != (1, 1)
        differs_in = ["data"] * (base.data.hub != self.hub) + ["sizes"] * is_scaled
        return f"The paper has other {' and '.join(differs_in)}: {NO_VALUES}" if differs_in else ""


def read_rows_file(path: Path) -> RowsFile:
    """Read a file. Raises an InputError for what is no such file."""
    try:
        return RowsFile.model_validate(read_yaml(path))
    except ValidationError as error:
        alone = {"float_parsing": "; write it alone, without a deviation or a unit"}
        mistakes = (f"{mistake_in(mistake)}{alone.get(mistake['type'], '')}" for mistake in error.errors())
        raise InputError(*(f"{path}: {mistake}" for mistake in mistakes)) from None


def read_row_names(sweep: Sweep, sweep_file: Path, given: Path | None, is_changed: bool = False) -> RowsFile | None:
    """Read the file that is given, or the one beside the sweep file; None where there is none.

    is_changed: whether --set changes the sweep file's rows, which may then have other names: a file beside it that does
    not fit is left out with a warning. Else an InputError says what does not fit.
    """
    beside = located(sweep_file).with_suffix(".rows.yaml")
    if not (given or beside.is_file()):
        return None
    path = given or sweep_file.with_suffix(".rows.yaml")  # as messages name it
    file, known = read_rows_file(given or beside), [row.name for row in sweep.rows]
    unknown = [entry.row for entry in file.rows if entry.row and entry.row not in known]
    wrong = [f"row = {shown(name)}: is no row of {sweep.name}{suggestion(name, known)}" for name in unknown]
    if wrong and is_changed and given is None:
        warn(f"{path}: is left out, because --set changes the names of rows: {wrong[0]}")
        return None
    if wrong := [*wrong, *_mistakes(file, known, task_of(sweep.base.data).measure)]:
        raise InputError(*(f"{path}: {mistake}" for mistake in wrong))
    return file


def _mistakes(file: RowsFile, known: Sequence[str], measure: Measure) -> Iterator[str]:
    """Names that other rows have, and numbers that cannot stand beside a table that compares by this measure."""
    renamed, metrics = {entry.row for entry in file.rows if entry.name}, (measure.name, *BESIDE_SCORE)
    for entry in file.rows:
        if entry.name in {*known} - renamed:
            yield f"name = {shown(entry.name)}: is the name of another row; choose another"
        if entry.published is None:
            continue
        place = f"row = {shown(entry.row or entry.label)}: published"
        for metric, value in entry.published.numbers.items():
            if metric not in metrics:
                yield f"{place}.{metric}: is no metric of this table{suggestion(metric, metrics)}"
            elif metric == measure.name and not 0 <= value <= measure.highest:
                rule = f"must be from 0 to {measure.highest:g}, as {measure.title} is here"
                yield f"{place}.{metric} = {value:g}: {rule}; convert it"
        if not (entry.published.source or file.source):
            yield f"{place}: must have a source, here or above `rows`"


@cache
def read_published(name: str = "table3", languages: str = "en-de") -> RowsFile | None:
    """A printed table of `published/` by its name; one for each pair of languages has these in the file's name."""
    paths = [FOLDER / f"{name}.{languages}.yaml", FOLDER / f"{name}.yaml"]
    return next((read_rows_file(path) for path in paths if path.is_file()), None)


def paper_table(data: Data, published: str | None, sweep: str, is_shown: bool | None) -> RowsFile | None:
    """The paper's table for a dataset: the one that a sweep is named after, such as table2, or else `published`.

    published: the table of the dataset's task; None: the paper has none. There is none either where `is_shown` is
    False, and by default where the dataset is the user's own: a folder, or a dataset or a language that no shipped
    scale has.
    """
    if not published or is_shown is False or (is_shown is None and not _is_shipped(data)):
        return None
    languages = f"{data.source}-{data.target}"
    return read_published(sweep, languages) or read_published(published, languages)


def _is_shipped(data: Data) -> bool:
    """Whether the dataset is that of a shipped scale, in the same languages."""
    datasets = [resolve([scale_level(path.stem)]).data for path in SCALES.glob("*.yaml")]
    keys = ("path", "hub", "subset", "source", "target")
    return any(all(getattr(data, key) == getattr(shipped, key) for key in keys) for shipped in datasets)


def _unmatched_settings(config: Config) -> dict[str, Any]:
    """The settings that are not matched to a printed row: those of the training."""
    others = ("seed", "model.", "trainer.", "optim.eps_ls")
    return {key: value for key, value in config.flat().items() if not key.startswith(others)}


def _matched_settings(config: Config) -> dict[str, Any]:
    """The settings by which a config is matched to a printed row: the model's nominal sizes and components, eps_ls."""
    return nominal_sizes(config.model) | {"optim.eps_ls": config.optim.eps_ls}


def arranged(rows: Sequence[Row], file: RowsFile, places: Mapping[str, int]) -> list[Row]:
    """The rows in the order of the file and called by its names; other rows come last. places: `RowsFile.places`."""
    named = sorted((row for row in rows if row.name in places), key=lambda row: places[row.name])
    named = [replace(row, own_name=file.rows[places[row.name]].name) for row in named]
    return [*named, *(row for row in rows if row.name not in places)]


def headings_of(file: RowsFile, places: Mapping[str, int], rows: int) -> dict[int, str]:
    """The headings of so many rows that are arranged, by the place of the row below."""
    order, headings = sorted(places.values()), dict[int, str]()
    for place, entry in enumerate(file.rows):
        if entry.heading and (below := sum(other < place for other in order)) < len(order):
            headings[below] = entry.heading
    return headings | ({len(order): "Others"} if headings and len(order) < rows else {})
