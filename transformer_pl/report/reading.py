"""Read a file of runs: CSV with a line of headings and a line for each run, whatever wrote it.

Names are text as it stands in the file. Numbers are written as in JSON, also with a sign or without a digit on one side
of the point. What could be read in two ways is refused, with the remedy.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from transformer_pl.plan.shared_options import ONLINE_RUNS
from transformer_pl.runtime.errors import InputError, collect_errors, shown, suggestion
from transformer_pl.runtime.files import read_bytes, reading
from transformer_pl.runtime.terminal import counted

MISSING = ("", "none", "null", "na", "n/a", "#n/a", "<na>", "-")
NOT_FINITE = re.compile(r"[-+]?(nan(\(.*\))?|inf(inity)?|∞|1\.#(ind|inf|qnan|snan)\d*)")
NUMBER = re.compile(r"[-+]?(?=\.?[0-9])(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?")
DECIMAL_COMMA = re.compile(  # 0,5 and 1.234,5
    r"[-+]?(?=,?[0-9])(0|[1-9][0-9]*|[1-9][0-9]{0,2}(\.[0-9]{3})+)?(,[0-9]*)?([eE][-+]?[0-9]+)?"
)
LARGEST = 1e60  # of the numbers of a file; the smallest is its inverse. Fourth powers of others overflow or are 0
WHOLE = re.compile(r"^\+?(-?)0*([0-9]+)(\.0*)?$")  # 1, 1.0 and 01 are one seed
divided = partial(csv.reader, skipinitialspace=True)
STATE_COLUMNS = ("state", "status")  # of W&B, of MLflow
UNFINISHED = (  # in W&B, MLflow, Optuna, Ray
    *("crashed", "failed", "killed", "running", "pending", "scheduled", "preempting", "preempted"),
    *("fail", "error", "pruned", "waiting", "queued", "paused", "stopped", "aborted", "canceled", "cancelled"),
)
STEP_COLUMNS = (
    *("step", "_step", "global_step", "trainer/global_step", "epoch", "wall time"),
    *("relative time (wall)", "relative time (process)"),
)


class Run(NamedTuple):
    line: int  # of the file
    row: str
    seed: str
    values: dict[str, float | None]  # by metric; None where there is no number
    settings: dict[str, str]  # by column: what tells rows apart


class _File(NamedTuple):
    """The cells of a file, without blanks around them."""

    path: Path
    headings: list[str]
    lines: list[tuple[int, dict[str, str]]]  # the number of each in the file, and its cells by heading

    def check_name(self, name: str) -> None:
        """Raise an InputError for a name that is not that of one column."""
        places = [str(place) for place, heading in enumerate(self.headings, start=1) if heading == name]
        if len(places) > 1:
            rule = f"must be the name of one column, but columns {' and '.join(places)} are called so"
            raise InputError(f"{self.path}: {shown(name)}: {rule}; rename one of them")
        if not places:
            near = [heading.replace('"', '""') for heading in self.headings if "," in heading and name in heading]
            how = f"; a name with a comma stands in double quotes: '\"{shown(near[0])}\"'" if near else ""
            raise InputError(f"{self.path}: has no column {shown(name)}{suggestion(name, self.headings)}{how}")


def read_runs(
    path: Path, row: Sequence[str], metric: Sequence[str], seed: str | None = None, decimal_comma: bool = False
) -> tuple[list[Run], list[str]]:
    """The runs of a file, or those of W&B at an address wandb://ENTITY/PROJECT/GROUP; and notes on what was left out.

    row: the columns that tell rows apart. metric: those of the numbers. decimal_comma: whether numbers have a comma in
    place of the decimal point. Runs that have not finished and runs without a name are left out. Raises an InputError
    for a file that cannot be read, or that could be read in two ways.
    """
    wanted = list(dict.fromkeys([*row, *metric, *([seed] if seed else [])]))
    file = _online(path) if str(path).startswith(ONLINE_RUNS) else _read_file(path, wanted)
    collect_errors(file.check_name, wanted)
    _refuse_chart(file, row, seed)
    file, notes = _finished(file, row)
    numbers = collect_errors(lambda name: _numbers(file, name, decimal_comma), metric)
    runs, of_names = list[Run](), dict[str, dict[str, str]]()
    for number, (line, cells) in enumerate(file.lines):
        settings = {name: cells[name] for name in row}
        title = " ".join(f"{name}={value}" for name, value in settings.items()) if len(row) > 1 else cells[row[0]]
        if of_names.setdefault(title, settings) != settings:
            raise InputError(f"{path} line {line}: {shown(title)}: is the name of two rows; rename one of their values")
        values = {name: of_column[number] for name, of_column in numbers.items()}
        runs.append(Run(line, title, WHOLE.sub(r"\1\2", cells[seed]) if seed else "", values, settings))
    return runs, notes


def _online(path: Path) -> _File:
    from transformer_pl.train.wandb_run import runs_online  # wandb takes a second

    runs = runs_online(str(path).removeprefix(ONLINE_RUNS))
    headings = list(dict.fromkeys(key for run in runs for key in run))
    cells = [{key: str(run.get(key, "")).strip() for key in headings} for run in runs]
    return _File(path, headings, [*enumerate(cells, start=1)])


def _read_file(path: Path, wanted: Sequence[str]) -> _File:
    """The cells of a file, which are divided by what finds most of the wanted headings, and then most headings."""
    text, separators = _read_text(path), ",;\t"
    if told := re.match(r'"?sep=([^\w\s"]|\t)"?(?=[\r\n])', text, re.IGNORECASE):  # a first line of Excel's
        separators, text = told[1], text[told.end() :]  # the line is empty now

    def found(separator: str) -> tuple[int, int]:
        """How many of the wanted headings there are, and how many headings."""
        headings: list[str] = []
        with suppress(csv.Error):  # which is reported where all lines are read
            headings = next(divided(io.StringIO(text.lstrip(), newline=""), delimiter=separator), [])
        return len({*wanted}.intersection(map(str.strip, headings))), len(headings)

    records = _records(path, text, max(separators, key=found))
    if len(records) < 2:
        rule = "must have a line of headings and a line for each run"
        raise InputError(f"{path}: {rule}, but has {counted(len(records), 'line')}; export it again")
    (_, headings), *lines = records
    for line, cells in lines:
        if len(cells) != len(headings):
            rule = f"must have {len(headings)} cells as the headings, but has {len(cells)}"
            remedy = "give it one for each heading, and put text with a separator in it into double quotes"
            raise InputError(f"{path} line {line}: {rule}; {remedy}")
    return _File(path, headings, [(line, dict(zip(headings, cells, strict=True))) for line, cells in lines])


def _read_text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: must be a CSV file, but is a folder or a device; give the path of a file")
    with reading(path, "give the path of a CSV file"):
        text = read_bytes(path).decode("utf-8-sig", "surrogateescape")
    if found := re.search("[\0\udc80-\udcff]", text):
        line, what = text.count("\n", 0, found.start()) + 1, "a NUL byte" if found[0] == "\0" else "other bytes"
        raise InputError(f"{path} line {line}: must be text in UTF-8, but has {what}; save it as CSV in UTF-8")
    return text


def _records(path: Path, text: str, separator: str) -> list[tuple[int, list[str]]]:
    """The cells of each line that has any, with the number of the line. A cell in quotes may have several lines; then
    the number is that of the first."""
    reader = divided(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    records, line = [], 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                records.append((line, [cell.strip() for cell in cells]))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path} line {line}: is no CSV: {error}; close its quotes, or export it again") from None
    return records


def _refuse_chart(file: _File, row: Sequence[str], seed: str | None) -> None:
    """Refuse a file with a line for each step: of W&B's charts, or one in which all runs begin with the same steps."""
    for heading in file.headings:
        run = [*row, seed] if seed and heading not in row else row
        if f"{heading}__MIN" in file.headings or _are_steps(file, heading, run):
            rule = f"must have a line for each run, but has one for each step ({shown(heading)})"
            remedy = "export the table of runs in place of a chart; if each line is a run, leave out this column"
            raise InputError(f"{file.path}: {rule}; {remedy}")


def _are_steps(file: _File, step: str, run: Sequence[str]) -> bool:
    """Whether a column counts steps: in every run with several lines the first two are the same, as they are not of
    finished runs. Where steps are the rows, each is there once. run: the columns that tell runs apart, so far as known.
    """
    if step.lower() not in STEP_COLUMNS:
        return False
    names = [name for name in run if name.lower() not in STEP_COLUMNS]
    by_run: dict[tuple[str, ...], list[str]] = {}
    for _, cells in file.lines:
        by_run.setdefault(tuple(cells[name] for name in names), []).append(cells[step])
    several = [steps for steps in by_run.values() if len(steps) > 1]
    firsts = {tuple(dict.fromkeys(steps))[:2] for steps in several}
    return [*map(len, firsts)] == [2] and not (step in run and any(len({*steps}) < len(steps) for steps in several))


def _finished(file: _File, row: Sequence[str]) -> tuple[_File, list[str]]:
    """The file without runs that have not finished, or that have no text in the columns `row`; and a note on these."""
    states = [heading for heading in file.headings if heading.lower() in STATE_COLUMNS and heading not in row]
    lines, left = [], Counter[str]()
    for line, cells in file.lines:
        unfinished = [word for state in states if (word := cells[state].lower()) in UNFINISHED]
        if unfinished or not any(cells[name] for name in row):
            left[unfinished[0] if unfinished else "without a name"] += 1
        else:
            lines.append((line, cells))
    note = ", ".join(f"{count} {why}" for why, count in left.items())
    if not lines:
        rule = f"must have finished runs with a name, but has none ({note})"
        raise InputError(f"{file.path}: {rule}; name other columns")
    return file._replace(lines=lines), [f"{counted(left.total(), 'run')} left out: {note}."] if note else []


def _numbers(file: _File, name: str, decimal_comma: bool) -> list[float | None]:
    """The numbers of a column; None where a run has none. Raises an InputError for another text."""
    numbers = []
    for line, cells in file.lines:
        number, mistake = _number(cells[name], decimal_comma)
        if mistake:
            raise InputError(f"{file.path} line {line}: {shown(name)} = {shown(cells[name])}: {mistake}")
        numbers.append(number)
    if numbers.count(None) == len(numbers):
        runs = counted(len(numbers), "run")
        raise InputError(f"{file.path}: {shown(name)}: must have numbers, but has none in {runs}; name another column")
    return numbers


def _number(text: str, decimal_comma: bool) -> tuple[float | None, str]:
    """The number of a cell, None where it has none; and what is wrong with the cell, with the remedy."""
    if text.lower() in MISSING or NOT_FINITE.fullmatch(text.lower()):
        return None, ""
    if not (DECIMAL_COMMA if decimal_comma else NUMBER).fullmatch(text):
        remedy = "write it so, without percent sign, unit or separators of thousands, or leave it empty"
        if decimal_comma:
            remedy = "write it so, or leave out --decimal-comma"
        elif "," in text:
            remedy = "give --decimal-comma if its comma is the decimal sign, and otherwise leave commas out"
        return None, f"must be a number such as {'0,845 or 1.234,5' if decimal_comma else '0.845 or 1e-3'}; {remedy}"
    number = float(text.replace(".", "").replace(",", ".") if decimal_comma else text)
    if not math.isfinite(number):
        return None, ""
    if number and not 1 / LARGEST <= abs(number) <= LARGEST:
        return None, f"must be 0, or from {1 / LARGEST:g} to {LARGEST:g} in size; use another unit, or leave it empty"
    return number, ""


def refuse_twice(path: Path, runs: Sequence[Run], seed: str | None) -> None:
    """Raise an InputError for two runs of one row and seed. seed: its column; None: each row must have one line."""
    first: dict[tuple[str, str], int] = {}
    for run in runs:
        if (earlier := first.setdefault((run.row, run.seed), run.line)) != run.line:
            of_seed, value = (" or seed", f" with {shown(seed)} = {shown(run.seed)}") if seed else ("", "")
            rule = f"lines {earlier} and {run.line} must differ in row{of_seed}, but both are {shown(run.row)}{value}"
            remedy = "add the column in which they differ to --row, or leave one out"
            raise InputError(f"{path}: {rule}; {remedy}")
