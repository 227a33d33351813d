"""Token batches (Section 5.1): pairs of about one length together, as many as a budget of pieces a side allows.

    B  sentences    Ls  longest source    Lt  longest target

Lengths are what the model sees: the source and EOS; BOS and the target going in, the target and EOS coming out. So a
length is one more than the number of pieces. A budget counts padding.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from transformer_pl.data.prepare import Split, Tokens, nothing_fits_error
from transformer_pl.data.tokenizer import BOS, EOS, PAD


class Batch(NamedTuple):
    """Sentences side by side, padded with PAD. `pieces` counts the targets, EOS included, of the whole global batch."""

    source: Tensor  # (B, Ls) int64, each row ended by EOS
    target_in: Tensor  # (B, Lt) int64, each row begun by BOS
    target_out: Tensor  # (B, Lt) int64, each row ended by EOS
    pieces: int


def model_lengths(tokens: Tokens) -> np.ndarray:
    """What the model sees of each sentence: its pieces and one mark."""
    return tokens.lengths + 1


def pairs_that_fit(
    source_lengths: np.ndarray, target_lengths: np.ndarray, batch_tokens: int, max_length: int
) -> np.ndarray:
    """Which pairs are trained on: both sides within `max_length`, and within a batch of their own."""
    return np.maximum(source_lengths, target_lengths) <= min(max_length, batch_tokens)


def token_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, batch_tokens: int, max_length: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """One epoch: the indexes of each global batch, every fitting pair once.

    sentences * longest <= batch_tokens on both sides. Pairs of equal lengths are shuffled among themselves, then the
    batches are; both follow from seed and epoch alone. Raises an InputError when no pair fits.
    """
    rng = np.random.default_rng((seed, epoch))
    fits = np.flatnonzero(pairs_that_fit(source_lengths, target_lengths, batch_tokens, max_length))
    if not len(fits):
        raise nothing_fits_error(np.maximum(source_lengths, target_lengths), batch_tokens, max_length)
    order = rng.permutation(fits)
    order = order[_by_length(source_lengths[order], target_lengths[order])]
    batches = _cut(order, np.maximum(source_lengths[order], target_lengths[order]), batch_tokens)
    return [batches[i] for i in rng.permutation(len(batches))]


def eval_batches(source_lengths: np.ndarray, target_lengths: np.ndarray | None, tokens: int) -> list[np.ndarray]:
    """Every sentence once, shortest first: the indexes of each batch, sentences * longest <= tokens on each side.

    A sentence that is longer than `tokens` has a batch of its own. Without targets the sources alone count.
    """
    if target_lengths is None:
        target_lengths = source_lengths
    order = _by_length(source_lengths, target_lengths)
    return _cut(order, np.maximum(source_lengths[order], target_lengths[order]), tokens)


def _by_length(source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
    """The order in which neighbours are alike on both sides: by the longer side, then by target less source.

    The second order turns round at every length of the first, so that it never jumps. Stable: pairs of equal lengths
    stay in the order in which they came.
    """
    longer = np.maximum(source_lengths, target_lengths).astype(np.int64)
    beyond = longer.max(initial=0) + 1
    more = target_lengths - source_lengths  # in (-beyond, beyond)
    return np.argsort(2 * beyond * longer + np.where(longer % 2, -more, more), kind="stable")


def _cut(order: np.ndarray, longest: np.ndarray, budget: int) -> list[np.ndarray]:
    """Cut `order` from its beginning into batches as large as the budget allows, but never empty.

    longest: of each item in that order, the pieces of its longer side.
    """
    batches, start = [], 0
    while start < len(order):
        most = max(1, budget // int(longest[start]))  # no batch that begins here can hold more
        widest = np.maximum.accumulate(longest[start : start + most])
        padded = widest * np.arange(1, len(widest) + 1)  # grows with every item
        size = max(1, int(np.searchsorted(padded, budget, side="right")))
        batches.append(order[start : start + size])
        start += size
    return batches


def collate(split: Split, indexes: np.ndarray) -> Batch:
    """The sentences at `indexes` as one batch."""
    target_out = padded(split.target, indexes)  # (B, Lt)
    target_in = np.full_like(target_out, BOS)
    target_in[:, 1:] = np.where(target_out[:, :-1] == EOS, PAD, target_out[:, :-1])
    pieces = int((target_out != PAD).sum())
    source = padded(split.source, indexes)  # (B, Ls)
    return Batch(torch.from_numpy(source), torch.from_numpy(target_in), torch.from_numpy(target_out), pieces)


def padded(tokens: Tokens, indexes: np.ndarray) -> np.ndarray:
    """Rows of pieces, each ended by EOS and filled up with PAD, (B, longest + 1) int64."""
    starts = tokens.offsets[indexes]
    counts = tokens.offsets[indexes + 1] - starts
    columns = np.arange(counts.max() + 1)
    inside = columns < counts[:, None]  # (B, longest + 1)
    rows = np.full(inside.shape, PAD, dtype=np.int64)
    rows[inside] = tokens.flat[(starts[:, None] + columns)[inside]]
    rows[np.arange(len(rows)), counts] = EOS
    return rows


class TrainStream:
    """The micro-batches of one rank for a whole training: `steps` global batches, in `accumulate` parts each.

    A global batch is dealt out like cards to world * accumulate parts, so that all are about equally long and wide. A
    part for which no sentence is left repeats one with nothing to predict: every rank takes the same steps. What is
    trained on does not depend on world or accumulate.

    The state names the micro-batch that comes next, and iterating begins there: a stream that was saved at any place,
    an epoch's end included, goes on with exactly what was left. `dropped` counts the pairs that are too long.
    """

    def __init__(
        self,
        split: Split,
        batch_tokens: int,
        max_length: int,
        seed: int,
        steps: int,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
    ):
        assert 0 <= rank < world and accumulate >= 1
        self.split, self.batch_tokens, self.max_length, self.seed = split, batch_tokens, max_length, seed
        self.steps, self.rank, self.world, self.accumulate = steps, rank, world, accumulate
        self.source_lengths, self.target_lengths = model_lengths(split.source), model_lengths(split.target)
        fits = pairs_that_fit(self.source_lengths, self.target_lengths, batch_tokens, max_length)
        self.dropped = int((~fits).sum())
        self._state = {"step": 0, "epoch": 0, "batch": 0, "part": 0}
        self._plan: tuple[int, list[np.ndarray]] = (0, self._epoch(0))

    def __len__(self) -> int:
        return self.steps * self.accumulate

    def __iter__(self) -> Iterator[Batch]:
        while self._state["step"] < self.steps:
            epoch, batch, part = (self._state[key] for key in ("epoch", "batch", "part"))
            if self._plan[0] != epoch:
                self._plan = (epoch, self._epoch(epoch))
            plan = self._plan[1]
            micro = self._micro(plan[batch], part)
            self._state = self._after(self._state, len(plan))
            yield micro

    def state_dict(self) -> dict[str, int]:
        """What comes next: the step, its epoch, its place in the epoch, and the part of it (below `accumulate`)."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._state = dict(state)

    def _epoch(self, epoch: int) -> list[np.ndarray]:
        lengths = self.source_lengths, self.target_lengths
        return token_batches(*lengths, self.batch_tokens, self.max_length, self.seed, epoch)

    def _micro(self, batch: np.ndarray, part: int) -> Batch:
        """This rank's share of one part of a global batch."""
        own = batch[part * self.world + self.rank :: self.world * self.accumulate]
        pieces = int(self.target_lengths[batch].sum())
        if len(own):
            return collate(self.split, own)._replace(pieces=pieces)
        idle = collate(self.split, batch[:1])
        return idle._replace(target_out=torch.full_like(idle.target_out, PAD), pieces=pieces)

    def _after(self, state: dict[str, int], batches: int) -> dict[str, int]:
        step, epoch, batch, part = (state[key] for key in ("step", "epoch", "batch", "part"))
        part += 1
        if part >= self.accumulate:
            step, batch, part = step + 1, batch + 1, 0
        if batch == batches:
            epoch, batch = epoch + 1, 0
        return {"step": step, "epoch": epoch, "batch": batch, "part": part}
