"""Names of one's own for the rows of a table, and headings between them: a file such as `table3.rows.yaml`.

    source: Vaswani et al. 2017, Table 3
    rows:
      - heading: Heads
      - {row: base, name: eight heads, published: {bleu: 25.8}}
      - {row: h=4, name: four heads, published: {bleu: 25.5}}

`row` is what differs from base, as the table calls it. Where a row has printed numbers, these stand beside the table in
place of the paper's. The file changes only what is printed: ids and folders stay the same.
"""

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, ValidationError, model_validator

from transformer_pl.config import Section
from transformer_pl.config.types import constraint_of
from transformer_pl.plan.plan import PlannedTrial
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.published import PublishedRow, PublishedTable
from transformer_pl.report.render import Table
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.runtime.files import read_yaml
from transformer_pl.task import task_of


class Published(Section):
    """A number that others have printed for a row, under the name of its metric as the key: `bleu: 25.5`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    split: Literal["val", "test"] = "val"
    source: str = ""

    @model_validator(mode="after")
    def _has_numbers(self) -> "Published":
        if not self.model_extra or not all(isinstance(value, int | float) for value in self.model_extra.values()):
            raise ValueError("must have a metric with its number, such as bleu: 25.5")
        return self

    @property
    def numbers(self) -> dict[str, float]:
        """By metric."""
        return self.model_extra or {}


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

    rows: list[Entry]
    source: str = ""

    def of_rows(self) -> list[Entry]:
        """The entries that name a row."""
        return [entry for entry in self.rows if entry.row]

    def headings(self) -> dict[int, str]:
        """Each heading, by the place of the row that it stands above."""
        places = [sum(bool(entry.row) for entry in self.rows[:index]) for index in range(len(self.rows))]
        return {place: entry.heading for place, entry in zip(places, self.rows, strict=True) if entry.heading}


def read_row_names(sweep_file: Path, given: Path | None) -> RowNames | None:
    """Read the file that is given, or the one beside the sweep file; None where there is none."""
    beside = sweep_file.with_suffix(".rows.yaml")
    path = given or (beside if beside.is_file() else None)
    if path is None:
        return None
    try:
        names = RowNames.model_validate(read_yaml(path))
    except ValidationError as error:
        places = [".".join(map(str, mistake["loc"])) for mistake in error.errors()]
        mistakes = [constraint_of(mistake) for mistake in error.errors()]
        raise InputError(*(f"{path}: {place}: {how}" for place, how in zip(places, mistakes, strict=True))) from None
    for kind in ("row", "name"):
        values = [value for entry in names.of_rows() if (value := getattr(entry, kind))]
        if twice := [value for index, value in enumerate(values) if value in values[:index]]:
            raise InputError(f"{path}: {kind} = {shown(twice[0])}: stands there twice; change one")
    return names


def arranged(sweep: Sweep, planned: list[PlannedTrial], names: RowNames) -> tuple[Sweep, list[PlannedTrial]]:
    """The sweep with its rows in the order of the file and called by its names; other rows come last.

    Raises an InputError for rows that it does not have.
    """
    known, entries = [row.name for row in sweep.rows], names.of_rows()
    if unknown := [entry.row for entry in entries if entry.row not in known]:
        raise InputError(
            *(f"row = {shown(name)}: is no row of {sweep.name}{suggestion(name, known)}" for name in unknown)
        )
    titles = {known.index(entry.row): entry.name for entry in entries}
    order = [*titles, *(place for place in range(len(known)) if place not in titles)]
    rows = [row._replace(title=titles.get(place, "")) for place, row in enumerate(sweep.rows)]
    return reordered(sweep._replace(rows=rows), planned, order)


def reordered(sweep: Sweep, planned: list[PlannedTrial], order: list[int]) -> tuple[Sweep, list[PlannedTrial]]:
    """The sweep with its rows in another order."""
    places = {old: new for new, old in enumerate(order)}
    reference = None if sweep.reference is None else places[sweep.reference]
    trials = sorted((one._replace(row=places[one.row]) for one in planned), key=lambda one: one.row)
    return sweep._replace(rows=[sweep.rows[old] for old in order], reference=reference), trials


def printed_table(names: RowNames, sweep: Sweep, split: str) -> PublishedTable | None:
    """The numbers that others have printed for rows of the sweep, as a table; None where there are none of this set."""
    metric = task_of(sweep.base.data).measure.name
    base = None if sweep.base_row is None else sweep.rows[sweep.base_row].name
    printed = {
        entry.row: one
        for entry in names.of_rows()
        if (one := entry.published) and one.split == split and (metric in one.numbers or "ppl" in one.numbers)
    }
    rows = [
        PublishedRow(
            label="base" if name == base else "", row=name, score=one.numbers.get(metric), ppl=one.numbers.get("ppl")
        )
        for name, one in printed.items()
    ]
    sources = dict.fromkeys(one.source or names.source for one in printed.values())
    source = ", ".join(filter(None, sources)) or "no source is given"
    return PublishedTable(source=source, hub="", split=split, rows=rows) if rows else None


def with_headings(table: Table, names: RowNames) -> Table:
    """The table of an arranged sweep with the headings of the file."""
    headings, named = names.headings(), len(names.of_rows())
    if named < len(table.rows) and headings:
        headings[named] = "Others"
    return table._replace(headings=headings)
