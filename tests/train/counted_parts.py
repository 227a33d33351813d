"""Losses and batches for the tests of what a training computes; they import little, as `watchers.py` does."""

import os
import signal
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from transformer_pl.config import PAD
from transformer_pl.data.batches import TrainStream
from transformer_pl.model.beam_search import CachedSteps


def nats(model, batch):
    logits = model(batch.source, batch.target_in)
    return cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD, reduction="sum")


def six_more_without_gradients(model, batch):
    with torch.no_grad():
        for _ in range(6):
            model(batch.source, batch.target_in)
    return nats(model, batch)


def each_sentence_twice(batch):
    return batch._replace(**{side: getattr(batch, side).repeat(2, 1) for side in batch._fields[:3]})


LOSSES = {  # what a loss computes, and how many passes that is: None where parts of the model are called beside passes
    "once": (nats, 1),
    "twice": (lambda model, batch: nats(model, batch) + nats(model, batch), 2),
    "six without gradients": (six_more_without_gradients, 3),
    "doubled, in one pass": (lambda model, batch: nats(model, each_sentence_twice(batch)), 2),
    "searches": (lambda model, batch: [CachedSteps(model, batch.source), nats(model, batch)][1], None),
    "one layer": (
        lambda model, batch: [
            model.decoder[1].ffn.W_1(model.embedding.embed(batch.target_in, "decoder")),
            nats(model, batch),
        ][1],
        None,
    ),
    "states alone": (lambda model, batch: [model.states(batch.source, batch.target_in), nats(model, batch)][1], None),
    "several targets": (
        lambda model, batch: [model(batch.source, batch.target_in.repeat_interleave(2, 0)), nats(model, batch)][1],
        None,
    ),
}


class Loss:
    def __init__(self, config, optim, kind: str = "twice"):
        self.kind = kind

    def of_batch(self, model, batch):
        return LOSSES[self.kind][0](model, batch)


class StoppedLoss(Loss):
    # in its third step, once
    def at_step(self, step, steps):
        stopped = Path(os.environ["STOPPED"])
        if step == 3 and not stopped.exists():
            stopped.touch()
            os.kill(os.getpid(), signal.SIGTERM)


class Renamed(TrainStream):
    pass


class Half(TrainStream):
    # the first half of each batch
    def epoch_batches(self, split, epoch):
        return [batch[: -(-len(batch) // 2)] for batch in super().epoch_batches(split, epoch)]
