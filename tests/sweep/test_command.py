"""What a sweep leaves at its end: the table's files, and the page, which is drawn when the table has changed."""

import io
from pathlib import Path

from rich.console import Console

from transformer_pl.report.tables import Report
from transformer_pl.sweep.sweep_command import SweepCommand
from transformer_pl.sweep.sweep_options import SweepOptions
from transformer_pl.table.formats import Column, Table


def table(cell):
    return Table([Column("row", [cell])], [{"row": cell}])


def test_a_page_is_drawn_for_another_table_alone(tmp_path, monkeypatch):
    """`report --seeds 1 --format html` writes its page and table over those of a sweep with three seeds."""
    ours, others = table("three seeds"), table("one seed")
    command, pages = SweepCommand(SweepOptions(file=Path("grid.yaml")), tmp_path, Console(file=io.StringIO())), []
    sent = []  # to W&B
    monkeypatch.setattr("transformer_pl.sweep.sweep_command.send_report", lambda *_: sent.append("page"))

    def draw(folder, title, table):
        (folder / "report.html").write_text("page")
        pages.append("page")

    def drawn(exit_code=0):
        assert command.publish(Report("grid", "project", "demo", ours, draw), [], exit_code) == exit_code
        assert (tmp_path / "table.md").read_text() == ours.markdown() and sent == pages
        return len(pages)

    assert drawn(143) == 0 and drawn() == 1 and drawn() == 1
    (tmp_path / "table.md").write_text(others.markdown())
    assert drawn() == 2 and (tmp_path / "results.csv").read_text() == ours.csv()
