"""A command that is called from Python runs in a new interpreter, and is stopped with the one that called it."""

import os
import signal
import subprocess
import sys

import pytest
from helpers import ROOT, descendants, little_text, processes, wait_for, write_sweep
from tiny_trials import TINY

from transformer_pl.runtime.calls import call_in_new_interpreter
from transformer_pl.trials.trial_folder import TrialFolder


def long(length):
    return "a" * length


SCRIPT = """
import signal
from transformer_pl.api import train
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored
print("begins")
try:
    train({keys!r}, runs={runs!r})
finally:
    print("ended", flush=True)
"""


def test_a_result_may_be_larger_than_a_pipe():
    assert call_in_new_interpreter(long, 10**7) == "a" * 10**7


@pytest.mark.slow  # 10 s each; every day test_children.py ends a parent of its child
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_ends_and_saves_when_the_script_that_has_called_it_is_killed(tmp_path, signum):
    """Also its trials."""
    runs, script = tmp_path / "runs", tmp_path / "script.py"
    little_text(tmp_path / "text", 60, 8, 6)
    keys = TINY | {"data.path": tmp_path / "text", "optim.max_steps": 100_000, "trainer.val_every": 100_000}
    file = write_sweep(tmp_path / "two.yaml", keys | {"seed": [1, 2]})
    script.write_text(f"from transformer_pl.api import sweep\nsweep({str(file)!r}, runs={str(runs)!r}, parallel=2)")
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent), "WANDB_MODE": "disabled"}
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE) as process:
        logs = "trials/*/metrics.jsonl"
        wait_for(lambda: sum("train/loss" in path.read_text() for path in runs.glob(logs)) == 2, 120)
        started = descendants(process.pid)
        process.send_signal(signum)
        process.stdout.close()
    wait_for(lambda: not {one.pid for one in processes()} & set(started), 90)  # it would be killed after 100 s
    assert [TrialFolder(folder).state() for folder in (runs / "trials").iterdir()] == ["stopped", "stopped"]


def test_ctrl_c_saves_what_a_script_trains_and_is_raised_there_afterwards(tmp_path):
    """A script without `if __name__ == "__main__"`, as of a notebook."""
    runs, script = tmp_path / "runs", tmp_path / "script.py"
    (tmp_path / "text").mkdir()
    little_text(tmp_path / "text", 60, 8, 6)
    keys = TINY | {"data.path": str(tmp_path / "text"), "optim.max_steps": 100_000, "trainer.val_every": 100_000}
    script.write_text(SCRIPT.format(keys=keys, runs=str(runs)))
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent), "WANDB_MODE": "disabled"}
    words = [sys.executable, str(script)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        logs = "trials/*/metrics.jsonl"
        wait_for(lambda: any("train/loss" in path.read_text() for path in runs.glob(logs)), 120)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    (folder,) = (runs / "trials").iterdir()
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
    assert printed.count("begins") == 1 and printed.endswith("ended\n")
    assert TrialFolder(folder).state() == "stopped" and (folder / "checkpoints" / "last.ckpt").exists()
    assert not TrialFolder(folder).lock.is_held()
