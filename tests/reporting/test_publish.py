"""What a sweep leaves at its end: the table's files, and the page, which is drawn when the table has changed."""

import io

from rich.console import Console

from transformer_pl.reporting.publish import Publisher, forget_other_table
from transformer_pl.reporting.render import Column, Table


def table(cell):
    return Table([Column("row", [cell])], [{"row": cell}], [])


def test_a_page_of_another_table_is_drawn_anew(tmp_path, monkeypatch):
    """`report --seeds 1 --format html` writes over the page of a sweep with three seeds."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    ours, others = table("three seeds"), table("one seed")
    publisher, pages = Publisher("rows", "demo", tmp_path, Console(file=io.StringIO())), []

    def draw():
        (tmp_path / "report.html").write_text("page")
        pages.append("page")
        return {}

    def drawn():
        assert publisher.publish(ours, draw, 0) == 0
        assert (tmp_path / "table.md").read_text() == ours.markdown()
        return len(pages)

    assert drawn() == 1 and drawn() == 1
    forget_other_table(tmp_path, ours)
    assert drawn() == 1
    forget_other_table(tmp_path, others)
    assert drawn() == 2
