"""Statistics of corpus scores when both the seeds and the sentences of a row are a random sample.

A corpus score is a function of sums over sentences: BLEU of ten counts, the loss of nats and tokens. Pseudo-values
turn it into a mean over sentences (the jackknife of Tukey 1958, "Bias and confidence in not-quite large samples").
With theta_s the score of seed s = 1..S on all n sentences and theta_s(-i) its score without sentence i,

    y_si = n theta_s - (n - 1) theta_s(-i).

The pseudo-values of a row follow the two-way random-effects model of the analysis of variance (Searle, Casella and
McCulloch 1992, "Variance Components", chapter 4)

    y_si = mu + a_s + b_i + e_si,     Var(mean of y) = sigma_a^2 / S + sigma_b^2 / n + sigma_e^2 / (S n)

with a seed effect a_s, a sentence effect b_i that all seeds share, and their interaction e_si. `estimate` and
`difference` estimate this variance; `_combine` has the equations. In a difference of two rows each row has seeds of its
own, while the sentences are the same. Two rows that evaluate the same trained weights in two ways (another beam, an
intervention) share their seeds, too. Then the differences of their pseudo-values, seed by seed, follow the model of one
row, and what a seed does to both is no part of their variance.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import scipy

from transformer_pl.table import moderation
from transformer_pl.table.moderation import Prior, SeedVariance, variance_of

Key = TypeVar("Key", bound=Hashable)  # of a row
Score = Callable[[np.ndarray], np.ndarray]  # sums over the sentences of a set (..., k) -> corpus scores (...)
LEVEL = 0.95
POWER = 0.8  # of `Estimate.detectable`
ROUNDING = 1e-6  # of a score: two that differ by less differ by how numbers are rounded
DRAWS = 2**14  # of a table in which no row differs: a p-value of 0.05 has a standard error of 0.002
AT_ONCE = 2**20  # errors: 8 MiB


# ---------------------------------------------------------------------------------------------------------------------
# One row, or two


class Sample(NamedTuple):
    """The scores of a row, and the contribution of each sentence."""

    scores: np.ndarray  # (S,) theta_s
    pseudo: np.ndarray  # (S, n) pseudo-values y_si; their mean over sentences is the score with its bias removed
    references: Sequence[float] | np.ndarray = ()  # (n,) a number of each reference; rows are compared on equal ones
    weights: Sequence[str] = ()  # (S,) the ids of the trained weights, or of pairs; empty: no other row has them
    has_seeds: bool = True  # False: made from a mean and a deviation, so that no value belongs to one of another row
    half_units: tuple[float, float] = (0.0, 0.0)  # of the last digits of this mean and this deviation

    def has_sentences_of(self, other: "Sample") -> bool:
        return np.array_equal(self.references, other.references)


class Estimate(NamedTuple):
    """A score, or a difference of two scores, with its uncertainty."""

    value: float
    parts: tuple[SeedVariance, ...]  # by the seeds of the row, and of base if it has others; empty: one seed
    variance_by_sentences: float
    degrees_of_freedom: float | None = None  # of t; None: the law is that of `moderation.upper_tail`
    level: float = LEVEL  # of its interval
    lowest: float = -math.inf  # no value can be lower, so that the interval ends there
    highest: float = math.inf

    @property
    def standard_error(self) -> float:
        """The root of the variance by seeds and by sentences."""
        return math.sqrt(sum(part.variance for part in self.parts) + self.variance_by_sentences)

    def interval(self) -> tuple[float, float]:
        """The confidence interval value -+ `half_width`.

        It is cut to the values that are possible, such as BLEU up to 100, because the true value is one of them.
        """
        half_width = self.half_width(self.level)
        return max(self.lowest, float(self.value - half_width)), min(self.highest, float(self.value + half_width))

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.interval()[0]

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.interval()[1]

    def half_width(self, level: float) -> float:
        """t SE, where t is a quantile of Student's t; without degrees of freedom, the quantile of the law in
        `moderation.upper_tail`."""
        if self.degrees_of_freedom is None:
            return moderation.upper_quantile(level, self.parts, self.variance_by_sentences)
        return float(self.standard_error * scipy.stats.t.ppf((1 + level) / 2, self.degrees_of_freedom))

    @property
    def p_value(self) -> float | None:
        """The two-sided test of a true value of zero: 2 P(T > |value| / SE) for Student's T; without degrees of
        freedom, twice the tail of `moderation.upper_tail`. None where nothing varies, which says nothing of chance."""
        if not self.standard_error:
            return None
        if self.degrees_of_freedom is None:
            return 2 * moderation.upper_tail(abs(self.value), self.parts, self.variance_by_sentences)
        return 2 * float(scipy.stats.t.sf(abs(self.value) / self.standard_error, self.degrees_of_freedom))

    @property
    def detectable(self) -> float:
        """The true value that is found in 80 % of cases: the interval's half width, plus the shortfall that 80 % of
        the estimates stay below."""
        return self.half_width(self.level) + self.half_width(2 * POWER - 1)


def sample(sentences: np.ndarray, score: Score, references: Sequence[float] | np.ndarray = ()) -> Sample:
    """The scores and pseudo-values of a row. sentences (S, n, k): the numbers of every sentence for every seed."""
    sums, n = sentences.sum(1), sentences.shape[1]
    scores = score(sums)
    return Sample(scores, n * scores[:, None] - (n - 1) * score(sums[:, None] - sentences), references)


def by_cluster(sentences: np.ndarray, clusters: Sequence[int] | Sequence[str] | None) -> np.ndarray:
    """The numbers of sentences (S, n, k), summed by cluster (S, clusters, k), such as a document, in sorted order.

    clusters (n,): of each sentence; None, or of other sentences: each counts alone.
    """
    if clusters is None or len(clusters) != sentences.shape[1]:
        return sentences
    of = np.asarray(clusters)
    order = np.argsort(of, kind="stable")
    return np.add.reduceat(sentences[:, order], np.unique(of[order], return_index=True)[1], axis=1)


def estimate(row: Sample, prior: Prior | None = None) -> Estimate:
    """The mean of a row over its seeds. prior: that of the rows of its table; None: only its own variance counts."""
    return _combine(row, None, prior)


def difference(row: Sample, base: Sample, prior: Prior | None = None) -> Estimate:
    """The mean of a row minus that of base, which was measured on the same sentences. prior: as for `estimate`.

    Rows that share their weights are compared within each seed: their differences have one variance by S seeds, and the
    law of `moderation.upper_tail`, as that of Satterthwaite finds too much where S is 2. The prior is not used for
    them: it says how trainings spread, but differences within a seed spread less, each by its own amount.
    """
    if shares_weights(row, base):
        row, base = _common(row, base), _common(base, row)
        scores = row.scores - base.scores
        if not varies(scores, base.scores):
            scores = np.full_like(scores, scores.mean())
        within = estimate(Sample(scores, row.pseudo - base.pseudo))
        return within._replace(degrees_of_freedom=None) if within.parts else within
    return _combine(row, base, prior)


def shares_weights(row: Sample, base: Sample) -> bool:
    """Whether a row evaluates trained weights of base; then the two are compared on those that both have.

    One seed of several in common says nothing of how their differences spread.
    """
    return len(set(row.weights) & set(base.weights)) >= min(2, len(row.scores))


def _common(row: Sample, other: Sample) -> Sample:
    """The row's seeds whose weights another row has, too, in the order of these weights."""
    places = sorted((i for i, of in enumerate(row.weights) if of in other.weights), key=lambda i: row.weights[i])
    weights = [row.weights[place] for place in places]
    return row._replace(scores=row.scores[places], pseudo=row.pseudo[places], weights=weights)


def is_rounding(row: Sample, base: Sample) -> bool:
    """Whether the scores of two rows are equal in every seed up to ROUNDING.

    Scores are compared in their order, as far as both rows have them; those of pairs within each pair.
    """
    if not (row.has_seeds and base.has_seeds):
        return False
    if shares_weights(row, base):
        row, base = _common(row, base), _common(base, row)
    seeds = min(len(row.scores), len(base.scores))
    own, of_base = row.scores[:seeds], base.scores[:seeds]
    return bool((abs(own - of_base) <= ROUNDING * (abs(own) + abs(of_base)) / 2).all())


def varies(scores: np.ndarray, size: np.ndarray | None = None) -> bool:
    """Whether scores, or differences of scores as large as `size`, vary by more than ROUNDING."""
    return bool(np.ptp(scores) > ROUNDING * abs(scores if size is None else size).max())


def variance_by_seeds(scores: Sequence[float] | np.ndarray) -> float:
    """The variance of scores from seed to seed. One that is only rounding is none."""
    return variance_of(scores) if varies(np.asarray(scores)) else 0.0


def _combine(row: Sample, base: Sample | None, prior: Prior | None) -> Estimate:
    """The mean score of a row's S_r seeds, minus that of base, if there is one. Its variance is the sum of

        V_r = Var_s(theta_rs) / S_r   for each of these rows r, with S_r - 1 degrees of freedom, and once
        V_b = Var_i(mean_s y_rsi - mean_s y_bsi) / n - sum_r M_r / (S_r n)   with n - 1 degrees of freedom.

    V_r estimates sigma_a^2 / S_r + sigma_e^2 / (S_r n). The first term of V_b contains the interaction, too, which is
    subtracted by its mean square M_r (see `_interaction_mean_square`); V_b is zero where this is negative. The sum has
    the degrees of freedom of Satterthwaite 1946, "An approximate distribution of estimates of variance components":

        (V_b + sum_r V_r)^2 / (V_b^2 / (n - 1) + sum_r V_r^2 / (S_r - 1)).

    With a prior each Var_s(theta_rs) is moderated, and the law is that of `moderation.upper_tail`. If any row has one
    seed, the variance is that of sentences alone: Var_i(...) / n, with n - 1 degrees of freedom.
    """
    rows, value, of_sentences = [row], float(row.scores.mean()), row.pseudo.mean(0)  # (n,)
    if base:
        rows, value = [row, base], value - float(base.scores.mean())
        of_sentences = of_sentences - base.pseudo.mean(0)
    n = len(of_sentences)
    by_sentences = float(of_sentences.var(ddof=1)) / n
    if any(len(row.scores) == 1 for row in rows):
        return Estimate(value, (), by_sentences, n - 1)
    by_sentences -= sum(_interaction_mean_square(row.pseudo) / (len(row.scores) * n) for row in rows)
    priors = prior, prior and prior.of_base
    parts = tuple(_variance_of_mean(row, prior) for row, prior in zip(rows, priors, strict=False))
    by_sentences = max(0.0, by_sentences)
    if prior:
        return Estimate(value, parts, by_sentences)
    variance = sum(part.variance for part in parts) + by_sentences
    if not variance:
        return Estimate(value, parts, by_sentences, math.inf)
    shares = [(part.variance / variance, part.freedom) for part in parts] + [(by_sentences / variance, n - 1)]
    return Estimate(value, parts, by_sentences, 1 / sum(share**2 / freedom for share, freedom in shares))


def _variance_of_mean(row: Sample, prior: Prior | None) -> SeedVariance:
    """The variance by seeds of a row's mean score."""
    own = moderate(_seed_variance(row), prior)
    return SeedVariance(own.variance * (1 / len(row.scores)), own.freedom)


def seed_prior(rows: Sequence[Sample], caution: float = moderation.CAUTION) -> Prior | None:
    """The prior for the variance from seed to seed, by the rows with several seeds. caution: see `fit_prior`."""
    return moderation.fit_prior([_seed_variance(row) for row in rows if len(row.scores) > 1], caution)


def moderate(own: SeedVariance, prior: Prior | None) -> SeedVariance:
    """The variance of a row, by its own seeds and, if there is a prior, by the other rows (see moderation.py)."""
    if prior is None or own in prior.outliers:
        return own
    freedom = prior.freedom + own.freedom
    variance = (prior.freedom * prior.variance + own.freedom * own.variance) / freedom
    return SeedVariance(max(variance, own.variance), freedom)


def _seed_variance(row: Sample) -> SeedVariance:
    """The variance of a row from seed to seed."""
    return SeedVariance(variance_by_seeds(row.scores), len(row.scores) - 1)


def _interaction_mean_square(pseudo: np.ndarray) -> float:
    """sum_si (y_si - mean_s y_si - mean_i y_si + mean y)^2 / ((S - 1) (n - 1)), which estimates sigma_e^2."""
    S, n = pseudo.shape
    residuals = pseudo - pseudo.mean(0) - pseudo.mean(1, keepdims=True) + pseudo.mean()
    return float((residuals**2).sum()) / ((S - 1) * (n - 1))


# ---------------------------------------------------------------------------------------------------------------------
# Several rows


def sample_of_seeds(scores: Sequence[float]) -> Sample | None:
    """The sample of a row of which only the scores by seed are known; None for fewer than two seeds."""
    values = np.array(scores, float)
    return Sample(values, np.stack([values, values], 1)) if len(values) > 1 else None


def printed_alike(row: Sample, other: Sample) -> Sample:
    """The sample of a mean and a deviation that print as those of a row, of which no mean is nearer to that of the
    other, and no deviation larger."""
    mean, (of_mean, of_deviation) = row.scores.mean(), row.half_units
    nearer = mean + np.clip(other.scores.mean() - mean, -of_mean, of_mean)
    scores = nearer + (row.scores - mean) * (1 + of_deviation / row.scores.std(ddof=1))
    return row._replace(scores=scores, pseudo=np.stack([scores, scores], 1))


class Compared(NamedTuple):
    """What is known of a row by itself, and beside base."""

    mean: Estimate  # over its seeds
    difference: Estimate | None = None  # from base, with a simultaneous interval; None: it is not compared
    p_value: float | None = None  # corrected; None: it has no test
    is_outlier: bool = False  # its variance from seed to seed is far from those of the other rows
    is_paired: bool = False  # it shares trained weights with base, and is compared within each seed
    is_rounding: bool = False  # in every seed its score is base's, but for rounding
    is_by_scale: bool = False  # its variance is moderated by the prior of the scale
    is_wide: bool = False  # it is base, and spreads more from seed to seed than the others


def compared(
    samples: Mapping[Key, Sample],
    base: Key | None,
    others: Collection[Key],
    most: float = math.inf,
    level: float = LEVEL,
    is_chosen: bool = False,
    of_scale: Prior | None = None,
) -> dict[Key, Compared]:
    """What a table says of each of the samples, by their keys.

    base: the key of what all are compared with; None, or without a sample: there are no differences. others: the keys
    of those that are compared. most: the largest difference that is possible. level: of all intervals together.
    is_chosen: whether whoever has chosen base may have seen the table; then all pairs of rows count in the correction.
    of_scale: the prior of rows which are too few to make one.
    """
    of_base = samples.get(base) if base is not None else None
    if of_scale and is_chosen:
        of_scale = of_scale.of_any
    own = _prior_of(samples.values(), of_base)
    prior, tested = own or of_scale, [key for key in samples if key in others]
    rows, changes = [samples[key] for key in tested], list[tuple[Estimate, float | None]]()
    if of_base:
        changes = (
            _beside_any(rows, of_base, most, of_scale) if is_chosen else correct(rows, of_base, prior, most, level)
        )
    found, compared_rows = dict(zip(tested, changes, strict=False)), {}
    for key, row in samples.items():
        change, p_value = found.get(key, (None, None))
        is_wide = row is of_base and _is_wide(row, rows)
        compared_rows[key] = _beside(row, of_base, prior, change, p_value)._replace(
            is_by_scale=prior is not own, is_wide=is_wide
        )
    return compared_rows


def _beside_any(
    rows: Sequence[Sample], base: Sample, most: float, of_scale: Prior | None
) -> list[tuple[Estimate, float | None]]:
    """The differences of rows from one of them that may be any, corrected for all pairs."""
    places = range(len(rows) + 1)
    pairs = [(i, j) for j in places for i in places[j + 1 :]]  # at first those with base
    return differences_of_pairs([base, *rows], pairs, most, of_scale)[: len(rows)]


def _beside(
    row: Sample, base: Sample | None, prior: Prior | None, change: Estimate | None, p_value: float | None
) -> Compared:
    """What is known of a row beside base. change, p_value: of their difference."""
    own_prior = prior.of_base if prior and row is base else prior
    is_paired = base is not None and shares_weights(row, base)
    is_equal = base is not None and change is not None and is_rounding(row, base)
    return Compared(estimate(row, own_prior), change, p_value, _is_outlier(row, prior), is_paired, is_equal)


def runs_beside(runs: Mapping[Key, float], samples: Mapping[Key, Sample], base: Key) -> dict[Key, float]:
    """Of the single runs of rows: p if they were runs of base, corrected for these rows; none where base does not vary.

    The variance of a run minus the mean of base's n runs is s^2 (1 + 1/n), where s^2 is base's, moderated by the rows
    with several runs, and it is one Student's t.
    """
    if not runs:
        return {}
    of_base, prior = samples[base], _prior_of(samples.values(), samples[base])
    own, n = moderate(_seed_variance(of_base), prior), len(of_base.scores)
    part = SeedVariance(own.variance * (1 + 1 / n), own.freedom)
    p_values = {
        key: p
        for key, run in runs.items()
        if (p := Estimate(float(run - of_base.scores.mean()), (part,), 0.0, own.freedom).p_value) is not None
    }
    return dict(zip(p_values, moderation.holm([*p_values.values()]).tolist(), strict=True))


def _prior_of(rows: Iterable[Sample], base: Sample | None = None, caution: float = moderation.CAUTION) -> Prior | None:
    """The prior of the rows of a table. Trainings that are those of base, or of a row before, do not count again."""
    trained = list[Sample]()
    for row in sorted(rows, key=lambda row: row is not base):
        if not any(shares_weights(row, other) for other in trained):
            trained.append(row)
    return seed_prior(trained, caution)


def _is_wide(base: Sample, rows: Sequence[Sample]) -> bool:
    """Whether base spreads more than the other trainings, by a one-sided F-test of their pooled variances."""
    own = [_seed_variance(row) for row in rows if len(row.scores) > 1 and not shares_weights(row, base)]
    if len(base.scores) == 1 or not (freedom := sum(part.freedom for part in own)):
        return False
    of_base, usual = _seed_variance(base), sum(part.variance * part.freedom for part in own) / freedom
    return bool(usual and scipy.stats.f.sf(of_base.variance / usual, of_base.freedom, freedom) < 1 - LEVEL)


def _is_outlier(row: Sample, prior: Prior | None) -> bool:
    return prior is not None and len(row.scores) > 1 and _seed_variance(row) in prior.outliers


def correct(
    rows: Sequence[Sample], base: Sample, prior: Prior | None = None, most: float = math.inf, level: float = LEVEL
) -> list[tuple[Estimate, float | None]]:
    """The difference of each row from base, with its p-value, both corrected for the number of rows.

    most: the largest difference that is possible. level: of all intervals together.

    A difference that is only rounding, or has no variance, is not tested: it has no p-value, and does not count in the
    correction. The order of the rows has no meaning.

    The test steps down from the smallest p (Westfall and Young 1993, algorithm 2.8). The i-th smallest becomes the
    probability that, if no row differed, any of the p-values from the i-th on would be as small. It is never below the
    corrected p-value before it. The probability of any false positive among them then stays below the level. The
    intervals are those of the first step: in 95 % of tables all of them hold the true values. A row that a later step
    finds has an interval that ends at zero.
    """
    differences = [difference(row, base, prior) for row in rows]
    tested = [i for i in _in_order(rows) if differences[i].standard_error]
    tested = [i for i in tested if not is_rounding(rows[i], base)]
    if not tested:
        return [(estimate, None) for estimate in differences]
    errors = _errors_by_chance([rows[i] for i in tested], base, [differences[i] for i in tested])
    return _stepped_down(differences, tested, errors.T.__getitem__, most, level)


def _in_order(rows: Sequence[Sample]) -> list[int]:
    """The indices of the rows in an order that depends on their numbers alone, so that the same errors are drawn for a
    row wherever it stands. Of rows without sentences these are mean and deviation, for which others may be printed."""

    def numbers(row: Sample) -> tuple[list[float], list[float]]:
        if len(row.references):
            return row.scores.tolist(), row.pseudo.mean(0).tolist()
        return [float(f"{number:.9g}") for number in (row.scores.mean(), row.scores.std())], []

    return sorted(range(len(rows)), key=lambda i: numbers(rows[i]))


def differences_of_pairs(
    rows: Sequence[Sample], pairs: Sequence[tuple[int, int]], most: float = math.inf, of_scale: Prior | None = None
) -> list[tuple[Estimate, float | None]]:
    """The first row minus the second of each pair of places, and its p-value, corrected as by `correct`.

    The rows were measured on the same sentences, and have several seeds each or one. The errors of all rows are drawn
    jointly: pairs that share a row share its error. Rows that share weights are compared within each seed, with an
    error of their own. of_scale: as for `compared`; each row counts as one that may be new.
    """
    prior = _prior_of(rows, caution=moderation.MORE_CAUTION) or (of_scale and of_scale.of_any)
    order = _in_order(rows)
    estimates = [difference(rows[i], rows[j], prior) for i, j in pairs]
    if has_seeds := len(rows[0].scores) > 1:  # few seeds in many pairs: Satterthwaite finds too much
        estimates = [estimate._replace(degrees_of_freedom=None) for estimate in estimates]
    tested = [k for k, (i, j) in enumerate(pairs) if estimates[k].standard_error and not is_rounding(rows[i], rows[j])]
    if not tested:
        return [(estimate, None) for estimate in estimates]
    rng, ordered, place = np.random.default_rng(1), [rows[i] for i in order], np.argsort(order)
    covariance = np.cov([row.pseudo.mean(0) for row in ordered])
    directions, variances, _ = np.linalg.svd(covariance)
    by_sentences = rng.standard_normal((DRAWS, len(rows))) @ (directions * np.sqrt(variances)).T
    by_seeds = _seed_errors(rng, ordered, prior) if has_seeds else np.zeros((DRAWS, len(rows)))

    def errors(k: int) -> np.ndarray:
        (i, j), estimate = place[list(pairs[tested[k]])], estimates[tested[k]]
        spread = covariance[i, i] + covariance[j, j] - 2 * covariance[i, j]
        scale = math.sqrt(estimate.variance_by_sentences / max(spread, np.finfo(float).tiny))
        of_seeds = by_seeds[:, i] - by_seeds[:, j]
        if len(estimate.parts) == 1:
            of_seeds = math.sqrt(estimate.parts[0].variance) * rng.standard_t(estimate.parts[0].freedom, DRAWS)
        return scale * (by_sentences[:, i] - by_sentences[:, j]) + of_seeds

    return _stepped_down(estimates, tested, errors, most)


def _seed_errors(rng: np.random.Generator, rows: Sequence[Sample], prior: Prior | None) -> np.ndarray:
    """Errors (DRAWS, rows) of their means by seeds."""
    own, freedoms = np.array([_variance_of_mean(row, prior) for row in rows]).T
    return np.asarray(np.sqrt(own) * rng.standard_t(freedoms, (DRAWS, len(rows))))


def _sentence_errors(
    rng: np.random.Generator, rows: Sequence[Sample], weights: np.ndarray, estimates: Sequence[Estimate]
) -> np.ndarray:
    """Errors (DRAWS, contrasts) by the sentences, which vary together as they do in these rows."""
    covariance = np.cov(weights @ [row.pseudo.mean(0) for row in rows]).reshape(len(weights), len(weights))
    by_sentences = np.array([estimate.variance_by_sentences for estimate in estimates])
    scale = np.sqrt(by_sentences / np.maximum(np.diag(covariance), np.finfo(float).tiny))
    directions, variances, _ = np.linalg.svd(covariance)
    errors = rng.standard_normal((DRAWS, len(weights)))
    for block in _blocks(errors):
        block[:] = scale * (block @ (directions * np.sqrt(variances)).T)
    return errors


def _blocks(errors: np.ndarray) -> list[np.ndarray]:
    """An array of draws in parts of at most AT_ONCE numbers, so that what is made of a part takes little memory."""
    return np.array_split(errors, -(-errors.size // AT_ONCE))


def _stepped_down(
    estimates: Sequence[Estimate],
    tested: Sequence[int],
    errors: Callable[[int], np.ndarray],
    most: float,
    together: float = LEVEL,
) -> list[tuple[Estimate, float | None]]:
    """The estimates; those at the indices `tested` with simultaneous intervals and corrected p-values (see `correct`).

    errors: of the k-th tested estimate, (DRAWS,), where nothing differs.
    """
    p_values = np.array([estimates[i].p_value for i in tested])
    order = np.argsort(p_values, kind="stable")
    steps, least = np.empty(len(order)), np.ones(DRAWS)  # by chance, of this row and those with larger p
    for place in reversed(range(len(order))):
        least = np.minimum(least, scipy.stats.rankdata(-abs(errors(order[place]))) / DRAWS)
        steps[place] = (1 + (least <= p_values[order[place]]).sum()) / (1 + DRAWS)
    corrected = np.maximum.accumulate(steps)[np.argsort(order)]
    corrected = np.minimum(corrected, moderation.holm(p_values))  # which is exact where p is tiny
    level = 1 - np.sort(least)[math.ceil((1 - together) * (1 + DRAWS)) - 2]  # a star's, in the first step
    results: list[tuple[Estimate, float | None]] = [(estimate, None) for estimate in estimates]
    for i, p in zip(tested, corrected, strict=True):
        lowest, highest = -most, most
        if p < 1 - together:  # the interval of a row that is found does not cross zero
            lowest, highest = (0.0, most) if estimates[i].value > 0 else (-most, 0.0)
        results[i] = estimates[i]._replace(level=float(level), lowest=lowest, highest=highest), float(p)
    return results


def _errors_by_chance(rows: Sequence[Sample], base: Sample, differences: Sequence[Estimate]) -> np.ndarray:
    """Errors (DRAWS, rows) where no row differs: those of base are drawn once for all rows, and sentences vary
    together as they do here.

    A row that shares the weights of base has an error of its own in place of both. It is drawn as independent of the
    others: errors that depend on each other stay together within their limits more often (Sidak 1967).
    """
    rng, weights = np.random.default_rng(1), np.eye(len(rows), len(rows) + 1)
    weights[:, -1] = -1
    errors = _sentence_errors(rng, [*rows, base], weights, differences)
    if all(estimate.parts for estimate in differences):
        parts = [(*estimate.parts, SeedVariance(0.0, 1.0))[:2] for estimate in differences]  # no errors of base: 0
        own, of_base = np.array(parts).transpose(1, 2, 0)  # each: variances and freedoms of the rows
        for block in _blocks(errors):
            block += np.sqrt(own[0]) * rng.standard_t(own[1], block.shape)
        for block in _blocks(errors):
            block -= np.sqrt(of_base[0]) * rng.standard_t(of_base[1].max(), (len(block), 1))
    return errors


def usual_spread(scores: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation from seed to seed, by the median of the rows; None where it is not known.

    scores: of each row, by seed. By chance s^2 of d degrees of freedom has the median sigma^2 median(chi^2_d) / d.
    """
    by_row = [variance_by_seeds(row) / scipy.stats.chi2.median(d) * d for row in scores if (d := len(row) - 1)]
    return math.sqrt(np.median(by_row)) if by_row else None


def found_by_plan(
    spread: float,
    seeds: int,
    rows: int,
    base_seeds: int | None = None,
    level: float | None = None,
    of_scale: Prior | None = None,
) -> float:
    """The true difference from base that a table finds in 80 % of cases, before it is trained.

    spread: the standard deviation of all rows from seed to seed. seeds: of each row. rows: how many are tested.
    base_seeds: of base; None: as many. level: of the interval of one row; None: LEVEL, divided among the rows.
    of_scale: the prior of rows that are too few to make one; more rows have one with the usual degrees of freedom. Only
    the variation over seeds counts. The law is that of the test.
    """
    counts = seeds, base_seeds or seeds
    freedoms = (of_scale.freedom, of_scale.of_base.freedom) if of_scale else (0.0, 0.0)
    if rows + 1 >= moderation.FEWEST_ROWS:
        freedoms = moderation.USUAL_FREEDOM, moderation.USUAL_FREEDOM
    parts = tuple(SeedVariance(spread**2 / n, freedom + n - 1) for n, freedom in zip(counts, freedoms, strict=True))
    of_t = None if freedoms[0] else sum(1 / n for n in counts) ** 2 / sum(1 / (n**2 * (n - 1)) for n in counts)
    return Estimate(0, parts, 0, of_t, level or 1 - (1 - LEVEL) / rows).detectable


def rank_correlation(
    ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray
) -> tuple[float, tuple[float, float]]:
    """Spearman's rank correlation of at least four pairs, and its 95 % interval (Bonett and Wright 2000)."""
    r = float(scipy.stats.spearmanr(ours, theirs).statistic)
    half_width = scipy.stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt((1 + r**2 / 2) / (len(ours) - 3))
    low, high = np.tanh(np.arctanh(np.clip(r, -0.9999, 0.9999)) + half_width * np.array([-1, 1]))
    return r, (float(low), float(high))


def predict(x: np.ndarray, y: np.ndarray, at: float) -> Estimate:
    """The y of one more point, by the least-squares line through at least three points (x, y) that differ in x.

    The points scatter about the line, by s^2 with n - 2 degrees of freedom, and the new one as they do:

        Var = s^2 (1 + 1/n + (at - mean x)^2 / sum (x - mean x)^2).
    """
    n, line, centred = len(x), scipy.stats.linregress(x, y), x - x.mean()
    residuals = y - line.intercept - line.slope * x
    distance = (at - x.mean()) ** 2 / (centred @ centred)
    variance = residuals @ residuals / (n - 2) * (1 + 1 / n + distance)
    return Estimate(float(line.intercept + line.slope * at), (), float(variance), n - 2)
