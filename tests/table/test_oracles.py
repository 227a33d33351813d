"""The statistics of tables against programs and papers that others have written, where they say the same thing."""

import math

import numpy as np
import pytest
import scipy

from transformer_pl.table import moderation
from transformer_pl.table.moderation import SeedVariance, fit_prior
from transformer_pl.table.statistics import Sample, by_cluster, correct, difference, moderate, sample, seed_prior

pytestmark = [pytest.mark.core, pytest.mark.slow]


def of_seeds(scores):
    """Rows of which seeds alone vary."""
    return [Sample(one, np.repeat(one[:, None], 2, 1)) for one in np.asarray(scores)]


# --- limma: Smyth 2004, "Linear models and empirical Bayes methods for assessing differential expression", section 6.2


def smyth(variances, freedom):
    """d0 and s0^2 of variances with equal degrees of freedom d, by the moments of z = log s^2:

    e = z - digamma(d/2) + log(d/2), trigamma(d0/2) = mean((e - mean e)^2 n/(n - 1)) - trigamma(d/2), and
    s0^2 = exp(mean e + digamma(d0/2) - log(d0/2)). The trigamma is inverted by Newton's steps of the paper's appendix.
    """
    e = np.log(variances) - scipy.special.digamma(freedom / 2) + math.log(freedom / 2)
    left = e.var(ddof=1) - scipy.special.polygamma(1, freedom / 2)
    y = 0.5 + 1 / left
    for _ in range(100):
        trigamma = scipy.special.polygamma(1, y)
        y += trigamma * (1 - trigamma / left) / scipy.special.polygamma(2, y)
    d0 = 2 * y
    return d0, math.exp(e.mean() + scipy.special.digamma(d0 / 2) - math.log(d0 / 2))


@pytest.mark.parametrize("freedom", [2, 4, 9])
def test_without_caution_and_outliers_the_prior_is_limma_s(freedom, monkeypatch):
    """The bound is the estimate itself where it takes the confidence of its own quantile."""
    rng = np.random.default_rng(freedom)
    variances = 0.3 * 3 / rng.chisquare(3, 40) * rng.chisquare(freedom, 40) / freedom
    rows = [SeedVariance(float(one), float(freedom)) for one in variances]
    monkeypatch.setattr(moderation, "find_outliers", lambda rows: frozenset())
    kurtosis = scipy.special.polygamma(3, freedom / 2) / scipy.special.polygamma(1, freedom / 2) ** 2
    informative = 2 * len(rows) / (2 + kurtosis)
    d0, variance = smyth(variances, freedom)
    prior = fit_prior(rows, 1 - scipy.stats.chi2.cdf(informative, informative))
    assert (prior.freedom, prior.variance) == pytest.approx((d0, variance), rel=1e-6)
    for row in rows:
        moderated = moderate(row, prior)
        posterior = (d0 * variance + freedom * row.variance) / (d0 + freedom)
        assert moderated == pytest.approx((max(posterior, row.variance), d0 + freedom), rel=1e-6)


# --- scipy


@pytest.mark.parametrize("seeds", [(3, 3), (3, 9), (8, 5)])
def test_one_difference_is_welch_s_test(seeds):
    """Where the sentences are alike and there is no prior."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        row, base = rng.normal(0.5, 1, seeds[0]), rng.normal(0, 2, seeds[1])
        ours, theirs = (
            difference(of_seeds([row])[0], of_seeds([base])[0]),
            scipy.stats.ttest_ind(row, base, equal_var=False),
        )
        assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-6)
        assert ours.interval() == pytest.approx(tuple(theirs.confidence_interval()), rel=1e-6)


def test_the_first_step_is_dunnett_s():
    """With so many seeds that variances are certain; both draw, and Monte Carlo errors are the tolerance."""
    rng = np.random.default_rng(2)
    scores = rng.normal(0, 1, (9, 400)) + np.linspace(0, 0.25, 9)[:, None]
    base, *rows = of_seeds(scores)
    ours = correct(rows, base, seed_prior([base, *rows]))
    theirs = scipy.stats.dunnett(*scores[1:], control=scores[0], random_state=rng)
    assert min(p for _, p in ours) == pytest.approx(min(theirs.pvalue), abs=0.004)
    widths = np.array([2 * one.half_width(one.level) for one, _ in ours])
    expected = theirs.confidence_interval()
    assert widths == pytest.approx(expected.high - expected.low, rel=0.05)


# --- statsmodels: Liang and Zeger 1986, "Longitudinal data analysis using generalized linear models"


@pytest.mark.parametrize("is_even", [True, False], ids=["even", "uneven"])
def test_a_difference_by_cluster_has_the_error_of_a_clustered_covariance(is_even):
    """Of the items' differences, with the factor G / (G - 1) for G clusters, and t of G - 1. Where clusters have other
    sizes the jackknife gives more to the large ones: its error is that of the fits without each cluster."""
    api = pytest.importorskip("statsmodels.api", reason="pip install -c constraints.txt -e '.[dev]'")
    rng = np.random.default_rng(3)
    cluster = rng.permutation(np.arange(40).repeat(5 if is_even else rng.integers(1, 9, 40)))
    base = rng.normal(0, 1, len(cluster))
    row = base + 0.3 + rng.normal(0, 0.5, 40)[cluster] + rng.normal(0, 0.5, len(cluster))
    sums = (by_cluster(np.stack([of, np.ones_like(of)], -1)[None], cluster) for of in (row, base))
    ours = difference(*(sample(of, lambda sums: sums[..., 0] / sums[..., 1]) for of in sums))

    def fit(kept):
        groups = {"groups": cluster[kept]}
        return api.OLS((row - base)[kept], np.ones(kept.sum())).fit(cov_type="cluster", cov_kwds=groups, use_t=True)

    theirs = fit(cluster >= 0)
    assert ours.value == pytest.approx(theirs.params.item(), rel=1e-6)
    exact = dict(rel=1e-6 if is_even else 0.05)
    assert ours.standard_error == pytest.approx(theirs.bse.item(), **exact)
    assert ours.interval() == pytest.approx(tuple(theirs.conf_int()[0]), **exact)
    without = np.array([fit(cluster != left_out).params.item() for left_out in range(40)])
    assert ours.standard_error == pytest.approx(math.sqrt(39 * without.var()), rel=1e-6)
    by_item = api.OLS(row - base, np.ones_like(base)).fit()
    assert by_item.bse.item() < 0.8 * ours.standard_error
