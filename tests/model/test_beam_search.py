"""Beam search against a plain search, against every output there is, and its laws."""

import math
import operator

import pytest
import torch

from transformer_pl.model.beam_search import Hypothesis, beam_search

pytestmark = pytest.mark.core
BOS, EOS = 0, 1
INF = math.inf


class Toy:
    """A small random recurrent net: the next piece depends on the sentence and on the whole prefix.

    `eos_bias` differs by sentence, so that they end at different times.
    """

    def __init__(self, seed, sentences, V, width=6, sharpness=2.0, eos_bias=(-2.0, 3.0)):
        rng = torch.Generator().manual_seed(seed)
        self.V, self.sentences = V, sentences
        self.first = torch.randn(sentences, width, generator=rng)
        self.mix = torch.randn(width, width, generator=rng)
        self.embedding = torch.randn(V, width, generator=rng)
        self.out = sharpness * torch.randn(width, V, generator=rng)
        self.eos_bias = torch.linspace(*eos_bias, sentences)[torch.randperm(sentences, generator=rng)]
        self.known = {}

    def after(self, sentence, prefixes):
        """Log-probabilities (rows, V) after whole prefixes (rows, t), of the sentences (rows,)."""
        hidden = self.first[sentence]
        for piece in prefixes.T:
            hidden = torch.tanh(hidden @ self.mix + self.embedding[piece])
        logits = hidden @ self.out
        logits[:, EOS] += self.eos_bias[sentence]
        return logits.log_softmax(-1)

    def __call__(self, sentence, pieces):
        """The same of one prefix, as a list."""
        key = (sentence, *pieces)
        if key not in self.known:
            prefix = torch.tensor([[BOS, *pieces]])
            self.known[key] = self.after(torch.tensor([sentence]), prefix)[0].tolist()
        return self.known[key]


class Recomputing:
    """A step that computes from whole prefixes, follows each row's sentence by `origin`, and counts rows.

    Its logits are no log-probabilities: the search normalises them.
    """

    def __init__(self, toy, sentences=None):
        self.toy, self.rows = toy, []
        self.sentence = torch.arange(toy.sentences) if sentences is None else torch.tensor(sentences)

    def __call__(self, prefixes, origin):
        assert prefixes.shape[:2] == origin.shape
        self.rows.append(origin.numel())
        self.sentence = self.sentence[origin.flatten()]
        logits = self.toy.after(self.sentence, prefixes.flatten(0, 1)) + torch.arange(origin.numel())[:, None] % 3
        return logits.view(*origin.shape, -1)


def script(table):
    """A step for one sentence that reads from {pieces so far: {next piece: probability}}, else says EOS.

    Every call must extend rows of the one before it.
    """
    seen = []

    def step(prefixes, origin):
        if seen:
            assert torch.equal(prefixes[0, :, :-1], seen[-1][origin[0]])
        else:
            assert origin.tolist() == [[0]]
        seen.append(prefixes[0])
        logprobs = torch.full((1, prefixes.shape[1], 5), -INF)
        for row, (_, *pieces) in zip(logprobs[0], prefixes[0].tolist(), strict=True):
            for piece, probability in table.get(tuple(pieces), {EOS: 1.0}).items():
                row[piece] = math.log(probability)
        return logprobs

    return step


def plain_search(toy, sentence, longest, beam, alpha):
    """The same search by lists: one sentence, no early end."""
    live, finished = [(0.0, [])], []
    for length in range(1, longest + 1):
        candidates = [
            (logprob + more, [*pieces, piece])
            for logprob, pieces in live
            for piece, more in enumerate(toy(sentence, pieces))
            if length < longest or piece == EOS
        ]
        candidates.sort(key=operator.itemgetter(0), reverse=True)
        live = []
        for logprob, pieces in candidates[: 2 * beam]:
            if pieces[-1] == EOS:
                finished.append(Hypothesis(logprob / ((5 + length) / 6) ** alpha, pieces[:-1]))
            elif len(live) < beam:
                live.append((logprob, pieces))
    return max(finished)


def assert_same(got, expected):
    assert [h.tokens for h in got] == [h.tokens for h in expected]
    assert [h.score for h in got] == pytest.approx([h.score for h in expected], rel=1e-5, abs=1e-6)


def search(toy, max_lengths, **settings):
    return beam_search(Recomputing(toy), torch.tensor(max_lengths), bos=BOS, eos=EOS, **settings)


@pytest.mark.parametrize("beam", [1, 2, 4, 5])
@pytest.mark.parametrize("V", [2, 3, 40, 97])  # tokens are looked at in blocks, if V has a divisor
def test_equals_a_plain_search(V, beam):
    max_lengths = [9, 1, 4, 12, 2, 7, 12]
    toy = Toy(seed=V + beam, sentences=len(max_lengths), V=V)
    for alpha in (0, 0.6, 2.5):
        expected = [plain_search(toy, s, longest, beam, alpha) for s, longest in enumerate(max_lengths)]
        assert_same(search(toy, max_lengths, beam=beam, alpha=alpha), expected)


def test_a_sentence_does_not_depend_on_its_companions():
    toy = Toy(seed=6, sentences=7, V=9, eos_bias=(0.0, 5.0))  # they end early, some by their own greatest length
    max_lengths, settings = [5, 60, 2, 9, 3, 14, 6], dict(bos=BOS, eos=EOS, beam=3, alpha=0.6)
    step, rows_alone = Recomputing(toy), 0
    together = beam_search(step, torch.tensor(max_lengths), **settings)
    for s, longest in enumerate(max_lengths):
        step_alone = Recomputing(toy, [s])
        assert_same(beam_search(step_alone, torch.tensor([longest]), **settings), [together[s]])
        rows_alone += sum(step_alone.rows)
    assert sum(step.rows) == rows_alone  # nor does the work


def test_ends_early_when_nothing_can_win_any_more():
    toy = Toy(seed=8, sentences=2, V=8, eos_bias=(12.0, 40.0))
    step = Recomputing(toy)
    [likely, certain] = beam_search(step, torch.tensor([30, 30]), bos=BOS, eos=EOS, beam=4, alpha=0.6)
    assert likely.tokens == certain.tokens == []
    assert len(step.rows) < 5


def test_waits_for_a_longer_output_that_the_penalty_will_favour():
    """Both outputs have probability 1/2; only the penalty at the greatest length shows that the longer may win."""
    table = {(): {EOS: 0.5, 2: 0.5}} | {(2,) * i: {2: 1.0} for i in range(1, 9)}
    for beam, alpha, pieces in [(1, 0.6, [2] * 9), (3, 0.6, [2] * 9), (3, 0, [])]:
        [best] = beam_search(script(table), torch.tensor([10]), bos=BOS, eos=EOS, beam=beam, alpha=alpha)
        assert best.tokens == pieces
        assert best.score == pytest.approx(math.log(0.5) / ((5 + len(pieces) + 1) / 6) ** alpha)


def test_of_equal_scores_the_shorter_wins():
    table = {(): {EOS: 0.25, 2: 0.75}, (2,): {EOS: 1 / 3, 3: 2 / 3}, (2, 3): {EOS: 0.5, 4: 0.5}}
    [best] = beam_search(script(table), torch.tensor([10]), bos=BOS, eos=EOS, beam=2, alpha=0)
    assert best.tokens == []


def test_none_where_no_output_is_possible():
    never = {(): {2: 1.0}, (2,): {2: 1.0}}
    assert beam_search(script(never), torch.tensor([2]), bos=BOS, eos=EOS, beam=2, alpha=0.6) == [None]
    assert beam_search(lambda p, o: 1 / 0, torch.tensor([], dtype=torch.long), bos=0, eos=1, beam=2, alpha=0.6) == []


@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("when", [1, 3])
def test_values_that_are_no_logits(bad, when):
    toy = Toy(seed=12, sentences=2, V=30, eos_bias=(-9.0, -9.0))
    step = Recomputing(toy)

    def broken(prefixes, origin):
        logits = step(prefixes, origin)
        if prefixes.shape[2] == when:
            logits[1, 0, 17] = bad
        return logits

    with pytest.raises(FloatingPointError):
        beam_search(broken, torch.tensor([3, 4]), bos=BOS, eos=EOS, beam=2, alpha=0.6)
