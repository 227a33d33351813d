"""Every pair of rows, against hand-made numbers and in simulations."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
import tiny_trials

from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.pairs import pairs_table
from transformer_pl.table.row import About, Outcome, Row, with_base
from transformer_pl.table.statistics import Sample
from transformer_pl.table.table import make_table

MEASURE = Outcome("score", "score", 2)


def drawn(rng, means, seeds=4, spread=0.5, n=100):
    """Samples of rows with these true means: seeds and sentences vary, and the sentences are the same for all."""
    common, samples = rng.normal(0, 10, n), []
    for mean in means:
        y = mean + rng.normal(0, spread, seeds)[:, None] + common + rng.normal(0, 3, n) + rng.normal(0, 4, (seeds, n))
        samples.append(Sample(y.mean(1), y))
    return samples


def rows_of(samples):
    return [
        Row(
            name=f"r{place}",
            values={"score": [*sample.scores]},
            samples={"score": sample},
            states=["done"] * len(sample.scores),
        )
        for place, sample in enumerate(samples)
    ]


def pairs(samples):
    return pairs_table(rows_of(samples), MEASURE)


def test_a_pair_is_the_difference_of_its_rows():
    samples = drawn(np.random.default_rng(1), [0, 0, 5, 5.2])
    table = pairs(samples)
    records = table.records
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


def test_rows_beside_a_base_that_the_user_has_chosen_are_corrected_as_pairs():
    """Whoever has seen the table can choose the row that is farthest away. A base that the table has itself costs
    nothing."""
    rows, of_pairs = rows_of(drawn(np.random.default_rng(2), [0, 0.5, 1, 1.2, 2])), {}
    for one in pairs([row.samples["score"] for row in rows]).records:
        of_pairs[one["row"], one["other"]] = (one["difference.p"], one["difference.high"] - one["difference.low"])
    for place, row in enumerate(rows):
        chosen = with_base(rows, row.name)
        made = make_table(chosen, About(outcomes=[MEASURE]))
        own = make_table(with_base(rows, row.name, is_reference=False), About(outcomes=[MEASURE]))
        for i, (one, other) in enumerate(zip(made.contrasts, own.contrasts, strict=True)):
            if i != place:
                names = rows[max(i, place)].name, rows[min(i, place)].name
                low, high = one.estimate.interval()
                assert (one.p_value, high - low) == pytest.approx(of_pairs[names])
                assert one.estimate.level > other.estimate.level
        assert "all pairs" in " ".join(made.notes) and "all pairs" not in " ".join(own.notes)


def test_pairs_that_share_weights_are_compared_within_each_seed():
    first, *_ = samples = drawn(np.random.default_rng(3), [0, 0, 0], spread=3.0)
    gap = 0.3 + np.random.default_rng(4).normal(0, 0.05, (4, 1)) + 0 * first.pseudo
    samples[2] = Sample(first.scores + gap[:, 0], first.pseudo + gap)
    ids = [[f"{name}{seed}" for seed in range(4)] for name in "aba"]
    (_, apart, _), (_, within, _) = (
        pairs(rows).records
        for rows in (samples, [one._replace(weights=of) for one, of in zip(samples, ids, strict=True)])
    )
    assert within["difference.p"] < 0.05 < apart["difference.p"]


@pytest.mark.parametrize(("rows", "spreads"), [(4, (0.2, 1.1)), pytest.param(8, (0.5, 0.5), marks=pytest.mark.slow)])
def test_all_intervals_of_pairs_hold_the_true_differences(rows, spreads):
    """In more than 90 % of tables, and wrong stars are in few."""
    rng, held, wrong, tries = np.random.default_rng(5), 0, 0, 30
    true = np.arange(rows) // 2 * 1.0
    for _ in range(tries):
        samples = [drawn(rng, [mean], 3, rng.uniform(*spreads))[0] for mean in true]
        samples = [sample._replace(references=()) for sample in samples]
        found = pairs(samples).records
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


def test_rows_that_begin_with_one_training_make_pairs_among_themselves():
    rows = [replace(row, trunks=frozenset({"x"})) for row in rows_of(drawn(np.random.default_rng(1), [0.0, 1.0]))]
    assert (
        pairs_table(rows, MEASURE).records
        == pairs_table([replace(r, trunks=frozenset()) for r in rows], MEASURE).records
    )
    with pytest.raises(InputError, match="r1"):
        pairs_table([rows[0], replace(rows[1], trunks=frozenset())], MEASURE)


def test_a_pair_that_differs_by_rounding_has_no_star():
    samples = drawn(np.random.default_rng(1), [0, 5, 9])
    near = Sample(samples[0].scores * (1 + 1e-9), samples[0].pseudo * (1 + 1e-9))
    (pair, *others) = pairs([samples[0], near, *samples[1:]]).records
    assert pair["difference.p"] is pair["difference.low"] is None and all(one["difference.p"] for one in others)
    assert pairs([samples[0], near]).summary == pairs([near, near]).summary


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


def test_the_better_row_of_a_pair_has_no_star_where_it_has_lost_runs(tmp_path):
    """The other runs may be the lucky ones. A worse one may well be called worse."""
    path = tmp_path / "runs.csv"
    scores = {"a": (0.5, 0.51, 0.52), "better": (0.9, 0.91, ""), "worse": (0.1, 0.11, "")}
    path.write_text("h,acc\n" + "".join(f"{h},{value}\n" for h, values in scores.items() for value in values))
    code, out, _ = tiny_trials.ended(report.main, path, "--row=h", "--metric=acc", "--pairs", "--format=csv")
    tested = {(one["row"], one["other"]): bool(one["difference.p"]) for one in csv.DictReader(io.StringIO(out))}
    assert code == 0 and tested == {("better", "a"): False, ("worse", "a"): True, ("worse", "better"): False}
