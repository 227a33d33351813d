"""Every pair of rows, and the effects of factors, against hand-made numbers and in simulations."""

import csv
import io
import itertools

import numpy as np
import pytest
import tiny_trials

from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.contrast_tables import factors_table, find_factors, pairs_table
from transformer_pl.table.rows import Measure, Row
from transformer_pl.table.statistics import Sample, contrasts, seed_prior

MEASURE = Measure("score", "score", 2)


def drawn(rng, means, seeds=4, spread=0.5, n=100):
    """Samples of rows with these true means: seeds and sentences vary, and the sentences are the same for all."""
    common, samples = rng.normal(0, 10, n), []
    for mean in means:
        y = mean + rng.normal(0, spread, seeds)[:, None] + common + rng.normal(0, 3, n) + rng.normal(0, 4, (seeds, n))
        samples.append(Sample(y.mean(1), y))
    return samples


def rows_of(samples, settings=None):
    settings = settings or [{} for _ in samples]
    return [
        Row(name=f"r{place}", samples={"score": sample}, states=["done"] * len(sample.scores), settings=keys)
        for place, (sample, keys) in enumerate(zip(samples, settings, strict=True))
    ]


def pairs(samples, **options):
    return pairs_table(rows_of(samples), MEASURE, **options)


def test_a_pair_is_the_difference_of_its_rows():
    samples = drawn(np.random.default_rng(1), [0, 0, 5, 5.2])
    table, records = pairs(samples), pairs(samples, as_records=True).records
    assert [(one["row"], one["other"]) for one in records] == [(f"r{i}", f"r{j}") for i in range(4) for j in range(i)]
    means = {f"r{i}": sample.scores.mean() for i, sample in enumerate(samples)}
    for one in records:
        assert one["difference"] == pytest.approx(means[one["row"]] - means[one["other"]])
        assert one["difference.low"] <= one["difference"] <= one["difference.high"]
        is_found = one["difference.p"] < 0.05
        assert is_found == (not one["difference.low"] <= 0 <= one["difference.high"]) or one["difference.low"] == 0
        i, j = int(one["row"][1]), int(one["other"][1])
        cell = table.columns[j + 1].cells[i]
        assert cell.endswith("*") == is_found and float(cell.rstrip("*")) == pytest.approx(one["difference"], abs=0.01)
    assert {(one["row"], one["other"]) for one in records if one["difference.p"] < 0.05} == {
        (row, other) for row in ("r2", "r3") for other in ("r0", "r1")
    }
    assert "4 of 6 pairs" in table.summary


@pytest.mark.parametrize(("rows", "spreads"), [(4, (0.2, 1.1)), pytest.param(8, (0.5, 0.5), marks=pytest.mark.slow)])
def test_all_intervals_of_pairs_hold_the_true_differences(rows, spreads):
    """In more than 90 % of tables, and wrong stars are in few."""
    rng, held, wrong, tries = np.random.default_rng(5), 0, 0, 30
    true = np.arange(rows) // 2 * 1.0
    for _ in range(tries):
        samples = [drawn(rng, [mean], 3, rng.uniform(*spreads))[0] for mean in true]
        samples = [sample._replace(references=()) for sample in samples]
        found = pairs(samples, as_records=True).records
        differences = {(f"r{i}", f"r{j}"): true[i] - true[j] for i in range(rows) for j in range(i)}
        exact = [(one, differences[one["row"], one["other"]]) for one in found]
        held += all(one["difference.low"] <= truth <= one["difference.high"] for one, truth in exact)
        wrong += any(one["difference.p"] < 0.05 for one, truth in exact if not truth)
    assert held >= 0.9 * tries and wrong <= 0.1 * tries


def test_too_many_rows_for_pairs():
    with pytest.raises(InputError, match="41"):
        pairs(drawn(np.random.default_rng(1), [0] * 41))


def test_rows_that_lack_a_seed_or_have_other_sentences_are_refused_by_name():
    samples = drawn(np.random.default_rng(1), [0, 1, 2])
    other = samples[2]._replace(references=np.ones(100))
    one_seed = Sample(samples[1].scores[:1], samples[1].pseudo[:1])
    lacks = rows_of(samples)
    lacks[0] = Row(name="r0", samples=lacks[0].samples, states=["done", "failed"])
    for rows, wrong in ((rows_of([*samples[:2], other]), "r2"), (rows_of([samples[0], one_seed]), "r1"), (lacks, "r0")):
        with pytest.raises(InputError, match=f"`{wrong}`"):
            pairs_table(rows, MEASURE)


def test_a_pair_that_differs_by_rounding_has_no_star():
    samples = drawn(np.random.default_rng(1), [0, 5, 9])
    near = Sample(samples[0].scores * (1 + 1e-9), samples[0].pseudo * (1 + 1e-9))
    (pair, *others) = pairs([samples[0], near, *samples[1:]], as_records=True).records
    assert pair["difference.p"] is pair["difference.low"] is None and all(one["difference.p"] for one in others)
    assert pairs([samples[0], near]).summary == pairs([near, near]).summary


def product(**factors):
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]


def test_factors_are_the_keys_whose_values_are_combined():
    """Keys that vary together are one factor, and base's level comes first."""
    settings = [
        one | {"model.d_k": one["model.h"] * 2, "model.N": 6}
        for one in product(**{"model.h": [8, 4], "model.residual": ["a.b.Post", "a.c.Pre"]})
    ]
    first, second = find_factors(settings, base=1)
    assert (first.name, first.levels, list(first.of_rows)) == ("h", ["8", "4"], [0, 0, 1, 1])
    assert (second.name, second.levels, list(second.of_rows)) == ("residual", ["Pre", "Post"], [1, 0, 1, 0])


def test_every_effect_has_a_name_of_its_own():
    """Also of factors or classes whose short names are equal."""
    settings = product(**{"encoder.lr": [1, 2], "decoder.lr": [1, 2], "norm": ["pre.Norm", "a.Norm", "b.Norm"]})
    means = [5 * (one["encoder.lr"] == 2) for one in settings]
    records = effects_of(drawn(np.random.default_rng(3), means, spread=0.1), settings).records
    assert len(records) == len({one["effect"] for one in records}) == (1 + 1 + 2) + (1 + 2 + 2)
    assert [one["difference.p"] < 0.05 for one in records] == [True] + [False] * 8


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (product(**{"model.h": [8, 4], "model.N": [6, 2]})[:3], "h=4 N=2"),
        (product(**{"model.h": [8, 4]}), "two or three"),
        (product(a=[1, 2], b=[1, 2], c=[1, 2], d=[1, 2]), "two or three"),
    ],
)
def test_rows_that_are_no_product_are_refused(settings, named):
    with pytest.raises(InputError, match=named):
        find_factors(settings, 0)


def effects_of(samples, settings, **options):
    """The table of factors of these samples."""
    return factors_table(rows_of(samples, settings), MEASURE, **options)


def test_effects_of_an_additive_table_add_up():
    settings = product(**{"model.h": [8, 4, 2], "model.p_drop": [0.1, 0.3]})
    means = [10 - one["model.h"] + (3 if one["model.p_drop"] == 0.3 else 0) for one in settings]
    samples = drawn(np.random.default_rng(2), means, spread=0.1)
    table = effects_of(samples, settings, margin=5.0)
    records = {one["effect"]: one for one in table.records}
    for name, truth in (("h=4", 4), ("h=2", 6), ("p_drop=0.3", 3)):
        assert records[name]["kind"] == "main effect" and records[name]["difference.p"] < 0.05
        assert records[name]["difference.low"] <= truth <= records[name]["difference.high"]
    scores = [sample.scores.mean() for sample in samples]
    by_hand = (scores[2] - scores[0] + scores[3] - scores[1]) / 2
    assert records["h=4"]["difference"] == pytest.approx(by_hand)
    crossed = records["h=4 with p_drop=0.3"]
    assert crossed["difference"] == pytest.approx(scores[3] - scores[2] - scores[1] + scores[0])
    assert crossed["difference.p"] > 0.05 and "add up within 5" in table.summary
    assert "add up" not in effects_of(samples, settings).summary
    weights = [[-1 / 2, -1 / 2, 1 / 2, 1 / 2, 0, 0], [-1 / 2, -1 / 2, 0, 0, 1 / 2, 1 / 2], [-1 / 3, 1 / 3] * 3]
    moderated = contrasts(samples, np.array(weights), seed_prior(samples))
    found = [(one["difference.low"], one["difference.high"]) for one in table.records[:3]]
    assert np.array(found) == pytest.approx(np.array([estimate.interval() for estimate, _ in moderated]))
    largest = max(abs(one["difference"]) for one in table.records if one["kind"] == "interaction")
    assert "cannot be excluded" in effects_of(samples, settings, margin=1.01 * largest).summary


def test_an_interaction_is_found_and_said():
    settings = product(a=[0, 1], b=[0, 1])
    table = effects_of(drawn(np.random.default_rng(2), [0, 1, 1, 9], spread=0.2), settings, margin=50.0)
    assert "1 of 1 interactions" in table.summary
    assert table.records[-1]["difference.p"] < 0.05 and table.records[-1]["kind"] == "interaction"


def test_of_three_factors_pairs_interact_on_the_mean_over_the_third():
    settings = product(a=[0, 1], b=[0, 1], c=[0, 1])
    samples = drawn(np.random.default_rng(2), [one["a"] * one["b"] * 8.0 for one in settings], spread=0.1)
    table = effects_of(samples, settings)
    found = {one["effect"]: one for one in table.records if one["kind"] == "interaction"}
    assert [p["difference.p"] < 0.05 for p in found.values()] == [True, False, False]
    scores = np.array([sample.scores.mean() for sample in samples]).reshape(2, 2, 2).mean(2)
    by_hand = scores[1, 1] - scores[1, 0] - scores[0, 1] + scores[0, 0]
    assert found["a=1 with b=1"]["difference"] == pytest.approx(by_hand)


def test_intervals_of_interactions_hold_the_truth():
    rng, held, tries = np.random.default_rng(9), 0, 80
    weights = np.array([[1.0, -1, -1, 1]])
    for _ in range(tries):
        samples = [drawn(rng, [mean], 3, rng.uniform(0.2, 1.1))[0] for mean in (0, 1, 2, 5)]
        ((estimate, _),) = contrasts(samples, weights, seed_prior(samples))
        held += estimate.interval()[0] <= 2 <= estimate.interval()[1]
    assert held >= 0.88 * tries


def test_the_command_prints_pairs_of_runs(tmp_path):
    path = tmp_path / "runs.csv"
    scores = {"a": (1.0, 1.1, 0.9), "b": (5.0, 5.1, 4.9), "c": (1.0, 1.2, 0.8)}
    path.write_text("h,acc\n" + "".join(f"{h},{value}\n" for h, values in scores.items() for value in values))
    code, out, _ = tiny_trials.ended(report.main, path, "--row=h", "--metric=acc", "--pairs", "--format=csv")
    found = {(one["row"], one["other"]): float(one["difference"]) for one in csv.DictReader(io.StringIO(out))}
    assert code == 0 and found == pytest.approx({("b", "a"): 4.0, ("c", "a"): 0.0, ("c", "b"): -4.0})
    path.write_text(f"{path.read_text()}d,1.0\n")
    code, _, err = tiny_trials.ended(report.main, path, "--row=h", "--metric=acc", "--pairs")
    assert code == 2 and "acc of d: must have numbers of two runs" in err
