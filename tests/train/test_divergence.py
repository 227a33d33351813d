"""A training whose numbers are no longer finite: it ends there, says at which step, and is not tried again."""

import json
import math
import signal

import numpy as np
import pytest
import tiny_trials
import torch
from helpers import a_result
from lightning import Callback
from small_trainings import Signals, config, fit

from transformer_pl.train.checkpoint import Checkpoints
from transformer_pl.train.divergence import Diverged
from transformer_pl.train.evaluate import evaluate_trial
from transformer_pl.train.logger import TrialLogger
from transformer_pl.train.module import TransformerModule
from transformer_pl.trials.metrics import perplexity
from transformer_pl.trials.trial_folder import TrialFolder


class Spoils(Callback):
    """Makes a weight infinite before step `step`, whose loss is the first that is not finite; or `after` it."""

    def __init__(self, step, after=False):
        self.step, self.after = step, after

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if not self.after and trainer.global_step == self.step - 1:
            self.spoil(module)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.after and trainer.global_step == self.step:
            self.spoil(module)

    def spoil(self, module):
        with torch.no_grad():
            next(module.parameters()).fill_(math.inf)


def weights_on_disk(folder):
    """By file, the weights of a checkpoint or of a validation that was kept to be averaged."""
    states = {path.name: torch.load(path)["state_dict"] for path in folder.glob("*.ckpt")}
    return states | {path.name: torch.load(path) for path in folder.glob("weights.*.pt")}


@pytest.mark.parametrize(("step", "log_every"), [(1, 1), (4, 100), (7, 5), (12, 1), (12, 100), (14, 5)])
def test_the_first_step_that_is_not_finite_is_named_and_nothing_after_it_is_kept(prepared, tmp_path, step, log_every):
    """Validations are at steps 6 and 12, and the last step is 14, whenever a line is logged."""
    settings = config(optim__max_steps=14, trainer__log_every=log_every, trainer__val_sample=4, decode__average=2)
    with pytest.raises(Diverged) as caught:
        fit(prepared, settings, Spoils(step), Checkpoints(tmp_path, 2))
    assert caught.value.step == step
    kept = weights_on_disk(tmp_path)
    assert ("last.ckpt" in kept) == (step > 6)
    assert all(value.isfinite().all() for state in kept.values() for value in state.values())


@pytest.mark.parametrize("step", [5, 6])
def test_weights_that_are_not_finite_are_not_saved_by_who_is_asked_to_stop(prepared, tmp_path, step):
    """At step 6 a validation comes first."""
    callbacks = [Spoils(step, after=True), Signals(signal.SIGTERM, step), Checkpoints(tmp_path, 2)]
    with pytest.raises(Diverged) as caught:
        fit(prepared, config(decode__average=2), *callbacks)
    assert caught.value.step == step and not weights_on_disk(tmp_path)


LATE = """
from transformer_pl.model import SinusoidalPosition

class Late(SinusoidalPosition):
    def forward(self, x, start=0):
        return super().forward(x, start) * (float('inf') if start else 1)
"""


def test_what_cannot_be_decoded_with_has_diverged(prepared, tmp_path, module):
    """Of a sample in the course of training, and at the end."""
    module(LATE)
    settings, trial = config(model__position="stranger.Late", trainer__val_sample=4), TrialFolder(tmp_path)
    with pytest.raises(Diverged) as caught:
        fit(prepared, settings, Checkpoints(tmp_path / "checkpoints", 1))
    assert caught.value.step == 6 and not weights_on_disk(tmp_path / "checkpoints")
    weights = TransformerModule(settings, len(prepared.tokenizer)).model.state_dict()
    for factor in (1, math.nan):
        trial.save_weights({name: value * factor for name, value in weights.items()})
        with pytest.raises(Diverged):
            evaluate_trial(settings, trial, prepared, settings.steps)


class Shouts(Callback):
    """Weights so large that a loss is thousands of nats, and finite."""

    def on_validation_start(self, trainer, module):
        with torch.no_grad():
            module.model.embedding.weight.mul_(1e4)


def test_an_infinite_perplexity_is_of_a_trial_that_goes_on(prepared, tmp_path):
    """In JSON, which has no infinity, it is null."""
    assert perplexity(2.5) == math.exp(2.5) and perplexity(709.0) < math.inf and perplexity(710.0) == math.inf
    _, lines = fit(prepared, config(optim__max_steps=6), Shouts())
    (line,) = [line for _, line in lines if "val/ppl" in line]
    assert 710 < line["val/loss"] < math.inf and line["val/ppl"] == math.inf
    trial, file = TrialFolder(tmp_path), TrialLogger(tmp_path, 6)
    file.start(0)
    file.log_metrics(line, 6)
    file.close()
    trial.finish(a_result(metrics=line | {"val/bleu": 0.0}))
    written = [json.loads((tmp_path / name).read_text()) for name in ("metrics.jsonl", "result.json")]
    assert [one["val/ppl"] for one in (written[0], written[1]["metrics"])] == [None, None]
    for one in (trial.metrics()[0], trial.result().metrics):
        assert one["val/ppl"] == math.inf and one["val/loss"] == line["val/loss"]


def test_a_trial_that_diverged_is_trained_again_only_where_that_is_asked_for(tmp_path, capsys):
    keys = {"optim.lr_scale": 1e30, "optim.max_steps": 8}
    code, trial = tiny_trials.train(tmp_path / "runs", keys)
    step, began = trial.diverged_at(), trial.status()["time"]
    assert code == 1 and 1 < step <= 8 and trial.result() is None and not trial.needs_training()
    assert [line["step"] for line in trial.metrics() if "train/loss" in line] == list(range(1, step))
    assert np.isfinite([line["train/loss"] for line in trial.metrics() if "train/loss" in line]).all()
    capsys.readouterr()
    assert tiny_trials.train(tmp_path / "runs", keys)[0] == 1
    assert f"step {step}" in capsys.readouterr().out and trial.status()["time"] == began
    assert tiny_trials.train(tmp_path / "runs", keys, "--rerun")[0] == 1
    assert trial.diverged_at() == step and trial.status()["time"] > began
