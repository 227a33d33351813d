"""What commands print to."""

import io
import sys

from transformer_pl.runtime.terminal import command_console


def test_an_output_that_lacks_a_character_shows_another(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    command_console().print("Δ BLEU")
    sys.stdout.flush()
    assert written.getvalue() == b"? BLEU\n"
