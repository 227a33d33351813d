"""A command that is called from Python runs in a new interpreter, and is stopped with the one that called it."""

import os
import signal
import subprocess
import sys

from helpers import ROOT, little_text, wait_for
from tiny_trials import TINY

from transformer_pl.trials.trial import Trial

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
    assert Trial(folder).state() == "stopped" and (folder / "checkpoints" / "last.ckpt").exists()
    assert not Trial(folder).lock.is_held()
