"""What commands print to."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from helpers import ROOT

from transformer_pl.runtime.terminal import logged


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
