"""Token batches (Section 5.1): sentence pairs of similar length, as many as a number of tokens allows.

    B  sentences    Ls  longest source    Lt  longest target

A length counts one special token: EOS at the end of the source and of the decoder's output, or BOS at the beginning of
the decoder's input. The size of a batch is counted in tokens per language, padding included.
"""

import inspect
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from transformer_pl.config import BOS, EOS, PAD, Config
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.errors import InputError


class Batch(NamedTuple):
    """Sentence pairs, padded with PAD. `tokens` counts the target tokens of the whole global batch, EOS included."""

    source: Tensor  # (B, Ls) int64, each row ended by EOS, which is all that a task without a source has
    target_in: Tensor  # (B, Lt) int64, each row begun by BOS, or by the token before it where pieces are joined
    target_out: Tensor  # (B, Lt) int64, each row ended by EOS, but for a piece of a document that goes on
    tokens: int

    @property
    def begins(self) -> Tensor:
        """(B,) True for a row that begins a document, False for one that goes on."""
        return self.target_in[:, 0] == BOS


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


def mean_batch(split: Split, config: Config) -> tuple[float, ...]:
    """The pairs, source tokens and target tokens of a global batch of `TrainStream`: their means in an epoch."""
    data, sides = config.data, (split.source.lengths_with_special, split.target.lengths_with_special)
    batches = token_batches(*sides, data.batch_tokens, data.max_length, config.seed, epoch=0)
    chosen = np.concatenate(batches)
    return tuple(count / len(batches) for count in (len(chosen), *(int(side[chosen].sum()) for side in sides)))


def eval_batches(source_lengths: np.ndarray, target_lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Return batches of every sentence once, shortest first: sentences * longest <= tokens in each language.

    A sentence that is longer than `tokens` has a batch of its own.
    """
    return _by_length(np.arange(len(source_lengths)), source_lengths, target_lengths, tokens)


def batches_in_order(pieces: Tokens, tokens: int, rank: int = 0, world: int = 1) -> list[np.ndarray]:
    """Return batches of documents side by side, piece after piece, of every rank's share of the documents.

    Row b of a batch goes on where row b of the batch before has ended, or all rows begin a document. A batch has at
    most `tokens` tokens, or one row. Long documents come first, so that the rows that end early are the last ones.
    """
    first, rows = pieces.first_pieces, max(1, tokens // int(pieces.lengths.max()))
    counts = np.diff(first, append=len(pieces))  # pieces of each document
    order = np.argsort(-np.add.reduceat(pieces.lengths, first), kind="stable")[rank::world]
    groups = [order[start : start + rows] for start in range(0, len(order), rows)]
    return [first[of[counts[of] > piece]] + piece for of in groups for piece in range(counts[of[0]])]


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
    if split.target.before is None:
        target_in[:, 1:] = np.where(target_out[:, :-1] == EOS, PAD, target_out[:, :-1])
    else:  # an EOS is the end of a line
        target_in[:, 0] = split.target.before[indexes]
        target_in[:, 1:] = np.where(target_out[:, 1:] == PAD, PAD, target_out[:, :-1])
    source = padded(split.source, indexes)  # (B, Ls)
    tokens = int((target_out != PAD).sum())
    return Batch(torch.from_numpy(source), torch.from_numpy(target_in), torch.from_numpy(target_out), tokens)


def nothing_to_predict(split: Split, indexes: np.ndarray) -> Batch:
    """The first sentence at `indexes`, with only padding as its target: for a rank that has none of its own."""
    batch = collate(split, indexes[:1])
    return batch._replace(target_out=torch.full_like(batch.target_out, PAD))


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

    consecutive = False  # whether row b of each batch goes on where row b of the batch before has ended, or begins anew

    def __init__(self, split: Split, tokenizer: Tokenizer, config: Config, rank: int = 0, world: int = 1):
        self._seen, self.tokenizer, self.config, self.rank, self.world = split, tokenizer, config, rank, world
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
            if not part:
                self.at_step(step + 1, self.config.steps)
            self.done += 1
            yield self._micro(split, batches[step - self.first_step], step, part)

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done, "epoch": self.epoch, "first_step": self.first_step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done, self.epoch, self.first_step = state["done"], state["epoch"], state["first_step"]

    @cached_property
    def split(self) -> Split:
        """The training pairs as tokens: whole lines, also where the model sees them in pieces."""
        return self._seen if self._seen.target.ends is None else Split.of_targets(self._seen.target.whole())

    def epoch_split(self, epoch: int) -> Split:
        """The training pairs as tokens, in an epoch from 0. A derived class may give those of `split` other tokens,
        which are cut as these."""
        return self._seen

    def epoch_batches(self, split: Split, epoch: int) -> list[np.ndarray]:
        """The global batches of an epoch in their order, each as indexes of pairs of `split`."""
        data, sides = self.config.data, (split.source.lengths_with_special, split.target.lengths_with_special)
        return token_batches(*sides, data.batch_tokens, data.max_length, self.config.seed, epoch)

    def changed(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch as it is trained on, with as many target tokens as before. generator: gives random numbers.

        A derived class may also take `step`, from 1, such as for a noise that grows.
        """
        return batch

    def at_step(self, step: int, steps: int) -> None:
        """Called before the batch of each step is made, 1 to steps."""

    def _planned(self) -> tuple[Split, list[np.ndarray]]:
        split, seen = self.epoch_split(self.epoch), self._seen
        if split is not seen and seen.target.ends is not None:
            if len(split.target) != len(self.split.target):
                rule = f"must return the {len(self.split.target):,} lines of split, but returns {len(split.target):,}"
                raise InputError(f"data.batches = {self.config.data.batches.path}: epoch_split {rule}; return them all")
            split = Split.of_targets(split.target.cut_as(seen.target, self.config.data.longest))
        return split, self.epoch_batches(split, self.epoch)

    def _micro(self, split: Split, batch: np.ndarray, step: int, part: int) -> Batch:
        """This rank's share of one part of a global batch."""
        share = batch[part * self.world + self.rank :: self.world * self.config.trainer.accumulate]
        micro = collate(split, share) if len(share) else nothing_to_predict(split, batch)
        seed = np.random.SeedSequence((self.config.seed, step, part, self.rank)).generate_state(1, np.uint64)
        given = {"step": step + 1} if "step" in inspect.signature(self.changed).parameters else {}
        changed = self.changed(micro, torch.Generator().manual_seed(int(seed[0])), **given)
        place = f"data.batches = {self.config.data.batches.path}"
        if not isinstance(changed, Batch):
            rule = f"changed must return a Batch, but returns {type(changed).__name__}"
            raise InputError(f"{place}: {rule}; return the batch")
        if changed is not micro:  # the core's batches return it: they wait for no count
            before, after = (int((side.target_out != PAD).sum()) for side in (micro, changed))
            if before != after:
                rule = f"changed must leave as many target tokens as there were, {before}, but leaves {after}"
                raise InputError(f"{place}: {rule}; leave sentences out in epoch_batches, and tokens in epoch_split")
        return changed._replace(tokens=int(split.target.count(batch).sum()))
