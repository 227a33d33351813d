"""Batches: every pair that fits once an epoch, within the budget; the stream of a training, which goes on exactly."""

import itertools
import tracemalloc

import numpy as np
import pytest
import torch

from transformer_pl.config import Config, Data, Optim, Trainer
from transformer_pl.data.batches import TrainStream, collate, eval_batches, token_batches
from transformer_pl.data.tokenizer import PAD, JointBPE
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.errors import InputError

pytestmark = pytest.mark.core
BUDGET, LIMIT = 2048, 60


def skewed(pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths as sentences have them: a long tail, and targets about as long as their sources."""
    rng = np.random.default_rng(seed)
    sources = np.clip(rng.lognormal(2.7, 0.5, pairs), 2, 200)
    return sources.astype(int), np.clip(sources * rng.normal(1.1, 0.2, pairs), 2, 200).astype(int)


def tokens(counts: list[int], seed: int) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Tokens(np.random.default_rng(seed).integers(4, 99, offsets[-1], dtype=np.uint16), offsets)


@pytest.fixture
def split() -> Split:
    """50 pairs; the first one's source is empty. Some do not fit a limit of 12."""
    rng = np.random.default_rng(5)
    return Split(tokens([0, *rng.integers(1, 14, 49)], 1), tokens(list(rng.integers(1, 14, 50)), 2))


def cells(batches, sources, targets) -> int:
    return sum(len(batch) * int(sources[batch].max() + targets[batch].max()) for batch in batches)


def test_sentences_are_joined_in_order_and_taken_in_any():
    parts = (([5, 6, 7], [2, 0, 1]), ([], []), ([8, 9, 10, 11], [1, 3]))
    joined = Tokens.joined([Tokens.of(np.array(flat, np.uint16), lengths) for flat, lengths in parts])
    assert joined.rows() == [[5, 6], [], [7], [8], [9, 10, 11]] and joined.lengths.tolist() == [2, 0, 1, 1, 3]
    for indexes in ([], [1], [4, 0, 1, 4], range(5)):
        taken = joined.take(indexes)
        assert taken.rows() == [joined.rows()[i] for i in indexes] and taken.flat.dtype == np.uint16


# Batches of lengths


def test_every_fitting_pair_comes_once_an_epoch_and_both_sides_keep_the_budget_padding_included():
    sources, targets = skewed(5000)
    batches = token_batches(sources, targets, BUDGET, LIMIT, seed=1, epoch=0)
    fits = np.flatnonzero((sources <= LIMIT) & (targets <= LIMIT))
    assert 0 < len(fits) < 5000
    assert np.array_equal(np.sort(np.concatenate(batches)), fits)
    assert all(len(batch) * max(sources[batch].max(), targets[batch].max()) <= BUDGET for batch in batches)


def test_a_batch_is_as_large_as_the_budget_allows_and_little_is_padding():
    same = np.full(100, 10)
    assert sorted(map(len, token_batches(same, same, 205, 256, seed=1, epoch=0))) == [20] * 5
    sources, targets = skewed(20_000)
    batches = token_batches(sources, targets, BUDGET, 200, seed=1, epoch=0)
    real = int((sources + targets).sum())
    random = np.array_split(np.random.default_rng(0).permutation(len(sources)), len(batches))
    assert 1 - real / cells(batches, sources, targets) < 0.05 and 1 - real / cells(random, sources, targets) > 0.4


def test_every_epoch_has_as_many_batches():
    """A stream finds its place by that."""
    for lengths in (skewed(2000), skewed(37)):
        assert len({len(token_batches(*lengths, BUDGET, LIMIT, 1, epoch)) for epoch in range(20)}) == 1


def test_the_plan_follows_from_seed_and_epoch():
    def plan(seed, epoch):
        return [batch.tolist() for batch in token_batches(*skewed(2000), BUDGET, LIMIT, seed, epoch)]

    assert plan(1, 0) == plan(1, 0)
    others = [plan(1, 1), plan(2, 0), plan(0, 1)]
    assert all(one != other for one, other in itertools.combinations([plan(1, 0), *others], 2))
    # not only the order of the batches: which pairs of one length meet changes as well
    assert {frozenset(batch) for batch in plan(1, 0)} != {frozenset(batch) for batch in plan(1, 1)}


@pytest.mark.parametrize("most", [127, 128, 32_767, 40_000])
def test_the_order_is_by_the_longer_sentence_then_by_the_difference_back_and_forth(most):
    """Among equals as drawn. Trials that were begun earlier go on in the same order."""
    sources, targets = np.random.default_rng(most).integers(1, most, (2, 300))
    sources[0] = most

    def key(i):
        longer, more = max(sources[i], targets[i]), targets[i] - sources[i]
        return longer, -more if longer % 2 else more

    assert np.concatenate(eval_batches(sources, targets, 60)).tolist() == sorted(range(300), key=key)
    drawn = np.random.default_rng((1, 0)).permutation(300).tolist()
    batches = token_batches(sources, targets, 9 * most, most, seed=1, epoch=0)
    batches.sort(key=lambda batch: key(batch[0]))
    assert np.concatenate(batches).tolist() == sorted(drawn, key=key)


def test_a_pair_beyond_the_limit_or_a_whole_batch_on_one_side_does_not_fit():
    sources, targets = np.array([5, 6, 5, 4]), np.array([5, 5, 6, 3])
    for limits in ({"batch_tokens": 100, "max_length": 5}, {"batch_tokens": 5, "max_length": 100}):
        batches = token_batches(sources, targets, **limits, seed=1, epoch=0)
        assert sorted(np.concatenate(batches).tolist()) == [0, 3]


def test_evaluation_keeps_every_sentence_sorted_within_the_budget():
    sources, targets = skewed(1000)
    batches = eval_batches(sources, targets, 60)
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(1000))
    longest = np.maximum(sources, targets)
    assert np.all(np.diff(longest[np.concatenate(batches)]) >= 0)
    assert any(longest[batch].max() > 60 for batch in batches)
    assert all(len(batch) == 1 or len(batch) * longest[batch].max() <= 60 for batch in batches)
    few, none = np.array([9, 3, 3, 5]), np.array([], dtype=int)
    assert [batch.tolist() for batch in eval_batches(few, few, 10)] == [[1, 2], [3], [0]]
    assert eval_batches(none, none, 10) == []


# The stream of a training


def stream(split, steps=60, accumulate=1, rank=0, world=1) -> TrainStream:
    data, optim, trainer = Data(batch_tokens=40, max_length=12), Optim(max_steps=steps), Trainer(accumulate=accumulate)
    config = Config(data=data, optim=optim, trainer=trainer, seed=3)
    return TrainStream(split, JointBPE(), config, rank, world)


def listed(batches) -> list:
    return [(b.source.tolist(), b.target_in.tolist(), b.target_out.tolist(), b.tokens) for b in batches]


def targets(batches) -> list[tuple]:
    """The sentences that a list of batches predicts."""
    rows = [tuple(x for x in row if x != PAD) for batch in batches for row in batch.target_out.tolist()]
    return sorted(row for row in rows if row)


def plan(split, epoch: int) -> list[np.ndarray]:
    return token_batches(split.source.lengths_with_special, split.target.lengths_with_special, 40, 12, 3, epoch)


def test_a_stream_follows_the_plan_epoch_by_epoch(split):
    planned = itertools.chain.from_iterable(plan(split, epoch) for epoch in range(9))
    assert listed(stream(split)) == listed(collate(split, batch) for batch in itertools.islice(planned, 60))
    assert [len(stream(split, accumulate=n)) for n in (1, 3)] == [60, 180]


@pytest.mark.parametrize(("world", "accumulate"), [(1, 2), (2, 1), (3, 2), (2, 50)])
def test_the_parts_of_a_global_batch_are_the_whole(split, world, accumulate):
    whole = list(stream(split, steps=20))
    ranks = [list(stream(split, steps=20, rank=r, world=world, accumulate=accumulate)) for r in range(world)]
    assert {len(parts) for parts in ranks} == {20 * accumulate}
    for step, batch in enumerate(whole):
        parts = [part for rank in ranks for part in rank[step * accumulate : (step + 1) * accumulate]]
        assert targets(parts) == targets([batch])
        assert {part.tokens for part in parts} == {batch.tokens}
        assert sum(int((part.target_out != PAD).sum()) for part in parts) == batch.tokens


# What a derived class may change


class Redrawn(TrainStream):
    """Other tokens in every epoch, of other lengths, and random noise in every batch."""

    def epoch_split(self, epoch):
        rng = np.random.default_rng(epoch)
        return Split(*(tokens(list(rng.integers(1, 14, 50 - epoch)), epoch + side) for side in (1, 2)))

    def changed(self, batch, generator):
        return batch._replace(source=batch.source + torch.randint(0, 9, batch.source.shape, generator=generator))


def redrawn(split=None, **options) -> TrainStream:
    one = stream(split, accumulate=options.pop("accumulate", 1))
    return Redrawn(split or Split(tokens([3], 1), tokens([3], 2)), one.tokenizer, one.config, **options)


def test_epochs_may_have_other_tokens_and_other_numbers_of_batches():
    one = redrawn()
    counts = [len(one.epoch_batches(one.epoch_split(epoch), epoch)) for epoch in range(9)]
    assert len(set(counts)) > 1
    planned = [
        collate(one.epoch_split(epoch), batch)
        for epoch in range(9)
        for batch in one.epoch_batches(one.epoch_split(epoch), epoch)
    ]
    assert [b.target_out.tolist() for b in one] == [b.target_out.tolist() for b in planned[:60]]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("make", [stream, redrawn])
def test_a_resumed_stream_yields_what_was_left(split, make, accumulate):
    """Also of what is drawn anew in every epoch."""
    whole, epoch = listed(make(split, accumulate=accumulate)), len(plan(split, 0)) * accumulate
    assert 2 < epoch < len(whole) - 2
    for done in (0, 1, 2, 7 * accumulate, epoch - 1, epoch, epoch + 1, len(whole) - 1, len(whole)):
        first, second = make(split, accumulate=accumulate), make(split, accumulate=accumulate)
        begun = listed(itertools.islice(first, done))
        second.load_state_dict(first.state_dict())
        assert begun + listed(second) == whole


def test_random_changes_are_others_in_each_batch_and_on_each_rank():
    ranks = [list(redrawn(accumulate=2, rank=rank, world=2)) for rank in (0, 1)]
    one_split = Split(*(tokens([3] * 50, side) for side in (1, 2)))
    noises = []
    for rank in (0, 1):
        same = redrawn(accumulate=2, rank=rank, world=2)
        same.epoch_split = lambda epoch: one_split
        plain = TrainStream(one_split, same.tokenizer, same.config, rank, 2)
        noises += [str((b.source - a.source)[:2].tolist()) for a, b in zip(plain, same, strict=True)]
    assert len(ranks[0]) == 120 and len(set(noises)) > 0.9 * len(noises)


class ByTheStep(TrainStream):
    def changed(self, batch, generator, step):
        return batch._replace(target_in=torch.full_like(batch.target_in, step))


class Shortened(TrainStream):
    def changed(self, batch, generator):
        return batch._replace(target_out=batch.target_out[:, :-1])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_change_may_go_by_the_step(split, accumulate):
    config = Config(trainer=Trainer(accumulate=accumulate), optim=Optim(max_steps=3))
    steps = [batch.target_in.unique().tolist() for batch in ByTheStep(split, None, config)]
    assert steps == [[step] for step in (1, 2, 3) for _ in range(accumulate)]


def test_a_change_keeps_the_number_of_target_tokens_by_which_the_loss_is_divided(split):
    with pytest.raises(InputError, match="target tokens"):
        next(iter(Shortened(split, None, Config())))


def test_a_step_s_batch_costs_as_much_whatever_the_corpus_is():
    """By the memory that it takes: an array over all pairs would show."""

    def peak(pairs: int) -> int:
        side = Tokens.of(np.full(10 * pairs, 7, np.uint16), np.full(pairs, 10))
        batches = iter(TrainStream(Split(side, side), None, Config(data=Data(batch_tokens=4096))))
        next(batches)  # plans the epoch
        tracemalloc.start()
        next(batches)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return taken

    assert peak(1_000_000) < 1.1 * peak(10_000)
