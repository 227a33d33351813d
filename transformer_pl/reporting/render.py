"""A table that is ready to be told, and the ways to tell it: terminal, Markdown, LaTeX, CSV, JSON."""

import csv
import io
import json
import re
from typing import Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

from transformer_pl.trials.metrics import finite_or_none

# In a narrow terminal; Markdown and CSV keep them.
FIRST_TO_GO = (
    *("paper params", "P(better)", "chrF", "BLEU 95 %", "params", "paper Δ BLEU", "p", "Δ 95 %"),
    *("longest path", "sequential operations"),
)
ROOM = 28  # characters for what differs, where it is one column


class Column(NamedTuple):
    name: str
    cells: list[str]
    setting: bool = False  # what differs, rather than what came out


class Table(NamedTuple):
    """A table, ready to be told: text for people, a record a row for machines, and what must be read beside it."""

    columns: list[Column]
    records: list[dict[str, Any]]
    notes: list[str]

    def terminal(self, width: int | None = None) -> Group:
        """The paper's columns where the terminal is wide enough; else fewer numbers, and what differs as one column."""
        width = width or Console().width
        forms = [
            [column for column in columns if column.name not in FIRST_TO_GO[:fewer]]
            for columns in (self.columns, _settings_as_one(self.columns))
            for fewer in range(len(FIRST_TO_GO) + 1)
        ]
        columns = next((form for form in forms if _width(form) <= width), forms[-1])
        return Group(_grid(columns), *(Text(note, style="dim") for note in self.notes))

    def markdown(self) -> str:
        lines = [[column.name for column in self.columns], [":-", *["-:"] * (len(self.columns) - 1)]]
        lines += zip(*([cell.replace("|", "\\|") for cell in column.cells] for column in self.columns), strict=True)
        table = [f"| {' | '.join(cells)} |" for cells in lines]
        return "\n".join([*table, "", *(f"- {note}" for note in self.notes)]) + "\n"

    def shown(self) -> list[dict[str, str]]:
        """What people see, a mapping a row."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*(c.cells for c in self.columns), strict=True)]

    def csv(self) -> str:
        """A line a row: every setting filled in, numbers at full precision, nothing where nothing was measured."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()

    def latex(self) -> str:
        """A `tabular` in the manner of booktabs, the notes below it; to be read by \\input."""
        columns = [column for column in self.columns if column.name not in ("P(better)", "chrF")]
        lines = [[column.name for column in columns], *zip(*(column.cells for column in columns), strict=True)]
        head, *body = [" & ".join(map(_latex, cells)) + r" \\" for cells in lines]
        notes = [rf"\par\smallskip{{\footnotesize {_latex(note)}\par}}" for note in self.notes]
        frame = [
            r"{\small\setlength{\tabcolsep}{4pt}",
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
        ]
        return "\n".join(["% \\usepackage{booktabs}", *frame, r"\bottomrule", r"\end{tabular}}", *notes]) + "\n"

    def json(self) -> str:
        """The records of csv(), and the notes; null where nothing was measured, or no number came out."""
        records = [{key: finite_or_none(value) for key, value in record.items()} for record in self.records]
        return json.dumps({"rows": records, "notes": self.notes}, indent=1, ensure_ascii=False) + "\n"


def _heading(column: Column) -> str:
    return column.name.replace(" ", "\n", 1)


def _grid(columns: list[Column]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        wraps = column.name == "differs"
        text = wraps or column is columns[0]
        grid.add_column(Text(_heading(column)), justify="left" if text else "right", no_wrap=not wraps, overflow="fold")
    for cells in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(*(Text(cell) for cell in cells))
    return grid


def _width(columns: list[Column]) -> int:
    """What the grid takes; what differs, as one column, can do with little."""
    widths = (max(map(cell_len, [*_heading(column).split("\n"), *column.cells])) for column in columns)
    taken = [ROOM if column.name == "differs" else width for column, width in zip(columns, widths, strict=True)]
    return sum(taken) + 2 * (len(taken) - 1)


def _settings_as_one(columns: list[Column]) -> list[Column]:
    """`h=1 d_k=512 d_v=512` in place of a column a key."""
    settings = [column for column in columns if column.setting]
    rest = [column for column in columns if not column.setting]
    if not settings:
        return columns
    rows = zip(*(column.cells for column in settings), strict=True)
    told = [" ".join(f"{c.name}={cell}" for c, cell in zip(settings, cells, strict=True) if cell) for cells in rows]
    at = columns.index(settings[0])
    return [*rest[:at], Column("differs", told, setting=True), *rest[at:]]


_LATEX = {"\\": r"\textbackslash{}", "Δ": r"$\Delta$", "±": r"$\pm$", "²": "$^2$", "<": "$<$", ">": "$>$"}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"} | {c: "\\" + c for c in "&%$#_{}"}


def _latex(text: str) -> str:
    """Special characters as LaTeX wants them, and a minus before a number."""
    told = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(^| )-(?=[0-9])", r"\1$-$", told)
