"""Token batches (Section 5.1): sentence pairs of similar length, as many as a number of tokens allows.

    B  sentences    Ls  longest source    Lt  longest target

A length counts one special token: EOS at the end of the source and of the decoder's output, or BOS at the beginning of
the decoder's input. The size of a batch is counted in tokens per language, padding included.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import BOS, EOS, PAD, Config
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.errors import InputError


class Batch(NamedTuple):
    """Sentence pairs, padded with PAD. `tokens` counts the target tokens of the whole global batch, EOS included."""

    source: Tensor  # (B, Ls) int64, each row ended by EOS, which is all that a task without a source has
    target_in: Tensor  # (B, Lt) int64, each row begun by BOS
    target_out: Tensor  # (B, Lt) int64, each row ended by EOS, but for a piece of a document that goes on
    tokens: int


def token_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, batch_tokens: int, max_length: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Return the global batches of one epoch, each as indexes of pairs. Every pair that fits is in one of them.

    A pair fits if neither sentence is longer than `max_length` or `batch_tokens`. Pairs of equal lengths are shuffled,
    then the batches are shuffled.

    source_lengths, target_lengths: the tokens of each sentence, one special token included.
    batch_tokens: in each batch, sentences * longest <= batch_tokens in both languages.
    seed, epoch: the order depends on these alone.
    """
    rng = np.random.default_rng((seed, epoch))
    fits = np.maximum(source_lengths, target_lengths) <= min(max_length, batch_tokens)
    order = np.flatnonzero(fits).astype(np.int32)  # half of the memory of int64, which counts for millions of pairs
    rng.shuffle(order)
    batches = _by_length(order, source_lengths[order], target_lengths[order], batch_tokens)
    return [batches[i] for i in rng.permutation(len(batches))]


def eval_batches(source_lengths: np.ndarray, target_lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Return batches of every sentence once, shortest first: sentences * longest <= tokens in each language.

    A sentence that is longer than `tokens` has a batch of its own.
    """
    return _by_length(np.arange(len(source_lengths)), source_lengths, target_lengths, tokens)


def _by_length(order: np.ndarray, sources: np.ndarray, targets: np.ndarray, budget: int) -> list[np.ndarray]:
    """Sort pairs by their lengths and cut them into batches, each as large as the budget allows but never empty.

    Neighbours have similar lengths in both languages: pairs are sorted by the longer sentence, then by the difference
    of the two. The direction of the second order alternates from one length to the next, so that the difference never
    jumps. The sort is stable. sources, targets: the lengths of the pairs in `order`.
    """
    longer = np.maximum(sources, targets)
    difference = targets - sources
    small = np.min_scalar_type(-1 - int(longer.max(initial=0)))  # numbers of 16 bits are sorted without comparing
    by_length = np.lexsort((np.where(longer % 2, -difference, difference).astype(small), longer.astype(small)))
    order, longer = order[by_length], longer[by_length]
    batches = []
    start = 0
    while start < len(order):
        lengths = longer[start : start + max(1, budget // int(longer[start]))]  # no batch from here can hold more
        tokens = lengths * np.arange(1, len(lengths) + 1)  # of the batch with each next pair
        size = max(1, int(np.searchsorted(tokens, budget, side="right")))
        batches.append(order[start : start + size])
        start += size
    return batches


def collate(split: Split, indexes: np.ndarray) -> Batch:
    """The sentences at `indexes` as one batch. Its `tokens` counts only its own target tokens."""
    target_out = padded(split.target, indexes)  # (B, Lt)
    target_in = np.full_like(target_out, BOS)
    target_in[:, 1:] = np.where(target_out[:, :-1] == EOS, PAD, target_out[:, :-1])
    source = padded(split.source, indexes)  # (B, Ls)
    tokens = int((target_out != PAD).sum())
    return Batch(torch.from_numpy(source), torch.from_numpy(target_in), torch.from_numpy(target_out), tokens)


def nothing_to_predict(split: Split, indexes: np.ndarray) -> Batch:
    """The first sentence at `indexes`, with only padding as its target: for a rank that has none of its own."""
    batch = collate(split, indexes[:1])
    return batch._replace(target_out=torch.full_like(batch.target_out, PAD))


def padded_batch(batch: Batch, rows: int, length: int) -> Batch:
    """Pad the batch to `rows`, and both sides to `length`. An added row repeats the first one and predicts nothing."""
    B = len(batch.source)

    def grown(side: Tensor) -> Tensor:
        return F.pad(side, (0, length - side.shape[1], 0, rows - B), value=PAD)

    source, target_in, target_out = map(grown, batch[:3])
    source[B:], target_in[B:] = source[0], target_in[0]
    return Batch(source, target_in, target_out, batch.tokens)


def unpadded(batch: Batch) -> Batch:
    """The batch before `padded_batch`: without rows that predict nothing, but the first, and without common padding."""
    rows = (batch.target_out != PAD).any(1)
    rows[0] = True
    sides = [side[rows] for side in batch[:3]]
    Ls, Lt = (int((side != PAD).any(0).nonzero().max()) + 1 for side in sides[:2])
    return Batch(sides[0][:, :Ls], sides[1][:, :Lt], sides[2][:, :Lt], batch.tokens)


def replayed_rows(config: Config, length: int) -> int:
    """The most sentences of a micro-batch whose longest has this length."""
    return -(-(config.data.batch_tokens // length) // config.trainer.accumulate)


def padded(tokens: Tokens, indexes: np.ndarray) -> np.ndarray:
    """Return the ids of each sentence, then EOS (unless it is a piece that goes on), then PAD: (B, longest) int64."""
    starts = tokens.offsets[indexes]
    counts = tokens.offsets[indexes + 1] - starts
    ends = np.full(len(indexes), True) if tokens.ends is None else tokens.ends[indexes]
    columns = np.arange((counts + ends).max())
    inside = columns < counts[:, None]  # (B, longest)
    rows = np.full(inside.shape, PAD, dtype=np.int64)
    rows[inside] = tokens.flat[(starts[:, None] + columns)[inside]]
    rows[np.flatnonzero(ends), counts[ends]] = EOS
    return rows


class TrainStream:
    """The micro-batches of one rank for a whole training: as many global batches as steps, each in `accumulate` parts.

    The sentences of a global batch go in turn to world * accumulate parts, so that all parts have similar shapes. A
    part without a sentence repeats one with only padding as its target, so that every rank makes the same steps.
    The global batches do not depend on world or accumulate.

    A stream that loads the state of another continues exactly where that one was. So the changes of a derived class
    (`data.batches`) must depend only on what its methods are given: on the epoch, or on the generator of a batch.
    """

    def __init__(self, split: Split, tokenizer: Tokenizer, config: Config, rank: int = 0, world: int = 1):
        self.split, self.tokenizer, self.config, self.rank, self.world = split, tokenizer, config, rank, world
        self.done = 0  # micro-batches
        self.epoch, self.first_step = 0, 0  # the epoch of the last batch, and the step that began it, from 0

    def __len__(self) -> int:
        return self.config.steps * self.config.trainer.accumulate

    def __iter__(self) -> Iterator[Batch]:
        split, batches = self._planned()
        while self.done < len(self):
            step, part = divmod(self.done, self.config.trainer.accumulate)
            while step >= self.first_step + len(batches):
                self.epoch, self.first_step = self.epoch + 1, self.first_step + len(batches)
                split, batches = self._planned()
            self.done += 1
            yield self._micro(split, batches[step - self.first_step], step, part)

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done, "epoch": self.epoch, "first_step": self.first_step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done, self.epoch, self.first_step = state["done"], state["epoch"], state["first_step"]

    def largest_shape(self) -> tuple[int, int]:
        """Rows and length such that no micro-batch of `replayed_rows` is longer, or has more tokens in all."""
        data, sides = self.config.data, (self.split.source, self.split.target)
        longest = max(int(side.lengths_with_special.max()) for side in sides)
        longest = min(longest, data.max_length, data.batch_tokens)
        tokens = max(length * replayed_rows(self.config, length) for length in range(1, longest + 1))
        return -(-tokens // longest), longest

    def epoch_split(self, epoch: int) -> Split:
        """The training pairs as tokens, in an epoch from 0. A derived class may give the same pairs other tokens."""
        return self.split

    def epoch_batches(self, split: Split, epoch: int) -> list[np.ndarray]:
        """The global batches of an epoch in their order, each as indexes of pairs of `split`."""
        data, sides = self.config.data, (split.source.lengths_with_special, split.target.lengths_with_special)
        return token_batches(*sides, data.batch_tokens, data.max_length, self.config.seed, epoch)

    def changed(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch as it is trained on, with as many target tokens as before. generator: gives random numbers."""
        return batch

    def _planned(self) -> tuple[Split, list[np.ndarray]]:
        split = self.epoch_split(self.epoch)
        return split, self.epoch_batches(split, self.epoch)

    def _micro(self, split: Split, batch: np.ndarray, step: int, part: int) -> Batch:
        """This rank's share of one part of a global batch."""
        share = batch[part * self.world + self.rank :: self.world * self.config.trainer.accumulate]
        micro = collate(split, share) if len(share) else nothing_to_predict(split, batch)
        seed = np.random.SeedSequence((self.config.seed, step, part, self.rank)).generate_state(1, np.uint64)
        micro = self.changed(micro, torch.Generator().manual_seed(int(seed[0])))
        if not isinstance(micro, Batch):
            rule = f"changed must return a Batch, but returns {type(micro).__name__}"
            raise InputError(f"data.batches = {self.config.data.batches.path}: {rule}; return the batch")
        return micro._replace(tokens=int(split.target.lengths_with_special[batch].sum()))
