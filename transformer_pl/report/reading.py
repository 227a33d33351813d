"""Read a file of runs: CSV with a line of headings and a line for each run, whatever wrote it.

Names are text as it stands in the file. Numbers are written as in JSON, also with a sign or without a zero before the
point. What could be read in two ways is refused, with the remedy.
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
from transformer_pl.runtime.files import read_text
from transformer_pl.runtime.terminal import counted

MISSING = ("", "none", "null", "na", "n/a", "#n/a", "<na>", "-")
NOT_FINITE = re.compile(r"[-+]?(nan(\(.*\))?|inf(inity)?|∞|1\.#(ind|inf|qnan|snan)\d*)")
NUMBER = re.compile(r"[-+]?(?=\.?[0-9])(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][-+]?[0-9]+)?")
DECIMAL_COMMA = re.compile(  # 0,5 and 1.234,5
    r"[-+]?(?=,?[0-9])(0|[1-9][0-9]*|[1-9][0-9]{0,2}(\.[0-9]{3})+)?(,[0-9]+)?([eE][-+]?[0-9]+)?"
)
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


class RunsFile(NamedTuple):
    runs: list[Run]
    notes: list[str]  # what was left out


class _Table(NamedTuple):
    """The cells of a file, without blanks around them."""

    path: Path
    headings: list[str]
    lines: list[tuple[int, list[str]]]  # each with its number in the file

    def place_of(self, name: str) -> int:
        """The place of a column. Raises an InputError where it is not the only one of its name."""
        places = [place for place, heading in enumerate(self.headings) if heading == name]
        if len(places) > 1:
            where = " and ".join(str(place + 1) for place in places)
            rule = f"must be the name of one column, but columns {where} are called so"
            raise InputError(f"{self.path}: {shown(name)}: {rule}; rename one of them")
        if not places:
            near = next((heading for heading in self.headings if "," in heading and name in heading), None)
            how = ""
            if near is not None:
                quoted = near.replace('"', '""')
                how = f"; a name with a comma stands in double quotes: '\"{shown(quoted)}\"'"
            raise InputError(f"{self.path}: has no column {shown(name)}{suggestion(name, self.headings)}{how}")
        return places[0]


def read_runs(
    path: Path, row: Sequence[str], metric: Sequence[str], seed: str | None = None, decimal_comma: bool = False
) -> RunsFile:
    """Read the runs of a file, or those of W&B at an address wandb://ENTITY/PROJECT/GROUP.

    row: the columns that tell rows apart. metric: those of the numbers. decimal_comma: whether numbers have a comma in
    place of the decimal point. Runs that have not finished and runs without a name are left out. Raises an InputError
    for a file that cannot be read, or that could be read in two ways.
    """
    wanted = list(dict.fromkeys([*row, *metric, *([seed] if seed else [])]))
    table = _online(path) if str(path).startswith(ONLINE_RUNS) else _read_file(path, wanted)
    places = collect_errors(table.place_of, wanted)
    _refuse_chart(table, row)
    table, note = _finished(table, [places[name] for name in row])
    numbers = collect_errors(lambda name: _numbers(table, places[name], decimal_comma), metric)
    runs: list[Run] = []
    keys: dict[str, list[str]] = {}  # the names of rows, with the values that they are made of
    for number, (line, cells) in enumerate(table.lines):
        settings = {name: cells[places[name]] for name in row}
        values = [*settings.values()]
        title = " ".join(f"{name}={value}" for name, value in settings.items()) if len(row) > 1 else values[0]
        if keys.setdefault(title, values) != values:
            raise InputError(f"{path} line {line}: {shown(title)}: is the name of two rows; rename one of their values")
        scores = {name: of_column[number] for name, of_column in numbers.items()}
        runs.append(Run(line, title, WHOLE.sub(r"\1\2", cells[places[seed]]) if seed else "", scores, settings))
    if seed:
        refuse_twice(path, runs, seed)
    return RunsFile(runs, [note] if note else [])


def _online(path: Path) -> _Table:
    from transformer_pl.train.wandb_run import runs_online  # wandb takes a second

    runs = runs_online(str(path).removeprefix(ONLINE_RUNS))
    headings = list(dict.fromkeys(key for run in runs for key in run))
    lines = [(line, [str(run.get(key, "")).strip() for key in headings]) for line, run in enumerate(runs, start=1)]
    return _Table(path, headings, lines)


def _read_file(path: Path, wanted: Sequence[str]) -> _Table:
    """The cells of a file, which are divided by what finds most of the wanted headings, and then most headings."""
    text, skipped, separators = _read_text(path), 0, ",;\t"
    if told := re.match(r'"?sep=([^\w\s"]|\t)"?(\r\n|\r|\n)', text, re.IGNORECASE):  # a first line of Excel's
        skipped, separators, text = 1, told[1], text[told.end() :]

    def found(separator: str) -> tuple[int, int]:
        """How many of the wanted headings there are, and how many headings."""
        headings: list[str] = []
        with suppress(csv.Error):  # which is reported where all lines are read
            headings = next(divided(io.StringIO(text.lstrip(), newline=""), delimiter=separator), [])
        return len({*wanted}.intersection(map(str.strip, headings))), len(headings)

    records = _records(path, text, max(separators, key=found), skipped)
    if len(records) < 2:
        rule = "must have a line of headings and a line for each run"
        raise InputError(f"{path}: {rule}, but has {counted(len(records), 'line')}; export it again")
    (_, headings), *lines = records
    for line, cells in lines:
        if len(cells) != len(headings):
            rule = f"must have {len(headings)} cells as the headings, but has {len(cells)}"
            remedy = "give it one for each heading, and put text with a separator in it into double quotes"
            raise InputError(f"{path} line {line}: {rule}; {remedy}")
    return _Table(path, headings, lines)


def _read_text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: must be a CSV file, but is a folder or a device; give the path of a file")
    try:
        text = read_text(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the path of a CSV file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path} line {line}: must be text in UTF-8, but is not; save it as CSV in UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{path} line {line}: must be text, but has a NUL byte; export it again")
    return text


def _records(path: Path, text: str, separator: str, skipped: int) -> list[tuple[int, list[str]]]:
    """The cells of each line that has any, with the number of the line. skipped: how many lines stood before the text.

    A cell in quotes may have several lines; then the number is that of the first.
    """
    reader = divided(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    records, line = [], 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                records.append((skipped + line, [cell.strip() for cell in cells]))
            line = reader.line_num + 1
    except csv.Error as error:
        remedy = "close its quotes, or export it again"
        raise InputError(f"{path} line {skipped + line}: is no CSV: {error}; {remedy}") from None
    return records


def _refuse_chart(table: _Table, row: Sequence[str]) -> None:
    """Refuse a file with a line for each step: of W&B's charts, or one in which all rows begin with the same steps."""
    for heading in table.headings:
        if f"{heading}__MIN" in table.headings or _are_steps(table, heading, row):
            rule = f"must have a line for each run, but has one for each step ({shown(heading)})"
            remedy = "export the table of runs in place of a chart; if each line is a run, leave out this column"
            raise InputError(f"{table.path}: {rule}; {remedy}")


def _are_steps(table: _Table, step: str, row: Sequence[str]) -> bool:
    """Whether a column counts steps: in every row with several lines the first two are the same, as they are not of
    finished runs. Where steps are the rows, each is there once."""
    if step.lower() not in STEP_COLUMNS:
        return False
    names = [i for i, heading in enumerate(table.headings) if heading in row and heading.lower() not in STEP_COLUMNS]
    by_row: dict[tuple[str, ...], list[str]] = {}
    for _, cells in table.lines:
        by_row.setdefault(tuple(cells[i] for i in names), []).append(cells[table.headings.index(step)])
    several = [steps for steps in by_row.values() if len(steps) > 1]
    firsts = {tuple(dict.fromkeys(steps))[:2] for steps in several}
    return [*map(len, firsts)] == [2] and not (step in row and any(len({*steps}) < len(steps) for steps in several))


def _finished(table: _Table, names: Sequence[int]) -> tuple[_Table, str]:
    """The table without runs that have not finished, or that have no text in the columns `names`; a note on these."""
    states = [i for i, heading in enumerate(table.headings) if heading.lower() in STATE_COLUMNS and i not in names]
    lines, left = [], Counter[str]()
    for line, cells in table.lines:
        state = next((word for i in states if (word := cells[i].lower()) in UNFINISHED), "")
        if state or not any(cells[i] for i in names):
            left[state or "without a name"] += 1
        else:
            lines.append((line, cells))
    note = ", ".join(f"{count} {why}" for why, count in left.items())
    if not lines:
        raise InputError(
            f"{table.path}: must have finished runs with a name, but has none ({note}); name other columns"
        )
    return table._replace(lines=lines), f"{counted(left.total(), 'run')} left out: {note}." if note else ""


def _numbers(table: _Table, place: int, decimal_comma: bool) -> list[float | None]:
    """The numbers of a column; None where a run has none. Raises an InputError for another text."""
    pattern, such = (DECIMAL_COMMA, "0,845 or 1.234,5") if decimal_comma else (NUMBER, "0.845 or 1e-3")
    numbers: list[float | None] = []
    name = shown(table.headings[place])
    for line, cells in table.lines:
        text, word = cells[place], cells[place].lower()
        is_missing = word in MISSING or NOT_FINITE.fullmatch(word)
        if not is_missing and not pattern.fullmatch(text):
            remedy = "write it so, without percent sign, unit or separators of thousands, or leave it empty"
            if decimal_comma:
                remedy = "write it so, or leave out --decimal-comma"
            elif "," in text:
                remedy = "give --decimal-comma if its comma is the decimal sign, and otherwise leave commas out"
            rule = f"must be a number such as {such}"
            raise InputError(f"{table.path} line {line}: {name} = {shown(text)}: {rule}; {remedy}")
        number = math.nan if is_missing else float(text.replace(".", "").replace(",", ".") if decimal_comma else text)
        numbers.append(number if math.isfinite(number) else None)
    if all(number is None for number in numbers):
        runs = counted(len(numbers), "run")
        raise InputError(f"{table.path}: {name}: must have numbers, but has none in {runs}; name another column")
    return numbers


def refuse_twice(path: Path, runs: Sequence[Run], seed: str = "") -> None:
    """Raise an InputError for two runs of one row and seed. seed: its column; empty: each row must have one line."""
    first: dict[tuple[str, str], int] = {}
    for run in runs:
        if (earlier := first.setdefault((run.row, run.seed), run.line)) != run.line:
            with_seed = (" or seed", f" with {shown(seed)} = {shown(run.seed)}") if seed else ("", "")
            rule = f"lines {earlier} and {run.line} must differ in row{with_seed[0]}, but both are {shown(run.row)}"
            remedy = "add the column in which they differ to --row, or leave one out"
            raise InputError(f"{path}: {rule}{with_seed[1]}; {remedy}")
