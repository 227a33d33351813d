"""Two processes that train one trial, of which one or both are killed: the same command ends as if nothing had been."""

import os
import signal
from pathlib import Path

import pytest
import tiny_trials
from forked import command
from helpers import little_text, processes, wait_for

from tests.training.test_crashes import EPOCH, batches_of_an_epoch
from transformer_pl.runtime.crash import CRASH
from transformer_pl.trials.trial import Trial

KEYS = tiny_trials.TINY | {"optim.max_steps": 9, "trainer.val_every": 4, "trainer.log_every": 3, "decode.beam": 1}
KEYS |= {
    "trainer.checkpoint_minutes": 0,
    "data.batch_tokens": 192,
    "trainer.eval_tokens": 32,
    "trainer.devices": 2,
    "trainer.strategy": "ddp",
    "trainer.accelerator": "cpu",
}
AT = [  # the first is tried always
    "a step: after it@5",
    *(f"a step: after it@{step}" for step in (2, 3, 4, 6, 7, 8, 9)),  # an epoch ends at step 4, another at step 8
    "a checkpoint: before its digest@2",
    "a line of metrics: after it@3",
    "a validation: after a batch@2",
    "translations: after a batch@1",
    "a result: before it is written@1",
]


def train(runs: Path, **variables: str) -> int:
    """Train for as long as it goes; returns the exit code. No process of it is left then."""
    words = [f"--{key}={value}" for key, value in (KEYS | {"data.path": runs.parent / "text"}).items()]
    completed = command("train", f"--runs={runs}", *words, WANDB_MODE="disabled", **variables)
    wait_for(lambda: not any(f"--runs={runs} " in one.command for one in processes()))
    return completed.returncode


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "text").mkdir()
    little_text(folder / "text", 60, 8, 6)
    assert train(folder / "whole") == 0
    assert batches_of_an_epoch(folder / "whole" / "data", KEYS["data.batch_tokens"]) == EPOCH
    return folder


def the_trial(runs: Path) -> Trial:
    (path,) = (runs / "trials").iterdir()
    return Trial(path)


@pytest.mark.parametrize("at", [AT[0], *(pytest.param(one, marks=pytest.mark.exhaustive) for one in AT[1:])])
def test_two_processes_go_on_after_a_crash(folder, at):
    runs = folder / at.replace(" ", "-").replace(":", "")
    assert train(runs, **{CRASH: at}) == -signal.SIGKILL
    assert os.listdir(the_trial(runs).folder / "checkpoints")
    assert train(runs) == 0
    tiny_trials.same(the_trial(runs), tiny_trials.outcome(the_trial(folder / "whole")))
    assert the_trial(runs).environment()["command"].startswith(f"python -m transformer_pl.train --runs={runs} ")
