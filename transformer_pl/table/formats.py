"""A finished table, and its output formats: terminal, Markdown, LaTeX, CSV, JSON."""

import csv
import io
import json
import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.constrain import Constrain
from rich.table import Table as Grid
from rich.text import Text

from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.terminal import UNBROKEN, plain

LEGEND = "What the columns mean: report.html (--format html)."  # the note for those who have the page
LATEX_WIDTH = 100  # characters of a line of a table, which fit a page in small print
LATEX_NAME = 34  # characters of a line of a row's name in LaTeX
ON_REQUEST = -1  # the rank of a column that text has only where --columns names it; the page always has it
NAME_WIDTH = 28  # characters that the names of rows need at least; longer ones take several lines


class Column(NamedTuple):
    """A column of a table, for people.

    page: its place on the page, from the left; None: shown only on demand. A column that is `below` stands in small
    print below the one before it. drop_rank: a terminal that is too narrow drops columns by rank, 0 first; None: never;
    see ON_REQUEST, too.
    """

    name: str  # the heading
    cells: Sequence[str]  # a column whose cells are all empty is left out
    meaning: str = ""  # for a reader who knows the paper
    drop_rank: int | None = None
    page: int | None = None
    below: bool = False


class Table(NamedTuple):
    """Columns for people, records for programs, and what stands above and below them."""

    all_columns: Sequence[Column] = ()
    records: Sequence[dict[str, Any]] = ()  # with the same keys; at full precision; None: not measured
    notes: Sequence[str] = ()
    contrasts: Sequence[Any] = ()  # of each row, in the main outcome; empty for the table of a search
    summary: str = ""  # what the table shows, in a sentence or two
    headings: Mapping[int, str] = MappingProxyType({})  # headings between rows, by the place of the row below
    printed: Any = None  # the `PrintedTable` beside it
    further: Sequence[Sequence[Any]] = ()  # the contrasts of each further outcome
    caption: str = ""  # of LaTeX: what the table shows, in a sentence, and what its mark means; empty: the summary
    label: str = "results"  # its name for LaTeX's \\ref, after `tab:`

    @property
    def of_score(self) -> Sequence[Any]:
        """The contrasts of the first outcome that is no perplexity."""
        every = [self.contrasts, *self.further]
        return next((of for of in every if of and not of[0].outcome.is_logarithm), self.contrasts)

    def titled(self, title: str) -> "Table":
        """The table with its title in each record, and before its summary."""
        records = [{"table": title} | record for record in self.records]
        return self._replace(records=records, summary=self.summary and f"{title}: {self.summary}")

    @property
    def columns(self) -> list[Column]:
        """The columns that have any text."""
        return [column for column in self.all_columns if any(column.cells)]

    @property
    def _in_text(self) -> list[Column]:
        """The columns of text, which has no room for those on request."""
        return [column for column in self.columns if column.drop_rank != ON_REQUEST]

    def _that_fit(self, fit: Callable[[list[Column]], bool]) -> list[Column]:
        """The columns of text without those that are dropped, by their rank, until the others fit."""
        columns = self._in_text
        for last in sorted({column.drop_rank for column in columns if column.drop_rank is not None}):
            if fit(columns):
                break
            columns = [column for column in columns if column.drop_rank is None or column.drop_rank > last]
        return columns

    def chosen(self, names: Sequence[str]) -> "Table":
        """The table with these columns for people, in this order. Raises an InputError for unknown ones."""
        known = {column.name: column for column in self.columns}
        if unknown := [name for name in names if name not in known]:
            listed = ", ".join(known)
            raise InputError(*(f"--columns {shown(name)}: is no column; there are: {listed}" for name in unknown))
        if twice := [name for name in names if [column.name for column in self.columns].count(name) > 1]:
            raise InputError(*(f"--columns {shown(name)}: is the name of two columns; rename one" for name in twice))
        return self._replace(all_columns=[known[name]._replace(drop_rank=None) for name in names])

    @property
    def opening(self) -> list[str]:
        """The lines above the table."""
        return [self.summary, ""] if self.summary else []

    def terminal(self, width: int) -> Constrain:
        """The table for a terminal, or a file, of this width.

        Columns are dropped by their rank until the others fit. A note names those that are hidden.
        """
        console, notes = Console(width=UNBROKEN), list(self.notes)
        shown = self._that_fit(lambda columns: console.measure(_grid(columns, self.headings)).minimum <= width)
        if hidden := [column.name for column in self._in_text if column not in shown]:
            hides = f"Hidden, as there is no room: {', '.join(hidden)}."
            notes = [*notes[:-1], " ".join([hides, *notes[-1:]])]
        below, grid = [Text(note, style="dim") for note in notes], _grid(shown, self.headings)
        if (least := console.measure(grid).minimum) > width:  # rich would leave out the names of rows
            grid.width = least
        return Constrain(Group(*map(Text, self.opening), grid, *below), width)

    def markdown(self) -> str:
        """A Markdown table with the notes as a list below it."""
        columns = [
            [_markdown(column.name), "-:" if place else ":-", *map(_markdown, column.cells)]
            for place, column in enumerate(self._in_text)
        ]
        table = [f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True)]
        for place, heading in sorted(self.headings.items(), reverse=True):
            table.insert(2 + place, f"| **{_markdown(heading)}** |{' |' * (len(columns) - 1)}")
        return "\n".join([*map(_markdown, self.opening), *table, "", *(f"- {_markdown(n)}" for n in self.notes)]) + "\n"

    def csv(self) -> str:
        """The records as CSV: every setting filled in, numbers at full precision, empty where nothing was measured."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()

    def latex(self, caption: str | None = None) -> str:
        """A `table` with booktabs rules, to be included by \\input. It has the columns that a page has room for.

        A table that is wider than a column of two takes both. caption: in place of its own one, with which summary and
        notes stand in comments.
        """
        columns = self._that_fit(lambda columns: _latex_width(columns) <= LATEX_WIDTH)
        lines = [[column.name for column in columns], *zip(*(column.cells for column in columns), strict=True)]
        headings, *body = [" & ".join([_latex_name(name), *map(_latex, cells)]) + r" \\" for name, *cells in lines]
        for place, heading in sorted(self.headings.items(), reverse=True):
            body.insert(place, rf"\multicolumn{{{len(columns)}}}{{l}}{{\textit{{{_latex(heading)}}}}} \\")
        begin = rf"\small\setlength{{\tabcolsep}}{{3pt}}\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}"
        rows = [begin, r"\toprule", headings, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        said = [" ".join(text.replace(LEGEND, "").split()) for text in (self.summary, *self.notes) if text]
        comments = ["\\usepackage{booktabs}", *(said if caption is None else ())]
        kind = "table" if _latex_width(columns) <= LATEX_WIDTH / 2 else "table*"
        name = re.sub("[^A-Za-z0-9]+", "-", self.label).strip("-")
        caption = _latex(self.caption or self.summary) if caption is None else caption
        head = [rf"\begin{{{kind}}}[t]\centering", rf"\caption{{{caption}}}\label{{tab:{name}}}"]
        return "\n".join([*(f"% {text}" for text in comments), *head, *rows, rf"\end{{{kind}}}"]) + "\n"

    def json(self) -> str:
        """The records, the notes, and what the columns mean; null where a value is not finite or not measured."""

        def finite(value: Any) -> Any:
            return None if isinstance(value, float) and not math.isfinite(value) else value

        records = [{key: finite(value) for key, value in record.items()} for record in self.records]
        columns = {column.name: column.meaning for column in self.columns if column.meaning}
        content = {"summary": self.summary, "rows": records, "notes": list(self.notes), "columns": columns}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _grid(columns: list[Column], headings: Mapping[int, str]) -> Grid:
    """The columns as rich lays them out. A heading of several words has two lines; names of rows wrap."""
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    columns = [column._replace(cells=[*map(plain, column.cells)]) for column in columns]
    for place, column in enumerate(columns):
        heading = column.name.replace(" ", "\n", 1)
        width = max(map(cell_len, [*heading.split("\n"), *column.cells]))
        if place:
            grid.add_column(Text(heading), justify="right", no_wrap=True, min_width=width, overflow="fold")
        else:
            grid.add_column(Text(heading), min_width=min(width, NAME_WIDTH), overflow="fold")
    for place, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if place in headings:
            grid.add_row(Text(headings[place], style="italic"))
        grid.add_row(*map(Text, cells))
    return grid


def _markdown(text: str) -> str:
    """A text on one line of Markdown, as it stands."""
    text = re.sub("&(?=[a-zA-Z#])", "&amp;", " ".join(text.split("\n")))
    text = re.sub("<(?=[a-zA-Z/!?])", "&lt;", text).replace("\\", "\\\\").replace("|", "\\|")
    # Of emphasis, but no star of significance, which ends a cell; of a formula, of code, of a link
    opening = r"\*(?!(?<=[0-9]\*)[§†‡]*$)|(?<!\w)[_~$]+(?=\w)|`|\[(?=[^]]*]\()"
    return re.sub(opening, lambda marks: "".join(f"\\{mark}" for mark in marks[0]), text)


_LATEX = {"Δ": r"$\Delta$", "±": r"$\pm$", "†": r"$\dagger$", "‡": r"$\ddagger$", "²": "$^2$", "<": "$<$", ">": "$>$"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
_LATEX |= {"\n": " ", '"': "''", "–": "--", "—": "---", "→": r"$\to$", "∞": r"$\infty$", "µ": r"$\mu$"}
_LATEX |= {"≥": r"$\ge$", "≤": r"$\le$", "≈": r"$\approx$", "×": r"$\times$", "−": "$-$"}
_LATEX |= {c: "\\" + c for c in "&%$#_{}"}
_LATEX |= {c: rf"$\{unicodedata.name(c).split()[-1].lower()}$" for c in "αβγδεζηθικμνξπρστυφχψω"}
_LATEX |= {"λ": r"$\lambda$", "ο": "o"}


def _latex(text: str) -> str:
    """Escape the special characters of LaTeX, and set a hyphen before a number as a minus."""
    parts = text.replace("`", "").split("--")  # two hyphens of an option, which are not a dash
    escaped = "-{}-".join("".join(_LATEX.get(c) or _latex_letter(c) for c in part) for part in parts)
    escaped = re.sub(r"^([\[*])", r"{\1}", escaped)  # which would be read as an option of the end of the line before
    return re.sub(r"(^| )-(?=[0-9])", r"\1$-$", escaped)


def _latex_letter(character: str) -> str:
    """A letter as it stands, if every LaTeX has it; another character only where the engine knows Unicode."""
    is_known = character < "\u0180" and unicodedata.normalize("NFD", character)[0].isascii()
    if character.isascii() or is_known or character in "ßæøåœÆØŒ":
        return character
    return rf"\ifdefined\Umathchar {character}\else\texttt{{U+{ord(character):04X}}}\fi{{}}"


def _latex_name(name: str) -> str:
    """The name of a row. A long one takes several lines."""
    lines = textwrap.wrap(name, LATEX_NAME, break_on_hyphens=False) if len(name) > LATEX_NAME else [name]
    if len(lines) == 1:
        return _latex(name)
    broken = r" \\ ".join(map(_latex, lines))
    return rf"\begin{{tabular}}[t]{{@{{}}l@{{}}}}{broken}\end{{tabular}}"


def _latex_width(columns: Sequence[Column]) -> int:
    """The characters of a line, with the room between columns."""
    name, *others = (max(map(len, [column.name, *column.cells])) for column in columns)
    return min(name, LATEX_NAME) + sum(others) + 2 * len(columns)
