"""Components that end the process, or a loop: their failure, and not an end."""

import os
import signal
import subprocess
import sys
import time

import pytest
import small_models
import tiny_trials
from forked import command
from helpers import ROOT, wait_for

from transformer_pl import components, train
from transformer_pl.config import Model
from transformer_pl.experiments.cost import Cost, forward_cost
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import component_code
from transformer_pl.trials.trial import Trial


def model(keys) -> Model:
    return resolve([Level("test", keys)]).model


ENDS = """
import builtins
from transformer_pl.model import FeedForward


class Ends(FeedForward):
    def __init__(self, config, site, when: str, how: str):
        super().__init__(config, site)
        self.when, self.how = when, how
        self.reached("constructor")

    def forward(self, x):
        self.reached("training" if self.training else "evaluation")
        if self.training and self.when == "backward":
            x.register_hook(lambda gradient: self.reached("backward"))
        if x.shape[1] == 1 and not self.training:  # one position, and what came before from a cache
            self.reached("decoding")
        return super().forward(x)

    def reached(self, now):
        if now == self.when:
            raise getattr(builtins, self.how)(0)
"""
ENDS_LINE = 1 + ENDS[: ENDS.index("raise")].count("\n")
NO_ERRORS = ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "BaseException")
no_error = pytest.mark.parametrize("how", NO_ERRORS)


def ends(when, how):
    return {"model.ffn": "stranger.Ends", "model.ffn.when": when, "model.ffn.how": how}


@no_error
def test_a_module_that_ends_the_process_cannot_be_imported(module, how):
    path = module(f"import os\n\nraise {how}(0)\n")
    message = f"{path}, line 3: RuntimeError: a component must raise errors only, but raised {how}(0)"
    with tiny_trials.in_a_command():
        with pytest.raises(InputError) as caught:
            components.import_component("stranger.Part")
        assert caught.value.messages == (f"stranger.Part: {message}",)
        assert components.check_components(model({"model.ffn": "stranger.Part"})) == [
            f"model.ffn = stranger.Part: {message}"
        ]


@no_error
def test_a_signature_that_ends_the_process_is_reported(module, how):
    line = f"        raise {how}(0)\n"
    path = module(
        f"class Meta(type):\n    @property\n    def __signature__(self):\n{line}\n\nclass Part(metaclass=Meta): 0\n"
    )
    with tiny_trials.in_a_command():
        (message,) = components.check_components(model({"model.ffn": "stranger.Part"}))
    assert message.startswith(f"model.ffn = stranger.Part: {path}, line 4: RuntimeError: ") and f"{how}(0)" in message


@no_error
@pytest.mark.parametrize("when", ["constructor", "training", "backward", "evaluation"])
def test_a_component_that_ends_the_process_is_reported_before_anything_starts(module, when, how):
    path = module(ENDS)
    with tiny_trials.in_a_command(), pytest.raises(InputError) as caught:
        forward_cost(small_models.small(ends(when, how)), 1, 7, 7)
    (message,) = caught.value.messages
    assert message.startswith(
        f"model.ffn = stranger.Ends ({path}, line 6): must run, but fails at {path}, line {ENDS_LINE}: "
    )
    assert message.endswith(f"a component must raise errors only, but raised {how}(0)")


@no_error
@pytest.mark.parametrize(
    ("when", "keys"),
    [
        ("constructor", {}),
        ("training", {}),
        ("backward", {}),
        ("evaluation", {}),
        ("decoding", {"trainer.bleu_sample": 3}),
        ("evaluation", {"trainer.val_every": 9}),
    ],
    ids=["constructor", "training", "backward", "validation", "BLEU of a sample", "final evaluation"],
)
def test_a_component_that_ends_the_process_in_training_fails_its_trial(module, tmp_path, monkeypatch, when, keys, how):
    """Also where the dry run before the training has not found it."""
    path = module(ENDS)
    monkeypatch.setattr(train, "_cost", lambda run, prepared: Cost(1, 1.0))
    monkeypatch.setattr(train, "check_model", lambda *model: {})
    code, trial = tiny_trials.train(tmp_path / "runs", ends(when, how) | keys)
    assert code == 1 and trial.result() is None
    status = trial.status()
    assert status["state"] == "failed"
    assert status["why"].startswith(f"{path}, line {ENDS_LINE}: RuntimeError: ") and f"{how}(0)" in status["why"]
    assert f"error: {status['why']}" in trial.log.read_text()


@pytest.mark.parametrize("when", ["constructor", "training", "backward", "evaluation", "decoding"])
def test_train_tries_out_a_component_before_the_training(module, tmp_path, when):
    path = module(ENDS)
    with pytest.raises(InputError, match=f"stranger.Ends .*: must run, but fails at {path}, line {ENDS_LINE}: "):
        tiny_trials.train(tmp_path / "runs", ends(when, "SystemExit"))
    (folder,) = (tmp_path / "runs" / "trials").iterdir()
    assert Trial(folder).status()["state"] == "failed" and not (folder / "metrics.jsonl").exists()


def test_ctrl_c_is_no_failure_of_a_component(module, tmp_path):
    """It stops a command, whatever code of a component it comes upon; and in a program without one, as ever."""
    module("import time\nfrom pathlib import Path\n\nPath(__file__).with_name('reached').touch()\ntime.sleep(60)\n")
    words = [sys.executable, "-m", "transformer_pl.train", f"--runs={tmp_path / 'runs'}", "--model.ffn=stranger.Part"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for((tmp_path / "reached").exists)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=30)
    assert process.returncode == 130 and printed == "stopped by SIGINT; run the same command again to continue\n"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), component_code():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_that_a_component_ends_is_not_done(module):
    """Wherever it runs one: such as where it translates, or draws a picture of attention."""
    program = "import sys; from transformer_pl.command_line import run_command; run_command(lambda argv: sys.exit(0))"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 1 and "a component must raise errors only, but raised SystemExit(0)" in process.stderr
    asked = command("translate", "--help")
    assert asked.returncode == 0 and asked.stdout.startswith("usage: ") and asked.stderr == ""
