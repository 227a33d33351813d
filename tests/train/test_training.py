"""How a trial is trained: the laws of Section 5, accumulation, validation."""

import json
import os
import signal
import sys
import time
from importlib.metadata import PackageNotFoundError

import lightning as L
import numpy as np
import pytest
import sacrebleu
import tiny_trials
import torch
from helpers import a_trial
from lightning.pytorch.utilities import rank_zero_only
from rounds import torch_loss
from small_trainings import Signals, config, fit

from transformer_pl.config import EOS, Decode
from transformer_pl.data.batches import TrainStream, collate, token_batches
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.runtime import environment
from transformer_pl.runtime.signals import Stopped
from transformer_pl.train.checkpoint import Checkpoints
from transformer_pl.train.evaluate import reference_likelihood, translate
from transformer_pl.train.fit import use_threads
from transformer_pl.train.module import TransformerModule, seed_of_rank


class ByHand:
    """A training without dropout, by the equations of Section 5, and of Adam (Kingma and Ba 2015, algorithm 1) on the
    gradients of whole batches, which are clipped by their norm."""

    def __init__(self, prepared, keys):
        L.seed_everything(keys.seed, verbose=False)
        model, split = TransformerModule(keys, len(prepared.tokenizer)).model, prepared.split("train")
        lengths = split.source.lengths_with_special, split.target.lengths_with_special
        batches = token_batches(*lengths, keys.data.batch_tokens, keys.data.max_length, keys.seed, epoch=0)
        self.weights, optim = list(model.parameters()), keys.optim
        self.before = [weight.detach().clone() for weight in self.weights]
        # by step: the norm of the gradient; the loss and the tokens of the batch; the rate
        self.norms, self.nats, self.tokens, self.rates = [], [], [], []
        means, squares = ([torch.zeros_like(weight) for weight in self.weights] for _ in range(2))
        for step, indexes in enumerate(batches[: keys.steps], start=1):
            batch = collate(split, indexes)
            nats = torch_loss(model(batch.source, batch.target_in), batch.target_out, optim.eps_ls)
            self.nats.append(nats.item())
            self.tokens.append(batch.target_out.count_nonzero().item())
            gradients = torch.autograd.grad(nats / self.tokens[-1], self.weights)
            self.norms.append(sum(one.double().square().sum() for one in gradients).sqrt().item())
            rate = optim.lr_scale * keys.model.d_model**-0.5 * min(step**-0.5, step * optim.warmup**-1.5)
            self.rates.append(rate)
            with torch.no_grad():
                for weight, mean, square, gradient in zip(self.weights, means, squares, gradients, strict=True):
                    clipped = gradient * min(1, optim.clip / self.norms[-1])
                    mean.lerp_(clipped, 1 - optim.beta1)
                    square.lerp_(clipped**2, 1 - optim.beta2)
                    root = (square / (1 - optim.beta2**step)).sqrt()
                    weight -= rate * mean / (1 - optim.beta1**step) / (root + optim.eps)


@pytest.mark.parametrize("accumulate", [1, 3, 20])
def test_a_training_follows_the_equations_of_adam_on_clipped_gradients(prepared, accumulate):
    """With so great an eps the size of a gradient counts, too. Some of them are clipped, others are not. A line has the
    loss of the steps since the one before. 20 parts are more than some batches have sentences."""
    adam = {"optim__eps": 0.01, "optim__beta1": 0.7, "optim__beta2": 0.9, "optim__eps_ls": 0.2, "optim__lr_scale": 0.3}
    keys = config(model__p_drop=0.0, optim__clip=1.3, trainer__accumulate=accumulate, trainer__log_every=5, **adam)
    expected = ByHand(prepared, keys)
    assert min(expected.norms) < keys.optim.clip < max(expected.norms)
    module, lines = fit(prepared, keys)
    trained = zip(module.model.named_parameters(), expected.before, expected.weights, strict=True)
    for (name, weight), old, new in trained:
        assert (weight - new).norm() < 1e-4 * (new - old).norm(), name
    losses = {step: line["train/loss"] for step, line in lines if "train/loss" in line}
    rates = {step: line["lr"] for step, line in lines if "lr" in line}
    assert rates == pytest.approx({step: expected.rates[step - 1] for step in rates}) and {*rates} >= {5, 10}
    nats, tokens = expected.nats, expected.tokens
    assert losses == pytest.approx({at: sum(nats[at - 5 : at]) / sum(tokens[at - 5 : at]) for at in (5, 10)}, rel=1e-5)


class Steep(torch.nn.Module):
    """A loss with a weight of its own, whose gradient is large."""

    def __init__(self, config, optim):
        super().__init__()
        self.height = torch.nn.Parameter(torch.zeros(()))

    def forward(self, logits, target):
        return torch_loss(logits, target, 0.0) + 100 * self.height * target.count_nonzero()


def test_no_step_is_longer_than_the_rate_times_the_clip(prepared):
    """By plain gradient descent, with the weights of a loss among those that are trained."""
    descent = {"optim__optimizer": "torch.optim.SGD", "optim__clip": 0.5, "trainer__log_every": 1}
    keys = config(optim__loss=f"{__name__}.Steep", **descent)
    module, lines = fit(prepared, keys)
    rates = sum(line["lr"] for _, line in lines if "lr" in line)
    assert 0 < abs(module.loss.height.item()) <= 0.5 * rates * (1 + 1e-5)


class Clock(L.Callback):
    """The clock of the process: a step takes a second, and a validation 100."""

    now = 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.now += 1

    def on_validation_start(self, trainer, module):
        self.now += 100


def test_the_rate_of_a_line_is_of_its_own_steps_without_validations(prepared, tmp_path, monkeypatch):
    """Also of a training that was stopped between two lines, and continued."""
    keys, clock, lines = config(trainer__log_every=4, trainer__val_every=3), Clock(), []
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    with pytest.raises(Stopped):
        fit(prepared, keys, clock, Signals(signal.SIGTERM, 7), Checkpoints(tmp_path), lines=lines)
    clock.now += 1000
    fit(prepared, keys, clock, Checkpoints(tmp_path), checkpoint=tmp_path / "last.ckpt", lines=lines)
    rates = {step: line["tokens_per_s"] for step, line in lines if "tokens_per_s" in line}
    tokens = [batch.tokens for batch in TrainStream(prepared.split("train"), prepared.tokenizer, keys)]
    assert rates == pytest.approx({step: sum(tokens[step - 4 : step]) / 4 for step in (4, 8, 12)})


def test_a_duration_is_a_number_of_steps(prepared):
    """Two configs that are one trial by their identity are trained alike: a schedule ends with either."""
    linear = {"optim__schedule": "ablations.schedules.Linear", "trainer__log_every": 1}
    written = fit(prepared, config(optim__max_steps=4, optim__duration=3, **linear))
    equal = fit(prepared, config(optim__max_steps=12, **linear))
    rates, expected = ([line["lr"] for _, line in lines if "lr" in line] for _, lines in (written, equal))
    assert rates == expected and len(rates) == 12


def test_no_two_pairs_of_seed_and_rank_draw_the_same_dropout():
    drawn = {(seed, rank): seed_of_rank(seed, rank) for seed in range(20) for rank in range(20)}
    assert len(set(drawn.values())) == len(drawn) and all(drawn[seed, 0] == seed for seed in range(20))


def test_perplexity_is_of_every_piece_and_eos_and_of_nothing_else(prepared):
    module = TransformerModule(config(), len(prepared.tokenizer))
    split = prepared.split("val")
    found = reference_likelihood(module.model, split, tokens=64)
    for i in (0, 7, 29):  # one sentence at a time: no padding at all
        batch = collate(split, np.array([i]))
        with torch.no_grad():
            logprob = module.model.eval()(batch.source, batch.target_in).log_softmax(-1)[0]
        assert len(batch.target_out[0]) == found.tokens[i] == len(split.target[i]) + 1
        expected = -logprob[range(int(found.tokens[i])), batch.target_out[0]].sum().item()
        assert found.nll[i] == pytest.approx(expected, rel=1e-4)
    assert found.loss == pytest.approx(found.nll.sum() / found.tokens.sum())


LANGUAGE_MODEL = {"data.task": "transformer_pl.tasks.language_model.LanguageModel", "model.N_encoder": 0}
STOPS = {"lightning.pytorch.callbacks.EarlyStopping": {"monitor": "val/loss", "patience": 3}}


@pytest.mark.usefixtures("unrehearsed")
@pytest.mark.parametrize("keys", [{"decode.average": 2, "trainer.callbacks": json.dumps([STOPS])}, LANGUAGE_MODEL])
def test_the_best_validation_is_scored(tmp_path, keys):
    """At so high a rate the loss rises, until early stopping ends one of these trainings."""
    keys = keys | {"optim.lr_scale": 30, "optim.max_steps": 8, "trainer.val_every": 1, "decode.select": "best"}
    code, trial = tiny_trials.train(tmp_path / "runs", keys)
    seen = [line for line in trial.metrics() if line["kind"] == "validation"]
    result, losses = trial.result(), {line["step"]: line["val/loss"] for line in seen}
    assert code == 0 and result.scored_step == min(losses, key=losses.get) < result.steps
    assert result.metrics["val/loss"] == pytest.approx(min(losses.values()), rel=1e-5)
    assert result.stopped_early == ("trainer.callbacks" in keys)


def test_bleu_in_the_course_of_training_is_that_of_the_sample_and_changes_nothing(prepared):
    learns = {"model__d_model": 32, "model__d_ff": 64, "optim__warmup": 100, "optim__max_steps": 360}
    settings = config(trainer__val_sample=10, trainer__val_every=60, decode__extra=3, **learns)
    module, lines = fit(prepared, settings)
    split, (_, references) = prepared.split("val"), prepared.text("val")
    scored = {step: line["val/bleu_sample"] for step, line in lines if "val/bleu_sample" in line}
    assert list(scored) == list(range(60, 361, 60)) and scored[360] > 0
    chosen = evenly_spaced(30, 10)
    found = [translate(module.model, split.source.take([i]), Decode(beam=1), 256)[0] for i in chosen]
    hypotheses = prepared.tokenizer.decode([best.tokens if best else [] for best in found])
    sample = [references[i] for i in chosen]
    assert len(set(sample)) == 10 and scored[360] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [sample]).score)
    short = learns | {"optim__max_steps": 36}
    (scored, _), (plain, _) = fit(prepared, config(trainer__val_sample=10, **short)), fit(prepared, config(**short))
    assert all(torch.equal(a, b) for a, b in zip(scored.parameters(), plain.parameters(), strict=True))


GROWING = """
import torch
from ablations.no_position import NoPosition

class Growing(NoPosition):
    table = torch.ones(0)

    def forward(self, x, start=0):
        end = start + x.shape[1]
        if len(self.table) < end and not self.training:
            self.table = torch.ones(end, device=x.device)
        return x * self.table[start:end, None] if len(self.table) >= end else x
"""


def test_a_table_that_a_component_makes_in_evaluation_serves_training(prepared, module):
    module(GROWING)
    trained, _ = fit(prepared, config(model__position="stranger.Growing", trainer__val_sample=2))
    assert len(trained.model.position["encoder"].table)


def test_translations_with_a_cache_equal_those_without(prepared):
    module, _ = fit(prepared, config(optim__max_steps=40))
    source, decode = prepared.split("test").source, Decode(extra=5)
    cached = translate(module.model, source, decode, 512)
    module.model.embedding.incremental = False
    again = translate(module.model, source, decode, 4096)  # and in other batches
    for a, b in zip(cached, again, strict=True):
        assert a.tokens == b.tokens and a.score == pytest.approx(b.score, abs=1e-4)


@pytest.mark.parametrize("extra", [1, 5])
def test_the_longest_output_is_the_source_s_own_tokens_and_some_more(prepared, monkeypatch, extra):
    """EOS counts of the output, and not of the source. The model never says it of itself. Progress ends at the end."""
    module, source = TransformerModule(config(), len(prepared.tokenizer)), prepared.split("test").source
    embedding = module.model.embedding
    never = torch.where(torch.arange(len(embedding.weight)) == EOS, -1e4, 0.0)
    logits = embedding.logits
    monkeypatch.setattr(embedding, "logits", lambda *given: logits(*given) + never)
    done: list[int] = []
    found = translate(module.model, source, Decode(beam=1, extra=extra), 512, on_progress=done.append)
    assert done == sorted(done) and done[-1] == len(source)
    assert [len(best.tokens) + 1 for best in found] == (source.lengths + extra).tolist()


@pytest.fixture
def threads(monkeypatch):
    """The number of threads before a test, and after it."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield before
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("keys", "begun", "expected"),
    [({}, None, None), ({"trainer__devices": 1_024}, None, 1), ({}, 3, 3), ({"trainer__threads": 3}, 2, 3)],
)
def test_which_number_of_threads_is_used(tmp_path, threads, keys, begun, expected):
    """The user's, else the trial's, else a process's share."""
    trial = a_trial(tmp_path, config(**{"trainer__threads": None} | keys))
    if begun:
        (tmp_path / "env.json").write_text(json.dumps({"threads": begun}))
    used = use_threads(trial)
    assert used == torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"]) == (expected or threads)


def test_no_rank_waits_for_a_training_that_rank_0_does_not_begin(tmp_path, monkeypatch):
    """Where srun or torchrun starts them. Ranks are joined as the training begins."""

    def joins(*of_the_training):
        raise AssertionError("waits for rank 0")

    runs = tmp_path / "runs"
    assert tiny_trials.train(runs, {})[0] == 0
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    monkeypatch.setattr("transformer_pl.train.fit.fit_and_test", joins)
    assert tiny_trials.train(runs, {"decode.alpha": 0.1})[0] == 0
    with pytest.raises(AssertionError, match="waits for rank 0"):
        tiny_trials.train(runs, {"decode.alpha": 0.1, "model.h": 4})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler imports what torch deprecates
@pytest.mark.parametrize(
    ("says", "keys", "remedy"),
    [
        ("CUDA error: an illegal memory access was encountered", {"trainer.compile": "on"}, "trainer.compile=off"),
        ("CUDA error: an illegal memory access was encountered", {}, ""),
        ("CUDA out of memory", {"trainer.accumulate": 2}, "trainer.accumulate, now 2"),
    ],
)
def test_an_error_of_the_device_has_its_remedy(tmp_path, monkeypatch, says, keys, remedy):
    def fails(*of_the_step):
        raise RuntimeError(says)

    monkeypatch.setattr(TransformerModule, "training_step", fails)
    code, trial = tiny_trials.train(tmp_path / "runs", keys)
    why = trial.status()["why"]
    assert code == 1 and says in why and remedy in why and ("compile" in why) == ("compile" in remedy)


def test_a_trial_needs_neither_wandb_nor_datasets(tmp_path, monkeypatch):
    """Where W&B is off and the text comes from files."""
    installed = environment.version

    def version(package):
        if package in ("wandb", "datasets"):
            raise PackageNotFoundError
        return installed(package)

    monkeypatch.setattr(environment, "version", version)
    for name in ("wandb", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    code, trial = tiny_trials.train(tmp_path / "runs", {})
    recorded = json.loads((trial.path / "env.json").read_text())
    packages = recorded["packages"]
    assert code == 0 and recorded["threads"] == 1 and packages["torch"] == torch.__version__
    assert packages["wandb"] == packages["datasets"] == "not installed"
