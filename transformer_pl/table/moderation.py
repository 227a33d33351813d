"""Moderated variances: the rows of a table inform each other's spread from seed to seed.

With S seeds the variance s^2 of a row has d = S - 1 degrees of freedom, which is little. Smyth 2004 ("Linear models
and empirical Bayes methods for assessing differential expression", limma) takes the true variances of all rows as drawn
from one law, a scaled inverse chi-square with d0 degrees of freedom around s0^2, and replaces s^2 by

    (d0 s0^2 + d s^2) / (d0 + d),     with d0 + d degrees of freedom.

Where the rows' spreads differ, this method finds differences that are not there (tests/benchmarks/README.md has the
figures). So this module is more cautious in four ways. First, it assumes that the spreads differ as much as is likely
at most: d0 comes from the upper 60 % bound of the variance of log s^2, not from its estimate, and is at most the sum of
all d. Second, no row gets a smaller variance than its own. Third, a difference follows the Behrens-Fisher distribution,
in which the variances of the two rows are uncertain each on its own, in place of a t law with the degrees of freedom of
Satterthwaite. Fourth, a row whose variance is far from those of the others is an outlier (see `find_outliers`): it
keeps its own variance, and does not inform the others.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy

CAUTION = 0.6  # the confidence of the bound on how much the rows' variances differ
MORE_CAUTION = 0.8  # the same where rows have two seeds, which say little of their spread, or are in many pairs
USUAL_FREEDOM = 2.5  # of the prior of a table with three seeds: the median of those in sweeps/results
FEWEST_ROWS = 5  # rows with several seeds: fewer say too little about how much their spreads differ
FEWEST_ALIKE = 3  # of these rows, those that are no outliers
MIDDLE = (0.2, 0.5, 0.8)  # the quantiles of the rows' variances that outliers do not move
LEAST_FREEDOM, MOST_FREEDOM = 0.2, 20.0  # of the law that outliers are found by
OUTLIER_LEVEL = 0.05  # of the test for outliers
NODES = 32  # of the quadrature over an uncertain variance; its error is below 1e-3 of a p-value


class SeedVariance(NamedTuple):
    """The variance of a row from seed to seed, or of the mean of its seeds, with its degrees of freedom."""

    variance: float
    freedom: float


class Prior(NamedTuple):
    """The prior of the rows' variances: s0^2 with d0 degrees of freedom."""

    variance: float
    freedom: float
    outliers: frozenset[SeedVariance] = frozenset()  # the variances that are far from the others
    base_freedom: float | None = None  # d0 of base alone, which is known better; None: as that of other rows

    @classmethod
    def of_scale(cls, spread: float, freedom: float) -> "Prior":
        """The prior of a scale, by which a table has one whose rows are too few to make one.

        It is that of base. Other rows may spread three times as far as any before, and count half of its freedom: with
        all of it up to 8 % of such tables would have a wrong star.
        """
        return cls(spread**2, freedom / 2, base_freedom=freedom)

    @property
    def of_any(self) -> "Prior":
        """The same where base is a row like any other."""
        return self._replace(base_freedom=None)

    @property
    def of_base(self) -> "Prior":
        return self if self.base_freedom is None else self._replace(freedom=self.base_freedom)


def variance_of(values: Sequence[float] | np.ndarray) -> float:
    """The sample variance. It is exactly 0 for equal values, whose rounded mean could make them seem to vary."""
    return float(np.var(np.asarray(values) - values[0], ddof=1))


def fit_prior(rows: Sequence[SeedVariance], caution: float = CAUTION) -> Prior | None:
    """The law of the rows' variances from seed to seed; None for fewer than FEWEST_ROWS, of which FEWEST_ALIKE must
    be no outliers.

    log s^2 has the mean log sigma^2 + digamma(d/2) - log(d/2), and chance contributes trigamma(d/2) to its variance.
    The rest of its variance over the rows is that of log sigma^2, which is trigamma(d0/2). Rows that do not vary at
    all are left out, and so are the outliers. The order of the rows has no meaning.
    """
    varying = sorted(row for row in rows if row.variance > 0)
    outliers = find_outliers(varying)
    alike = [row for row in varying if row not in outliers]
    if len(varying) < FEWEST_ROWS or len(alike) < FEWEST_ALIKE:
        return None
    variances, freedoms = np.array(alike).T
    centred = np.log(variances) - scipy.special.digamma(freedoms / 2) + np.log(freedoms / 2)
    by_chance = scipy.special.polygamma(1, freedoms / 2).mean()
    # of log chi-square, beyond the normal law's
    kurtosis = scipy.special.polygamma(3, freedoms / 2).mean() / by_chance**2
    informative = 2 * len(alike) / (2 + kurtosis)  # the degrees of freedom of the variance over the rows
    caution = MORE_CAUTION if np.median(freedoms) < 2 else caution
    most = centred.var(ddof=1) * informative / scipy.stats.chi2.ppf(1 - caution, informative)
    freedom = 2 * inverse_trigamma(most - by_chance, freedoms.sum() / 2)
    middle = centred.mean() + scipy.special.digamma(freedom / 2) - math.log(freedom / 2)
    return Prior(math.exp(middle), freedom, outliers)


def find_outliers(rows: Sequence[SeedVariance]) -> frozenset[SeedVariance]:
    """The variances that are too far from the others for one law; none among fewer than FEWEST_ROWS.

    s^2 / s0^2 has the law F(d, d0). Its median and its 20 to 80 % range, which a few outliers do not move, are fitted
    to those of the rows. Then each row is tested, on both sides, with Holm's correction.
    """
    varying = [row for row in rows if row.variance > 0]
    if len(varying) < FEWEST_ROWS:
        return frozenset()
    variances, freedoms = np.array(varying).T
    low, middle, high = np.quantile(variances, MIDDLE)

    def wider(freedom: float) -> float:
        """By how much the law's range of log s^2 is wider than that of the rows."""
        ends = scipy.stats.f.ppf((MIDDLE[0], MIDDLE[-1]), np.median(freedoms), freedom)
        return float(np.log(ends[1] / ends[0]) - np.log(high / low))

    freedom = LEAST_FREEDOM if wider(LEAST_FREEDOM) <= 0 else MOST_FREEDOM
    if wider(LEAST_FREEDOM) > 0 > wider(MOST_FREEDOM):
        freedom = scipy.optimize.brentq(wider, LEAST_FREEDOM, MOST_FREEDOM)
    law = scipy.stats.f(freedoms, freedom, scale=middle / scipy.stats.f.median(np.median(freedoms), freedom))
    p_values = holm(2 * np.minimum(law.cdf(variances), law.sf(variances)))
    return frozenset(row for row, p in zip(varying, p_values, strict=True) if p < OUTLIER_LEVEL)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """p-values corrected for their number m (Holm 1979): the i-th smallest becomes max over j <= i of (m - j + 1) p_j,
    at most 1. The probability of any false positive among them then stays below the level."""
    order = np.argsort(p_values)
    corrected = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * np.arange(len(order), 0, -1)))
    return corrected[np.argsort(order)]


def inverse_trigamma(variance: float, most: float) -> float:
    """The x with trigamma(x) = variance; `most` where x would be larger, or where variance is not above zero."""
    if variance <= scipy.special.polygamma(1, most):
        return most

    def excess(log: float) -> float:
        return float(scipy.special.polygamma(1, math.exp(log))) - variance

    return math.exp(scipy.optimize.brentq(excess, -50, math.log(most)))


def upper_tail(x: float, parts: Sequence[SeedVariance], fixed: float) -> float:
    """P(E > x) for x >= 0, where E is a sum of independent errors: for each part a Student's t with its freedom, times
    the root of its variance, and a normal one of variance `fixed`.

    Given the true variances, V_i / g_i with g_i from the law of chi-square over its freedom, E is normal. The tail
    of this normal law is averaged over the g_i.
    """
    variance, weight = np.array([fixed]), np.ones(1)
    for part in parts:
        g, weights = _gamma_nodes(part.freedom)
        variance = np.add.outer(variance, part.variance / g).ravel()
        weight = np.multiply.outer(weight, weights).ravel()
    return float(weight @ scipy.special.ndtr(-x / np.sqrt(variance)))


@cache
def upper_quantile(level: float, parts: tuple[SeedVariance, ...], fixed: float) -> float:
    """The x with P(|E| < x) = level; see `upper_tail`."""
    scale = math.sqrt(fixed + sum(part.variance for part in parts))
    if not scale:
        return 0.0
    tail, high = (1 - level) / 2, 2 * scale
    while upper_tail(high, parts, fixed) > tail:
        high *= 2
    return float(scipy.optimize.brentq(lambda x: upper_tail(x, parts, fixed) - tail, 0.0, high, xtol=1e-6 * scale))


@cache
def _gamma_nodes(freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of an average over chi-square / freedom. The nodes are dense where it is small, because
    small values make the tails."""
    v, weights = np.polynomial.legendre.leggauss(NODES)
    v = (v + 1) / 2
    nodes = scipy.stats.gamma.ppf(v**4, freedom / 2) / (freedom / 2)
    return nodes, weights / 2 * 4 * v**3
