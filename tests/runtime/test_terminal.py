"""What commands print to."""

import io
import sys

import pytest

from transformer_pl.runtime.terminal import command_console, say


class Closed(io.StringIO):
    """A pipe whose reader has ended, such as `| head`."""

    def write(self, text):
        raise BrokenPipeError


def test_a_reader_that_ends_early_is_an_error_of_the_pipe_and_ends_no_process():
    console = command_console()
    console.file = Closed()
    with pytest.raises(BrokenPipeError):
        say(console, "a line")
    with pytest.raises(BrokenPipeError):
        console.print("a line")


def test_an_output_that_lacks_a_character_shows_another(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    command_console().print("Δ BLEU")
    sys.stdout.flush()
    assert written.getvalue() == b"? BLEU\n"
