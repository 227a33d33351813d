"""A trial whose process dies at any of its writes goes on, and ends as one that was never disturbed.

Every process that dies here is a fork of this one, which has imported everything: so all crash points can be tried.
"""

import ast
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_trials
import torch
from helpers import ROOT, little_text

from transformer_pl.data.batches import token_batches
from transformer_pl.data.prepare import prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.levels import Level, resolve, scale_level
from transformer_pl.runtime import crash
from transformer_pl.runtime.crash import CRASH
from transformer_pl.train import main
from transformer_pl.training import checkpoint
from transformer_pl.trials.trial import Trial

EPOCH = 4  # batches of 60 sentences
KEYS = {
    "data.batch_tokens": 192,
    "optim.max_steps": 8,
    "trainer.val_every": 3,
    "trainer.eval_tokens": 32,  # a validation has several batches
    "trainer.checkpoint_minutes": 0,  # at every step
    "trainer.log_every": 2,
    "decode.beam": 1,
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {"model.p_drop": 0.3},
    "accumulated": {"trainer.accumulate": 2, "optim.max_steps": 5},
    "averaged": {"decode.average": 2, "trainer.bleu_sample": 2, "optim.max_steps": 7},
    "at validations alone": {"trainer.checkpoint_minutes": 10},
}


def points() -> set[str]:
    """The names of all crash points, from the source."""
    calls = (
        node
        for path in (ROOT / "transformer_pl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "crash_point"
    )
    return {ast.literal_eval(call.args[0]) for call in calls}


def forked(runs: Path, keys: dict[str, Any], variables: Mapping[str, str]) -> int:
    """Train in a fork of this process, with environment variables; returns its exit code, negative for a signal."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.environ.update(variables)
        crash.PASSED.clear()
        with (runs.parent / "output.txt").open("ab") as output:
            for number in (1, 2):
                os.dup2(output.fileno(), number)
        with tiny_trials.in_a_command():
            code = main([f"--runs={runs}", *(f"--{key}={value}" for key, value in (tiny_trials.TINY | keys).items())])
    finally:
        os._exit(code)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return little_text(tmp_path_factory.mktemp("text"), 60, 8, 6)


class Whole:
    """A trial that was not disturbed: its outcome, and how often each point was passed."""

    def __init__(self, folder: Path, keys: dict[str, Any]):
        torch.set_num_threads(1)
        crash.PASSED.clear()
        self.keys = KEYS | keys
        (folder / "runs").mkdir()
        keys = tiny_trials.TINY | self.keys | {"data.path": str(self.keys["data.path"])}
        prepare(resolve([scale_level("demo"), Level("tiny", keys)]).data, folder / "runs")
        of_the_text = {name: times for name, times in crash.PASSED.items() if name.startswith("a text")}
        crash.PASSED.clear()  # trials that crash at the other points find their text prepared
        code, trial = tiny_trials.train(folder / "runs", self.keys)
        assert code == 0
        self.data, self.passed = folder / "runs" / "data", of_the_text | crash.PASSED
        self.outcome = tiny_trials.outcome(trial)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """The undisturbed trial of a scenario, trained once."""
    made: dict[str, Whole] = {}

    def make(scenario: str) -> Whole:
        if scenario not in made:
            made[scenario] = Whole(tmp_path_factory.mktemp("whole"), SCENARIOS[scenario] | {"data.path": text})
        return made[scenario]

    return make


def crash_and_go_on(expected: Whole, folder: Path, *crashes: str) -> list[dict[str, Any]]:
    """Train with these crashes, one after the other, then to the end. Returns the metrics that the last crash left."""
    runs = folder / "runs"
    runs.mkdir(parents=True)
    if not crashes[0].startswith("a text"):
        (runs / "data").symlink_to(expected.data)
    for name in crashes:
        code = forked(runs, expected.keys, {CRASH: name})
        assert code == -signal.SIGKILL, (name, code, (folder / "output.txt").read_text())
    left = [line for trial in runs.glob("trials/*") for line in Trial(trial).metrics()]
    code, trial = tiny_trials.train(runs, expected.keys)
    assert code == 0
    tiny_trials.same(trial, expected.outcome)
    return left


SHARED = "shared weights: before their link"  # in a trial that takes the weights of another


@pytest.mark.parametrize("name", sorted(points() - {SHARED}))
def test_a_crash_in_the_middle(whole, tmp_path, name):
    """At every point; one that this trial does not pass needs a scenario, or a test of its own."""
    expected = whole("plain")
    crash_and_go_on(expected, tmp_path, f"{name}@{expected.passed[name] // 2 + 1}")


@pytest.mark.parametrize(
    ("name", "logged"), [("a validation: after a batch", set()), ("translations: after a batch", {"val/loss"})]
)
def test_a_crash_within_a_validation(whole, tmp_path, name, logged):
    """After its first batch, and while the sentences of `trainer.bleu_sample` are translated."""
    expected = whole("averaged")
    assert expected.passed["a validation: after a batch"] >= 4  # two batches of two validations
    left = crash_and_go_on(expected, tmp_path, f"{name}@1")
    assert {"val/loss", "val/bleu_sample"} & {name for line in left for name in line} == logged


def test_a_crash_while_weights_are_shared(whole, tmp_path):
    first, runs = whole("plain"), tmp_path / "runs"
    shutil.copytree(first.data.parent, runs)
    other = first.keys | {"decode.alpha": 3}
    for passing in (1, 2):  # before the weights, before the metrics
        assert forked(runs, other, {CRASH: f"{SHARED}@{passing}"}) == -signal.SIGKILL
    assert forked(runs, other, {}) == 0
    one, two = (Trial(path) for path in sorted((runs / "trials").iterdir()))
    assert one.folder.joinpath("weights.pt").samefile(two.folder / "weights.pt")
    assert two.result()["metrics"]["val/ppl"] == one.result()["metrics"]["val/ppl"]
    assert all(trial.intact("metrics.jsonl") for trial in (one, two))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(points() - {SHARED}))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_crash_each_time_that_a_point_is_passed(whole, tmp_path, scenario, name):
    expected = whole(scenario)
    for passing in range(1, expected.passed[name] + 1):
        crash_and_go_on(expected, tmp_path / str(passing), f"{name}@{passing}")


EVERY = [(10, [3, 6, 7, 10, 12]), (4, [*range(1, 13)]), (1000, [7, 12])]


@pytest.mark.parametrize(("minutes", "steps"), EVERY)
def test_checkpoints_are_so_many_minutes_apart_whatever_the_validations(whole, tmp_path, monkeypatch, minutes, steps):
    """Where a step takes four minutes, by a clock of the test's own. A validation comes after step 7."""
    passed: list[str] = []
    clock = SimpleNamespace(monotonic=lambda: 240 * passed.count("a step: after it"), perf_counter=time.perf_counter)
    monkeypatch.setattr(checkpoint, "time", clock)
    monkeypatch.setattr(checkpoint, "crash_point", passed.append)
    keys = whole("plain").keys | {"optim.max_steps": 12, "trainer.val_every": 7, "trainer.checkpoint_minutes": minutes}
    assert tiny_trials.train(tmp_path / "runs", keys)[0] == 0
    saved = [i for i, name in enumerate(passed) if name == "a checkpoint: before its digest"]
    assert [passed[:i].count("a step: after it") for i in saved] == steps


def batches_of_an_epoch(data: Path, batch_tokens: int) -> int:
    """Of the only text in this folder."""
    (meta,) = data.glob("*/meta.json")
    train = Prepared(meta.parent).split("train")
    lengths = train.source.lengths_with_special, train.target.lengths_with_special
    return len(token_batches(*lengths, batch_tokens, 256, seed=1, epoch=0))


@pytest.mark.parametrize("scenario", ["plain", "accumulated"])
def test_crashes_around_the_end_of_an_epoch(whole, tmp_path, scenario):
    """In its last step; then in the first of the next, so that the training goes on exactly from the end."""
    expected = whole(scenario)
    assert batches_of_an_epoch(expected.data, expected.keys["data.batch_tokens"]) == EPOCH
    crash_and_go_on(expected, tmp_path, f"a step: after it@{EPOCH}", "a step: after it@2")


def test_crashes_one_after_the_other(whole, tmp_path):
    """Twice within the second epoch, then in the final evaluation, then while the result is written."""
    steps = [f"a step: after it@{EPOCH + 2}", "a step: after it@2"]
    rest = ["translations: after a batch@1", "a result: before it is written@1"]
    crash_and_go_on(whole("plain"), tmp_path, *steps, *rest)
