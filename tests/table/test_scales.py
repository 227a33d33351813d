"""What differences at one scale say of those at another one: order, signs, sizes, and the prediction of a row."""

from dataclasses import replace

import numpy as np
import pytest
from made_rows import BLEU
from scipy import stats

from transformer_pl.runtime.errors import InputError
from transformer_pl.table.figures import scales
from transformer_pl.table.row import Contrast, Row
from transformer_pl.table.scales import scales_table
from transformer_pl.table.statistics import predict

NAMES = ("small", "large")


def contrasts(differences, outliers=()):
    rows = [Contrast(Row(name="base", is_base=True), BLEU)]
    return rows + [
        Contrast(Row(name=f"h={i}"), BLEU, one, is_outlier=i in outliers) for i, one in enumerate(differences)
    ]


def made(x, y, **more):
    return scales_table(contrasts(x, **more), contrasts(y), NAMES)


def column(table, key):
    return {one["name"]: one[key] for one in table.records}


def test_a_new_point_lies_in_its_interval_in_95_percent_of_cases():
    """And so does the textbook's matrix form: s^2 (1 + x0' (X'X)^-1 x0)."""
    rng, x, held = np.random.default_rng(1), np.linspace(-5, 1, 12) ** 3, []
    for _ in range(2000):
        y, at = 0.6 * x - 1 + rng.normal(0, 2, len(x)), rng.uniform(-9, 2)
        one = predict(x, y, at)
        held.append(one.low <= 0.6 * at - 1 + rng.normal(0, 2) <= one.high)
    assert abs(np.mean(held) - 0.95) < 3 * np.sqrt(0.95 * 0.05 / len(held))
    X, x0 = np.column_stack([np.ones(len(x)), x]), np.array([1, at])
    b, (rest,), *_ = np.linalg.lstsq(X, y, rcond=None)
    error = np.sqrt(rest / (len(x) - 2) * (1 + x0 @ np.linalg.inv(X.T @ X) @ x0))
    assert (one.value, one.standard_error, one.degrees_of_freedom) == pytest.approx((x0 @ b, error, len(x) - 2))


@pytest.mark.parametrize("slope", [2.0, -0.5])
def test_what_lies_on_a_line_is_predicted_exactly_also_where_it_is_at_one_scale_alone(slope):
    x = np.array([-4.0, -3.0, -2.5, -1.0, 0.5, 1.0, 2.0, 3.5, 4.0])
    y = [*(slope * x[:-1] + 1), None]
    table = made([*x, 7.0], [*y, -30.0], outliers=[9])
    expected = dict(zip((f"h={i}" for i in range(9)), slope * x + 1, strict=True))
    assert column(table, "predicted") == pytest.approx(expected | {"h=9": None})
    assert f"{28 if slope > 0 else 0} of 28 pairs" in table.summary and "h=9" in " ".join(table.notes)
    assert column(table, "large/val/bleu.difference")["h=9"] == -30  # it is shown


def test_differences_are_from_the_row_that_is_base():
    x = contrasts(np.arange(1.0, 10))
    named = [replace(x[0], row=Row(name="h=77", is_base=True, is_reference=True)), *x[1:]]
    assert "h=77" in scales_table(named, x, NAMES).summary and "h=77" not in scales_table(x, x, NAMES).summary


def test_order_and_signs_are_counted_as_by_kendall():
    rng = np.random.default_rng(2)
    x, noise = rng.normal(0, 2, (2, 15))
    y = x + noise
    share = (1 + stats.kendalltau(x, y).statistic) / 2
    signs = sum(np.sign(x) == np.sign(y))
    summary = made(x, y).summary
    assert f"{share * 105:.0f} of 105 pairs" in summary and f"{signs} of 15 differences" in summary


def test_rows_that_scatter_otherwise_than_about_a_line_are_not_predicted():
    """Three of 18 rows are far from the line through the others."""
    x, y = np.arange(18.0), np.arange(18.0)
    y[[2, 9, 15]] += [40, -40, 40]
    table, figure = made(x, y), scales(contrasts(x), contrasts(y), NAMES).figure
    assert set(column(table, "predicted").values()) == {None} and "15 of 18" in " ".join(table.notes)
    assert not figure.axes[0].collections  # no band
    y[15] -= 40
    assert None not in column(made(x, y), "predicted").values()
    assert scales(contrasts(x), contrasts(y), NAMES).figure.axes[0].collections


@pytest.mark.parametrize("x", [np.arange(7.0), np.zeros(9), [None] * 9])
def test_few_rows_say_nothing(x):
    with pytest.raises(InputError, match="--against large"):
        made(x, np.arange(len(x)) + 1.0)


def test_scores_of_two_kinds_are_not_compared():
    x, bits = contrasts(np.arange(9.0)), BLEU._replace(key="val/bpb")
    with pytest.raises(InputError, match="val/bpb"):
        scales_table(x, [replace(one, outcome=bits) for one in x], NAMES)
