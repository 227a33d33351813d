"""Names of one's own for the rows of a table, and headings between them: a file such as `table3.rows.yaml`.

    source: Vaswani et al. 2017, Table 3
    rows:
      - heading: Heads
      - {row: base, name: eight heads, published: {bleu: 25.8}}
      - {row: h=4, name: four heads, published: {bleu: 25.5}}

`row` is what differs from base, as the table calls it. Where a row has printed numbers, these stand beside the table in
place of the paper's. They are of the validation set, or with `split: test` of the test set. The file changes only what
is printed: ids and folders stay the same.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from transformer_pl.config import Section
from transformer_pl.config.types import NoBool, mistake_in
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.runtime.errors import InputError, shown, suggestion, warn
from transformer_pl.runtime.files import read_yaml
from transformer_pl.table.rows import Printed, PrintedTable, Row, decimals_of
from transformer_pl.task import Measure, task_of


class Published(Section):
    """Numbers that others have printed for a row, each under the name of its metric: `bleu: 25.5`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Annotated[float, Field(allow_inf_nan=False), NoBool]]

    split: Literal["val", "test"] = "val"
    source: str = ""

    @model_validator(mode="after")
    def _has_numbers(self) -> "Published":
        if not self.numbers:
            raise ValueError("must have a metric with its number, such as bleu: 25.5")
        return self

    @property
    def numbers(self) -> dict[str, float]:
        """By metric."""
        return self.__pydantic_extra__


class Entry(Section):
    """A heading, or a row with its name."""

    heading: str = ""
    row: str = ""
    name: str = ""
    published: Published | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "Entry":
        if bool(self.heading) == bool(self.row):
            raise ValueError("must have either heading, or row and what is said of it")
        return self


class RowNames(Section):
    """The content of a file of row names. source: where numbers were printed that name no source of their own."""

    rows: Annotated[list[Entry], Field(min_length=1)]
    source: str = ""

    @model_validator(mode="after")
    def _is_consistent(self) -> "RowNames":
        for kind in ("row", "name"):
            counts = Counter(value for entry in self.of_rows() if (value := getattr(entry, kind)))
            if twice := [value for value, count in counts.items() if count > 1]:
                raise ValueError(f"{kind} = {shown(twice[0])}: stands there twice; change one")
        for entry, below in zip(self.rows, [*self.rows[1:], None], strict=True):
            if entry.heading and (below is None or below.heading):
                raise ValueError(f"heading = {shown(entry.heading)}: must have a row below it")
        return self

    def of_rows(self) -> list[Entry]:
        """The entries that name a row."""
        return [entry for entry in self.rows if entry.row]

    @property
    def have_numbers(self) -> bool:
        """Whether numbers are printed of a row."""
        return any(entry.published for entry in self.rows)


def read_row_names(sweep: Sweep, sweep_file: Path, given: Path | None, is_changed: bool = False) -> RowNames | None:
    """Read the file that is given, or the one beside the sweep file; None where there is none.

    is_changed: whether --set changes the sweep file's rows, which may then have other names: a file beside it that does
    not fit is left out with a warning. Else an InputError says what does not fit.
    """
    beside = sweep_file.with_suffix(".rows.yaml")
    path = given or (beside if beside.is_file() else None)
    if path is None:
        return None
    try:
        names = RowNames.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InputError(*(f"{path}: {mistake_in(mistake)}" for mistake in error.errors())) from None
    known = [row.name for row in sweep.rows]
    unknown = [entry.row for entry in names.of_rows() if entry.row not in known]
    wrong = [f"row = {shown(name)}: is no row of {sweep.name}{suggestion(name, known)}" for name in unknown]
    if wrong and is_changed and given is None:
        warn(f"{path}: is left out, because --set changes the names of rows: {wrong[0]}")
        return None
    if wrong := [*wrong, *_mistakes(names, known, task_of(sweep.base.data).measure)]:
        raise InputError(*(f"{path}: {one}" for one in wrong))
    return names


def _mistakes(names: RowNames, known: Sequence[str], measure: Measure) -> Iterator[str]:
    """Names that other rows have, and numbers that cannot stand beside a table that compares by this measure."""
    renamed, metrics = {entry.row for entry in names.of_rows() if entry.name}, (measure.name, "ppl")
    for entry in names.of_rows():
        if entry.name in {*known} - renamed:
            yield f"name = {shown(entry.name)}: is the name of another row; choose another"
        if entry.published is None:
            continue
        place = f"row = {shown(entry.row)}: published"
        for metric, value in entry.published.numbers.items():
            if metric not in metrics:
                yield f"{place}.{metric}: is no metric of this table{suggestion(metric, metrics)}"
            elif metric == measure.name and not 0 <= value <= measure.highest:
                rule = f"must be from 0 to {measure.highest:g}, as {measure.title} is here"
                yield f"{place}.{metric} = {value:g}: {rule}; convert it"
        if not (entry.published.source or names.source):
            yield f"{place}: must have a source, here or above `rows`"


def arranged(rows: Sequence[Row], names: RowNames) -> list[Row]:
    """The rows in the order of the file and called by its names; other rows come last."""
    known = {row.name: row for row in rows}
    named = [replace(known.pop(entry.row), own_name=entry.name) for entry in names.of_rows()]
    return [*named, *known.values()]


def headings_of(rows: Sequence[Row], names: RowNames) -> dict[int, str]:
    """The headings, by the place of the row below; none if the rows are in another order."""
    named, headings = names.of_rows(), dict[int, str]()
    if [row.name for row in rows[: len(named)]] != [entry.row for entry in named]:
        return {}
    for index, entry in enumerate(names.rows):
        if entry.heading:
            headings[index - len(headings)] = entry.heading
    return headings | ({len(named): "Others"} if headings and len(named) < len(rows) else {})


def printed_numbers(
    names: RowNames, base: str, split: str, metric: str
) -> tuple[dict[str, Printed], PrintedTable | None]:
    """The numbers that others have printed, by the name of the row, and where they are from.

    Those of this set, or else those of the test set; none where there are none of either. base: the name of base.
    """
    for of_set in (split, "test"):
        numbers = {
            entry.row: Printed("", one.numbers.get(metric), one.numbers.get("ppl"), source=one.source or names.source)
            for entry in names.of_rows()
            if (one := entry.published) and one.split == of_set
        }
        if numbers:
            source = "; ".join(dict.fromkeys(one.source for one in numbers.values()))
            of_base, decimals = numbers.get(base), decimals_of(numbers.values())
            return numbers, PrintedTable(source, of_base, of_set, decimals, is_paper=False, has_base=bool(of_base))
    return {}, None
