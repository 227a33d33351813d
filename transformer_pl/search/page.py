"""Writing the page of a search, and its figures, into the search's folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from transformer_pl.reporting.page_files import write_page_files
from transformer_pl.reporting.render import Table

if TYPE_CHECKING:
    from transformer_pl.search.results import SearchResults


def write_search_page(results: "SearchResults", table: Table, folder: Path) -> dict[str, Path]:
    """Write `report.html` and the figures of a search; return the figures' png files by caption."""
    from transformer_pl.search import plots  # optuna and matplotlib take seconds

    sweep, planned, shown = plots.as_sweep(results)
    return write_page_files(sweep, planned, shown, table, plots.draw_search_plots(results), folder)
