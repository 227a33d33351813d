"""Code that does not end: it is interrupted at its line; what does not let itself be interrupted ends the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from transformer_pl.runtime.time_limit import time_limit

ENDLESS = {  # none of which comes back to Python code, or which catches what interrupts it
    "in C, with Python's lock": "sum(itertools.count())",
    "in C, without it": "lock(mutex), lock(mutex)",
    "catches everything": "catch_everything()",
}
PROGRAM = """
from transformer_pl import components, sweep
from transformer_pl.runtime import time_limit
from transformer_pl.command_line import run_command

components.LONGEST_S, time_limit.UNHEARD_S = {seconds}, 0.3
run_command(sweep.main)
"""
COMPONENT = """
import ctypes, itertools, time

lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)

def catch_everything():
    while True:
        try: time.sleep(60)
        except BaseException: pass

"""


def ended_by(folder, source, seconds):
    """The plan of a sweep with the component `stranger.Part`, in a new process with this limit: its file, its error."""
    part, file = folder / "stranger.py", folder / "any.yaml"
    part.write_text(COMPONENT + source)
    file.write_text("method: grid\nparameters: {model.ffn: {value: stranger.Part}}\n")
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seconds=seconds), str(file), "--plan", f"--runs={folder / 'runs'}"],
        env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert printed.returncode == 2 and not (folder / "runs").exists()
    return part, printed.stderr


def message(what, seconds):
    return (
        f"error: {what}: it has not ended after {seconds} seconds, and does not let itself be interrupted; an import, "
        "or a check, must end by then: fix what does not, or leave the component out\n"
    )


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_import_that_cannot_be_interrupted_ends_the_command(tmp_path, kind):
    part, error = ended_by(tmp_path, f"{ENDLESS[kind]}\nclass Part: 0\n", 0.3)
    assert error == message(f"the import of stranger.Part ({part})", 0.3)


FORWARD = """
from transformer_pl.model import FeedForward

class Part(FeedForward):
    def forward(self, x): sum(itertools.count())
"""


@pytest.mark.slow
def test_a_dry_run_that_cannot_be_interrupted_ends_the_command(tmp_path):
    part, error = ended_by(tmp_path, FORWARD, 20)  # in which torch is imported
    line = 1 + (COMPONENT + FORWARD).split("class Part")[0].count("\n")
    assert error == message(f"a dry run of model.ffn = stranger.Part ({part}, line {line})", 20)


def test_what_ends_in_time_is_left_alone():
    handler = signal.getsignal(signal.SIGALRM)
    with time_limit("100 % of it", 60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        with time_limit("a part of it", 0.001):
            pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0) and signal.getsignal(signal.SIGALRM) == handler
    assert "ID:" not in Path("/proc/self/timers").read_text()
