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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from transformer_pl.table import moderation
from transformer_pl.table.moderation import Prior, SeedVariance, variance_of

Score = Callable[[np.ndarray], np.ndarray]  # sums over the sentences of a set (..., k) -> corpus scores (...)
LEVEL = 0.95
POWER = 0.8  # of `Estimate.detectable`
ROUNDING = 1e-6  # of a score: two that differ by less differ by how numbers are rounded
EXACT = 1e-12  # relative: differences that spread less are the same
DRAWS = 2**14  # of a table in which no row differs: a p-value of 0.05 has a standard error of 0.002


# ---------------------------------------------------------------------------------------------------------------------
# One row, or two


class Sample(NamedTuple):
    """The scores of a row, and the contribution of each sentence."""

    scores: np.ndarray  # (S,) theta_s
    pseudo: np.ndarray  # (S, n) pseudo-values y_si; their mean over sentences is the score with its bias removed
    references: Sequence[float] | np.ndarray = ()  # (n,) a number of each reference; rows are compared on equal ones
    weights: Sequence[str] = ()  # (S,) the ids of the trained weights, or of pairs; empty: no other row has them
    overlap: float = (
        0.0  # of training sets: the covariance of two seeds as a share of their variance (see `difference`)
    )
    has_seeds: bool = True  # False: made from a mean and a deviation, so that no value belongs to one of another row

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
        return float(self.standard_error * stats.t.ppf((1 + level) / 2, self.degrees_of_freedom))

    @property
    def p_value(self) -> float | None:
        """The two-sided test of a true value of zero: 2 P(T > |value| / SE) for Student's T; without degrees of
        freedom, twice the tail of `moderation.upper_tail`. None where nothing varies, which says nothing of chance."""
        if not self.standard_error:
            return None
        if self.degrees_of_freedom is None:
            return 2 * moderation.upper_tail(abs(self.value), self.parts, self.variance_by_sentences)
        return 2 * float(stats.t.sf(abs(self.value) / self.standard_error, self.degrees_of_freedom))

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


def estimate(row: Sample, prior: Prior | None = None) -> Estimate:
    """The mean of a row over its seeds. prior: that of the rows of its table; None: only its own variance counts."""
    return _combine([(1, row)], prior)


def difference(row: Sample, base: Sample, prior: Prior | None = None) -> Estimate:
    """The mean of a row minus that of base, which was measured on the same sentences. prior: as for `estimate`.

    Rows that share their weights are compared within each seed: their differences have one variance by S seeds, and the
    law of `moderation.upper_tail`, as that of Satterthwaite finds too much where S is 2. The prior is not used for
    them: it says how trainings spread, but differences within a seed spread less, each by its own amount.

    Folds of one cross-validation share most of their training sets, and so they are no independent seeds. With an
    `overlap` of n_test / n_train the variance of the mean is s^2 (1 / S + n_test / n_train), after Nadeau and Bengio
    2003, "Inference for the generalization error".
    """
    if shares_weights(row, base):
        row, base = _common(row, base), _common(base, row)
        scores = row.scores - base.scores
        if np.ptp(scores) <= EXACT * abs(base.scores).max():  # equal but for the rounding of this subtraction
            scores = np.full_like(scores, scores[0])
        within = estimate(Sample(scores, row.pseudo - base.pseudo, overlap=row.overlap))
        return within._replace(degrees_of_freedom=None) if within.parts else within
    return _combine([(1, row), (-1, base)], prior)


def shares_weights(row: Sample, base: Sample) -> bool:
    """Whether a row evaluates trained weights of base; then the two are compared on those that both have.

    One seed of several in common says nothing of how their differences spread.
    """
    return len(set(row.weights) & set(base.weights)) >= min(2, len(row.scores))


def run_beside(score: float, base: Sample, prior: Prior | None = None) -> Estimate:
    """The score of one run minus the mean of base's n runs, with the law that it has if the run is one of base's.

    Its variance is s^2 (1 + 1/n), where s^2 is base's, moderated by the prior, and it is one Student's t.
    """
    own, n = moderation.moderate(_seed_variance(base), prior), len(base.scores)
    part = SeedVariance(own.variance * (1 + 1 / n), own.freedom)
    return Estimate(float(score - base.scores.mean()), (part,), 0.0, own.freedom)


def _common(row: Sample, other: Sample) -> Sample:
    """The row's seeds whose weights another row has, too, in the order of these weights."""
    places = sorted((i for i, of in enumerate(row.weights) if of in other.weights), key=lambda i: row.weights[i])
    weights = [row.weights[place] for place in places]
    return row._replace(scores=row.scores[places], pseudo=row.pseudo[places], weights=weights)


def first_seeds(row: Sample, count: int) -> Sample:
    """The sample of a row's first seeds."""
    return row._replace(scores=row.scores[:count], pseudo=row.pseudo[:count], weights=row.weights[:count])


def is_rounding(weighted_rows: Sequence[tuple[float, Sample]]) -> bool:
    """Whether the scores of rows, times their weights, cancel each other in every seed up to ROUNDING.

    Scores are compared in their order, as far as all rows have them; those of pairs within each pair.
    """
    if not all(row.has_seeds for _, row in weighted_rows):
        return False
    weights, samples = zip(*weighted_rows, strict=True)
    if len(samples) == 2 and shares_weights(*samples):
        samples = (_common(*samples), _common(*samples[::-1]))
    seeds = min(len(row.scores) for row in samples)
    scores = np.array([weight * row.scores[:seeds] for weight, row in zip(weights, samples, strict=True)])
    return bool((abs(scores.sum(0)) <= ROUNDING * abs(scores).sum(0) / 2).all())


def _combine(weighted_rows: Sequence[tuple[float, Sample]], prior: Prior | None) -> Estimate:
    """The sum over rows r of w_r times the mean score of the row's S_r seeds. Its variance is the sum of

        V_r = w_r^2 Var_s(theta_rs) / S_r   for each row, with S_r - 1 degrees of freedom, and once
        V_b = Var_i(sum_r w_r mean_s y_rsi) / n - sum_r w_r^2 M_r / (S_r n)   with n - 1 degrees of freedom.

    V_r estimates sigma_a^2 / S_r + sigma_e^2 / (S_r n). The first term of V_b contains the interaction, too, which is
    subtracted by its mean square M_r (see `_interaction_mean_square`); V_b is zero where this is negative. The sum has
    the degrees of freedom of Satterthwaite 1946, "An approximate distribution of estimates of variance components":

        (V_b + sum_r V_r)^2 / (V_b^2 / (n - 1) + sum_r V_r^2 / (S_r - 1)).

    With a prior each Var_s(theta_rs) is moderated, and the law of at most two rows is that of `moderation.upper_tail`.
    If any row has one seed, the variance is that of sentences alone: Var_i(...) / n, with n - 1 degrees of freedom.
    """
    value = float(sum(weight * row.scores.mean() for weight, row in weighted_rows))
    n = weighted_rows[0][1].pseudo.shape[1]
    sentence_means = np.sum([weight * row.pseudo.mean(0) for weight, row in weighted_rows], axis=0)  # (n,)
    by_sentences = float(sentence_means.var(ddof=1)) / n
    rows = [row for _, row in weighted_rows]
    if any(len(row.scores) == 1 for row in rows):
        return Estimate(value, (), by_sentences, n - 1)
    squares = ((weight**2 * _interaction_mean_square(row.pseudo), len(row.scores)) for weight, row in weighted_rows)
    by_sentences = max(0.0, by_sentences - sum(square / (seeds * n) for square, seeds in squares))
    parts = tuple(_variance_of_mean(row, prior, weight) for weight, row in weighted_rows)
    if prior and len(parts) <= 2:
        return Estimate(value, parts, by_sentences)
    variance = sum(part.variance for part in parts) + by_sentences
    squares = sum(part.variance**2 / part.freedom for part in parts) + by_sentences**2 / (n - 1)
    return Estimate(value, parts, by_sentences, variance**2 / squares if variance else math.inf)


def _variance_of_mean(row: Sample, prior: Prior | None, weight: float = 1) -> SeedVariance:
    """The variance by seeds of a row's mean score times a weight."""
    own = moderation.moderate(_seed_variance(row), prior)
    return SeedVariance(weight**2 * own.variance * (1 / len(row.scores) + row.overlap), own.freedom)


def seed_prior(rows: Sequence[Sample]) -> Prior | None:
    """The prior for the variance from seed to seed, by the rows with several seeds."""
    return moderation.fit_prior([_seed_variance(row) for row in rows if len(row.scores) > 1])


def _seed_variance(row: Sample) -> SeedVariance:
    """The variance of a row from seed to seed."""
    return SeedVariance(variance_of(row.scores), len(row.scores) - 1)


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


def is_outlier(row: Sample, prior: Prior | None) -> bool:
    """Whether the variance of a row from seed to seed is far from those of the other rows."""
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
    tested = [i for i in tested if not is_rounding([(1, rows[i]), (-1, base)])]
    if not tested:
        return [(estimate, None) for estimate in differences]
    errors = _errors_by_chance([rows[i] for i in tested], base, [differences[i] for i in tested])
    return _stepped_down(differences, tested, errors, most, level)


def _in_order(rows: Sequence[Sample]) -> list[int]:
    """The indices of the rows in an order that depends on their numbers alone, so that the same errors are drawn for a
    row wherever it stands. Of rows without sentences these are mean and deviation, for which others may be printed."""

    def numbers(row: Sample) -> tuple[list[float], list[float]]:
        if len(row.references):
            return row.scores.tolist(), row.pseudo.mean(0).tolist()
        return [float(f"{number:.9g}") for number in (row.scores.mean(), row.scores.std())], []

    return sorted(range(len(rows)), key=lambda i: numbers(rows[i]))


def contrasts(
    rows: Sequence[Sample], weights: np.ndarray, prior: Prior | None = None, most: float = math.inf
) -> list[tuple[Estimate, float | None]]:
    """Sums of the rows' scores with the weights (contrasts, rows), and their p-values, corrected as by `correct`.

    The rows have several seeds each, and were measured on the same sentences. The errors of all rows are drawn jointly:
    contrasts that share a row share its error.
    """
    order = _in_order(rows)
    rows, weights = [rows[i] for i in order], weights[:, order]
    summed = [[(w, row) for w, row in zip(line, rows, strict=True) if w] for line in weights]
    estimates = [_combine(weighted_rows, prior) for weighted_rows in summed]
    if all(len(estimate.parts) == 2 for estimate in estimates):  # few seeds in many pairs: Satterthwaite finds too much
        estimates = [estimate._replace(degrees_of_freedom=None) for estimate in estimates]
    tested = [i for i, one in enumerate(estimates) if one.standard_error and not is_rounding(summed[i])]
    if not tested:
        return [(estimate, None) for estimate in estimates]
    rng, weights = np.random.default_rng(1), weights[tested]
    errors = _sentence_errors(rng, rows, weights, [estimates[i] for i in tested])
    variances, freedoms = np.array([_variance_of_mean(row, prior) for row in rows]).T
    errors += (np.sqrt(variances) * rng.standard_t(freedoms, (DRAWS, len(rows)))) @ weights.T
    return _stepped_down(estimates, tested, errors, most)


def _sentence_errors(
    rng: np.random.Generator, rows: Sequence[Sample], weights: np.ndarray, estimates: Sequence[Estimate]
) -> np.ndarray:
    """Errors (DRAWS, contrasts) by the sentences, which vary together as they do in these rows."""
    covariance = np.cov(weights @ [row.pseudo.mean(0) for row in rows]).reshape(len(weights), len(weights))
    by_sentences = np.array([estimate.variance_by_sentences for estimate in estimates])
    scale = np.sqrt(by_sentences / np.maximum(np.diag(covariance), np.finfo(float).tiny))
    return scale * rng.multivariate_normal(np.zeros(len(weights)), covariance, DRAWS, method="svd")


def _stepped_down(
    estimates: Sequence[Estimate], tested: Sequence[int], errors: np.ndarray, most: float, together: float = LEVEL
) -> list[tuple[Estimate, float | None]]:
    """The estimates; those at the indices `tested` with simultaneous intervals and corrected p-values (see `correct`).

    errors (DRAWS, tested): of estimates where nothing differs.
    """
    p_values = np.array([estimates[i].p_value for i in tested])
    order = np.argsort(p_values, kind="stable")
    by_chance = stats.rankdata(-abs(errors[:, order]), axis=0) / DRAWS
    least = np.minimum.accumulate(by_chance[:, ::-1], axis=1)[:, ::-1]  # least of this row and those with larger p
    steps = (1 + (least <= p_values[order]).sum(0)) / (1 + DRAWS)
    corrected = np.maximum.accumulate(steps)[np.argsort(order)]
    corrected = np.minimum(corrected, moderation.holm(p_values))  # which is exact where p is tiny
    level = 1 - np.sort(least[:, 0])[math.ceil((1 - together) * (1 + DRAWS)) - 2]  # a star's, in the first step
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
        errors += np.sqrt(own[0]) * rng.standard_t(own[1], errors.shape)
        errors -= np.sqrt(of_base[0]) * rng.standard_t(of_base[1].max(), (DRAWS, 1))
    return errors


def usual_spread(scores: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation from seed to seed, by the median of the rows; None where it is not known.

    scores: of each row, by seed. By chance s^2 of d degrees of freedom has the median sigma^2 median(chi^2_d) / d.
    """
    by_row = [variance_of(row) / stats.chi2.median(d) * d for row in scores if (d := len(row) - 1)]
    return math.sqrt(np.median(by_row)) if by_row else None


def found_by_plan(
    spread: float, seeds: int, rows: int, base_seeds: int | None = None, level: float | None = None
) -> float:
    """The true difference from base that a table finds in 80 % of cases, before it is trained.

    spread: the standard deviation of all rows from seed to seed. seeds: of each row. rows: how many are tested.
    base_seeds: of base; None: as many. level: of the interval of one row; None: LEVEL, divided among the rows. Only the
    variation over seeds counts. If there are enough rows, they inform each other's spread.
    """
    base_seeds = base_seeds or seeds
    is_informed = rows + 1 >= moderation.FEWEST_ROWS
    freedom = rows * (seeds - 1) + base_seeds - 1
    parts = [SeedVariance(spread**2 / n, freedom if is_informed else n - 1) for n in (seeds, base_seeds)]
    t_freedom = freedom if is_informed else seeds + base_seeds - 2
    return Estimate(0, tuple(parts), 0, t_freedom, level or 1 - (1 - LEVEL) / rows).detectable


def rank_correlation(
    ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray
) -> tuple[float, tuple[float, float]]:
    """Spearman's rank correlation of at least four pairs, and its 95 % interval (Bonett and Wright 2000)."""
    r = float(stats.spearmanr(ours, theirs).statistic)
    half_width = stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt((1 + r**2 / 2) / (len(ours) - 3))
    low, high = np.tanh(np.arctanh(np.clip(r, -0.9999, 0.9999)) + half_width * np.array([-1, 1]))
    return r, (float(low), float(high))


def predict(x: np.ndarray, y: np.ndarray, at: float) -> Estimate:
    """The y of one more point, by the least-squares line through at least three points (x, y) that differ in x.

    The points scatter about the line, by s^2 with n - 2 degrees of freedom, and the new one as they do:

        Var = s^2 (1 + 1/n + (at - mean x)^2 / sum (x - mean x)^2).
    """
    n, line, centred = len(x), stats.linregress(x, y), x - x.mean()
    residuals = y - line.intercept - line.slope * x
    distance = (at - x.mean()) ** 2 / (centred @ centred)
    variance = residuals @ residuals / (n - 2) * (1 + 1 / n + distance)
    return Estimate(float(line.intercept + line.slope * at), (), float(variance), n - 2)
