"""Right and wrong parts, which the tests of their laws name.

They lie in a file that imports little, because all that a file imports is part of the code of its classes.
"""

import os
import subprocess

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn

from transformer_pl.data.batches import TrainStream
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.model.optimizer import InverseSquareRoot
from transformer_pl.tasks.translation import Translation
from transformer_pl.train.teacher import Teacher


class Loss:
    def __init__(self, config, optim):
        pass

    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")


class Buffered(nn.Module):
    def __init__(self, config, optim):
        super().__init__()
        self.register_buffer("weight", torch.ones(config.vocab_size))

    def forward(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), self.weight, ignore_index=0, reduction="sum")


class Schedule:
    def __init__(self, config, optim):
        self.optim, self.calls = optim, 0


class ClosureTwice(torch.optim.SGD):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


def nats(logits, target, **options):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), **{"ignore_index": 0, "reduction": "sum"} | options)


def noise():
    return 1 + 1e-3 * torch.rand(())


LOSSES = {  # of logits and target
    "noisy": lambda logits, target: nats(logits, target) * noise(),
    # draws for each position, so that padding changes what it draws, and not its mean
    "of noisy logits": lambda logits, target: nats(logits + 0.1 * torch.randn_like(logits), target),
    "detached": lambda logits, target: nats(logits.detach(), target),
    "without a gradient": lambda logits, target: nats(logits, target) + (logits.sum() * 0).abs().sqrt(),
    "of padding": lambda logits, target: nats(logits, target, ignore_index=-100),
    "noisy, of padding": lambda logits, target: nats(logits, target, ignore_index=-100) * noise(),
    "vector": lambda logits, target: nats(logits, target)[None],
    "changes its target": lambda logits, target: (nats(logits, target), target[:, -1].zero_())[0],
}


class OfLogits(Loss):
    def __init__(self, config, optim, kind: str):
        self.kind = kind

    def __call__(self, logits, target):
        return LOSSES[self.kind](logits, target)


# Losses: right ones


class InHalves(Loss):
    # takes a batch in parts, each with a pass of its own
    def of_batch(self, model, batch):
        halves = zip(*(side.chunk(2) for side in batch[:3]), strict=True)
        return sum(self(model(source, target_in), target_out) for source, target_in, target_out in halves)


class WithAuxiliary(Loss):
    # the mean over tokens of something, so that as a sum it is one of the loss of tokens
    def __init__(self, config, optim):
        self.auxiliary = {"square": torch.zeros(())}

    def __call__(self, logits, target):
        self.auxiliary = {"square": logits[target != 0].square().sum(-1).mean()}
        return super().__call__(logits, target)


class TwoPasses:
    # with dropout its loss is random

    def __init__(self, config, optim):
        pass

    def of_batch(self, model, batch):
        first, second = (model(batch.source, batch.target_in)[batch.target_out != 0] for _ in range(2))
        return F.cross_entropy(first, batch.target_out[batch.target_out != 0], reduction="sum") + (
            (first - second).square().sum()
        )


# Losses: wrong ones


class DetachedWeighted(nn.Module):
    # its own weight learns, the model does not
    def __init__(self, config, optim):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, logits, target):
        logits = logits.detach() * self.temperature
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")


class Unused(Buffered):
    def __init__(self, config, optim):
        super().__init__(config, optim)
        self.forgotten = nn.Parameter(torch.ones(()))


class CountsPadding(TwoPasses):
    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in).transpose(1, 2)
        return F.cross_entropy(logits, batch.target_out, reduction="sum")


class Divergence(TwoPasses):
    # counts padding, in a term that is zero where both passes are equal
    def of_batch(self, model, batch):
        first, second = (model(batch.source, batch.target_in) for _ in range(2))
        loss = F.cross_entropy(first.flatten(0, 1), batch.target_out.flatten(), ignore_index=0, reduction="sum")
        return loss + F.kl_div(first.log_softmax(-1), second.softmax(-1), reduction="sum")


class Distilled(Loss):
    # the teacher's term counts padding
    def __init__(self, config, optim, teacher: Teacher):
        self.teacher = teacher

    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in)
        wanted = self.teacher(batch.source, batch.target_in).softmax(-1)
        divergence = F.kl_div(logits.log_softmax(-1), wanted, reduction="sum")
        return self(logits, batch.target_out) + divergence


class AuxiliaryOfPadding(Loss):
    # the loss leaves out padding, and its auxiliary loss does not
    def __init__(self, config, optim):
        self.auxiliary = {"square": torch.zeros(())}

    def __call__(self, logits, target):
        self.auxiliary = {"square": logits.square().mean()}
        return super().__call__(logits, target)


class AuxiliaryFromNowhere(Loss):
    def __call__(self, logits, target):
        self.auxiliary = {"square": logits[target != 0].square().mean()}
        return super().__call__(logits, target)


class Mean(Loss):
    def __call__(self, logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)


class MeanOfBatch(TwoPasses):
    def of_batch(self, model, batch):
        return super().of_batch(model, batch) / len(batch.source)


class ByTokens(Loss):
    def of_batch(self, model, batch):
        logits = model(batch.source, batch.target_in)
        return self(logits, batch.target_out) / batch.tokens


class BatchMean(TwoPasses):
    def of_batch(self, model, batch):
        real = batch.target_out != 0
        first, second = (model(batch.source, batch.target_in)[real] for _ in range(2))
        loss = F.cross_entropy(first, batch.target_out[real], reduction="sum")
        return loss + F.kl_div(first.log_softmax(-1), second.softmax(-1), reduction="batchmean")


class ChangesTheBatch(TwoPasses):
    def of_batch(self, model, batch):
        batch.target_in[:, 0] = 3
        return super().of_batch(model, batch)


# Optimizers


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


class EvaluatesElsewhere(torch.optim.SGD):
    def train(self):
        pass

    def eval(self):
        pass


# Schedules


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


# Tokenizers


def padded(rows):
    longest = max(map(len, rows), default=0)
    return [[*row, *[3] * (longest - len(row))] for row in rows]


IDS = {  # of the tokens of sentences
    "too few": lambda rows: rows[:-1],
    "fractions": lambda rows: [[float(token) for token in row] for row in rows],
    "empty": lambda rows: [[] for _ in rows],
    "unknown": lambda rows: [[3 for _ in row] for row in rows],
    "cut off": lambda rows: [row[:512] for row in rows],
    "cut off late": lambda rows: [row[:8000] for row in rows],  # beyond what the joined sentences have once, not twice
    "padded": padded,
}
TEXTS = {  # of what tokens become
    "too few texts": lambda texts: texts[:-1],
    "blank": lambda texts: ["" for _ in texts],
    "exclaims": lambda texts: [f"{text}!!!" for text in texts],
}


class Changed(JointBPE):
    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def to_ids(self, sentences, side):
        return IDS.get(self.kind, list)(super().to_ids(sentences, side))

    def to_texts(self, ids):
        return TEXTS.get(self.kind, list)(super().to_texts(ids))


class OfShortSentences(JointBPE):
    def to_ids(self, sentences, side):
        assert all(len(sentence) < 1000 for sentence in sentences)
        return super().to_ids(sentences, side)


class NoSide(JointBPE):
    def to_texts(self, ids, side):
        return super().to_texts(ids)


class NoText(JointBPE):
    def load(self, model):
        super().load(model)
        self.vocabulary = lambda: list(range(len(JointBPE.vocabulary(self))))


class ForgetsOffset(JointBPE):
    offset = 0

    def train(self, pairs, vocab_size):
        self.offset = 5
        return super().train(pairs, vocab_size)

    def to_ids(self, sentences, side):
        return [[4 + (token + self.offset - 4) % 200 for token in row] for row in super().to_ids(sentences, side)]


# Tasks


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
        bleu = float(self.measure.of_sums(np.sum(swapped, 0)))
        return scores._replace(statistics=swapped, metrics={"bleu": bleu})


# Of trainings


class Plain(Translation):
    pass


class Constant(Schedule):
    def __call__(self, step):
        return 1e-3


class Words(JointBPE):
    pass


class Weighted(Buffered):
    def __init__(self, config, optim):
        super().__init__(config, optim)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, logits, target):
        return super().forward(logits * self.temperature, target)


class Numpy(Schedule):
    def __call__(self, step):
        return np.float64(1e-3)


class NumpyState(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            self.state[group["params"][0]]["last"] = np.float64(loss.item())
        return loss


class CountsEpochs(TrainStream):
    epochs = 0

    def epoch_batches(self, split, epoch):
        self.epochs += 1
        batches = super().epoch_batches(split, epoch)
        return batches[self.epochs % len(batches) :] + batches[: self.epochs % len(batches)]


class Alternates(TrainStream):
    """Each other part has its sources in reverse."""

    calls = 0

    def changed(self, batch, generator):
        self.calls += 1
        return batch._replace(source=batch.source.flip(1)) if self.calls % 2 else batch


class ReturnsNothing(TrainStream):
    def changed(self, batch, generator):
        pass


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


class Replaces(Callback):
    # puts a schedule of its own in the place of the row's
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 3:
            own = torch.optim.lr_scheduler.ConstantLR(trainer.optimizers[0], 1.0)
            trainer.lr_scheduler_configs[0].scheduler = own


class HalvesRate(Callback):
    # the rate of the next step alone, as the schedule sets it again
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == 5:
            trainer.optimizers[0].param_groups[0]["lr"] /= 2


class Renamed(TrainStream):
    pass


class AsThePaper(InverseSquareRoot):
    pass


class Later(InverseSquareRoot):
    # than a rehearsal ends
    def __call__(self, step):
        return super().__call__(step) / (1 + step // 39)


class Unhurried(torch.optim.Adam):
    pass


class Encodes(Loss):
    def of_batch(self, model, batch):
        model.encode(batch.source, batch.source != 0)
        return self(model(batch.source, batch.target_in), batch.target_out)


class HasAuxiliary(Callback):
    # which nothing would read
    def __init__(self):
        self.auxiliary = {}


class Leaves(Callback):
    # a process that goes on, and output
    def on_train_start(self, trainer, module):
        subprocess.Popen(["sleep", "600.25"])
        os.system("echo flood")
        print("flood")


class Shares(Callback):
    def setup(self, trainer, module, stage):
        first, second = module.model.encoder
        second.ffn = first.ffn
