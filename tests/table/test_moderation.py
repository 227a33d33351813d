"""Moderated variances: what they are made of, against independent computations."""

import math

import numpy as np
import pytest
from scipy import special, stats

from transformer_pl.table.moderation import (
    MOST_FREEDOM,
    Prior,
    SeedVariance,
    find_outliers,
    fit_prior,
    holm,
    inverse_trigamma,
    upper_quantile,
    upper_tail,
    variance_of,
)
from transformer_pl.table.statistics import moderate

pytestmark = pytest.mark.core


@pytest.mark.parametrize("x", [0.0, 0.7, 3.0, 12.0])
@pytest.mark.parametrize("freedoms", [(2.0, 2.0), (3.4, 3.4), (9.0, 4.0), (1000.0, 1000.0)])
def test_the_tail_of_a_sum_of_t_s_is_that_of_their_convolution(freedoms, x):
    """By adaptive integration over the second error."""
    from scipy.integrate import quad

    (first, second), variances = freedoms, (1.0, 0.3)

    def density(u):
        return stats.t.sf((x - math.sqrt(variances[1]) * u) / math.sqrt(variances[0]), first) * stats.t.pdf(u, second)

    middle = x / math.sqrt(variances[1])
    expected = sum(quad(density, *ends, limit=300)[0] for ends in ((-np.inf, 0), (0, middle), (middle, np.inf)))
    parts = tuple(map(SeedVariance, variances, freedoms))
    assert upper_tail(x, parts, 0.0) == pytest.approx(expected, rel=2e-3, abs=1e-12)


def test_the_tail_has_the_textbook_s_limits():
    """One variance: Student's t. Certain variances: the normal law. A fixed variance adds to them."""
    assert upper_tail(3.0, [SeedVariance(2.0, 4.0)], 0.0) == pytest.approx(stats.t.sf(3 / math.sqrt(2), 4), rel=1e-3)
    assert upper_tail(3.0, [SeedVariance(1.0, 1e7), SeedVariance(0.5, 1e7)], 0.5) == pytest.approx(
        stats.norm.sf(3, 0, math.sqrt(2)), rel=1e-3
    )
    assert upper_tail(3.0, [], 2.0) == pytest.approx(stats.norm.sf(3, 0, math.sqrt(2)))
    for level in (0.5, 0.95, 0.999):
        parts = (SeedVariance(1.0, 3.0), SeedVariance(2.0, 5.0))
        assert 1 - 2 * upper_tail(upper_quantile(level, parts, 0.7), parts, 0.7) == pytest.approx(level, abs=1e-6)
    assert upper_quantile(0.95, (SeedVariance(0.0, 3.0),), 0.0) == 0


@pytest.mark.parametrize("value", [92.4, 16.2, 1 / 3])
def test_equal_scores_have_no_variance(value):
    """Their mean is rounded, and a variance of 1e-28 would be the outlier that decides how much rows differ."""
    assert variance_of([value] * 3) == variance_of(np.full(7, value)) == 0.0
    rng = np.random.default_rng(3)
    rows = [rng.normal(50, 1, 3) for _ in range(20)]
    assert variance_of(rows[0]) == pytest.approx(rows[0].var(ddof=1))
    with_tie = [SeedVariance(variance_of(row), 2.0) for row in [*rows, [value] * 3]]
    assert fit_prior(with_tie) == fit_prior(with_tie[:-1])


def test_inverse_trigamma():
    for x in (0.01, 0.4, 1.0, 30.0):
        assert inverse_trigamma(float(special.polygamma(1, x)), 40) == pytest.approx(x)
    assert inverse_trigamma(0.0, 40) == inverse_trigamma(-1.0, 40) == 40


@pytest.mark.parametrize("freedom", [3.0, 10.0])
def test_the_prior_is_found_among_many_rows(freedom):
    """With so many rows that the bound on how they differ is close to how they do."""
    rng, rows = np.random.default_rng(1), 20_000
    variances = 4.0 * freedom / rng.chisquare(freedom, rows)
    own = rng.integers(2, 5, rows)
    drawn = [SeedVariance(v * rng.chisquare(d) / d, d) for v, d in zip(variances, own, strict=True)]
    prior = fit_prior(drawn)
    assert prior.variance == pytest.approx(4.0, rel=0.05) and prior.freedom == pytest.approx(freedom, rel=0.1)


def test_the_prior_is_cautious_and_needs_rows():
    rng = np.random.default_rng(2)
    spreads = 2 ** rng.normal(size=20)
    rows = [SeedVariance(float(spread**2 * rng.chisquare(2) / 2), 2.0) for spread in spreads]
    smyth = 2 * inverse_trigamma(
        np.log([row.variance for row in rows]).var(ddof=1) - float(special.polygamma(1, 1)), 500
    )
    assert 0.5 < fit_prior(rows).freedom < smyth < 100
    assert fit_prior(rows[:5]) and fit_prior(rows[:4]) is fit_prior([*rows[:4], SeedVariance(0.0, 2.0)]) is None
    differing = [SeedVariance(part.variance * 10**i, 2.0) for i, part in enumerate(rows)]
    assert fit_prior(differing).freedom < 0.2


def test_the_prior_is_a_bound_on_the_variance_of_the_logarithms():
    """Mean, variance and kurtosis of log chi-square are scipy's here. A sample variance of n numbers has 2 n / (2 + k)
    degrees of freedom, where k is their excess kurtosis."""
    d, variances = 4.0, np.array([0.1, 0.3, 1.0, 1.5, 2.0, 8.0, 11.0, 60.0])
    mean, by_chance, kurtosis = map(float, stats.loggamma(d / 2).stats("mvk"))
    freedom = 2 * len(variances) / (2 + kurtosis)
    most = np.log(variances).var(ddof=1) * freedom / stats.chi2.ppf(0.4, freedom)  # exceeded in 60 % of samples
    prior = fit_prior([SeedVariance(float(v), d) for v in variances])
    assert special.polygamma(1, prior.freedom / 2) == pytest.approx(most - by_chance)
    of_prior = math.log(prior.variance) + math.log(prior.freedom / 2) - special.digamma(prior.freedom / 2)
    assert of_prior == pytest.approx(np.log(variances).mean() - mean + math.log(d / 2))


def test_no_row_gets_a_smaller_variance_than_its_own():
    prior = Prior(4.0, 6.0)
    assert moderate(SeedVariance(1.0, 2.0), prior) == SeedVariance((6 * 4 + 2 * 1) / 8, 8.0)
    assert moderate(SeedVariance(9.0, 2.0), prior) == SeedVariance(9.0, 8.0)


@pytest.mark.parametrize("wild", [(30.0,), (30.0, 20.0), (0.005,)], ids=str)
def test_rows_far_from_the_others_are_set_apart(wild):
    """They keep their own variance, and the others are as without them. A row like the others is not set apart."""
    rng = np.random.default_rng(4)
    ordinary = [SeedVariance(float(rng.chisquare(2)) / 2, 2.0) for _ in range(18)]
    outliers = [SeedVariance(spread**2, 2.0) for spread in wild]
    alone, together = fit_prior(ordinary), fit_prior([*ordinary, *outliers])
    assert find_outliers(ordinary) == alone.outliers == frozenset() and together.outliers == frozenset(outliers)
    assert alone[:2] == together[:2] and 1 < alone.freedom <= 36
    assert [moderate(one, together) for one in outliers] == outliers
    assert find_outliers([*ordinary[:3], *outliers[:1]]) == frozenset()  # four tell too little


@pytest.mark.parametrize("seeds", [3, 6])
def test_an_outlier_is_tested_at_five_percent(seeds):
    """Where the others hardly differ, they follow the law of MOST_FREEDOM, and Holm's first step divides the level."""
    others, d = [SeedVariance(v, seeds - 1.0) for v in np.linspace(0.999, 1.001, 9)], seeds - 1
    law = stats.f(d, MOST_FREEDOM)
    limit = law.isf(0.05 / 2 / 10) / law.median()
    for factor, is_outlier in ((0.98, False), (1.02, True)):
        assert bool(find_outliers([*others, SeedVariance(limit * factor, d)])) == is_outlier


def test_rows_inform_each_other_beside_an_outlier():
    """Such as a base with more seeds: it is one of the rows that a prior needs."""
    rng = np.random.default_rng(4)
    rows = [SeedVariance(float(rng.chisquare(2)) / 2, 2.0) for _ in range(4)]
    prior = fit_prior([*rows, base := SeedVariance(1e-6, 4.0)])
    assert fit_prior(rows) is None and prior.outliers == {base}
    assert min(row.variance for row in rows) < prior.variance < max(row.variance for row in rows)


@pytest.mark.parametrize(
    ("given", "expected"),
    [([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]), ([0.5, 0.9], [1.0, 1.0]), ([0.02], [0.02]), ([], [])],
)
def test_holm_correction(given, expected):
    assert holm(given) == pytest.approx(expected)
