"""The statistics of looks: levels that spend alpha, a p that says what is found, rows that stop for good reasons."""

import numpy as np
import pytest
from chance import drawn
from scipy.stats import multivariate_normal, norm
from scipy.stats import t as student

from transformer_pl.table.looks import LookedAt, Looks
from transformer_pl.table.moderation import SeedVariance
from transformer_pl.table.rows import About, Measure, Row, with_base
from transformer_pl.table.statistics import Estimate, difference, first_seeds, sample
from transformer_pl.table.table import compare, compare_at, make_table
from transformer_pl.tasks.translation import bleu

ALPHA = 0.05


@pytest.mark.parametrize(("seeds", "base"), [((3, 5, 8), 16), ((2, 4, 6, 12), 12)])
def test_levels_of_one_row_are_those_of_the_multivariate_normal_law(seeds, base):
    """The z of the looks are normal, with the correlation of means of which each has the seeds of the one before."""
    looks = Looks.of(seeds, base, 1)
    critical = norm.isf(np.array(looks.levels) / 2)
    information = 1 / (1 / np.array(looks.seeds) + 1 / np.array(looks.base_seeds))
    correlation = np.sqrt(np.minimum.outer(information, information) / np.maximum.outer(information, information))
    for look in range(1, len(seeds) + 1):
        law = multivariate_normal(np.zeros(look), correlation[:look, :look])
        wrong = 1 - law.cdf(critical[:look], lower_limit=-critical[:look])
        assert wrong == pytest.approx(ALPHA * seeds[look - 1] / seeds[-1], abs=0.002)


def test_one_look_at_the_end_is_the_plain_test():
    """All of alpha is left for it, and no training is saved."""
    looks = Looks.of((5,), 10, 4)
    assert looks.levels == pytest.approx((ALPHA,), abs=1e-3)
    assert looks.expected_trainings() == looks.most_trainings == 30


def test_tables_without_differences_are_wrong_as_often_as_alpha():
    """Against normal scores of seeds that are drawn one by one, and tested by Dunnett's own law at each look."""
    looks, rng, rows = Looks.of((3, 5, 8), 16, 6), np.random.default_rng(7), 6
    scores, of_base = rng.normal(size=(8000, rows, 8)), rng.normal(size=(8000, 1, 16))
    z = np.stack(
        [
            abs(scores[..., :n].mean(-1) - of_base[..., :m].mean(-1)).max(1) / np.sqrt(1 / n + 1 / m)
            for n, m in zip(looks.seeds, looks.base_seeds, strict=True)
        ],
        1,
    )
    first, second = z[:4000], z[4000:]  # the law of the largest difference, and the tables
    by_chance = np.stack([(first[None, :, look] >= second[:, None, look]).mean(1) for look in range(3)], 1)
    wrong = (by_chance <= looks.levels).any(1)
    assert wrong.mean() == pytest.approx(ALPHA, abs=0.012)
    p_values = [looks.p_value(row) for row in by_chance[:300]]
    assert [p < ALPHA for p in p_values] == wrong[:300].tolist()
    assert all(0 < p <= 1 for p in p_values)


def test_p_is_below_alpha_exactly_where_a_row_is_found():
    looks, rng = Looks.of((2, 3, 6), 6, 9), np.random.default_rng(1)
    for _ in range(300):
        seen = 10 ** rng.uniform(-5, 0, rng.integers(1, 4))
        found = any(p <= level for p, level in zip(seen, looks.levels, strict=False))
        assert (looks.p_value(seen) < ALPHA) == found
    for look, level in enumerate(looks.levels):
        assert looks.p_value([1.0] * look + [level]) < ALPHA <= looks.p_value([1.0] * look + [level * 1.001])
    assert looks.p_value([1e-9]) < 1e-8


def test_the_chance_to_be_found_is_that_of_seeds_to_come():
    """Drawn with the true difference that is seen, and a spread that is known."""
    looks, rng = Looks.of((4, 10), 10, 3), np.random.default_rng(2)
    parts = (SeedVariance(1 / 4, 1e6), SeedVariance(1 / 4, 1e6))
    critical = norm.isf((1 - looks.level_of_one) / 2)
    for seen in (0.4, 1.0, 1.5):
        to_come = rng.normal(seen, np.sqrt(2 / 6), 40_000)
        z = (0.4 * seen + 0.6 * to_come) / np.sqrt(2 / 10)
        assert looks.chance(0, Estimate(seen, parts, 0.0)) == pytest.approx((z > critical).mean(), abs=0.01)
    assert looks.chance(0, Estimate(-0.4, parts, 0.0)) == looks.chance(0, Estimate(0.4, parts, 0.0))
    assert looks.chance(0, Estimate(1.5, parts, 1.0)) < looks.chance(0, Estimate(1.5, parts, 0.0))


def test_the_chance_knows_how_many_degrees_of_freedom_the_last_look_has():
    """With one part, as of a row that decodes base's weights, the law is Student's."""
    looks, now, then = Looks.of((4, 10), 10, 3), 1 / 4, 1 / 10
    needed = student.ppf((1 + looks.level_of_one) / 2, 3 + 6) * np.sqrt(then)
    expected = norm.sf((needed - 1.0) / np.sqrt(then * (1 - then / now)))
    assert looks.chance(0, Estimate(1.0, (SeedVariance(now, 3),), 0.0)) == pytest.approx(expected, abs=1e-3)


def test_verdicts():
    looks = Looks.of((4, 10), 10, 3)
    parts = (SeedVariance(1 / 4, 1e6), SeedVariance(1 / 4, 1e6))
    large, none = Estimate(4.0, parts, 0.0), Estimate(0.0, parts, 0.0)
    assert looks.verdict(0, large, looks.levels[0]) == "found"
    assert looks.verdict(0, Estimate(1.5, parts, 0.0), 0.2) == "open"
    assert looks.verdict(0, none, 0.9) == "unlikely"
    assert looks.verdict(1, none, 0.9) == "open"  # nothing follows the last look
    assert looks.verdict(0, none, 0.9, margin=2.0) == "within margin"
    assert looks.verdict(0, none, 0.9, margin=1.0) == "unlikely"


MEASURE = Measure("val/bleu", "BLEU", highest=100.0)


def samples_of(seeds, base_seeds, gaps):
    rng = np.random.default_rng(3)
    numbers = drawn(rng, len(gaps) + 1, base_seeds, 120, 0.05, gap=[0.0, *gaps])
    return [sample(numbers[0], bleu), *(sample(one[:seeds], bleu) for one in numbers[1:])]


def rows_of(samples):
    """Rows base, 1, 2, ... with these samples."""
    return [
        Row(
            name=str(i or "base"),
            values={"val/bleu": list(one.scores)},
            samples={"val/bleu": one},
            is_base=not i,
            states=["done"] * len(one.scores),
        )
        for i, one in enumerate(samples)
    ]


def seen_at(looks, look, rows, last):
    return compare_at(looks, look, rows, MEASURE, rows[0], last)


def test_a_look_sees_its_own_seeds_alone():
    """The last look is the usual comparison at its own level; an earlier one does not know what comes after it."""
    looks, samples = Looks.of((2, 3, 5), 10, 5), samples_of(5, 10, [0, 0.1, 0.2, 0.3, 0.6])
    rows = rows_of(samples)
    last = {row.name: 2 for row in rows}
    usual = compare(rows, MEASURE, rows[0], level=1 - looks.levels[2])
    for one, other in zip(seen_at(looks, 2, rows, last), usual, strict=True):
        assert one.p_value == other.p_value
        assert (one.estimate and one.estimate.level) == (other.estimate and other.estimate.level)
    first = rows_of([first_seeds(row, count) for row, count in zip(samples, [4] + [2] * 5, strict=True)])
    usual = compare(first, MEASURE, first[0], level=1 - looks.levels[0])
    assert [one.p_value for one in seen_at(looks, 0, rows, last)] == [one.p_value for one in usual]
    stopped = seen_at(looks, 2, rows, last | {"1": 0})  # with the seeds that it has, among the others
    assert stopped[1].difference == pytest.approx(samples[1].scores[:2].mean() - samples[0].scores.mean())


def test_rows_that_share_some_weights_are_compared_on_these():
    """Base has more seeds than a row that decodes its weights in another way: the pairs are not lost."""
    base, row = samples_of(3, 6, [0.05])
    base = base._replace(weights=[f"w{i}" for i in range(6)])
    paired = difference(row._replace(weights=["w2", "w0", "w1"]), base)
    same_order = row._replace(scores=row.scores[[1, 2, 0]], pseudo=row.pseudo[[1, 2, 0]])
    expected = same_order.scores - base.scores[:3]
    assert paired.value == pytest.approx(expected.mean()) and len(paired.parts) == 1
    assert paired.parts[0].variance == pytest.approx(expected.var(ddof=1) / 3)


def test_a_table_shows_each_row_at_its_last_look():
    looks, samples = Looks.of((2, 4), 8, 2), samples_of(4, 8, [0.0, 0.5])
    rows = rows_of(samples)
    seen = LookedAt(looks, "val/bleu", {"1": [0.9, 0.8], "2": [looks.levels[0]]})
    _, one, two = make_table(rows, About(measures=[MEASURE], looked_at=seen)).contrasts
    assert two.is_found and not one.is_found
    assert two.difference == pytest.approx(samples[2].scores[:2].mean() - samples[0].scores[:4].mean())
    assert one.difference == pytest.approx(samples[1].scores.mean() - samples[0].scores.mean())
    other_metric = make_table(rows, About(measures=[MEASURE], looked_at=seen._replace(metric="val/loss")))
    other_base = make_table(with_base(rows, "2", ""), About(measures=[MEASURE], looked_at=seen))
    for other in (other_metric, other_base):  # for which the looks were not
        notes = " ".join(other.notes)
        assert [one.p_value for one in other.contrasts] == [None] * 3
        assert "val/" in notes.partition("Looked at")[2] and "cannot be tested" not in notes


@pytest.mark.slow
def test_tables_that_are_looked_at_have_few_wrong_stars():
    """100 tables of five rows that do not differ: at 5 % more than 12 are wrong in 1 of 1,000 cases."""
    looks, rng = Looks.of((3, 5, 8), 16, 5), np.random.default_rng(11)
    assert (
        sum(has_star(looks, rows_of(sample(one, bleu) for one in drawn(rng, 6, 16, 60, 0.05))) for _ in range(100))
        <= 12
    )


def has_star(looks, rows):
    """Whether a row is found, where rows stop as they do in a sweep."""
    last = {row.name: 2 for row in rows}
    for look in range(3):
        for one in seen_at(looks, look, rows, last)[1:]:
            verdict = looks.verdict(look, one.estimate, one.p_value) if last[one.row.name] == 2 else "open"
            if verdict == "found":
                return True
            if verdict != "open":
                last[one.row.name] = look
    return False
