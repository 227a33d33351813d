"""Read a file of runs: CSV with a line of headings and a line for each run, whatever wrote it.

Names are text as it stands in the file, but that those which look alike are one. Numbers are written as in JSON, also
with a sign or without a digit on one side of the point. What could be read in two ways is refused, with the remedy. Of
a long file only the columns are kept that are asked for.
"""

import csv
import math
import re
import shlex
import unicodedata
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache, partial, reduce
from itertools import islice
from pathlib import Path

import numpy as np

from transformer_pl.plan.shared_options import ONLINE_RUNS
from transformer_pl.plan.sweep_file import SHIPPED
from transformer_pl.runtime.errors import InputError, collect_errors, shown, suggestion
from transformer_pl.runtime.files import reading
from transformer_pl.runtime.terminal import counted
from transformer_pl.train.wandb_run import runs_online

SHOWN = 5  # names in a note
MISSING = ("", "none", "null", "na", "n/a", "#n/a", "<na>", "-")
NOT_FINITE = re.compile(r"[-+]?(nan(\(.*\))?|inf(inity)?|∞|1\.#(ind|inf|qnan|snan)\d*)")
NUMBER = re.compile(r"[-+]?(?=\.?[0-9])(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?")
NAMED_NUMBER = re.compile(r"[-+]?(?=\.?[0-9])[0-9]*(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?")  # also 01, among names and seeds
DECIMAL_COMMA = re.compile(r"[-+\u2212]?[0-9][0-9.'\u2019 ]*,[0-9]+([eE][-+]?[0-9]+)?|[-+\u2212]?,[0-9]+")
LARGEST = 1e60  # of the numbers of a file; the smallest is its inverse. Fourth powers of others overflow or are 0
MOST_UNNAMED = 50  # runs of a row, or equal values of a column, that may be seeds where no column is said to be theirs
NO_RUNS = "must have a line of headings and a line for each run, finished and with a name"
INDEX = "index"  # what a first column without a heading is called, as pandas writes its index
# The heading of a column that says whether a run has finished, alone or at the end of a path, as in sys/state
STATE = re.compile(r"(.*[/. ])?((run|job|task|trial|training|slurm|is)[_ ]?)*(state|status|done)", re.IGNORECASE)
FINISHED = (  # in W&B, MLflow, Optuna, Ray, Neptune, ClearML, SLURM, Guild, DVC; every other word is no finished run
    *("finished", "completed", "complete", "done", "success", "succeeded", "ok", "inactive", "idle", "true"),
    "published",
)
STEP_COLUMNS = (
    *("step", "_step", "global_step", "trainer/global_step", "iteration", "iter", "training_iteration", "epoch"),
    *("wall time", "relative time (wall)", "relative time (process)"),
)
MINUS = "\u2212"
OF_SPREAD = re.compile(r"±|\+/?-|\([0-9]")  # beside a mean
OF_SEEDS = re.compile(r"(seed|run|trial|fold|rep)[^a-z0-9]*[0-9]+", re.IGNORECASE)  # such as seed0


@lru_cache(1 << 16)  # so that equal cells are one object, too
def clean(text: str) -> str:
    """A cell, a heading or a name in the one spelling of all that look like it: letters composed, without characters
    that have no width, and with single blanks in place of all others."""
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFC", text) if unicodedata.category(c) != "Cf")
    return " ".join(text.split())


def words_in(heading: str) -> list[str]:
    """The words of a heading in small letters, such as val and loss of val/loss and of valLoss."""
    return [word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", heading)]


@dataclass(frozen=True, eq=False)
class Runs:
    """What is read of each run, in the order of the file."""

    lines: Sequence[int]  # of the file
    rows: list[str]  # their names
    seeds: list[str]
    items: list[str]
    clusters: list[str]  # of the items; each is its own where none are named
    values: Mapping[str, np.ndarray]  # by column; NaN where there is no number
    texts: Mapping[str, Sequence[str]]  # by column: the numbers as they are written
    settings: Mapping[str, Mapping[str, str]]  # by row and column: what tells rows apart
    unfinished: Mapping[str, int]  # by row: how many runs are left out, because they have not finished

    def numbers(self, place: int) -> dict[str, float | None]:
        """Those of one run, by column."""
        of_run = {name: float(values[place]) for name, values in self.values.items()}
        return {name: None if math.isnan(value) else value for name, value in of_run.items()}


@dataclass(eq=False)
class _File:
    """Where runs are read from, and what is kept of it."""

    path: Path
    headings: list[str]
    records: Iterable[tuple[int, list[str]]]  # the number of each line, and its cells
    separator: str = ""  # what divides the cells; empty: the file is not on this machine
    lines: array = field(default_factory=partial(array, "q"))  # of the runs that count
    columns: dict[str, list[str]] = field(default_factory=dict)  # their cells
    others: dict[str, array] = field(default_factory=dict)  # hashes of their cells in columns that nobody asked for
    left: list[tuple[str, str, str]] = field(default_factory=list)  # of each other run the row, the seed, and why

    def check_name(self, name: str) -> None:
        """Raise an InputError for a name that is not that of one column."""
        places = [str(place) for place, heading in enumerate(self.headings, start=1) if heading == name]
        if len(places) > 1:
            rule = f"must be the name of one column, but columns {' and '.join(places)} are called so"
            raise InputError(f"{self.path}: {shown(name)}: {rule}; rename one of them")
        if not places:
            near = [heading.replace('"', '""') for heading in self.headings if "," in heading and name in heading]
            how = f"; a name with a comma stands in double quotes: '\"{shown(near[0])}\"'" if near else ""
            if of_seeds := [heading for heading in self.headings if OF_SEEDS.search(heading)]:
                how += f"; if {shown(', '.join(of_seeds))} are seeds, give each of their runs a line: model,seed,acc"
            raise InputError(f"{self.path}: has no column {shown(name)}{suggestion(name, self.headings)}{how}")


def read_runs(
    path: Path,
    row: Sequence[str],
    metric: Sequence[str],
    seed: str | None = None,
    item: Sequence[str] = (),
    cluster: Sequence[str] = (),
) -> tuple[Runs, list[str]]:
    """The runs of a file, or those of W&B at an address wandb://ENTITY/PROJECT/GROUP; and notes on them.

    row: the columns that tell rows apart. metric: those of the numbers. item: those that tell apart what a run was
    measured on, if it has a line for each; cluster: those that tell clusters of these apart. Runs that have not
    finished and runs without a name are left out. Raises an InputError for a file that cannot be read, or that could be
    read in two ways.
    """
    wanted = list(dict.fromkeys([*row, *metric, *([seed] if seed else []), *item, *cluster]))
    with reading(path, "give the path of a file, which is saved as CSV in UTF-8"):
        file = _online(path) if str(path).startswith(ONLINE_RUNS) else _csv_file(path, wanted)
        collect_errors(file.check_name, wanted)
        _read(file, wanted, row, seed, is_told_apart=bool(seed or item))
    _refuse_chart(file, row, seed)
    names, settings = _names(file, row)
    first = dict[str | Decimal, str]()  # spelling of a seed
    seeds = [first.setdefault(_as_number(text), text) for text in file.columns[seed]] if seed else [""] * len(names)
    left = [*dict.fromkeys(file.left)] if item else file.left  # a run has a line for each item
    notes = [f"{counted(len(left), 'run')} left out: {_why(left)}."] if left else []
    numbers = collect_errors(lambda name: _numbers(file, name), metric)
    texts = {name: file.columns[name] for name in metric}
    unfinished = Counter(name for name, *_ in left)
    runs = Runs(file.lines, names, seeds, *_items(file, item, cluster), numbers, texts, settings, unfinished)
    if not (seed or item):
        _refuse_items(file, runs)
    return runs, [*notes, *_notes_on_numbers(settings), *_notes_on_letters(settings)]


def _online(path: Path) -> _File:
    runs = runs_online(str(path).removeprefix(ONLINE_RUNS))
    headings = list(dict.fromkeys(key for run in runs for key in run))
    return _File(path, headings, enumerate(([str(run.get(key, "")) for key in headings] for run in runs), 1))


def _located(file: Path) -> Path:
    """Where a file of runs lies. `narang2021.csv`, where there is no such file, means the one that ships.

    Messages have the name as it was typed.
    """
    shipped = SHIPPED / "published" / file
    return shipped if not file.exists() and file.name == str(file) and shipped.is_file() else file


def _csv_file(path: Path, wanted: Sequence[str]) -> _File:
    """A file whose cells are divided by what finds most of the wanted headings, and then most headings."""
    place = _located(path)
    if place.exists() and not place.is_file():
        raise InputError(f"{path}: must be a CSV file, but is a folder or a device; give the path of a file")
    if path.suffix == ".yaml":
        remedy = "names of rows are for --rows, beside a sweep file, which has no --metric"
        raise InputError(f"{path}: must be a CSV file with a line for each run, but is YAML; {remedy}")
    with place.open(encoding="utf-8-sig", newline="") as file:  # a first line of Excel's may name the separator
        told = re.fullmatch(r'"?sep=([^\w\s"]|\t)"?[\r\n]*', file.readline(), re.IGNORECASE)

    def headings(separator: str) -> list[str]:
        return [clean(cell) for cell in next(_records(path, separator, bool(told)), (0, []))[1]]

    def found(separator: str) -> tuple[int, int]:
        """How many of the wanted headings there are, and how many headings."""
        with suppress(InputError):  # which is raised where the best separator is used
            return len({*wanted}.intersection(headings(separator))), len(headings(separator))
        return 0, 0

    separator = max(told[1] if told else ",;\t", key=found)
    names = headings(separator)
    if not names:
        raise InputError(f"{path}: {NO_RUNS}, but is empty; export it again")
    if names[0].startswith("#") and not {*wanted}.intersection(names):
        command = f"tail -n +2 {shlex.quote(str(path))} > NEW.csv"
        raise InputError(f"{path} line 1: must be the headings, but is a comment; leave it out: {command}")
    if not names[0] and INDEX not in names:
        names[0] = INDEX
    return _File(path, names, islice(_records(path, separator, bool(told)), 1, None), separator)


def _records(path: Path, separator: str, skipped: int) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that has any, with the number of the line, after some that are skipped. A cell in quotes
    may have several lines; then the number is that of the first."""
    with _located(path).open(encoding="utf-8-sig", newline="") as file:
        deque(islice(file, skipped), 0)
        reader, line = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True), 1 + skipped
        try:
            for cells in reader:
                if any(map(str.strip, cells)):
                    yield line, cells
                line = 1 + skipped + reader.line_num
        except csv.Error as error:
            raise InputError(f"{path} line {line}: is no CSV: {error}; close its quotes, or export it again") from None


def _read(file: _File, wanted: Sequence[str], row: Sequence[str], seed: str | None, is_told_apart: bool) -> None:
    """Read the columns that are wanted, and those of steps; the others, too, where nothing tells runs or items apart.
    Raises an InputError for lines that do not fit the headings, and where no run counts."""
    state, place = _columns(file, wanted, is_told_apart), {name: file.headings.index(name) for name in file.headings}
    kept = [(column, place[name]) for name, column in file.columns.items()]
    others = [(hashes, place[name]) for name, hashes in file.others.items()]
    for line, cells in file.records:
        _check_line(file, line, cells)
        names = [clean(cells[place[name]]) for name in row]
        if reason := _reason(state, clean(cells[place[state]]) if state else "", names):
            file.left.append((_title(row, names), cells[place[seed]] if seed else "", reason))
            continue
        file.lines.append(line)
        for column, at in kept:
            column.append(clean(cells[at]))
        for hashes, at in others:
            hashes.append(hash(cells[at]))
    if not file.lines:
        remedy = f"name other columns{f', or write finished into {state} of those that count' if state else ''}"
        raise InputError(f"{file.path}: {NO_RUNS}, but has none ({_why(file.left) or 'no line'}); {remedy}")


def _check_line(file: _File, line: int, cells: Sequence[str]) -> None:
    """Raise an InputError for another number of cells than headings, and for a number with a decimal comma where
    semicolons divide cells: others, such as 1.310, could then be meant with a separator of thousands."""
    if len(cells) != len(file.headings):
        rule = f"must have {len(file.headings)} cells as the headings, but has {len(cells)}"
        remedy = "give it one for each heading, and put text with a separator in it into double quotes"
        raise InputError(f"{file.path} line {line}: {rule}; {remedy}")
    for heading, cell in zip(file.headings, cells, strict=True) if file.separator == ";" else ():
        if "," in cell and DECIMAL_COMMA.fullmatch(clean(cell)):
            rule = "must have a decimal point; if it is a name, divide the cells of the file by tabs"
            raise InputError(f"{file.path} line {line}: {shown(heading)} = {shown(cell)}: {rule}{_remedy(file, cell)}")


def _columns(file: _File, wanted: Sequence[str], is_told_apart: bool) -> str | None:
    """Choose the columns that are kept; the one that says whether runs have finished. Raises an InputError for two."""
    found = [name for name in file.headings if STATE.fullmatch(name) and name not in wanted]
    found = found if file.separator else ["State"]  # by W&B's server
    if len(found) > 1:
        rule = "must be one column that says whether a run has finished; leave the others out of the file"
        raise InputError(f"{file.path}: {' and '.join(map(shown, found))}: {rule}")
    for name in file.headings:
        if name in {*wanted, *found} or name.lower() in STEP_COLUMNS:
            file.columns[name] = []
        if name not in wanted and not is_told_apart:
            file.others[name] = array("q")
    return found[0] if found else None


def _reason(state: str | None, cell: str, names: Sequence[str]) -> str:
    """Why a run does not count; empty for one that counts. cell: of the column that says its state."""
    if state and (word := cell.lower()) not in FINISHED:
        return f"not {state}" if word == "false" else word or f"without {state}"
    return "" if any(names) else "without a name"


def _why(left: Iterable[tuple[str, str, str]]) -> str:
    """How many runs are left out for each reason, and of which rows."""
    by_reason: dict[str, Counter[str]] = {}
    for name, _, reason in left:
        by_reason.setdefault(reason, Counter())[name] += 1
    return ", ".join(f"{of.total()} {reason}" + f" ({listed([*of])})" * any(of) for reason, of in by_reason.items())


def _title(columns: Sequence[str], cells: Sequence[str]) -> str:
    """What is called by its cells in these columns."""
    return " ".join(map("=".join, zip(columns, cells, strict=True))) if len(columns) > 1 else cells[0]


def _refuse_chart(file: _File, row: Sequence[str], seed: str | None) -> None:
    """Refuse a file with a line for each step: of W&B's charts, or one in which runs begin with the same steps."""
    for heading in file.headings if file.separator else ():  # W&B's server has runs
        run = [*row, seed] if seed and heading not in row else row
        if f"{heading}__MIN" in file.headings or _are_steps(file, heading, run):
            rule = f"must have a line for each run, but has one for each step ({shown(heading)})"
            remedy = "export the table of runs; if each line is a run, name their --seed, or leave out this column"
            raise InputError(f"{file.path}: {rule}; {remedy}")


def _are_steps(file: _File, step: str, run: Sequence[str]) -> bool:
    """Whether a column counts steps: several runs have several lines, and the first two are the same in all of them, as
    they are not of finished runs. Where steps are the rows, each is there once. run: the columns that tell runs apart,
    so far as known.
    """
    if step.lower() not in STEP_COLUMNS:
        return False
    names = [name for name in run if name.lower() not in STEP_COLUMNS]
    by_run: dict[tuple[str, ...], list[str]] = {}
    for cells in zip(*(file.columns[name] for name in (step, *names)), strict=True):
        by_run.setdefault(cells[1:], []).append(cells[0])
    several = [steps for steps in by_run.values() if len(steps) > 1]
    firsts = {tuple(dict.fromkeys(steps))[:2] for steps in several}
    is_row = step in run and any(len({*steps}) < len(steps) for steps in several)
    return len(several) > 1 and [*map(len, firsts)] == [2] and not is_row


def _names(file: _File, columns: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """What each run is called by its cells in some columns, and the cells of each name. Raises an InputError for cells
    of which two have the same name."""
    of_cells, settings, names = dict[tuple[str, ...], str](), dict[str, dict[str, str]](), list[str]()
    for line, cells in zip(file.lines, zip(*(file.columns[name] for name in columns), strict=True), strict=True):
        if cells not in of_cells:
            if (name := _title(columns, cells)) in settings:
                rule = "is the name of two rows; rename one of their values"
                raise InputError(f"{file.path} line {line}: {shown(name)}: {rule}")
            of_cells[cells], settings[name] = name, dict(zip(columns, cells, strict=True))
        names.append(of_cells[cells])
    return names, settings


def _items(file: _File, item: Sequence[str], cluster: Sequence[str]) -> tuple[list[str], list[str]]:
    """What each line is measured on, and the cluster that this is of; empty without columns of items."""
    for name in cluster:
        refuse_empty(file.path, file.lines, name, file.columns[name], "cluster this item is")
    items, clusters = (_names(file, columns)[0] if columns else [] for columns in (item, cluster or item))
    return items, clusters


def _as_number(text: str) -> str | Decimal:
    """The number that a name is, or else the name."""
    return Decimal(text) if NAMED_NUMBER.fullmatch(text) else text


def _notes_on_numbers(settings: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Which values of rows are one number in several spellings."""
    for column in dict.fromkeys(name for cells in settings.values() for name in cells):
        spellings: dict[str | Decimal, dict[str, None]] = {}
        for cells in settings.values():
            spellings.setdefault(_as_number(cells[column]), {})[cells[column]] = None
        for alike in spellings.values():
            if len(alike) > 1:
                yield f"{column} {', '.join(alike)}: one number that is written differently, in rows of their own."


def _notes_on_letters(settings: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Which words of rows have Latin and Cyrillic letters, of which many look alike."""
    cells = dict.fromkeys(cell for of_row in settings.values() for cell in of_row.values() if not cell.isascii())
    for word in dict.fromkeys(word for cell in cells for word in re.findall(r"[^\W\d_]+", cell)):
        names = {name.split()[0]: f"{letter} ({name})" for letter in word if (name := unicodedata.name(letter, ""))}
        if {"LATIN", "CYRILLIC"} <= names.keys():
            yield f"{word}: {names['CYRILLIC']} stands beside Latin letters, so that two rows may look like one."


def _refuse_items(file: _File, runs: Runs) -> None:
    """Raise an InputError where a row has so many lines that they are hardly runs: with two scores at most, or with
    more than MOST_UNNAMED values of another column that all rows have. Nothing is said to tell runs or items apart."""
    counts, where = Counter(runs.rows), f"{file.path}: must have a line for each run, but has"
    if max(counts.values()) <= MOST_UNNAMED:
        return
    remedy = "if these are questions, or other items that each run was measured on, name them with --item {0}, and the"
    remedy += " runs with --seed COLUMN; if each line is a run, name what tells runs apart: --seed {1}"
    rows = codes_of(runs.rows)
    order, ends = np.argsort(rows, kind="stable"), np.cumsum([*counts.values()])[:-1]
    for metric, values in runs.values.items():
        for (name, count), own in zip(counts.items(), np.split(values[order], ends), strict=True):
            if count > MOST_UNNAMED and len(np.unique(own[~np.isnan(own)])) <= 2:
                lines = f"{count:,} of {shown(name)} with at most two different {shown(metric)}"
                raise InputError(f"{where} {lines}; {remedy.format('COLUMN', 'COLUMN')}")
    for heading, hashes in file.others.items() if len(counts) > 1 else ():
        of_rows = np.split(np.array(hashes)[order], ends)
        same = reduce(np.intersect1d, of_rows)
        if len(same) > MOST_UNNAMED:
            lines = f"the same {len(same):,} values of {shown(heading)} in every row"
            name, is_of_runs = shlex.quote(heading), all(len(np.unique(own)) == len(own) for own in of_rows)
            raise InputError(f"{where} {lines}; {remedy.format(name, name if is_of_runs else 'COLUMN')}")


def _numbers(file: _File, name: str) -> np.ndarray:
    """The numbers of a column; NaN where a run has none. Raises an InputError for another text."""
    numbers = np.empty(len(file.lines))
    for place, text in enumerate(file.columns[name]):
        number, mistake = _number(text)
        if mistake:
            where = f"{file.path} line {file.lines[place]}: {shown(name)} = {shown(text)}"
            raise InputError(f"{where}: {mistake}{_remedy(file, text)}")
        numbers[place] = math.nan if number is None else number
    if np.isnan(numbers).all():
        runs = counted(len(numbers), "run")
        raise InputError(f"{file.path}: {shown(name)}: must have numbers, but has none in {runs}; name another column")
    return numbers


def _number(text: str) -> tuple[float | None, str]:
    """The number of a cell, None where it has none; and what is wrong with the cell, with the remedy."""
    if text.lower() in MISSING or NOT_FINITE.fullmatch(text.lower()):
        return None, ""
    if not NUMBER.fullmatch(text):
        remedy = "write it so, without percent sign, unit or separators of thousands, or leave it empty"
        return None, f"must be a number such as 0.845 or 1e-3; {remedy}"
    number = float(text)
    if not math.isfinite(number):
        return None, ""
    if number and not 1 / LARGEST <= abs(number) <= LARGEST:
        return None, f"must be 0, or from {1 / LARGEST:g} to {LARGEST:g} in size; use another unit, or leave it empty"
    return number, ""


def _remedy(file: _File, text: str) -> str:
    """What else can be done about a text that is no number, by what stands in it."""
    if OF_SPREAD.search(text):
        return ". Write a deviation into a column of its own, and name it: --std COLUMN --n N"
    if not file.separator:
        return ""
    name = shlex.quote(str(file.path))
    if MINUS in text:
        return f". Its minus is another character: sed 's/{MINUS}/-/g' {name} > NEW.csv"
    if "," not in text:
        return ""
    commas = '"([-+.0-9]*),([0-9]*)"' if file.separator == "," else "([0-9]),([0-9])"
    command = rf"sed -E 's/{commas}/\1.\2/g' {name} > NEW.csv"
    return f". If commas are its decimal signs, and no points separate thousands: {command}"


def refuse_twice(path: Path, runs: Runs, seed: str | None, item: Sequence[str]) -> None:
    """Raise an InputError for two lines of one row, seed and item. seed, item: their columns; without them a row must
    have one line."""
    columns = [("row", runs.rows), *([(seed, runs.seeds)] if seed else []), *([("item", runs.items)] if item else [])]
    codes = reduce(lambda outer, inner: outer * (inner.max() + 1) + inner, (codes_of(names) for _, names in columns))
    same, counts = np.unique(codes, return_counts=True)
    if twice := same[counts > 1].tolist():
        first, second = np.flatnonzero(codes == twice[0])[:2].tolist()
        names = ", ".join(f"{shown(column)} {shown(names[first])}" for column, names in columns)
        rule = f"lines {runs.lines[first]} and {runs.lines[second]} must differ in "
        rule += f"{' or '.join(column for column, _ in columns)}, but both are {names}"
        remedy = "name the column in which they differ: in --row, in --seed if they are runs, in --item if questions"
        raise InputError(f"{path}: {rule}; {remedy}; or leave one out")


def refuse_empty(path: Path, lines: Sequence[int], column: str, cells: Sequence[str], what: str) -> None:
    """Raise an InputError for an empty cell of a column, whose cells say of which pair, or cluster, something is."""
    if "" in cells:
        where = f"{path} line {lines[cells.index('')]}: {shown(column)}"
        raise InputError(f"{where}: must say of which {what}; fill it in")


def codes_of(names: Sequence[str]) -> np.ndarray:
    """A number for each name, from 0 on, by where it stands first."""
    numbers: dict[str, int] = {}
    return np.fromiter((numbers.setdefault(name, len(numbers)) for name in names), np.int64, len(names))


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}"
