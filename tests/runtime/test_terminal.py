"""What commands print to."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, result_keys
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from transformer_pl.runtime.terminal import STEERING, command_console, for_output, logged, say

CONTROLS = "\x1b[2J", "\x1b]0;title\x07", "\x9b2J", "\r", "\x08", "\x7f"


def test_a_file_gets_utf_8_whatever_the_locale_and_a_terminal_what_it_can_show():
    words = [sys.executable, "-m", "transformer_pl.sweep", "--list", "--runs", "Δ"]
    options = {"cwd": ROOT, "env": os.environ | {"PYTHONIOENCODING": "ascii"}, "timeout": 60, "check": True}
    assert subprocess.run(words, stdout=subprocess.PIPE, **options).stdout.decode().startswith("Δ: ")
    ours, its = pty.openpty()
    subprocess.run(words, stdout=its, **options)
    assert b"?: " in os.read(ours, 1000)
    os.close(its), os.close(ours)


def test_a_log_on_a_full_disk_ends_nothing(capsys):
    with logged(Path("/dev/full")):
        print("one")
    assert capsys.readouterr().out == "one\n"


@pytest.mark.parametrize("control", CONTROLS)
def test_no_control_character_of_a_text_is_printed(capsys, control):
    table = Table(f"a{control}")
    table.add_row(f"b{control}")
    say(command_console(), f"c{control}\nd")
    command_console().print(table)
    printed = capsys.readouterr().out
    assert not STEERING.search(printed) and "\nd\n" in printed and all(letter in printed for letter in "abc")


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"])))
def test_other_text_is_printed_as_it_is(text):
    assert for_output(text) == text and not STEERING.search(text)


def test_a_text_for_programs_steers_no_terminal_and_is_not_changed_elsewhere(monkeypatch):
    assert for_output("a\x1b[2J") == "a\x1b[2J"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert for_output("a\x1b[2J\n") == "a\\x1b[2J\n"


def test_a_stranger_s_runs_folder_steers_no_terminal(tmp_path):
    trial = tmp_path / "trials" / f"{''.join(CONTROLS)}-s1-0123456789ab"
    trial.mkdir(parents=True)
    keys = result_keys(score="\x1b[2J", metrics={"val/ppl": 1, "val/\x1b[2J": 1})
    (trial / "result.json").write_text(json.dumps(keys))
    (trial / "status.json").write_text('{"state": "done"}')
    ours, its = pty.openpty()
    words = [sys.executable, "-m", "transformer_pl.sweep", "--list", "--runs", tmp_path]
    subprocess.run(words, cwd=ROOT, stdout=its, timeout=60, check=True)
    printed = os.read(ours, 10_000)
    os.close(its), os.close(ours)
    assert b"1 trial" in printed and not any(control.encode() in printed for control in CONTROLS[:3])


def test_what_is_printed_while_nothing_is_goes_to_standard_error():
    program = """if True:
        import os
        from transformer_pl.runtime.terminal import nothing_printed
        print("before")
        with nothing_printed():
            print("meanwhile")
            os.system("echo program")
        print("after")
    """
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, env=buffered, capture_output=True, text=True, check=True)
    assert done.stdout == "before\nafter\n" and sorted(done.stderr.split()) == ["meanwhile", "program"]
