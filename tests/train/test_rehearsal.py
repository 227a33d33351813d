"""The rehearsal of what others plug in: what would fail, or be wrong without a word, is refused before it starts."""

import pytest
import tiny_trials
from helpers import little_text

from transformer_pl.config.levels import Level
from transformer_pl.runtime.errors import InputError
from transformer_pl.train import stages
from transformer_pl.train.rehearsal import rehearse
from transformer_pl.trials.trial_config import trial_config

OWN = """
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn

from transformer_pl.data.batches import TrainStream
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.tasks.translation import Translation


class ClosureTwice(torch.optim.SGD):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


class IgnoresTheClosure(torch.optim.SGD):
    def step(self, closure=None):
        super().step()


class Rests(torch.optim.SGD):
    def step(self, closure=None):
        return closure and closure()


class LeavesOut(torch.optim.SGD):
    @staticmethod
    def groups(named_parameters):
        return [{"params": [p for name, p in named_parameters if "norm" not in name]}]


class Misspelled(torch.optim.SGD):
    @staticmethod
    def groups(named_parameters):
        return [{"params": [p for _, p in named_parameters], "weigth_decay": 0.1}]


class Fraction(torch.optim.SGD):
    @staticmethod
    def groups(named_parameters):
        return [{"params": [p for _, p in named_parameters], "lr": 0.5}]


class NumpyState(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            self.state[group["params"][0]]["last"] = np.float64(loss.item())
        return loss


class EvaluatesElsewhere(torch.optim.SGD):
    def train(self):
        pass

    def eval(self):
        pass


class Schedule:
    def __init__(self, config, optim):
        self.optim, self.calls = optim, 0


class Numpy(Schedule):
    def __call__(self, step):
        return np.float64(1e-3)


class Counts(Schedule):
    def __call__(self, step):
        self.calls += 1
        return 1e-3 / self.calls


class Negative(Schedule):
    def __call__(self, step):
        return -1.0 if step == 17 else 1e-3


class NotANumber(Schedule):
    def __call__(self, step):
        return float("nan") if step == self.optim.max_steps else 1e-3


class Loss:
    def __init__(self, config, optim):
        pass

    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")


class Detached(Loss):
    def __call__(self, logits, target):
        return super().__call__(logits.detach(), target)


class Padded(Loss):
    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


class Mean(Loss):
    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)


class ChangesItsTarget(Loss):
    def __call__(self, logits, target):
        loss = super().__call__(logits, target)
        target[:, -1] = 0
        return loss


class NoGradient(Loss):
    def __call__(self, logits, target):
        return super().__call__(logits, target) + (logits.sum() * 0).abs().sqrt()


class Buffered(nn.Module):
    def __init__(self, config, optim):
        super().__init__()
        self.register_buffer("weight", torch.ones(config.vocab_size))

    def forward(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), self.weight, ignore_index=0, reduction="sum")


class Weighted(Buffered):
    def __init__(self, config, optim):
        super().__init__(config, optim)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, logits, target):
        return super().forward(logits * self.temperature, target)


class TwoPasses:
    # with dropout its loss is random

    def __init__(self, config, optim):
        pass

    def of_batch(self, model, batch):
        first, second = (model(batch.source, batch.target_in)[batch.target_out != 0] for _ in range(2))
        return F.cross_entropy(first, batch.target_out[batch.target_out != 0], reduction="sum") + (
            (first - second).square().sum()
        )


class Unused(Buffered):
    def __init__(self, config, optim):
        super().__init__(config, optim)
        self.forgotten = nn.Parameter(torch.ones(()))


class CountsEpochs(TrainStream):
    epochs = 0

    def epoch_batches(self, split, epoch):
        self.epochs += 1
        batches = super().epoch_batches(split, epoch)
        return batches[self.epochs % len(batches) :] + batches[: self.epochs % len(batches)]


class ReturnsNothing(TrainStream):
    def changed(self, batch, generator):
        pass


class CountsPadding(TwoPasses):
    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in).transpose(1, 2)
        return F.cross_entropy(logits, batch.target_out, reduction="sum")


class MeanOfBatch(TwoPasses):
    def of_batch(self, model, batch):
        return super().of_batch(model, batch) / len(batch.source)


class ChangesTheBatch(TwoPasses):
    def of_batch(self, model, batch):
        batch.target_in[:, 0] = 3
        return super().of_batch(model, batch)


class TooFew(JointBPE):
    def to_ids(self, sentences, side):
        return super().to_ids(sentences, side)[:-1]


class TooFewTexts(JointBPE):
    def to_texts(self, ids):
        return super().to_texts(ids)[:-1]


class Blank(JointBPE):
    def to_texts(self, ids):
        return ["" for _ in ids]


class Empty(JointBPE):
    def to_ids(self, sentences, side):
        return [[] for _ in sentences]


class Fractions(JointBPE):
    def to_ids(self, sentences, side):
        return [[float(token) for token in row] for row in super().to_ids(sentences, side)]


class Unknown(JointBPE):
    def to_ids(self, sentences, side):
        return [[3 for _ in row] for row in super().to_ids(sentences, side)]


class Truncates(JointBPE):
    def to_ids(self, sentences, side):
        return [row[:512] for row in super().to_ids(sentences, side)]


class Pads(JointBPE):
    def to_ids(self, sentences, side):
        rows = super().to_ids(sentences, side)
        longest = max(map(len, rows), default=0)
        return [[*row, *[3] * (longest - len(row))] for row in rows]


class ForgetsOffset(JointBPE):
    offset = 0

    def train(self, pairs, vocab_size):
        self.offset = 5
        return super().train(pairs, vocab_size)

    def to_ids(self, sentences, side):
        return [[4 + (token + self.offset - 4) % 200 for token in row] for row in super().to_ids(sentences, side)]


class NoSide(JointBPE):
    def to_texts(self, ids, side):
        return super().to_texts(ids)


class Fails(Translation):
    def score(self, hypotheses, references, config):
        if hypotheses != references:
            raise KeyError("score")
        return super().score(hypotheses, references, config)


class Contradicts(Translation):
    def score(self, hypotheses, references, config):
        scores = super().score(hypotheses, references, config)
        return scores._replace(metrics=scores.metrics | {"bleu": scores.metrics["bleu"] / 2})


class Swapped(Translation):
    def score(self, hypotheses, references, config):
        scores = super().score(hypotheses, references, config)
        order = [*range(8), 9, 8]
        swapped = [[row[i] for i in order] for row in scores.statistics]
        bleu = float(self.measure.of_sums(sum_of(swapped)))
        return scores._replace(statistics=swapped, metrics={"bleu": bleu})


def sum_of(rows):
    return np.sum(rows, 0)


class NumpyBest(Callback):
    best = np.float64(1e9)

    def on_validation_end(self, trainer, module):
        self.best = np.minimum(self.best, float(trainer.callback_metrics["val/loss"]))

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


class Forgets(Callback):
    calls = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.calls += 1
        module.model.embedding.weight.data *= 1 - 0.001 * self.calls


class Remembers(Forgets):
    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class Fits(Callback):
    def on_exception(self, trainer, module, exception):
        raise RuntimeError("cannot be stopped")


class Averages(Callback):
    def on_train_end(self, trainer, module):
        for weight in module.model.parameters():
            weight.data *= 0.5


class Shares(Callback):
    def setup(self, trainer, module, stage):
        first, second = module.model.encoder
        second.ffn = first.ffn


class Watches(Callback):
    pass


class Plain(Translation):
    pass


class Constant(Schedule):
    def __call__(self, step):
        return 1e-3


class Words(JointBPE):
    pass
"""
LIGHTNING = "lightning.pytorch.callbacks"
OF_THE_OTHERS = {
    "optim.schedule": "stranger.Constant",
    "optim.loss": "stranger.Loss",
    "data.tokenizer": "stranger.Words",
}
KEPT = [
    {"optim.optimizer": "torch.optim.SGD", "data.task": "stranger.Plain", **OF_THE_OTHERS},
    {"optim.optimizer": "torch.optim.LBFGS", "optim.optimizer.max_iter": 3},
    {"optim.optimizer": "stranger.ClosureTwice", "optim.schedule": "stranger.Numpy"},
    {"optim.loss": "stranger.Buffered"},
    {"optim.loss": "stranger.Weighted", "optim.clip": 0.5},
    {"trainer.callbacks": f"[stranger.Remembers, {LIGHTNING}.RichProgressBar]", "trainer.accumulate": 2},
    {"trainer.callbacks": f"{{{LIGHTNING}.EMAWeightAveraging: {{decay: 0.9}}}}"},
]
BROKEN = [
    *({"optim.optimizer": f"stranger.{name}"} for name in ("IgnoresTheClosure", "Rests", "LeavesOut", "Misspelled")),
    {"optim.optimizer": "stranger.EvaluatesElsewhere"},
    {"optim.optimizer": "stranger.ClosureTwice", "trainer.accumulate": 2},
    *({"optim.schedule": f"stranger.{name}"} for name in ("Negative", "NotANumber")),
    *({"optim.loss": f"stranger.{name}"} for name in ("Detached", "Padded", "Mean", "ChangesItsTarget", "NoGradient")),
    *({"optim.loss": f"stranger.{name}"} for name in ("CountsPadding", "MeanOfBatch", "ChangesTheBatch", "Unused")),
    {"data.batches": "stranger.ReturnsNothing"},
    *({"data.tokenizer": f"stranger.{name}"} for name in ("TooFew", "TooFewTexts", "Blank", "Empty", "Fractions")),
    *({"data.tokenizer": f"stranger.{name}"} for name in ("Unknown", "Truncates", "Pads", "NoSide", "ForgetsOffset")),
    *({"data.task": f"stranger.{name}"} for name in ("Fails", "Contradicts", "Swapped")),
    {"trainer.callbacks": f"{{{LIGHTNING}.EMAWeightAveraging: {{decay: 0.9}}}}", "decode.average": 2},
    {"trainer.callbacks": "stranger.Averages", "decode.average": 2},
    {"trainer.callbacks": f"{{{LIGHTNING}.StochasticWeightAveraging: {{swa_lrs: 0.1}}}}"},
    {"trainer.callbacks": f"{{{LIGHTNING}.StochasticWeightAveraging: {{swa_lrs: 0.1, swa_epoch_start: 1}}}}"},
    {"trainer.callbacks": f"{{{LIGHTNING}.GradientAccumulationScheduler: {{scheduling: {{0: 2}}}}}}"},
    {"trainer.callbacks": f"{{{LIGHTNING}.EarlyStopping: {{monitor: val/bleu}}}}"},
]
NOT_CONTINUED = [
    {"optim.optimizer": "stranger.NumpyState"},
    {"optim.schedule": "stranger.Counts"},
    {"data.batches": "stranger.CountsEpochs"},
    *({"trainer.callbacks": f"stranger.{name}"} for name in ("NumpyBest", "Forgets", "Fits")),
]


@pytest.fixture
def rows(module, tmp_path):
    """Make the config of a row on a little text."""
    module(OWN)
    text = {"data.path": str(little_text(tmp_path))}

    def row(keys):
        small = tiny_trials.TINY | {"optim.max_steps": 40, "trainer.val_every": 10, "trainer.log_every": 5}
        return trial_config([Level("test", small | text | keys)])

    return row


def stages_of(config, folder):
    """All stages, in this process."""
    folder.mkdir(parents=True)
    with tiny_trials.in_a_command():
        config, found = stages.whole(config, folder, folder)
        stages.stopped(config, folder, 1 + found["steps"] // 2)
        stages.continued(config, folder)
    return found


@pytest.mark.parametrize("keys", KEPT, ids=str)
def test_what_can_be_trained_stopped_and_continued_passes(rows, tmp_path, keys):
    found = stages_of(rows(keys), tmp_path / "here")
    passes = {"torch.optim.LBFGS": found["passes"], "stranger.ClosureTwice": 2}
    assert found["passes"] == passes.get(keys.get("optim.optimizer"), 1) and found["steps"] == stages.STEPS


@pytest.mark.parametrize("keys", BROKEN, ids=str)
def test_what_would_fail_or_be_wrong_is_refused(rows, tmp_path, keys):
    with pytest.raises(Exception) as caught, tiny_trials.in_a_command():
        config = rows(keys)
        (tmp_path / "here").mkdir()
        stages.whole(config, tmp_path / "here", tmp_path / "here")
    assert not isinstance(caught.value, AssertionError)


@pytest.mark.parametrize("keys", NOT_CONTINUED, ids=str)
def test_what_is_lost_when_a_training_is_stopped_is_refused(rows, tmp_path, keys):
    with pytest.raises(Exception) as caught:
        stages_of(rows(keys), tmp_path / "here")
    assert not isinstance(caught.value, AssertionError)


def test_a_rehearsal_is_of_the_row_s_own_training(rows, tmp_path):
    """Widths, options, precision stay; steps and what goes by them are scaled."""
    row = rows({"model.h": 2, "optim.clip": 0.5, "decode.beam": 3, "trainer.precision": "bf16-mixed", "seed": 5})
    folder = tmp_path / "here"
    folder.mkdir()
    prepared = stages._write_dataset(row, folder, folder)
    small = stages.small(row, prepared)
    assert small.steps == stages.STEPS < row.steps and small.model.N == 1
    kept = {"model.h", "model.width", "optim.clip", "decode.beam", "trainer.precision", "seed", "decode.extra"}
    assert {small.flat()[key] == row.flat()[key] for key in kept} == {True}
    assert (small.trainer.val_every, small.trainer.log_every) == (5, 2)


def test_a_part_is_rehearsed_once_and_named_where_it_fails(rows, tmp_path):
    """In child processes, for rows that differ in the model alone once. An error leaves nothing behind."""
    runs = tmp_path / "runs"
    alike = [rows({"optim.optimizer": "stranger.Fraction", "model.h": h}) for h in (4, 8)]
    found, other, none = rehearse([*alike, rows({})], runs)
    (kept,) = (runs / "checks").iterdir()
    assert found == other and "0.5" in "".join(found.notes) and list(none.notes) == []
    time = kept.stat().st_mtime_ns
    assert rehearse(alike, runs)[0] == found and kept.stat().st_mtime_ns == time
    with pytest.raises(InputError) as caught:
        rehearse([rows({"optim.schedule": "stranger.Counts"}), rows({"optim.loss": "stranger.Mean"})], runs)
    starts = ["optim.schedule = stranger.Counts: ", "optim.loss = stranger.Mean: "]
    assert all(m.startswith(start) for m, start in zip(caught.value.messages, starts, strict=True))
    assert list((runs / "checks").iterdir()) == [kept] and not (runs / "data").exists()


def test_the_cost_of_several_passes_and_of_shared_weights_is_true(module, tmp_path):
    """FLOPs are those of all passes, parameters those of the trained model; steps cannot be matched to several."""
    module(OWN)
    for name in ("plain", "twice", "flops"):
        (tmp_path / name).mkdir()
    _, plain = tiny_trials.train(tmp_path / "plain" / "runs", {})
    twice = {"optim.optimizer": "stranger.ClosureTwice", "trainer.callbacks": "stranger.Shares"}
    _, shared = tiny_trials.train(tmp_path / "twice" / "runs", twice)
    before, after = plain.result(), shared.result()
    assert after.flops == 2 * before.flops
    ffn = 2 * 16 * 64 + 64 + 16  # of the second layer, which is the first's
    assert after.params == before.params - ffn == sum(w.numel() for w in plain.weights().values()) - ffn
    with pytest.raises(InputError, match="match=flops"):
        tiny_trials.train(tmp_path / "flops" / "runs", twice | {"optim.match": "flops"})


def test_a_callback_that_changes_nothing_is_named(rows, tmp_path):
    (found,) = rehearse([rows({"trainer.callbacks": "stranger.Watches"})], tmp_path / "runs")
    assert "stranger.Watches" in "".join(found.notes)
