"""The HTML of a page with a table: one file that opens offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader

from transformer_pl.runtime.files import write_atomically
from transformer_pl.table.figures import Drawing, save
from transformer_pl.table.formats import Column, Table

# Colours in the figures, and the variables of the page's light or dark scheme that replace them.
SCHEME_COLOURS = {"#000000": "ink", "#ffffff": "paper", "#999999": "faint", "#cccccc": "line"}


def write_html(folder: Path, title: str, table: Table, drawings: Mapping[str, Drawing], **content: Any) -> Path:
    """Write `report.html`, its figures, and its table as `table.md`. Returns the path of the page.

    drawings: by file name. content: what else the template shows.
    """
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    loader = PackageLoader("transformer_pl", "table/templates")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # keep the order of rows and of sites
    saved = {name: save(drawing.figure, folder / "figures" / name) for name, drawing in drawings.items()}
    figures = [(name, drawing, _inline_svg(saved[name])) for name, drawing in drawings.items()]
    content |= {"title": title, "table": table, "columns": page_columns(table), "figures": figures}
    write_atomically(folder / "report.html", environment.get_template("page.html").render(content))
    write_atomically(folder / "table.md", table.markdown())
    return folder / "report.html"


class PageColumn(NamedTuple):
    """A column of the page's table."""

    column: Column
    below: Column | None  # its cells stand in small print below those of the column
    folded: bool  # shown only on demand


def page_columns(table: Table) -> list[PageColumn]:
    """The columns for the page, by their places on it; those without one come last."""
    intervals = {column.page: column for column in table.columns if column.below}
    columns = [column for column in table.columns if not column.below]
    columns.sort(key=lambda column: (column.page is None, column.page or 0))
    return [PageColumn(column, intervals.get(column.page), column.page is None) for column in columns]


def _inline_svg(path: Path) -> str:
    """The svg element of a file, without the XML declaration before it, in the colours of the page's scheme."""
    text = path.read_text(encoding="utf-8")
    element = text[text.index("<svg") :]
    for colour, of_scheme in SCHEME_COLOURS.items():
        element = element.replace(colour, f"var(--{of_scheme})")
    return element
