"""A trial that is killed or stopped at random moments and continued ends as one that nothing has happened to.

The processes are forks of this one, which has imported everything; but two ranks begin with a new Python.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_trials
from helpers import ROOT, descendants, little_text, processes, wait_for

from transformer_pl.trials.trial_folder import TrialFolder

KEYS = {
    "data.batch_tokens": 192,  # an epoch has four steps
    "optim.max_steps": 10,
    "trainer.val_every": 3,
    "trainer.eval_tokens": 32,  # a validation has several batches
    "trainer.checkpoint_minutes": 0,  # at every step
    "decode.beam": 1,
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "averaged": {"model.p_drop": 0.3, "decode.average": 2, "trainer.val_sample": 2}
    | {"decode.select": "best", "optim.lr_scale": 30},  # the loss rises, so that the best validation is not the last
    "accumulated, with checkpoints at validations alone": {"trainer.accumulate": 2, "trainer.checkpoint_minutes": 10},
}
TWO_RANKS = {"optim.max_steps": 6, "trainer.devices": 2, "trainer.strategy": "ddp", "trainer.accelerator": "cpu"}
LAST = ("hyp.val.txt", "hyp.test.txt", "scores.test.jsonl", "result.json")  # what comes after the last step


def start(runs: Path, keys: dict[str, Any]) -> int:
    """Start to train in a process of its own; returns its number."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        words = [f"--runs={runs}", *(f"--{key}={value}" for key, value in (tiny_trials.TINY | keys).items())]
        with (runs.parent / "output.txt").open("ab") as output:
            for number in (1, 2):
                os.dup2(output.fileno(), number)
            if "trainer.devices" in keys:
                command = [sys.executable, "-m", "transformer_pl.train", *words]
                os.chdir(ROOT)
                os.execve(sys.executable, command, os.environ | {"WANDB_MODE": "disabled"})
            code, *printed = tiny_trials.ended(tiny_trials.main, *words)
            output.write("".join(printed).encode())
    finally:
        os._exit(code)


def train(runs: Path, keys: dict[str, Any]) -> TrialFolder:
    """Train to the end."""
    code = os.waitstatus_to_exitcode(os.waitpid(start(runs, keys), 0)[1])
    assert code == 0, (runs.parent / "output.txt").read_text()
    (folder,) = (runs / "trials").iterdir()
    return TrialFolder(folder)


def progress(runs: Path) -> int:
    """How far the only trial of a runs folder has come: the lines of its metrics, and the files that come last."""
    return sum(
        (path.read_bytes().count(b"\n") if path.name == "metrics.jsonl" else path.name in LAST)
        for path in runs.glob("trials/*/*")
        if path.is_file()
    )


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def killed(pid: int, runs: Path, target: int, chance: random.Random, signum: int) -> int:
    """Send a process a signal shortly after this much progress; SIGKILL may be for one that it has started.

    Returns its exit code.
    """
    wait_for(lambda: has_ended(pid) or progress(runs) >= target, 300, every=0.002)
    time.sleep(chance.uniform(0, 0.03))
    os.kill(chance.choice([pid, *descendants(pid)]) if signum == signal.SIGKILL else pid, signum)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Whole:
    """A trial that nothing has happened to."""

    def __init__(self, folder: Path, keys: dict[str, Any]):
        self.keys = KEYS | keys | {"data.path": little_text(folder)}
        self.outcome = tiny_trials.outcome(train(folder / "runs", self.keys))
        self.progress = progress(folder / "runs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The undisturbed trial of a scenario, trained once."""
    made: dict[str, Whole] = {}

    def make(scenario: str) -> Whole:
        if scenario not in made:
            keys = TWO_RANKS if scenario == "two ranks" else SCENARIOS[scenario]
            made[scenario] = Whole(tmp_path_factory.mktemp("whole"), keys)
        return made[scenario]

    return make


def kill_and_continue(whole: Whole, runs: Path, kills: int, seed: int, signum: int = signal.SIGKILL) -> None:
    """Send a trial a signal this often, continue it to its end, and compare it with the undisturbed one."""
    chance, codes = random.Random(seed), list[int]()
    for _ in range(kills):
        target = (
            chance.randrange(whole.progress if codes else whole.progress // 2) or 1
        )  # the first is not near the end
        codes.append(killed(start(runs, whole.keys), runs, target, chance, signum))
        wait_for(lambda: not any(f"--runs={runs} " in one.command for one in processes()))
    assert codes[0] != 0 if signum == signal.SIGKILL else codes[0] == 128 + signum
    trial = train(runs, whole.keys)
    tiny_trials.same(trial, whole.outcome)


SOFTLY = [pytest.param(signum, marks=pytest.mark.slow) for signum in (signal.SIGTERM, signal.SIGHUP)]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, *SOFTLY])
def test_a_trial_that_is_killed_or_stopped_three_times(whole, tmp_path, signum):
    kill_and_continue(whole("averaged"), tmp_path / "runs", kills=3, seed=1, signum=signum)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_trial_that_is_killed_eight_times(whole, tmp_path, scenario, seed):
    kill_and_continue(whole(scenario), tmp_path / "runs", kills=8, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_trial_of_two_processes_of_which_one_is_killed(whole, tmp_path, seed):
    kill_and_continue(whole("two ranks"), tmp_path / "runs", kills=2, seed=seed)
