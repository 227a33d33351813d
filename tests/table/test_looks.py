"""The statistics of looks: levels that spend alpha, a p that says what is found, rows that stop for good reasons."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from chance import drawn
from scipy.stats import multivariate_normal, norm
from scipy.stats import t as student

from transformer_pl.table.comparison import compare
from transformer_pl.table.looks import Looks
from transformer_pl.table.moderation import SeedVariance
from transformer_pl.table.row import About, Contrast, LookedAt, Outcome, Row, with_base
from transformer_pl.table.statistics import Estimate, sample
from transformer_pl.table.table import make_table
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
    by_chance = {round(looks.chance(0, seen), 2): seen for seen in (Estimate(0.01 * i, parts, 0.0) for i in range(200))}
    assert all((looks.verdict(0, by_chance[chance], 0.9) == "open") == (chance > 0.1) for chance in (0.08, 0.12, 0.2))
    assert looks.verdict(1, none, 0.9) == "open"  # nothing follows the last look
    assert looks.verdict(0, none, 0.9, margin=2.0) == "within margin"
    assert looks.verdict(0, none, 0.9, margin=1.0) == "unlikely"


MEASURE = Outcome("val/bleu", "BLEU", highest=100.0)


def numbers_of(base_seeds, gaps):
    return drawn(np.random.default_rng(3), len(gaps) + 1, base_seeds, 120, 0.05, gap=[0.0, *gaps])


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


def seen_at(looks, look, numbers, last):
    """Each row beside base at a look. last: by row, the last look that it was trained for."""
    seeds = [looks.base_seeds[look], *(looks.seeds[min(look, last[str(i)])] for i in range(1, len(numbers)))]
    rows = rows_of(sample(one[:count], bleu) for one, count in zip(numbers, seeds, strict=True))
    return compare(rows, MEASURE, rows[0], level=1 - looks.levels[look])


def test_a_table_shows_each_row_at_its_last_look():
    looks, numbers, last = Looks.of((2, 4), 8, 2), numbers_of(8, [0.0, 0.5]), {"1": 1, "2": 0}
    first, then = (seen_at(looks, look, numbers, last) for look in range(2))
    rows = [one.row for one in then]
    seen = LookedAt(looks, "val/bleu", {"base": [first[0], then[0]], "1": [first[1], then[1]], "2": [first[2]]})
    base, one, two = make_table(rows, About(outcomes=[MEASURE], looked_at=seen)).contrasts
    assert (base.mean, one.estimate, two.estimate) == (then[0].mean, then[1].estimate, first[2].estimate)
    assert two.is_found and not one.is_found
    assert one.p_value == looks.p_value([first[1].p_value, then[1].p_value])
    other_metric = make_table(rows, About(outcomes=[MEASURE], looked_at=seen._replace(metric="val/loss")))
    other_base = make_table(with_base(rows, "2", ""), About(outcomes=[MEASURE], looked_at=seen))
    for other in (other_metric, other_base):  # for which the looks were not
        notes = " ".join(other.notes)
        assert [one.p_value for one in other.contrasts] == [None] * 3
        assert "val/" in notes.partition("Looked at")[2] and "cannot be tested" not in notes


@pytest.mark.parametrize("p_values", [(0.01, 0.04, 0.001), (0.01, 0.2, 0.001)])
def test_the_test_set_is_asked_for_the_rows_that_were_found_in_their_order(p_values):
    """Each at the full level, until one is not found. Differences from another base have no test."""
    looks, rng = Looks.of((2, 4), 8, 4), np.random.default_rng(5)
    z, test = norm.isf(np.array(p_values) / 2), MEASURE._replace(key="test/bleu")
    means = [0.0, *(z * np.sqrt(1 / 400 + 1 / 800)), 1.0]  # the last one was not found by the looks
    scores = [rng.normal(size=800 if not place else 400) for place in range(len(means))]
    rows = [
        Row.of_values(
            str(place or "base"), {"test/bleu": [*((y - y.mean()) / y.std(ddof=1) + mean)]}, is_base=not place
        )
        for place, (y, mean) in enumerate(zip(scores, means, strict=True))
    ]
    found = [Contrast(row, MEASURE, p_value=1e-9, estimate=Estimate(1.0, (), 0.1)) for row in rows]
    seen = {
        row.name: [replace(one, p_value=0.9) if row is rows[-1] else one] for row, one in zip(rows, found, strict=True)
    }
    about = About(outcomes=[test], looked_at=LookedAt(looks, "val/bleu", seen))
    made = make_table(rows, about)
    base, *tested, last = made.contrasts
    assert base.p_value is last.p_value is None and last.difference
    expected = list(itertools.takewhile(lambda p: p < ALPHA, p_values))
    asked = p_values[: len(expected) + 1]  # the first that is not found is asked, those after it are not
    assert [one.p_value for one in tested[: len(asked)]] == pytest.approx(np.maximum.accumulate(asked), rel=0.05)
    assert not any(one.p_value or one.estimate for one in tested[len(asked) :])
    for place, one in enumerate(tested[: len(asked)]):
        assert one.is_found == (place < len(expected)) == (one.estimate.low >= 0)
        assert one.estimate.level == 1 - ALPHA / 3
    assert "asked once" in " ".join(made.notes) and "cannot be tested" not in " ".join(made.notes)
    assert not any(one.p_value for one in make_table(with_base(rows, "2"), about).contrasts)
