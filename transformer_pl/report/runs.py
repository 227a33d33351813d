"""The table of anyone's runs: a CSV file with a line for each run, such as an export of W&B, MLflow or a spreadsheet.

Runs with equal values in some columns of the file are one row of the table. They are a sample of seeds. The sentences
that they were evaluated on are not known.
"""

import csv
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.plan.options import ONLINE_RUNS
from transformer_pl.report.options import RunsReport
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.contrast_tables import MISSING as NO_NUMBER
from transformer_pl.table.rows import About, Measure, Row

BASES = ("base", "baseline")  # names that make a row the base where --base names none
MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
SHOWN = 5  # names of missing runs in a note
MISSING = ("", "nan", "none", "null", "n/a", "na", "-", "inf", "-inf", "+inf", "infinity", "-infinity")
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")  # 1,234.5
DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][-+]?\d+)?")  # 0,5 and 1.234,5


class Run(NamedTuple):
    line: int  # of the file
    row: str
    seed: str
    values: dict[str, float | None]  # by metric; None where it is missing
    settings: dict[str, str]  # by column: what tells rows apart


def runs_rows(path: Path, options: RunsReport) -> tuple[list[Row], About]:
    """The rows of the runs in a file, and what their table is of. Raises an InputError for what makes no table."""
    runs, by_row = read_runs(path, options), dict[str, list[Run]]()
    for run in runs:
        by_row.setdefault(run.row, []).append(run)
    if len(by_row) > MOST_ROWS:
        rule = f"must make at most {MOST_ROWS} rows, but make {len(by_row):,}"
        raise InputError(f"--row {','.join(options.row)}: {rule}; name columns that runs of one configuration share")
    base = _base(by_row, options)
    names = sorted(by_row, key=lambda name: name != base)  # base first; the others in the order of the file
    rows = [_row(name, by_row[name], options, base) for name in names]
    about = About(
        measures=[Measure(metric, metric, _digits(metric, rows), options.lower_is_better) for metric in options.metric],
        trial="run",
        margins=options.margins(options.metric),
        added=[note for metric in options.metric if (note := _missing(metric, runs))],
        shows_settings=False,
    )
    return rows, about


def _row(name: str, runs: Sequence[Run], options: RunsReport, base: str | None) -> Row:
    known = {metric: [run.values[metric] for run in runs] for metric in options.metric}
    numbers = {metric: [one for one in values if one is not None] for metric, values in known.items()}
    states = ["done" if any(one is not None for one in run.values.values()) else NO_NUMBER for run in runs]
    values = {metric: found for metric, found in numbers.items() if found}
    own_name = "" if name.lower() in BASES else name
    settings = runs[0].settings
    return Row.of_values(name, values, own_name=own_name, is_base=name == base, states=states, settings=settings)


def _digits(metric: str, rows: Sequence[Row]) -> int:
    """As many as the usual spread from run to run has zeros behind the point, and one more."""
    values = [row.values[metric] for row in rows if len(row.values.get(metric, ())) > 1]
    spreads = [spread for of_row in values if (spread := statistics.stdev(of_row))]
    return min(6, max(0, 1 - math.floor(math.log10(statistics.median(spreads))))) if spreads else 3


def read_runs(path: Path, options: RunsReport) -> list[Run]:
    """Read the runs of a file. Raises an InputError for what cannot be read, and for two runs of one row and seed."""
    header, lines, delimiter = _read_lines(path)
    wanted = [*options.row, *options.metric, *([options.seed] if options.seed else [])]
    if unknown := [name for name in dict.fromkeys(wanted) if name not in header]:
        raise InputError(*(f"{path}: has no column {shown(name)}{suggestion(name, header)}" for name in unknown))
    texts = {name: [cells[header.index(name)].strip() for _, cells in lines] for name in wanted}
    texts |= {name: _spelled_alike(texts[name]) for name in options.row}
    values = {
        name: _numbers(path, name, texts[name], [line for line, _ in lines], delimiter) for name in options.metric
    }
    runs = []
    for place, (line, _) in enumerate(lines):
        parts = [(name, texts[name][place]) for name in options.row]
        row = parts[0][1] if len(parts) == 1 else " ".join(f"{name}={value}" for name, value in parts)
        seed = texts[options.seed][place] if options.seed else ""
        runs.append(
            Run(line, row or "(empty)", seed, {name: values[name][place] for name in options.metric}, dict(parts))
        )
    if options.seed:
        first: dict[tuple[str, str], int] = {}
        for run in runs:
            if (earlier := first.setdefault((run.row, run.seed), run.line)) != run.line:
                remedy = "add the column in which they differ to --row, or leave one out"
                rule = f"lines {earlier} and {run.line} must differ in row or seed, but both are"
                raise InputError(f"{path}: {rule} {shown(run.row)} with {options.seed} {shown(run.seed)}; {remedy}")
    return runs


def _read_lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]], str]:
    """The headings, the other lines with their line numbers, and the delimiter between cells."""
    if (address := str(path)).startswith(ONLINE_RUNS):
        from transformer_pl.train.wandb_run import runs_online  # wandb takes a second

        runs = runs_online(address.removeprefix(ONLINE_RUNS))
        header = list(dict.fromkeys(key for run in runs for key in run))
        lines_ = [(line, [str(run.get(key, "")) for key in header]) for line, run in enumerate(runs, start=1)]
        return header, lines_, "\t"
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the path of a CSV file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: must be a CSV file in UTF-8, but: {error}; save it as such") from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
    lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    if len(lines) < 2:
        raise InputError(
            f"{path}: must have a line of headings and a line for each run, but has {len(lines)}; export it"
        )
    header = [cell.strip() for cell in lines[0][1]]
    for line, cells_ in lines[1:]:
        if len(cells_) != len(header):
            rule = f"must have {len(header)} cells as the headings, but has {len(cells_)}"
            raise InputError(f"{path} line {line}: {rule}; put text with {shown(delimiter)} in it into quotes")
    return header, lines[1:], delimiter


def _numbers(path: Path, name: str, texts: Sequence[str], lines: Sequence[int], delimiter: str) -> list[float | None]:
    """The numbers of a column; None where one is missing. Raises an InputError for a text that is no number.

    All commas are decimal commas if every number with a comma can be read so. One exception: if commas also divide the
    cells, and every such number can be read with commas between thousands, they are commas between thousands.
    """
    with_comma = [text for text in texts if "," in text]
    is_decimal = bool(with_comma) and all(map(DECIMAL_COMMA.fullmatch, with_comma))
    is_decimal &= delimiter != "," or not all(map(THOUSANDS.fullmatch, with_comma))
    numbers: list[float | None] = []
    for text, line in zip(texts, lines, strict=True):
        if text.lower() in MISSING:
            numbers.append(None)
            continue
        plain = text.replace(".", "").replace(",", ".") if is_decimal and "," in text else text
        plain = plain.replace(",", "") if THOUSANDS.fullmatch(plain) else plain
        try:
            numbers.append(float(plain))
        except ValueError:
            raise InputError(
                f"{path} line {line}: {name} = {shown(text)}: must be a number; leave it empty where there is none"
            ) from None
    if not any(number is not None for number in numbers):
        raise InputError(f"{path}: {name}: must have numbers, but has none in {counted(len(lines), 'run')}")
    return numbers


def _spelled_alike(texts: Sequence[str]) -> list[str]:
    """The texts, with equal numbers spelled as the first of them: 0.1 and 1e-1 are one value."""
    first: dict[Any, str] = {}

    def value(text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text

    return [first.setdefault(value(text), text) for text in texts]


def _base(by_row: dict[str, list[Run]], options: RunsReport) -> str | None:
    if options.base is None:
        return next((name for name in by_row if name.lower() in BASES), None)
    if options.base not in by_row:
        raise InputError(f"--base {shown(options.base)}: is no row{suggestion(options.base, by_row)}")
    return options.base


def _missing(metric: str, runs: Sequence[Run]) -> str:
    """Which runs have no number."""
    missing = [f"{run.row} (line {run.line})" for run in runs if run.values[metric] is None]
    if not missing:
        return ""
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"{counted(len(missing), 'run')} without {metric}: {', '.join(missing[:SHOWN])}{more}."
