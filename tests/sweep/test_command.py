"""What a sweep leaves at its end: the table's files, and the page, which is drawn when the table has changed."""

import io
from pathlib import Path

from rich.console import Console

from transformer_pl.sweep.command import SweepCommand
from transformer_pl.sweep.options import SweepOptions
from transformer_pl.table.formats import Column, Table


def table(cell):
    return Table([Column("row", [cell], "row", [cell])])


def test_a_page_is_drawn_for_another_table_alone(tmp_path):
    """`report --seeds 1 --format html` writes its page and table over those of a sweep with three seeds."""
    ours, others = table("three seeds"), table("one seed")
    command, pages = SweepCommand(SweepOptions(file=Path("grid.yaml")), tmp_path, Console(file=io.StringIO())), []
    sent = []  # to W&B

    def draw():
        (tmp_path / "report.html").write_text("page")
        pages.append("page")

    def drawn(exit_code=0):
        assert command.publish(ours, draw, lambda: sent.append("page"), [], exit_code) == exit_code
        assert (tmp_path / "table.md").read_text() == ours.markdown() and sent == pages
        return len(pages)

    assert drawn(143) == 0 and drawn() == 1 and drawn() == 1
    (tmp_path / "table.md").write_text(others.markdown())
    assert drawn() == 2 and (tmp_path / "results.csv").read_text() == ours.csv()
