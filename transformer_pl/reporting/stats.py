"""What may be said of a row when both its seeds and its sentences are drawn by chance.

A corpus score is a function of sums over sentences (BLEU's ten integers; nats and pieces). Trained with S seeds and
measured on n sentences, a row has S x n of them, and its score varies in three ways: by the seed, by the sentences that
happen to be in the set (alike for all seeds), and by both together. Pseudo-values (Tukey 1958) make any corpus score a
mean over sentences, so that the two-way analysis of variance tells the three apart; their sum has the degrees of
freedom of Satterthwaite (1946), few where seeds matter most. A difference of two rows is the same with two rows: their
seeds are their own, their sentences shared.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

Score = Callable[[np.ndarray], np.ndarray]  # of sums (..., k), over all sentences of a set: (...)
LEVEL = 0.95


# ---------------------------------------------------------------------------------------------------------------------
# Corpus scores of sums


def bleu(sums: np.ndarray) -> np.ndarray:
    """Papineni et al. 2002 as sacreBLEU has it, smoothed by `exp`, 0 to 100.

    sums (..., 10): matching n-grams of 1 to 4, possible ones, length of outputs and of references.
    """
    matching, possible = sums[..., :4], sums[..., 4:8]
    length, reference = sums[..., 8], sums[..., 9]
    halvings = np.cumsum(matching == 0, -1)  # exp: the k-th precision without a match counts 2^-k matches
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(matching > 0, matching, 0.5**halvings) / possible
        brevity = np.minimum(0.0, 1 - reference / length)
        score = 100 * np.exp(brevity + np.log(precisions).mean(-1))
    return np.where(matching.any(-1) & (possible > 0).all(-1), score, 0.0)


def loss(sums: np.ndarray) -> np.ndarray:
    """Nats a piece, the logarithm of perplexity; sums (..., 2): nats, pieces."""
    return sums[..., 0] / sums[..., 1]


class Metric(NamedTuple):
    """A corpus score, and where its sums stand in the twelve numbers that are kept of a sentence."""

    score: Score
    columns: slice
    text: int  # the column that depends on the references alone: where it differs, so does the text


BLEU = Metric(bleu, slice(0, 10), 9)
LOSS = Metric(loss, slice(10, 12), 11)


# ---------------------------------------------------------------------------------------------------------------------
# One row, or two


class Sample(NamedTuple):
    """A row's score by seed, and what each sentence contributes to it."""

    scores: np.ndarray  # (S,)
    pseudo: np.ndarray  # (S, n): their mean over sentences is the score, but for its bias


class Estimate(NamedTuple):
    """A score, or a difference of two, and how far chance may have moved it."""

    value: float
    by_seeds: (
        float | None
    )  # what seeds add to the square of its standard error; None with one seed, which tells nothing
    by_sentences: float  # what sentences add
    freedom: float  # degrees of freedom of their sum

    @property
    def error(self) -> float:
        """Its standard error."""
        return math.sqrt((self.by_seeds or 0.0) + self.by_sentences)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Of so much confidence."""
        reach = self.error * stats.t.ppf((1 + level) / 2, self.freedom)
        return float(self.value - reach), float(self.value + reach)

    @property
    def p_value(self) -> float:
        """Two-sided, that the value is zero."""
        return 2 * float(stats.t.sf(abs(self._t), self.freedom))

    @property
    def above(self) -> float:
        """The probability that the true value is above zero, where nothing was known before."""
        return float(stats.t.cdf(self._t, self.freedom))

    @property
    def _t(self) -> float:
        return self.value / self.error if self.error else math.copysign(math.inf, self.value) if self.value else 0.0


def sample(sentences: np.ndarray, score: Score) -> Sample:
    """sentences (S, n, k): the statistics of every sentence by every seed."""
    sums, n = sentences.sum(1), sentences.shape[1]
    scores = score(sums)
    return Sample(scores, n * scores[:, None] - (n - 1) * score(sums[:, None] - sentences))


def estimate(row: Sample) -> Estimate:
    """The mean of a row over its seeds."""
    return _combine([(1, row)])


def difference(row: Sample, base: Sample) -> Estimate:
    """Of the means of two rows that were measured on the same sentences."""
    return _combine([(1, row), (-1, base)])


def _combine(rows: Sequence[tuple[int, Sample]]) -> Estimate:
    """The weighted sum of rows."""
    value = float(sum(weight * row.scores.mean() for weight, row in rows))
    n = rows[0][1].pseudo.shape[1]
    of_sentences = float(sum(weight * row.pseudo.mean(0) for weight, row in rows).var(ddof=1)) / n
    if any(len(row.scores) == 1 for _, row in rows):
        return Estimate(value, None, of_sentences, n - 1)
    of_seeds = [row.scores.var(ddof=1) / len(row.scores) for _, row in rows]
    # Seeds and sentences together are in both: counted once.
    of_sentences = max(0.0, of_sentences - sum(_of_both(row.pseudo) for _, row in rows))
    square = sum(of_seeds) + of_sentences
    squares = sum(part**2 / (len(row.scores) - 1) for part, (_, row) in zip(of_seeds, rows, strict=True))
    freedom = square**2 / (squares + of_sentences**2 / (n - 1)) if square else math.inf
    return Estimate(value, float(sum(of_seeds)), of_sentences, freedom)


def _of_both(pseudo: np.ndarray) -> float:
    """What seeds and sentences together add to the square of the error of a row's mean."""
    S, n = pseudo.shape
    rest = pseudo - pseudo.mean(0) - pseudo.mean(1, keepdims=True) + pseudo.mean()
    return float((rest**2).sum()) / ((S - 1) * (n - 1)) / (S * n)


# ---------------------------------------------------------------------------------------------------------------------
# Several rows; one seed; how many seeds


class RowComparison(NamedTuple):
    """What is known of one score of a row."""

    own: Estimate
    difference: Estimate | None  # to base; None for base itself, and where the two cannot be held against each other
    p_value: float | None  # of the difference, corrected for all rows


def compare_rows(
    rows: Sequence[np.ndarray | None], base: int | None, metric: Metric, randomise: bool = False
) -> list[RowComparison | None]:
    """Of every row (S, n, 12), held against the one at `base`; None for a row without finite sentences.

    A difference is tested by t; by randomisation, of sentences alone, where that is asked for or both have one seed.
    One seed against several is not tested: nothing tells how far that one strays. Nor are rows of other sentences.
    """
    parts = [row if row is None else row[..., metric.columns] for row in rows]
    known = [part is not None and bool(np.isfinite(part).all()) for part in parts]
    samples = [sample(part, metric.score) if known[i] else None for i, part in enumerate(parts)]
    differences: dict[int, Estimate] = {}
    p_values: dict[int, float] = {}
    for i, row in enumerate(rows):
        if base in (None, i) or not (known[i] and known[base]):
            continue
        seeds, of_base = len(row), len(rows[base])
        if not np.array_equal(row[0, :, metric.text], rows[base][0, :, metric.text]):
            continue
        if (seeds == 1) != (of_base == 1) or (randomise and seeds != of_base):
            continue
        differences[i] = difference(samples[i], samples[base])
        by_random = randomise or seeds == 1
        p_values[i] = randomisation(parts[i], parts[base], metric.score) if by_random else differences[i].p_value
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return [
        RowComparison(estimate(one), differences.get(i), corrected.get(i)) if known[i] else None
        for i, one in enumerate(samples)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for as many comparisons (Holm 1979): the chance of one false alarm among all stays at its level."""
    order = np.argsort(p_values)
    steps = np.arange(len(order), 0, -1)
    corrected = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * steps))
    return corrected[np.argsort(order)].tolist()


def randomisation(row: np.ndarray, base: np.ndarray, score: Score, trials: int = 10_000, seed: int = 1) -> float:
    """The p-value of a difference by approximate randomisation (Riezler and Maxwell 2005), stratified by seed (Clark
    et al. 2011): how often two rows that swap sentences at random differ as much. row, base (S, n, k).

    With one seed it is the test that sacreBLEU has. It takes the seeds as they are, not as drawn by chance.
    """
    row, gap = row.astype(float), (base - row).astype(float)
    S, n = row.shape[:2]
    found = abs((score(row.sum(1)) - score(base.sum(1))).mean())
    random, extreme, chunk = np.random.default_rng(seed), 0, max(1, 10**6 // (S * n))
    for done in range(0, trials, chunk):
        swaps = random.integers(0, 2, (S, min(chunk, trials - done), n)).astype(float)
        moved = swaps @ gap  # (S, chunk, k)
        differences = score(row.sum(1)[:, None] + moved) - score((row + gap).sum(1)[:, None] - moved)
        extreme += int((np.abs(differences.mean(0)) >= found - 1e-9).sum())
    return (extreme + 1) / (trials + 1)


def expected_best(values: Sequence[float]) -> np.ndarray:
    """The expected highest of k of n values drawn at random, for k = 1 to n: its mean over all choices of k.

    Unbiased, unlike the plug-in of the empirical distribution (Tang et al. 2020, arXiv:2004.13705).
    """
    ranked, n = np.sort(values), len(values)
    k, i = np.arange(1, n + 1)[:, None], np.arange(1, n + 1)[None, :]
    below = special.gammaln(i) - special.gammaln(k) - special.gammaln(np.maximum(i - k + 1, 1))  # log C(i-1, k-1)
    all_of_k = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return np.where(i >= k, np.exp(below - all_of_k), 0.0) @ ranked


def seeds_to_resolve(gap: float, of_seeds: float, of_sentences: float, power: float = 0.8) -> int | None:
    """Seeds a row after which a true difference of `gap` is found with this probability; None if no number is enough.

    of_seeds: the standard deviation of a row's score from seed to seed; of_sentences: the standard error of the
    difference that is left with endless seeds.
    """
    if of_seeds == of_sentences == 0:
        return 2
    S = np.unique(np.geomspace(2, 10_000, 400).astype(int))
    by_seeds = 2 * of_seeds**2 / S
    error = np.sqrt(by_seeds + of_sentences**2)
    freedom = error**4 / np.maximum(by_seeds**2 / (2 * (S - 1)), 1e-300)
    reach = stats.t.ppf((1 + LEVEL) / 2, freedom)
    enough = stats.nct.sf(reach, np.minimum(freedom, 1e6), gap / error) >= power
    return int(S[enough.argmax()]) if enough.any() else None
