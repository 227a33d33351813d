"""Callbacks with `in_identity: false` and loggers: with them a training is the one without, or it fails."""

import json

import pytest
import tiny_trials
import torch

from tests.train import watchers
from transformer_pl.runtime.errors import InputError

pytestmark = pytest.mark.usefixtures("unrehearsed")
KEYS = {"optim.max_steps": 6, "trainer.val_every": 3, "trainer.log_every": 1, "model.p_drop": 0.1}
EVERY_DAY = ("the rate", "a weight", "data at a validation", "a number", "threads")  # the slow tests try all changes


def test_a_training_with_watchers_is_the_training_without(tmp_path):
    """Whatever they draw at random, and change of what they are given; also if it fails, and goes on."""
    names = [f"{watchers.__name__}.{name}" for name in ("SpoilsAll", "FailsOnce")]
    given = {"trainer.callbacks": json.dumps([{name: {"in_identity": False}} for name in names])}
    given |= {"trainer.loggers": f"{watchers.__name__}.SpoilsMetrics"}
    _, plain = tiny_trials.train(tmp_path / "plain", KEYS)
    codes, (_, watched) = zip(*(tiny_trials.train(tmp_path / "watched", KEYS | given) for _ in range(2)), strict=True)
    assert codes == (1, 0) and watchers.FailsOnce.loaded == [3]
    (weights, result), (found, of_watched) = ((trial.weights(), trial.result()) for trial in (plain, watched))
    assert of_watched.id == result.id and of_watched.metrics == result.metrics and of_watched.losses == result.losses
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize(
    "what", [what if what in EVERY_DAY else pytest.param(what, marks=pytest.mark.slow) for what in watchers.CHANGES]
)
def test_a_watcher_that_changes_the_training_fails_it_and_is_named_with_its_hook(tmp_path, what):
    watcher = {f"{watchers.__name__}.Changes": {"what": what, "in_identity": False}}
    with pytest.raises(InputError, match=f"Changes: .* {watchers.CHANGES[what][0]} "):
        tiny_trials.train(tmp_path, KEYS | {"trainer.callbacks": json.dumps([watcher])})
    (folder,) = (tmp_path / "trials").iterdir()
    assert not (folder / "result.json").exists()
    assert json.loads((folder / "status.json").read_text())["state"] == "failed"


def test_a_training_that_ended_early_though_all_callbacks_only_watch_has_no_result(tmp_path):
    watcher = {f"{watchers.__name__}.EndsItLater": {"in_identity": False}}
    with pytest.raises(InputError, match="in_identity"):
        tiny_trials.train(tmp_path, KEYS | {"optim.max_steps": 300, "trainer.callbacks": json.dumps([watcher])})
    (folder,) = (tmp_path / "trials").iterdir()
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize("in_identity", [False, True])
def test_a_callback_logs_nothing_under_the_names_of_the_training(tmp_path, in_identity):
    """Results have the losses of all validations."""
    callback = {f"{watchers.__name__}.LogsTheLoss": {"in_identity": in_identity}}
    with pytest.raises(InputError, match="val/loss"):
        tiny_trials.train(tmp_path, KEYS | {"trainer.callbacks": json.dumps([callback])})
    (folder,) = (tmp_path / "trials").iterdir()
    assert not (folder / "result.json").exists()
