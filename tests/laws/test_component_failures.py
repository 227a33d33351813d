"""Components that hang, crash, exit, or end a loop: their failure, and not an end."""

import os
import signal
import subprocess
import sys

import pytest
import small_models
import tiny_trials
from helpers import ROOT, wait_for

from transformer_pl.runtime import calls
from transformer_pl.runtime.errors import InputError

WAYS = """
import ctypes, itertools, os, sys

def hangs_in_C(): sum(itertools.count())
def crashes(): ctypes.string_at(0)
def leaves(): os._exit(0)
def exits(): sys.exit(0)
"""
FORWARD = """
from transformer_pl.model import FeedForward

class Part(FeedForward):
    def forward(self, x):
        {way}()
        return super().forward(x)
"""
ENDS = ["crashes", "leaves", "exits"]


@pytest.mark.parametrize("way", [pytest.param("hangs_in_C", marks=pytest.mark.slow), *ENDS])
def test_a_check_that_does_not_come_back_is_told(module, monkeypatch, way):
    monkeypatch.setattr(calls, "LONGEST_S", 20 if way == "hangs_in_C" else 100)
    source = WAYS + FORWARD.format(way=way)
    path = module(source)
    with pytest.raises(InputError) as caught:
        small_models.forward_cost(small_models.small({"model.ffn": "stranger.Part"}), 1, 7, 7)
    (message,) = caught.value.messages
    line = 1 + source[: source.index("class Part")].count("\n")
    assert message.startswith(f"model.ffn = stranger.Part ({path}, line {line}): must run, but ")


RAISES = """
import builtins, multiprocessing
from transformer_pl.model import FeedForward

class Raises(FeedForward):
    def __init__(self, config, site, when: str, how: str):
        super().__init__(config, site)
        self.when, self.how = when, how

    def forward(self, x):
        if self.training:
            self.reached("training")
        if x.requires_grad and self.when == "backward":
            x.register_hook(lambda gradient: self.reached("backward"))
        if x.shape[1] == 1 and not self.training:  # one position, and what came before from a cache
            self.reached("decoding")
        return super().forward(x)

    def reached(self, now):
        if now == self.when and multiprocessing.parent_process() is None:  # not where it is checked
            raise getattr(builtins, self.how)(0)
"""


@pytest.mark.usefixtures("unrehearsed")
@pytest.mark.parametrize(
    ("when", "how", "keys"),
    [
        ("training", "SystemExit", {}),
        ("backward", "StopIteration", {}),
        ("decoding", "SystemExit", {"trainer.val_sample": 3}),
    ],
)
def test_a_component_that_ends_the_training_fails_its_trial(module, tmp_path, when, how, keys):
    """Also where the checks before the training have not found it."""
    path = module(RAISES)
    own = {"model.ffn": "stranger.Raises", "model.ffn.when": when, "model.ffn.how": how}
    code, trial = tiny_trials.train(tmp_path / "runs", own | keys)
    assert code == 1 and trial.result() is None
    status = trial.status()
    assert status["state"] == "failed" and str(path) in status["why"] and how in status["why"]


@pytest.mark.slow
def test_ctrl_c_is_no_failure_of_a_component(tmp_path):
    """It stops a command, and the child that tries a component."""
    (tmp_path / "stranger.py").write_text(
        "import os, time\nfrom pathlib import Path\n\n"
        "Path(__file__).with_name('reached').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    words = [sys.executable, "-m", "transformer_pl.train", f"--runs={tmp_path / 'runs'}", "--model.ffn=stranger.Part"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    reached = tmp_path / "reached"
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_for(lambda: reached.exists() and reached.read_text(), 120)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, printed = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in printed
    wait_for(lambda: not os.path.exists(f"/proc/{reached.read_text()}"))
