"""The statistics of a table: equal to sacreBLEU's where it has them, and calibrated in a simulation."""

import math
import tracemalloc
from functools import cache

import numpy as np
import pytest
import scipy.stats
from chance import drawn
from made_rows import comparisons
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from transformer_pl.config import Config
from transformer_pl.report.sweep_rows import LOSS, loss, of_measure
from transformer_pl.table import moderation
from transformer_pl.table import statistics as stats
from transformer_pl.table.row import Outcome
from transformer_pl.table.statistics import Sample, correct, difference, estimate, sample, seed_prior
from transformer_pl.tasks.translation import Translation, bleu

pytestmark = pytest.mark.core
METRIC = of_measure(Translation.measure)

ANY = Outcome("any", "any")


def compare_rows(rows, base, metric, same_dataset=(), weights=()):
    """What a table finds for rows of which the numbers of every sentence are known (seeds, n, 12)."""
    samples = [None if row is None else metric.sample(row) for row in rows]
    if weights:
        samples = [one._replace(weights=ids) for one, ids in zip(samples, weights, strict=True)]
    highest = 100.0 if metric is METRIC else math.inf
    return comparisons(samples, base, Outcome("any", "any", lowest=0.0, highest=highest), same_dataset)


WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]


def sentences(count, noise, seed):
    """References of random words, and outputs in which a share `noise` of the words is replaced."""
    rng = np.random.default_rng(seed)
    references = [[WORDS[i] for i in rng.integers(0, 60, rng.integers(1, 15))] for _ in range(count)]
    outputs = [[WORDS[rng.integers(0, 60)] if rng.random() < noise else w for w in r] for r in references]
    return [" ".join(o[: max(1, len(o) - rng.integers(0, 2))]) for o in outputs], [" ".join(r) for r in references]


def statistics(outputs, references):
    return Translation().score(outputs, references, Config()).statistics


@pytest.mark.parametrize(("count", "noise"), [(1, 0.0), (1, 0.9), (3, 0.5), (40, 0.2), (40, 0.9), (5, 1.0), (300, 0.3)])
def test_bleu_from_sums_equals_sacrebleu(count, noise):
    """Also where some order of n-grams has no match, or none was possible."""
    for seed in range(10):
        outputs, references = sentences(count, noise, seed)
        sums = np.array(statistics(outputs, references)).sum(0)
        assert bleu(sums) == pytest.approx(BLEU().corpus_score(outputs, [references]).score, abs=1e-9)


def test_the_p_value_of_one_seed_is_that_of_sacrebleu():
    """Its test is by random swaps of sentences."""
    worse, references = sentences(200, 0.32, 1)
    better, _ = sentences(200, 0.28, 1)
    named = [("base", worse), ("other", better)]
    test = PairedTest(named, {"BLEU": BLEU(references=[references])}, None, test_type="ar", n_samples=4000)
    expected = test()[1]["BLEU"][1].p_value
    rows = [sample(np.array([statistics(outputs, references)]), bleu) for outputs in (better, worse)]
    assert 0.001 < expected < 0.9
    assert difference(*rows).p_value == pytest.approx(expected, abs=0.02)


def test_pseudo_values_of_a_mean_are_the_values_themselves():
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(3, 50))
    result = sample(np.stack([numbers, np.ones((3, 50))], -1), loss)
    assert np.allclose(result.pseudo, numbers) and np.allclose(result.scores, numbers.mean(1))


def test_an_interval_ends_where_the_score_does():
    """BLEU at 0 and 100, perplexity at 1, and a difference of two scores at 100 in either direction."""
    good = np.array([[9, 9, 8, 8, 7, 7, 6, 6, 9, 9]] * 3)
    seeds = np.stack([good, good, good])
    seeds[0, :, :8:2] -= 5
    nats = np.full((3, 3, 2), [[0.1, 9.0], [0.1, 9.0], [3.0, 9.0]])
    row = np.concatenate([seeds, nats], -1)
    bad = row.copy()
    bad[1:, :, :8:2] = 0
    high, low = compare_rows([row, bad], 0, METRIC)
    assert high.mean.interval()[1] == 100 and low.mean.interval()[0] == 0
    assert high.mean._replace(lowest=-math.inf, highest=math.inf).interval()[1] > 100
    assert (
        low.estimate.interval()[0] == -100 and low.estimate._replace(lowest=-math.inf, highest=0).interval()[0] < -100
    )
    assert compare_rows([row], 0, LOSS)[0].mean.interval()[0] == 0  # nats: a perplexity of 1


def test_one_seed_has_no_variance_by_seeds():
    result = estimate(Sample(np.array([1.0]), np.array([[0.0, 1.0, 2.0]])))
    assert not result.parts and result.standard_error == pytest.approx(1 / math.sqrt(3))
    assert result.degrees_of_freedom == 2  # of three sentences
    assert result.interval() == pytest.approx(scipy.stats.t.interval(0.95, 2, loc=1, scale=1 / math.sqrt(3)))


@pytest.mark.parametrize(
    ("seeds", "of_base", "tested"), [(3, 3, True), (2, 5, True), (1, 1, True), (1, 3, False), (3, 1, False)]
)
def test_one_seed_is_not_compared_with_several(seeds, of_base, tested):
    """Nothing is known of the variation of a single seed. Ignoring it would give 23 % false positives."""
    rows = drawn(np.random.default_rng(1), 2, 5, 50, 0.05)
    nats = np.ones((2, 5, 50, 2))
    row, base = np.concatenate([rows, nats], -1)
    comparison = compare_rows([base[:of_base], row[:seeds]], 0, METRIC)[1]
    assert (comparison.estimate is not None) == (comparison.p_value is not None) == tested


@pytest.mark.parametrize("seeds", [(4, 0), (4, 2)], ids=["row", "difference"])
def test_variances_are_those_of_the_analysis_of_variance(seeds):
    """Mean squares as textbooks have them: that of sentences is counted above that of the interaction alone."""
    rng, n = np.random.default_rng(6), 30
    shared = rng.normal(0, 2, n)
    groups = [
        shared * w + rng.normal(0, 1, (S, 1)) + rng.normal(0, 1, (S, n)) for S, w in zip(seeds, (3, 1), strict=True)
    ]
    rows = [Sample(y.mean(1), y) for y in groups if len(y)]
    by_seeds, errors, means = [], [], np.zeros(n)
    for y, sign in zip(groups, (1, -1), strict=True):
        if S := len(y):
            of_seeds = n * sum((y[s].mean() - y.mean()) ** 2 for s in range(S))
            of_sentences = S * sum((y[:, i].mean() - y.mean()) ** 2 for i in range(n))
            rest = ((y - y.mean()) ** 2).sum() - of_seeds - of_sentences
            by_seeds.append((of_seeds / (S - 1) / (S * n), S - 1))
            errors.append(rest / ((S - 1) * (n - 1)) / (S * n))
            means += sign * y.mean(0)
    by_sentences = ((means - means.mean()) ** 2).sum() / (n - 1) / n - sum(errors)
    result = estimate(*rows) if len(rows) == 1 else difference(*rows)
    assert result.value == pytest.approx(means.mean())
    assert sum(part.variance for part in result.parts) == pytest.approx(sum(v for v, _ in by_seeds))
    assert result.variance_by_sentences == pytest.approx(by_sentences) and by_sentences > 0.01
    squares = sum(v**2 / freedom for v, freedom in [*by_seeds, (by_sentences, n - 1)])
    assert result.degrees_of_freedom == pytest.approx((sum(v for v, _ in by_seeds) + by_sentences) ** 2 / squares)


def test_variance_components_are_never_negative():
    """The estimate of the variance by sentences can be negative; it is zero then."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        shared = rng.normal(size=100)
        rows = [shared + rng.normal(0, 0.01, (3, 1)) + rng.normal(0, 1, (3, 100)) for _ in range(2)]
        comparison = difference(*(Sample(row.mean(1), row) for row in rows))
        assert comparison.variance_by_sentences >= 0 and comparison.standard_error > 0 and 0 <= comparison.p_value <= 1


@pytest.mark.parametrize("seeds", [1, 3])
def test_p_values_are_corrected_for_the_rows_that_are_tested(seeds):
    """A row that is not tested does not count in the correction."""
    known = drawn(np.random.default_rng(1), 4, seeds, 80, 0.05, gap=0.3)
    base, *rows = np.concatenate([known, np.ones((4, seeds, 80, 2))], -1)
    samples = [sample(one[..., METRIC.columns], METRIC.score) for one in (base, *rows)]
    expected = [p for _, p in correct(samples[1:], samples[0])]
    together = compare_rows([base, *rows, None], 0, METRIC)
    assert [one.p_value for one in together[1:4]] == pytest.approx(expected)
    for row, one in zip(rows, together[1:], strict=False):
        alone = compare_rows([base, row], 0, METRIC)[1].p_value
        assert alone == pytest.approx(one.estimate.p_value, abs=1e-3) and alone <= one.p_value


def test_the_correction_is_dunnett_s_where_the_variances_are_certain():
    """With 1,000 seeds a row, against base: scipy's multivariate t."""
    rng = np.random.default_rng(7)
    scores = rng.normal(0, 1, (6, 1000)) + np.array([0, 0.12, -0.1, 0.06, 0.02, -0.03])[:, None]
    base, *rows = (Sample(one, np.repeat(one[:, None], 2, 1)) for one in scores)
    together = correct(rows, base)
    dunnett = scipy.stats.dunnett(*scores[1:], control=scores[0], random_state=rng)
    assert min(p for _, p in together) == pytest.approx(min(dunnett.pvalue), abs=0.004)
    ends = np.array([one._replace(lowest=-9, highest=9).interval() for one, _ in together]).T
    expected = dunnett.confidence_interval()
    assert ends[0] == pytest.approx(expected.low, abs=0.004) and ends[1] == pytest.approx(expected.high, abs=0.004)
    quantile = (expected.high - expected.low)[0] / 2 / math.sqrt(2 * scores.var(1, ddof=1).mean() / 1000)
    ours, *others = (one.half_width(one.level) / one.standard_error for one, _ in together)
    assert ours == pytest.approx(quantile, abs=0.02) and others == pytest.approx([ours] * 4, abs=0.001)
    assert all(p <= of_all + 0.004 for (_, p), of_all in zip(together, dunnett.pvalue, strict=True))  # steps find more


def test_a_p_value_may_be_smaller_than_draws_can_show():
    """That of a clear difference beside three rows without one: Holm's, which is exact."""
    rng = np.random.default_rng(5)
    base, *others = (Sample(scores, scores[:, None] + np.zeros(3)) for scores in rng.normal(30, 0.1, (4, 40)))
    clear = others[0]._replace(scores=others[0].scores + 1, pseudo=others[0].pseudo + 1)
    (estimate, p), *_ = correct([clear, *others], base)
    assert p == pytest.approx(4 * estimate.p_value, rel=1e-6) and p < 1e-6


def test_errors_are_drawn_in_parts_that_change_no_number(monkeypatch):
    """And take little memory: about as much as all of them, which are kept, and not several times as much."""
    table = a_table(7, 3, 80)
    whole = compare_rows(table, 0, METRIC)
    monkeypatch.setattr(stats, "AT_ONCE", 2**12)
    assert compare_rows(table, 0, METRIC) == whole
    rng = np.random.default_rng(6)
    base, *rows = (stats.sample_of_seeds(scores) for scores in rng.normal(30, 1, (151, 3)))
    tracemalloc.start()
    correct(rows, base, seed_prior([base, *rows]))
    assert tracemalloc.get_traced_memory()[1] < 1.5 * 150 * stats.DRAWS * 8
    tracemalloc.stop()


def test_an_interval_excludes_zero_where_there_is_a_star():
    rng, stars = np.random.default_rng(8), []
    for _ in range(40):
        scores = rng.normal(0, 0.5, (8, 3)) + np.linspace(0, 2.5, 8)[:, None]
        base, *rows = (Sample(one, np.repeat(one[:, None], 2, 1)) for one in scores)
        for one, p in correct(rows, base, seed_prior([base, *rows])):
            low, high = one.interval()
            assert (p < 0.05) == (low >= 0 or high <= 0) and low <= one.value <= high
            stars.append(p < 0.05)
    assert 0.1 < np.mean(stars) < 0.9


def a_table(rows, seeds, n=40):
    """Rows (seeds, n, 12) that differ."""
    known = drawn(np.random.default_rng(2), rows, seeds, n, 0.05, gap=0.3)
    return list(np.concatenate([known, np.ones((rows, seeds, n, 2))], -1))


def test_every_row_but_base_is_compared_wherever_base_stands():
    table = a_table(3, 2)
    for base in range(3):
        compared = compare_rows(table, base, METRIC)
        assert [one.estimate is None for one in compared] == [i == base for i in range(3)]
        for i, one in enumerate(compared):
            if i != base:
                apart = sample(table[i][..., :10], bleu), sample(table[base][..., :10], bleu)
                assert one.estimate[:4] == difference(*apart)[:4]
    of_other_text = compare_rows(table, 0, METRIC, same_dataset=[True, False, False])
    for absent in (compare_rows(table, None, METRIC), compare_rows([None, *table], 0, METRIC)[1:], of_other_text):
        assert all(one.mean and one.estimate is None and one.p_value is None for one in absent)


def test_rows_on_other_references_are_not_compared():
    """Outputs may have another length, references may not. Nor is a row compared in which a number is not finite."""
    base, row = a_table(2, 2)
    for column, compared in ((METRIC.reference_column - 1, True), (METRIC.reference_column, False)):
        other = row.copy()
        other[:, 3, column] += 1
        assert (compare_rows([base, other], 0, METRIC)[1].estimate is not None) == compared
    assert base.shape[2] + METRIC.reference_column == 9 and LOSS.reference_column == -1
    row[1, 3, 0] = math.nan
    assert compare_rows([base, row], 0, METRIC)[1] is None
    assert compare_rows([base, row], 0, LOSS)[1] is not None
    two_sentences = [one[:, :2] for one in a_table(2, 2)]
    assert all(compare_rows(two_sentences, 0, METRIC))


def test_rows_of_a_table_moderate_each_other_s_variance():
    """From five rows on."""
    table = a_table(5, 3, 80)
    samples = [sample(one[..., METRIC.columns], METRIC.score) for one in table]
    prior = seed_prior(samples)
    compared = compare_rows(table, 0, METRIC)
    together = correct(samples[1:], samples[0], prior)
    assert [one.p_value for one in compared[1:]] == pytest.approx([p for _, p in together])
    assert [one.mean for one in compared] == [estimate(row, prior)._replace(lowest=0, highest=100) for row in samples]
    fewer = compare_rows([*table[:4], table[4][:1]], 0, METRIC)  # one seed tells nothing
    assert all(one.mean.degrees_of_freedom for one in fewer)  # of t


def test_a_base_that_spreads_more_than_its_rows_is_named():
    """In 5 % of tables where it does not, and then in most. Rows with its weights say nothing of that."""
    rng, named = np.random.default_rng(4), {1: 0, 4: 0}
    for wider in named:
        for _ in range(50):
            rows = {place: of_seeds(rng.normal(0, 1 if place else wider, 5)) for place in range(4)}
            found = stats.compared(rows, 0, {*rows} - {0})
            named[wider] += found[0].is_wide
            assert not any(row.is_wide for place, row in found.items() if place)
    assert 1 <= named[1] <= 8 and named[4] > 40
    shared = {place: row._replace(weights="abcde") for place, row in rows.items()}
    assert not stats.compared(shared, 0, {*rows} - {0})[0].is_wide


def test_the_prior_of_a_scale_is_for_tables_of_few_rows():
    """Base counts all of its freedoms, other rows half of them, and no row has a smaller variance than its own. A base
    that was chosen among the rows is one of the others."""
    rng, of_scale = np.random.default_rng(2), moderation.Prior.of_scale(0.5, 4.0)
    rows = {place: of_seeds(rng.normal(place, 0.3, 3)) for place in range(6)}
    rows[1] = of_seeds([0.0, 3.0, 5.0])
    few = {place: rows[place] for place in range(3)}
    found = stats.compared(few, 0, {1, 2}, of_scale=of_scale)
    (wide, base), (usual, _) = (found[place].difference.parts for place in (1, 2))
    for part, place, freedom in ((wide, 1, 2), (usual, 2, 2), (base, 0, 4)):
        own = rows[place].scores.var(ddof=1)
        moderated = (freedom * 0.25 + 2 * own) / (freedom + 2)
        assert part == pytest.approx((max(own, moderated) / 3, freedom + 2))
    chosen = stats.compared(few, 0, {1, 2}, of_scale=of_scale, is_chosen=True)
    assert [part.freedom for part in chosen[1].difference.parts] == [4, 4]
    for enough in (True, False):
        all_rows = rows if enough else {place: rows[place] for place in range(4)}
        with_scale = stats.compared(all_rows, 0, {1, 2, 3}, of_scale=of_scale)
        assert (with_scale == stats.compared(all_rows, 0, {1, 2, 3})) == enough
        assert all(row.is_by_scale != enough for row in with_scale.values())


@pytest.mark.parametrize(("seeds", "of_base"), [(3, 3), (2, 6), (5, 5)])
def test_what_a_plan_finds_is_what_the_law_of_the_test_finds(seeds, of_base):
    """Of a few rows Welch's t, of more the sum of two of Student's t, whose freedoms are not taken as known."""
    errors = 0.7**2 / np.array([seeds, of_base])
    freedom = errors.sum() ** 2 / (errors**2 / (np.array([seeds, of_base]) - 1)).sum()
    quantiles = scipy.stats.t.ppf([1 - 0.05 / 3 / 2, 0.8], freedom)
    found = stats.found_by_plan(0.7, seeds, 3, of_base)
    assert found == pytest.approx(np.sqrt(errors.sum()) * quantiles.sum())
    rng, prior = np.random.default_rng(1), moderation.USUAL_FREEDOM
    both = [np.sqrt(v) * rng.standard_t(prior + n - 1, 10**6) for v, n in zip(errors, (seeds, of_base), strict=True)]
    found = stats.found_by_plan(0.7, seeds, 8, of_base)
    assert found == pytest.approx(np.quantile(sum(both), [1 - 0.05 / 8 / 2, 0.8]).sum(), rel=0.01)


@pytest.mark.parametrize(("seed_sd", "S"), [(1.0, 4), (2.0, 12)])
def test_what_a_plan_finds_is_found_in_80_of_100_cases(seed_sd, S):
    """Sentences vary by little, so that seeds decide; two rows are compared, and no other is tested."""
    rng, gap = np.random.default_rng(3), stats.found_by_plan(seed_sd, S, 1)

    def of_seeds(mean):
        scores = mean + seed_sd * rng.normal(size=S)
        return Sample(scores, scores[:, None] + np.array([-0.1, 0.1]))

    found = [difference(of_seeds(gap), of_seeds(0)).p_value < 0.05 for _ in range(500)]
    assert 0.75 < np.mean(found) < 0.85


@pytest.mark.parametrize("S", [2, 3, 5])
def test_the_usual_spread_is_that_of_the_rows_whatever_one_of_them_does(S):
    rng = np.random.default_rng(4)
    tables = rng.normal(30, 0.5, (300, 6, S))
    usual = [stats.usual_spread(table) for table in tables]
    assert np.median(usual) == pytest.approx(0.5, rel=0.1)
    for widening in (0, 100):
        tables[:, 0] = 30 + widening * (tables[:, 0] - 30)
        assert np.median([stats.usual_spread(table) for table in tables]) == pytest.approx(0.5, rel=0.5)
    assert stats.usual_spread([[30.0]]) is None  # one seed tells nothing


# --- Rows that share their weights


def shared(rng, rows, seeds, n, gaps, own=0.05):
    """Nats and tokens (1 + rows, S, n, 2) of base, whose seeds spread by 1, and of rows that evaluate its weights.

    own: how far the mean effect of a row spreads from seed to seed, and from sentence to sentence, alone and together.
    """
    base = 6 + rng.normal(0, 1, (seeds, 1)) + rng.normal(0, 1, n) + rng.normal(0, 1, (seeds, n))
    effects = np.reshape(gaps, (-1, 1, 1)) + own * rng.normal(0, 1, (rows, seeds, 1))
    effects = effects + own * n**0.5 * (rng.normal(0, 1, (rows, 1, n)) + rng.normal(0, 1, (rows, seeds, n)))
    nats = np.concatenate([base[None], base + effects])
    return np.stack([nats, np.ones_like(nats)], -1)


def samples_of(rows, score):
    """The samples of rows that share their weights."""
    return [sample(row, score)._replace(weights=range(len(row))) for row in rows]


def test_rows_that_share_their_weights_are_compared_by_a_paired_test():
    """scipy's, where sentences hardly differ, in whatever order the seeds are. Other weights, or one in common, are no
    pairs."""
    rng = np.random.default_rng(11)
    for S in (2, 3, 5, 9):
        scores = rng.normal(30, 1, S)
        changed = scores + rng.normal(0.2, 0.1, S)
        base, row = (Sample(x, x[:, None] + np.array([-1e-7, 1e-7]), weights=range(S)) for x in (scores, changed))
        expected, found = scipy.stats.ttest_rel(changed, scores), difference(row, base)
        assert found.p_value == pytest.approx(expected.pvalue, rel=1e-3)
        assert found.interval() == pytest.approx(tuple(expected.confidence_interval()), rel=1e-3)
        turned = Sample(row.scores[::-1], row.pseudo[::-1], weights=range(S)[::-1])
        assert difference(turned, base).p_value == pytest.approx(found.p_value)
        longer = Sample(np.append(scores, 99), np.append(base.pseudo, [[98, 100]], 0), weights=range(S + 1))
        assert difference(row, longer) == found  # which has more seeds: its looks go on
        for weights in ((), range(S, 2 * S), range(S - 1, 2 * S - 1)):
            assert len(difference(row._replace(weights=weights), base).parts) == 2


@pytest.mark.parametrize("seeds", [3, *(pytest.param(seeds, marks=pytest.mark.slow) for seeds in (2, 5))])
def test_intervals_within_seeds_hold_the_true_difference(seeds):
    """At least 95 % of them, but for chance, whatever the seeds of base do. Of rows without a difference at most 5 %
    are called different."""
    rng, covered, found = np.random.default_rng(seeds), 0, 0
    for _ in range(1000):
        base, row, same = samples_of(shared(rng, 2, seeds, 60, [0.2, 0.0]), loss)
        low, high = difference(row, base).interval()
        covered += low < 0.2 < high
        found += difference(same, base).p_value < 0.05
    assert 0.94 <= covered / 1000 <= 0.99 and 0.005 <= found / 1000 <= 0.06


@pytest.mark.parametrize("seeds", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_all_intervals_of_a_table_hold_whoever_shares_weights(seeds, monkeypatch):
    """Six rows share base's weights, each with effects of another spread, and four were trained."""
    monkeypatch.setattr(stats, "DRAWS", 2**11)
    rng, covered, tables = np.random.default_rng(seeds), 0, 200
    own = np.array([0.02, 0.02, 0.05, 0.05, 0.1, 0.2]).reshape(-1, 1, 1)
    weights = [range(seeds)] * 7 + [[f"row {row}, seed {seed}" for seed in range(seeds)] for row in range(4)]
    truth = [0.1] * 6 + [0.0] * 4
    for _ in range(tables):
        rows = list(shared(rng, 6, seeds, 60, truth[:6], own))
        of_sentences = (rows[0] - rows[0].mean(1, keepdims=True)).mean(0)
        rows += [shared(rng, 0, seeds, 60, [])[0] + of_sentences for _ in range(4)]
        compared = compare_rows(rows, 0, LOSS, weights=weights)
        ends = [one.estimate.interval() for one in compared[1:]]
        covered += all(low <= gap <= high for (low, high), gap in zip(ends, truth, strict=True))
        assert [one.shares_weights for one in compared] == [False] + [True] * 6 + [False] * 4
    assert covered / tables >= 0.93


def without_some(rng, rows, share):
    """The same outputs without a matching 4-gram in a share of their sentences, which varies from seed to seed."""
    chance, fewer = share * np.exp(rng.normal(0, 0.2, (len(rows), 1))), rows.copy()
    fewer[..., 3] = np.maximum(0, rows[..., 3] - (rng.random(rows.shape[:2]) < chance))
    return fewer


def test_a_loss_of_a_fifth_of_a_bleu_point_is_found_within_seeds():
    """Seeds spread by four times as much: by trainings of its own such a row is never found."""
    rng, spread, share = np.random.default_rng(12), 0.06, 0.1
    many = drawn(rng, 1, 20, 20_000, spread)[0]
    truth = (bleu(without_some(rng, many, share).sum(1)) - bleu(many.sum(1))).mean()
    assert -0.25 < truth < -0.15 and seeds_spread(spread) > 0.8
    covered, found, found_apart = [], [], []
    for _ in range(150):
        outputs = drawn(rng, 1, 5, 500, spread)[0]
        base, row = samples_of((outputs, without_some(rng, outputs, share)), bleu)
        within, apart = difference(row, base), difference(row._replace(weights=()), base)
        low, high = within.interval()
        covered.append(low < truth < high)
        found.append(within.p_value < 0.05)
        found_apart.append(apart.p_value < 0.05)
        assert within.value == pytest.approx(apart.value)
    assert np.mean(found) > 0.9 and not any(found_apart) and 0.9 <= np.mean(covered) <= 0.99


def test_rows_with_weights_of_their_own_are_compared_as_ever():
    """With ids or without. A row that shares base's weights changes no variance of theirs: their intervals are little
    wider, with one row more to correct for."""
    table = a_table(6, 3, 80)
    names = [[f"row {row}, seed {seed}" for seed in range(3)] for row in range(6)]
    without = compare_rows(table, 0, METRIC)
    assert compare_rows(table, 0, METRIC, weights=names) == without
    fewer = without_some(np.random.default_rng(1), table[0], 0.3)
    *others, last = compare_rows([*table, fewer], 0, METRIC, weights=[*names, names[0]])
    assert last.shares_weights and len(last.estimate.parts) == 1
    for one, other in zip(without, others, strict=True):
        assert one.mean == other.mean and one.is_outlier == other.is_outlier
        assert one.estimate is None or one.estimate[:4] == other.estimate[:4]
    for one, other in zip(without[1:], others[1:], strict=True):  # for which base's error is no more uncertain
        assert 1 < other.estimate.half_width(other.estimate.level) / one.estimate.half_width(one.estimate.level) < 1.15


def test_one_seed_that_shares_its_weights_is_tested_on_other_sentences():
    """As any row with one seed."""
    base, row = samples_of(shared(np.random.default_rng(3), 1, 1, 50, [0.1]), loss)
    within, apart = difference(row, base), difference(row._replace(weights=()), base)
    assert not within.parts and within.p_value == pytest.approx(apart.p_value)
    assert within.interval() == pytest.approx(apart.interval())


# --- The simulation: corpora with known true scores


@cache
def seeds_spread(spread):
    """The standard deviation of BLEU from seed to seed."""
    return bleu(drawn(np.random.default_rng(0), 1, 200, 2000, spread)[0].sum(1)).std()


@cache
def true_score(spread):
    """The BLEU of a row over very many sentences."""
    return bleu(drawn(np.random.default_rng(1), 1, 50, 20_000, spread)[0].sum(1)).mean()


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "spread"), [(2, 0.05), (3, 0.015), (5, 0.05)])
def test_false_positive_rate_and_coverage_are_nominal(seeds, spread):
    """Where rows do not differ, 5 % of tests are significant, and 95 % of the rows' intervals contain the true BLEU."""
    rng = np.random.default_rng(seeds)
    truth = true_score(spread)
    false_positives, covered, trials = 0, 0, 600
    for _ in range(trials):
        row, base = (sample(s, bleu) for s in drawn(rng, 2, seeds, 250, spread))
        false_positives += difference(row, base).p_value < 0.05
        low, high = estimate(row).interval()
        covered += low < truth < high
    rates = f"{false_positives / trials:.3f} {covered / trials:.3f}"
    print(f"{seeds} seeds, {seeds_spread(spread):.2f} BLEU from seed to seed: {rates}")
    assert 0.03 <= false_positives / trials <= 0.07
    assert 0.93 <= covered / trials <= 0.97


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_no_unit_is_too_small_or_too_large(unit):
    """As BLEU is after a few steps."""
    rng = np.random.default_rng(7)
    pseudo = rng.normal(30, 1, (2, 3, 40))
    rows = [Sample(row.mean(1), row) for row in pseudo]
    in_unit = [Sample(row.scores * unit, row.pseudo * unit) for row in rows]
    expected, found = difference(*rows), difference(*in_unit)
    assert found.degrees_of_freedom == pytest.approx(expected.degrees_of_freedom)
    assert found.value == pytest.approx(expected.value * unit)


def test_no_spread_and_one_sentence_are_no_errors():
    """Warnings are errors here. Where nothing varies, nothing is known of chance; nor is it by one sentence."""
    constant, other = np.full((2, 4, 12), 3.0), np.full((2, 4, 12), 3.0)
    other[:, :, 0] = 2.0  # of the n-grams that match
    for row in compare_rows([constant, other, constant], 0, METRIC):
        assert row.is_constant and row.mean is row.estimate is row.p_value is None
    for rows in ([constant[:, :1]] * 2, [constant[:1, :1]] * 2):
        assert compare_rows(rows, 0, METRIC) == [None, None]


# --- What is no difference


def of_seeds(scores):
    """A row of which only the scores by seed are known."""
    return stats.sample_of_seeds(scores)


@pytest.mark.parametrize("seeds", [1, 3])
def test_rows_that_differ_by_rounding_are_not_tested(seeds):
    """In every seed, and they do not count in the correction of the others."""
    base, one, other = (sample(row[:seeds, :, METRIC.columns], METRIC.score) for row in a_table(3, 3))
    for factor, is_rounding in ((1 + 1e-8, True), (1 + 1e-5, False)):
        near = Sample(base.scores * factor, base.pseudo * factor)
        compared = comparisons([base, one, near, other], 0, ANY)
        assert [row.is_rounding for row in compared] == [False, False, is_rounding, False]
        for known in (compared[2].estimate, compared[2].p_value):
            assert (known is None) == is_rounding
        together, alone = correct([one, near, other], base), correct([one, other], base)
        assert ([together[0], together[2]] == alone) == is_rounding
    near = Sample(base.scores * [*[1.0] * (seeds - 1), 1.01], one.pseudo)  # one seed differs
    assert correct([near], base)[0][1] is not None


@pytest.mark.parametrize(("spread", "is_constant"), [(0, True), (1e-8, True), (1e-5, False)])
def test_where_other_rows_vary_a_row_without_spread_has_their_variance(spread, is_constant):
    """And it does not inform theirs. A spread of 1e-8 of the score is rounding."""
    rng = np.random.default_rng(3)
    others = [of_seeds(rng.normal(mean, 0.5, 3)) for mean in range(6)]
    (base, own, *_), fixed = (
        comparisons([others[0], of_seeds(scores), *others[1:]], 0, ANY)
        for scores in (50 + 50 * spread * np.arange(3), [50.0] * 3)
    )
    assert own.is_constant == is_constant and own.p_value < 0.05 and own.mean.standard_error > 0
    assert base.mean == fixed[0].mean or not is_constant


def test_the_order_of_rows_changes_no_number():
    rng = np.random.default_rng(12)
    rows = [of_seeds(rng.normal(mean, 0.7, 3)) for mean in (0, 0, 1, 1.5, 2, 0.5)]
    rows[1:1] = [rows[1]]  # two rows with the same numbers
    orders = [[0, *(1 + rng.permutation(len(rows) - 1))] for _ in range(4)]
    expected = comparisons(rows, 0, ANY)
    for order in orders:
        assert comparisons([rows[i] for i in order], 0, ANY) == [expected[i] for i in order]
    del rows[2]
    pairs, found = [(0, 1), (2, 0), (1, 2), (3, 4), (5, 1)], []
    for order in (rng.permutation(len(rows)) for _ in range(3)):
        places = np.argsort(order)
        of_rows = [(places[i], places[j]) for i, j in pairs]
        found.append([p for _, p in stats.differences_of_pairs([rows[i] for i in order], of_rows)])
    for p_values in found[1:]:
        assert p_values == pytest.approx(found[0], abs=1e-12)
