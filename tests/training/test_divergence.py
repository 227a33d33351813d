"""A training whose numbers are no longer finite: it ends there, says at which step, and is not tried again."""

import json
import math
import signal

import numpy as np
import pytest
import torch
import yaml
from forked import command
from helpers import ROOT, a_result, read_back, shared_text
from lightning import Callback
from small_trainings import Signals, config, fit
from transformer_pl.training.bleu_sample import BleuSample

from transformer_pl.component_sources import keep_sources
from transformer_pl.evaluation.evaluate import Likelihood, evaluate_trial
from transformer_pl.training.checkpoint import Checkpoints
from transformer_pl.training.logger import MetricsFile
from transformer_pl.training.module import TransformerModule
from transformer_pl.trials.cleaning import find_removable
from transformer_pl.trials.divergence import Diverged
from transformer_pl.trials.metrics import perplexity
from transformer_pl.trials.runs_folder import finished_results
from transformer_pl.trials.trial import Trial


class Spoils(Callback):
    """Makes a weight infinite: the loss of step `step` is the first that is not finite."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.step - 1:
            self.spoil(module)

    def spoil(self, module):
        with torch.no_grad():
            next(module.parameters()).fill_(math.inf)


class SpoilsAfter(Spoils):
    """The loss of step `step` is still finite, and the weights after it are not."""

    on_train_batch_start = Callback.on_train_batch_start

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step:
            self.spoil(module)


def weights_on_disk(folder):
    """By file, the weights of a checkpoint or of a validation that was kept to be averaged."""
    states = {path.name: torch.load(path)["state_dict"] for path in folder.glob("*.ckpt")}
    return states | {path.name: torch.load(path) for path in folder.glob("weights.*.pt")}


@pytest.mark.parametrize("log_every", [1, 5, 100])
@pytest.mark.parametrize("step", [1, 4, 7, 12, 14])
def test_the_first_step_that_is_not_finite_is_named_and_nothing_after_it_is_kept(prepared, tmp_path, step, log_every):
    """Validations are at steps 6 and 12, and the last step is 14, whenever a line is logged."""
    settings = config(optim__max_steps=14, trainer__log_every=log_every, trainer__bleu_sample=4, decode__average=2)
    callbacks = [Spoils(step), BleuSample(settings, prepared), Checkpoints(tmp_path, 2)]
    with pytest.raises(Diverged) as caught:
        fit(prepared, settings, *callbacks)
    assert caught.value.step == step
    kept = weights_on_disk(tmp_path)
    assert ("last.ckpt" in kept) == (step > 6)
    assert all(value.isfinite().all() for state in kept.values() for value in state.values())


@pytest.mark.parametrize("step", [5, 6])
def test_weights_that_are_not_finite_are_not_saved_by_who_is_asked_to_stop(prepared, tmp_path, step):
    """At step 6 a validation comes first."""
    checkpoints, signals = Checkpoints(tmp_path, 2), Signals(signal.SIGTERM, step)
    with pytest.raises(Diverged) as caught:
        fit(prepared, config(decode__average=2), SpoilsAfter(step), signals, checkpoints)
    assert caught.value.step == step and not weights_on_disk(tmp_path)


def test_what_goes_on_logs_finite_losses_to_the_step_before(prepared):
    """A learning rate as large as this is too much for anyone."""
    settings, lines = config(optim__lr_scale=1e30, trainer__log_every=1), []
    with pytest.raises(Diverged) as caught:
        fit(prepared, settings, lines=lines)
    assert 1 < caught.value.step < 12
    assert [step for step, line in lines if "train/loss" in line] == list(range(1, caught.value.step))
    assert all(math.isfinite(value) for _, line in lines for value in line.values())


class SpoilsValidated(Spoils):
    """After the validation of step `step`, and before a sample is translated."""

    on_train_batch_start = Callback.on_train_batch_start

    def on_validation_end(self, trainer, module):
        if trainer.global_step == self.step:
            self.spoil(module)


def test_what_cannot_be_decoded_with_has_diverged(prepared, tmp_path, monkeypatch):
    """Of a sample in the course of training, and at the end."""
    settings, checkpoints = config(trainer__bleu_sample=4), Checkpoints(tmp_path / "checkpoints", 1)
    with pytest.raises(Diverged) as caught:
        fit(prepared, settings, SpoilsValidated(6), BleuSample(settings, prepared), checkpoints)
    assert caught.value.step == 6 and not weights_on_disk(checkpoints.folder)

    (tmp_path / "late.py").write_text(
        "from transformer_pl.model import SinusoidalPosition\n\n\n"
        "class Late(SinusoidalPosition):\n"
        "    def forward(self, x, start=0):\n"
        "        return super().forward(x, start) * (float('inf') if start else 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings, trial = config(model__position="late.Late"), Trial(tmp_path)
    keep_sources(settings.model, trial.sources)
    trial.save_weights(TransformerModule(settings, len(prepared.tokenizer)).model.state_dict())
    with pytest.raises(Diverged):
        evaluate_trial(settings, trial, prepared)
    with torch.no_grad():
        trial.save_weights({name: value * math.nan for name, value in torch.load(tmp_path / "weights.pt").items()})
    with pytest.raises(Diverged):
        evaluate_trial(settings, trial, prepared)


# ---------------------------------------------------------------------------------------------------------------------
# A finite loss whose perplexity is infinite


class Shouts(Callback):
    """Weights so large that a loss is thousands of nats, and finite."""

    def on_validation_start(self, trainer, module):
        with torch.no_grad():
            module.model.embedding.weight.mul_(1e4)


def strictly(text):
    """What JSON says, in which there is no infinity."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(name))


def test_an_infinite_perplexity_is_of_a_trial_that_goes_on(prepared, tmp_path):
    assert perplexity(2.5) == math.exp(2.5) and perplexity(709.0) < math.inf and perplexity(710.0) == math.inf
    assert Likelihood(np.array([1e5]), np.array([10])).perplexity == math.inf
    _, lines = fit(prepared, config(optim__max_steps=6), Shouts())
    (line,) = [line for _, line in lines if "val/ppl" in line]
    assert 710 < line["val/loss"] < math.inf and line["val/ppl"] == math.inf

    trial = Trial(tmp_path / "runs" / "trials" / "one")
    trial.folder.mkdir(parents=True)
    file = MetricsFile(trial.folder, 6)
    file.start(0)
    file.log_metrics(line, 6)
    file.close()
    trial.finish(a_result(metrics=line | {"val/bleu": 0.0}))
    written = [strictly((trial.folder / name).read_text()) for name in ("metrics.jsonl", "result.json")]
    assert [completed["val/ppl"] for completed in (written[0], written[1]["metrics"])] == [None, None]
    for completed in (trial.metrics()[0], trial.result()["metrics"], finished_results(tmp_path / "runs")[0]["metrics"]):
        assert completed["val/ppl"] == math.inf and completed["val/loss"] == line["val/loss"]


# ---------------------------------------------------------------------------------------------------------------------
# The commands


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep of which one of two rows diverges, and what the command said."""
    folder = tmp_path_factory.mktemp("diverging")
    sweep = yaml.safe_load((ROOT / "sweeps" / "smoke.yaml").read_text())
    sweep["parameters"] |= {"data.path": {"value": str(shared_text())}, "data.vocab_size": {"value": 400}}
    sweep["parameters"]["variant"] = {"values": ["base", "optim.lr_scale=1e30"]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    return folder, command("sweep", folder / "sweep.yaml", "--runs", folder / "runs")


def diverged_trial(folder):
    trials = [Trial(path) for path in (folder / "runs" / "trials").iterdir()]
    (diverged,) = [trial for trial in trials if trial.diverged_at() is not None]
    return diverged


def test_a_row_that_diverges_is_named_and_the_others_go_on(swept):
    folder, printed = swept
    trial = diverged_trial(folder)
    step = trial.diverged_at()
    assert printed.returncode == 1 and 1 <= step <= 20
    assert "lr_scale=1e+30 s1" in printed.stdout and f"at step {step}" in printed.stdout
    assert str(trial.log) in printed.stdout and "failed" not in printed.stdout
    assert len(finished_results(folder / "runs")) == 1 and trial.result() is None
    assert strictly((trial.folder / "status.json").read_text())["state"] == "diverged"
    for line in (trial.folder / "metrics.jsonl").read_text().splitlines():
        assert strictly(line)["step"] < step


def test_a_trial_that_diverged_is_a_result(swept):
    """It is listed as one, and it is no waste."""
    folder, _ = swept
    trial = diverged_trial(folder)
    assert find_removable(folder / "runs") == []
    listed = command("sweep", "--list", "--runs", folder / "runs", COLUMNS="200").stdout.splitlines()
    assert any("1 done, 1 diverged" in line for line in listed if line.startswith("smoke@demo"))
    assert any(" diverged " in line for line in listed if line.startswith(trial.folder.name))


def test_what_diverged_is_not_trained_again_unless_that_is_asked_for(swept):
    folder, _ = swept
    trial = diverged_trial(folder)
    step, log = trial.diverged_at(), trial.log.read_text()
    again = command("sweep", folder / "sweep.yaml", "--runs", folder / "runs")
    assert again.returncode == 1 and f"at step {step}" in again.stdout
    assert trial.log.read_text() == log

    fixed = yaml.safe_load((folder / "sweep.yaml").read_text())["parameters"]
    keys = [f"--{key}={completed['value']}" for key, completed in fixed.items() if "value" in completed]
    words = ["train", *keys, "--optim.lr_scale=1e30", f"--runs={folder / 'runs'}"]
    agent = {"WANDB_SWEEP_ID": "abc12345", "WANDB_RUN_ID": "run4agent", "WANDB_DIR": str(folder)}
    asked = command(*words, **agent)
    assert asked.returncode == 1 and f"at step {step}" in asked.stdout, asked.stderr
    (run,) = trial.folder.glob("wandb/offline-run-*-run4agent")  # which the agent gave it
    assert json.loads(read_back(run, "--summary"))["summary"]["diverged_at_step"] == step

    before = trial.status()["time"]
    anew = command(*words, "--rerun")
    assert anew.returncode == 1 and trial.diverged_at() == step and trial.status()["time"] > before
