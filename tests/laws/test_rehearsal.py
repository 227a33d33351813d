"""The rehearsal of what others plug in: what would fail, or be wrong without a word, is refused before it starts."""

import pytest
import tiny_trials
from helpers import little_text, processes

from transformer_pl.config.levels import Level
from transformer_pl.data.excerpt import write_excerpt
from transformer_pl.laws import (
    callbacks,
    losses,
    optimizers,
    rehearsal,
    resuming,
    schedules,
    tasks,
    tokenizers,
    trainings,
)
from transformer_pl.laws.checks import check_all
from transformer_pl.laws.law import laws_of
from transformer_pl.laws.small_training import STEPS, SmallTraining
from transformer_pl.runtime.errors import InputError
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
from transformer_pl.train.teacher import Teacher


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


class Decays(Rests):
    # every weight changes, and none by its gradient
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data *= 0.9
        return super().step(closure)


class LeavesOut(torch.optim.SGD):
    @staticmethod
    def groups(named_parameters):
        return [{"params": [p for name, p in named_parameters if "norm" not in name]}]


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


class Falls(Schedule):
    def __init__(self, config, optim):
        self.d_model = config.d_model

    def __call__(self, step):
        return 1 - step / 50 - self.d_model / 100


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


class DetachedWeighted(nn.Module):
    # its own weight learns, the model does not
    def __init__(self, config, optim):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, logits, target):
        logits = logits.detach() * self.temperature
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")


class Noisy(Loss):
    def __call__(self, logits, target):
        return super().__call__(logits, target) * (1 + 1e-3 * torch.rand(()))


class NoisyLogits(Loss):
    # draws for each position, so that padding changes what it draws, and not its mean
    def __call__(self, logits, target):
        return super().__call__(logits + 0.1 * torch.randn_like(logits), target)


class NoisyPadded(Noisy):
    def __call__(self, logits, target):
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        return loss * (1 + 1e-3 * torch.rand(()))


class ByTokens(Loss):
    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in)
        return self(logits, batch.target_out) / batch.tokens


class InHalves(Loss):
    # takes a batch in parts, each with a pass of its own
    def of_batch(self, model, batch):
        halves = zip(*(side.chunk(2) for side in batch[:3]), strict=True)
        return sum(self(model(source, target_in), target_out) for source, target_in, target_out in halves)


class Padded(Loss):
    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


class Vector(Loss):
    def __call__(self, logits, target):
        return super().__call__(logits, target)[None]


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


class Divergence(TwoPasses):
    # counts padding, in a term that is zero where both passes are equal
    def of_batch(self, model, batch):
        first, second = (model(batch.source, batch.target_in) for _ in range(2))
        loss = F.cross_entropy(first.flatten(0, 1), batch.target_out.flatten(), ignore_index=0, reduction="sum")
        return loss + F.kl_div(first.log_softmax(-1), second.softmax(-1), reduction="sum")


class BatchMean(TwoPasses):
    def of_batch(self, model, batch):
        real = batch.target_out != 0
        first, second = (model(batch.source, batch.target_in)[real] for _ in range(2))
        loss = F.cross_entropy(first, batch.target_out[real], reduction="sum")
        return loss + F.kl_div(first.log_softmax(-1), second.softmax(-1), reduction="batchmean")


class Distilled(Loss):
    # the teacher's term counts padding
    def __init__(self, config, optim, teacher: Teacher):
        self.teacher = teacher

    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in)
        wanted = self.teacher(batch.source, batch.target_in).softmax(-1)
        divergence = F.kl_div(logits.log_softmax(-1), wanted, reduction="sum")
        return self(logits, batch.target_out) + divergence


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


class TruncatesMuch(JointBPE):
    # beyond what the joined sentences have once, and not twice
    def to_ids(self, sentences, side):
        return [row[:8000] for row in super().to_ids(sentences, side)]


class OfShortSentences(JointBPE):
    def to_ids(self, sentences, side):
        assert all(len(sentence) < 1000 for sentence in sentences)
        return super().to_ids(sentences, side)


class NoText(JointBPE):
    def vocabulary(self):
        return list(range(len(super().vocabulary())))


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


class Exclaims(JointBPE):
    def to_texts(self, ids):
        return [f"{text}!!!" for text in super().to_texts(ids)]


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


class Draws(Callback):
    # from torch's own generator, before each step
    @torch.no_grad()
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        batch.target_in[:, 1:] = torch.where(torch.rand(batch.target_in[:, 1:].shape) < 0.2, 5, batch.target_in[:, 1:])


class ByTheRow(Callback):
    # goes by the steps of the row, as progress callbacks do
    def on_train_start(self, trainer, module):
        assert trainer.max_steps == 40

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.global_step % (trainer.max_steps // 30)


class SecondLayer(Callback):
    def on_fit_start(self, trainer, module):
        module.model.encoder[1]


class StopsAt(Callback):
    def __init__(self, step: int = 10):
        self.step = step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step >= self.step


class Replaces(Callback):
    # puts a schedule of its own in the place of the row's
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 3:
            own = torch.optim.lr_scheduler.ConstantLR(trainer.optimizers[0], 1.0)
            trainer.lr_scheduler_configs[0].scheduler = own


class Leaves(Callback):
    # a process that goes on, and output
    def on_train_start(self, trainer, module):
        import os, subprocess, sys

        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left behind"])
        os.system("echo flood")
        print("flood")


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
RIGHT = [
    *({"optim.optimizer": f"torch.optim.{name}"} for name in ("AdamW", "Adafactor", "SGD", "Rprop")),
    *(
        pytest.param({"optim.optimizer": f"torch.optim.{name}"}, marks=pytest.mark.slow)
        for name in ("Adagrad", "Adadelta", "RMSprop", "NAdam", "RAdam", "Adamax", "ASGD")
    ),
    {"optim.optimizer": "ablations.muon.Muon"},  # whose `step` runs without gradients
    *({"optim.loss": f"stranger.{name}"} for name in ("Noisy", "NoisyLogits", "InHalves", "TwoPasses")),
    {"data.tokenizer": "stranger.OfShortSentences"},
]
TRAINED = [
    {"optim.optimizer": "torch.optim.SGD", "data.task": "stranger.Plain", **OF_THE_OTHERS},
    {"optim.optimizer": "torch.optim.LBFGS", "optim.optimizer.max_iter": 3, "optim.loss": "stranger.Buffered"},
    {"optim.optimizer": "stranger.ClosureTwice", "optim.schedule": "stranger.Numpy"},
    {"optim.loss": "stranger.Weighted", "optim.clip": 0.5, "trainer.callbacks": f"{LIGHTNING}.LearningRateMonitor"},
    {"trainer.callbacks": f"[stranger.Remembers, {LIGHTNING}.RichProgressBar]", "trainer.accumulate": 2},
    {"trainer.callbacks": f"[{{{LIGHTNING}.EMAWeightAveraging: {{decay: 0.9}}}}, {LIGHTNING}.Timer]"},
    {"trainer.callbacks": "[stranger.Draws, stranger.ByTheRow, stranger.SecondLayer]"},
    {"trainer.callbacks": "[{stranger.StopsAt: {step: 10}}, {stranger.Watches: {in_identity: false}}]"},
]
BROKEN = [
    ({"optim.optimizer": "stranger.IgnoresTheClosure"}, "it_changes_every_weight_by_its_gradient"),
    ({"optim.optimizer": "stranger.Rests"}, "it_changes_every_weight_by_its_gradient"),
    ({"optim.optimizer": "stranger.Decays"}, "it_changes_every_weight_by_its_gradient"),
    ({"optim.optimizer": "stranger.LeavesOut"}, "it_changes_every_weight_by_its_gradient"),
    ({"optim.optimizer": "stranger.EvaluatesElsewhere"}, "it_changes_every_weight_by_its_gradient"),
    (
        {"optim.optimizer": "stranger.ClosureTwice", "trainer.accumulate": 2},
        "with_accumulate_it_computes_one_gradient_a_step",
    ),
    ({"optim.schedule": "stranger.Negative"}, "the_rate_is_finite_and_not_negative"),
    ({"optim.schedule": "stranger.NotANumber"}, "the_rate_is_finite_and_not_negative"),
    ({"optim.schedule": "stranger.Counts"}, "the_rate_depends_on_the_step_alone"),
    ({"optim.loss": "stranger.Vector"}, "it_returns_one_finite_number"),
    *(
        ({"optim.loss": f"stranger.{name}"}, "its_gradient_reaches_every_weight")
        for name in ("Detached", "DetachedWeighted", "NoGradient", "Unused")
    ),
    *(
        ({"optim.loss": f"stranger.{name}"}, "it_leaves_out_padding")
        for name in ("Padded", "CountsPadding", "NoisyPadded", "Divergence", "Distilled")
    ),
    *(
        ({"optim.loss": f"stranger.{name}"}, "it_is_a_sum_over_tokens")
        for name in ("Mean", "MeanOfBatch", "ByTokens", "BatchMean")
    ),
    ({"optim.loss": "stranger.ChangesItsTarget"}, "it_changes_nothing_of_its_batch"),
    ({"optim.loss": "stranger.ChangesTheBatch"}, "it_changes_nothing_of_its_batch"),
    ({"data.tokenizer": "stranger.NoText"}, "every_token_has_a_text"),
    ({"data.tokenizer": "stranger.Empty"}, "every_sentence_has_tokens"),
    ({"data.tokenizer": "stranger.Unknown"}, "every_sentence_has_tokens"),
    ({"data.tokenizer": "stranger.Pads"}, "a_sentence_has_the_same_tokens_alone"),
    ({"data.tokenizer": "stranger.Truncates"}, "a_long_sentence_keeps_its_end"),
    ({"data.tokenizer": "stranger.TruncatesMuch"}, "a_long_sentence_keeps_its_end"),
    *(
        ({"data.tokenizer": f"stranger.{name}"}, "its_tokens_become_text")
        for name in ("Blank", "TooFewTexts", "NoSide")
    ),
    ({"data.tokenizer": "stranger.Exclaims"}, "it_adds_nothing_to_a_sentence"),
    ({"data.tokenizer": "stranger.ForgetsOffset"}, "loaded_again_it_gives_the_same_tokens"),
    ({"data.task": "stranger.Contradicts"}, "its_score_is_that_of_the_sums"),
    ({"data.task": "stranger.Fails"}, "its_score_is_that_of_the_sums"),
    ({"data.task": "stranger.Swapped"}, "the_last_number_of_a_line_depends_on_its_reference_alone"),
    ({"data.batches": "stranger.ReturnsNothing"}, "it_is_trained_and_scored"),
    ({"optim.optimizer": "stranger.NumpyState"}, "a_stopped_training_comes_to_the_same_end"),
    ({"data.batches": "stranger.CountsEpochs"}, "a_stopped_training_comes_to_the_same_end"),
    *(
        ({"trainer.callbacks": f"stranger.{name}"}, "a_stopped_training_comes_to_the_same_end")
        for name in ("NumpyBest", "Forgets")
    ),
    (
        {"trainer.callbacks": f"{{{LIGHTNING}.EMAWeightAveraging: {{decay: 0.9}}}}", "decode.average": 2},
        "it_is_trained_and_scored",
    ),
    ({"trainer.callbacks": "stranger.Averages", "decode.average": 2}, "it_is_trained_and_scored"),
    (
        {"trainer.callbacks": f"{{{LIGHTNING}.StochasticWeightAveraging: {{swa_lrs: 0.1}}}}"},
        "it_is_trained_and_scored",
    ),
    (
        {"trainer.callbacks": f"{{{LIGHTNING}.StochasticWeightAveraging: {{swa_lrs: 0.1, swa_epoch_start: 1}}}}"},
        "it_is_trained_and_scored",
    ),
    (
        {"trainer.callbacks": f"{{{LIGHTNING}.GradientAccumulationScheduler: {{scheduling: {{0: 2}}}}}}"},
        "it_is_trained_and_scored",
    ),
    ({"trainer.callbacks": "stranger.Replaces"}, "it_leaves_the_trainer_as_it_is"),
    ({"trainer.callbacks": f"{{{LIGHTNING}.EarlyStopping: {{monitor: val/bleu}}}}"}, "it_is_trained_and_scored"),
    ({"trainer.callbacks": "{stranger.StopsAt: {step: 10, in_identity: false}}"}, "it_is_trained_and_scored"),
    ({"trainer.callbacks": "{stranger.Remembers: {in_identity: false}}"}, "what_only_watches_changes_nothing"),
]
NOTED = [
    ({"optim.optimizer": "stranger.Fraction"}, "the_lr_of_a_group_is_a_factor"),
    ({"trainer.callbacks": "stranger.Watches"}, "what_counts_changes_something"),
]
REFUSED = [  # before a law can be tested
    *({"data.tokenizer": f"stranger.{name}"} for name in ("TooFew", "Fractions")),
    {"trainer.callbacks": "stranger.Fits"},
]


@pytest.fixture
def rows(module, tmp_path):
    """Make the config of a row on a little text."""
    module(OWN)
    text = {"data.path": str(little_text(tmp_path))}

    def row(keys):
        small = tiny_trials.TINY | {"optim.max_steps": 40, "trainer.val_every": 10, "trainer.log_every": 5}
        if keys.get("optim.loss") == "stranger.Distilled":
            keys = keys | {"optim.loss.teacher": "0123456789ab"}
        return trial_config([Level("test", small | text | keys)])

    return row


def stages_of(config, folder):
    """All stages, in this process: the first one, and what all have found by law."""
    folder.mkdir(parents=True)
    with tiny_trials.in_a_command():
        begun = rehearsal.begin(config, folder, folder)
        found = begun.found
        if begun.steps:
            if begun.steps > 1:
                rehearsal.stop(config, folder, 1 + begun.steps // 2)
            found = found + rehearsal.end(config, folder)
    return begun, {one.law: one for one in found}


@pytest.mark.parametrize("keys", RIGHT, ids=str)
def test_a_right_part_breaks_no_law(rows, tmp_path, keys):
    folder = tmp_path / "here"
    folder.mkdir()
    _, found = rehearsal.of_parts(rows(keys), folder, folder)
    assert found and not [one for one in found if one.is_broken]


@pytest.mark.parametrize("keys", TRAINED, ids=str)
def test_a_right_part_is_trained_stopped_and_continued(rows, tmp_path, keys):
    begun, found = stages_of(rows(keys), tmp_path / "here")
    assert not [one for one in found.values() if one.is_broken]
    assert found["a_stopped_training_comes_to_the_same_end"].state == "holds"
    assert begun.steps == (10 if "StopsAt" in str(keys) else STEPS)
    if "StopsAt" in str(keys):
        assert not found["what_counts_changes_something"].how
    passes = {"torch.optim.LBFGS": begun.passes, "stranger.ClosureTwice": 2}
    assert begun.passes == passes.get(keys.get("optim.optimizer"), 1)


LAWS = [law for _, law in BROKEN]
SEVERAL = [  # the first that breaks a law every day
    pytest.param(keys, law, marks=[] if LAWS.index(law) == place else pytest.mark.slow)
    for place, (keys, law) in enumerate(BROKEN)
]


@pytest.mark.parametrize(("keys", "law"), SEVERAL, ids=str)
def test_a_part_breaks_its_law(rows, tmp_path, keys, law):
    _, found = stages_of(rows(keys), tmp_path / "here")
    assert found[law].is_broken and found[law].how


@pytest.mark.parametrize("keys", REFUSED, ids=str)
def test_a_part_that_cannot_be_used_is_refused(rows, tmp_path, keys):
    with pytest.raises((InputError, RuntimeError, TypeError)):  # of which the child process makes an InputError
        stages_of(rows(keys), tmp_path / "here")


@pytest.mark.parametrize(("keys", "law"), NOTED, ids=str)
def test_what_a_law_has_seen_is_noted(rows, tmp_path, keys, law):
    _, found = stages_of(rows(keys), tmp_path / "here")
    assert (found[law].state, bool(found[law].how)) == ("holds", True)


def test_every_law_can_be_broken():
    """Or ends in a note."""
    kinds = (callbacks, losses, optimizers, resuming, schedules, tasks, tokenizers, trainings)
    assert {law for _, law in BROKEN + NOTED} == {law for kind in kinds for law in laws_of(kind)}


def test_what_is_not_tested_is_not_said_to_hold(rows, tmp_path):
    _, found = stages_of(rows({"data.tokenizer": "stranger.OfShortSentences"}), tmp_path / "here")
    assert found["a_long_sentence_keeps_its_end"].state == "untested"


def test_a_rehearsal_is_of_the_row_s_own_training(rows, tmp_path):
    """Widths, options, precision and the number of steps stay; the rate is as high as the row's ever is."""
    row = rows({"model.h": 2, "optim.clip": 0.5, "decode.beam": 3, "trainer.precision": "bf16-mixed", "seed": 5})
    folder = tmp_path / "here"
    folder.mkdir()
    write_excerpt(row.data, folder, folder)
    small = SmallTraining(row, folder).config
    assert small.steps == row.steps and small.model.N == 1
    kept = {"model.h", "model.width", "optim.clip", "optim.warmup", "decode.beam", "trainer.precision", "seed"}
    assert {small.flat()[key] == row.flat()[key] for key in kept} == {True}
    assert (small.trainer.val_every, small.trainer.log_every) == (5, 2)


def test_a_part_is_rehearsed_once_and_named_where_it_fails(rows, tmp_path):
    """In child processes, for rows that differ in the model alone once. An error leaves nothing behind."""
    runs = tmp_path / "runs"
    alike = [rows({"optim.optimizer": "stranger.Fraction", "model.h": h}) for h in (4, 8)]
    found, other, none = check_all([*alike, rows({})], runs)
    (kept,) = (runs / "checks").iterdir()
    assert found == other and "0.5" in "".join(found.notes) and list(none.notes) == []
    time = kept.stat().st_mtime_ns
    assert check_all(alike, runs)[0] == found and kept.stat().st_mtime_ns == time
    with pytest.raises(InputError) as caught:
        check_all([rows({"optim.schedule": "stranger.Counts"}), rows({"optim.loss": "stranger.Mean"})], runs)
    starts = ["optim.schedule = stranger.Counts: ", "optim.loss = stranger.Mean: "]
    assert [message[: len(start)] for message, start in zip(caught.value.messages, starts, strict=True)] == starts
    assert all("rehearsal of 20 steps" in message for message in caught.value.messages)
    assert list((runs / "checks").iterdir()) == [kept] and not (runs / "data").exists()


def test_a_schedule_is_tested_in_each_row(rows, tmp_path):
    """Whatever has passed before: of a longer row, and of another width."""
    falls = {"optim.schedule": "stranger.Falls"}
    check_all([rows(falls)], tmp_path / "runs")
    for other in ({"optim.max_steps": 400}, {"model.d_model": 1024, "model.h": 8}):
        with pytest.raises(InputError, match="not_negative"):
            check_all([rows(falls | other)], tmp_path / "runs")


def test_a_rehearsal_leaves_no_process_and_no_output(rows, tmp_path, capfd):
    check_all([rows({"trainer.callbacks": "stranger.Leaves"})], tmp_path / "runs")
    assert "flood" not in "".join(capfd.readouterr())
    assert not [process for process in processes() if "left behind" in process.command]


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


def test_a_callback_that_only_watches_cannot_end_a_training(module, tmp_path):
    """Not even after the steps of a rehearsal: else its result would be that of the config without it."""
    module(OWN)
    watches = {"optim.max_steps": 30, "trainer.callbacks": "{stranger.StopsAt: {step: 25, in_identity: false}}"}
    with pytest.raises(InputError, match="in_identity"):
        tiny_trials.train(tmp_path / "runs", watches)
    _, whole = tiny_trials.train(tmp_path / "runs", {"optim.max_steps": 30})
    assert whole.result().steps == 30
