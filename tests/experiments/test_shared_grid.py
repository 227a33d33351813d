"""Two sweep commands share a grid, and one of them dies or stands still: each trial has one result all the same."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest
from experiments.test_launch import small_grid
from helpers import ROOT, descendants, wait_for

from transformer_pl.trials.trial import Trial

LEASE_S = 8
STEPS = {"optim.max_steps": 400, "trainer.val_every": 200}


def sweep(stack, grid, runs, log):
    words = [sys.executable, "-m", "transformer_pl.sweep", grid, "--runs", runs, "--parallel", "1"]
    environment = os.environ | {"TRANSFORMER_PL_LEASE_S": str(LEASE_S), "WANDB_MODE": "disabled"}
    file = stack.enter_context(log.open("w"))
    process = subprocess.Popen(list(map(str, words)), cwd=ROOT, env=environment, stdout=file, stderr=file)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def begun(runs):
    """The trials that have logged a step."""
    return [Trial(path.parent) for path in runs.glob("trials/*/metrics.jsonl") if path.stat().st_size]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGKILL], ids=["stands still", "is killed"])
def test_the_trial_of_a_command_that_gives_no_sign_of_life_is_taken_over(tmp_path, signum):
    grid, runs, logs = small_grid(tmp_path, STEPS), tmp_path / "r", [tmp_path / "one.txt", tmp_path / "two.txt"]
    with ExitStack() as stack:
        first = sweep(stack, grid, runs, logs[0])
        wait_for(lambda: begun(runs), 90)
        (trial,) = begun(runs)
        victims = [first.pid, *descendants(first.pid)]
        for pid in victims:
            stack.callback(kill, pid)
            os.kill(pid, signum)
        assert trial.result() is None
        second = sweep(stack, grid, runs, logs[1])
        assert second.wait(200) == 0, logs[1].read_text()
        printed = logs[1].read_text()
        results = {path: path.read_bytes() for path in runs.glob("trials/*/result.json")}
        assert len(results) == 2 and "by another command" not in printed
        if signum == signal.SIGSTOP:
            for pid in victims:
                os.kill(pid, signal.SIGCONT)
            assert first.wait(100) == 0, logs[0].read_text()
            printed = logs[0].read_text()
            assert "taken over by another command" in printed and printed.count("(by another command)") == 2
        else:
            first.wait(10)
    assert {path: path.read_bytes() for path in results} == results
    for path in results:
        assert not Trial(path.parent).needs_training() and Trial(path.parent).status()["state"] == "done"
