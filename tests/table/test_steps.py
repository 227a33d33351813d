"""In how many steps a row reaches the lowest loss of base: by hand, by a plain reference, and on made curves."""

import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from helpers import a_result, a_trial
from made_rows import row, table
from rich.console import Console

from transformer_pl.config.levels import Level, resolve
from transformer_pl.report.sweep_rows import read_row
from transformer_pl.table.html import page_columns
from transformer_pl.table.steps import STEPS, crossing, mean_losses, steps_to_base
from transformer_pl.tasks.translation import Translation

pytestmark = pytest.mark.core
KEYS = [f"{name}_to_base{end}" for name in ("steps", "flops") for end in ("", ".low", ".high")]


def falling(speed, shift=0.0, steps=1000):
    """A loss that falls along a line from 10, by `speed` each hundred steps, validated every hundred."""
    return {step: 10 + shift - speed * step / 100 for step in range(100, steps + 1, 100)}


BASE = [falling(0.5, shift) for shift in (-0.05, 0.0, 0.05)]  # 5.0 at its end
FAST = [falling(1.0, shift) for shift in (-0.02, 0.02)]
SLOW = [falling(0.25, shift) for shift in (-0.02, 0.02)]  # 7.5 at its end, which base reaches after 500 steps


def made(*losses, **more):
    """A table of base and further rows with these losses, each with two FLOPs a step in place of base's one."""
    known = [{"losses": one, "ends_anywhere": True, "step_flops": 1.0 + bool(i)} for i, one in enumerate(losses)]
    rows = [row("base" if i == 0 else f"h={i}", 30.0, 31.0, **one) for i, one in enumerate(known)]
    return table([*rows[:1], *(replace(one, **more) for one in rows[1:])])


def test_a_crossing_by_hand():
    losses = {10: 4.0, 20: 3.0, 40: 2.5, 30: 2.6, 50: 2.7}  # 2.75 lies 2.5 of 4 parts below 3.0
    assert [crossing(losses, level) for level in (4.0, 2.75, 2.55)] == pytest.approx([10, 26.25, 35])
    assert crossing(losses, 5.0) is crossing(losses, 2.0) is crossing({10: math.inf, 20: 3.0}, 3.5) is None


def test_a_crossing_is_that_of_a_plain_search():
    """Over a fine grid of steps; curves may rise in between."""
    rng, grid = np.random.default_rng(1), np.linspace(10, 100, 90_001)
    for _ in range(50):
        at, losses = np.arange(10, 101, 10), 5 - np.arange(10) * 0.3 + rng.normal(0, 0.5, 10)
        below = np.interp(grid, at, losses) <= (level := rng.uniform(losses.min(), losses[0]))
        assert crossing(dict(zip(at.tolist(), losses, strict=True)), level) == pytest.approx(grid[below][0], abs=0.002)


def test_steps_and_flops_of_rows_whose_answer_is_known():
    fast, slow = made(BASE, FAST, SLOW).records[1:]
    assert (fast["steps_to_base"], slow["steps_to_base"]) == pytest.approx((0.5, 2.0), rel=1e-3)
    assert (fast["flops_to_base"], slow["flops_to_base"]) == pytest.approx((1.0, 4.0), rel=1e-3)
    for one in (fast, slow):
        assert one["steps_to_base.low"] < one["steps_to_base"] < one["steps_to_base.high"]
        assert one["flops_to_base.high"] == pytest.approx(2 * one["steps_to_base.high"])
    longer = made(BASE, [falling(0.25, 0.0, 3000)] * 2).records[1]  # which gets there, after 2,000 of 3,000 steps
    assert longer["steps_to_base"] == pytest.approx(2.0) and longer["flops_to_base"] == pytest.approx(4.0)


def test_losses_that_rise_again_count_by_their_lowest():
    def then_rising(curves):
        return [one | {step: max(one.values()) for step in range(1100, 1501, 100)} for one in curves]

    rising = made(then_rising(BASE), then_rising(FAST), then_rising(SLOW)).records[1:]
    assert [one["steps_to_base"] for one in rising] == pytest.approx([0.5, 2.0], rel=1e-3)


def test_a_step_costs_the_same_wherever_the_last_validation_lies(tmp_path):
    trial = a_trial(tmp_path / "a-s1-0123456789ab", resolve([]))
    trial.folder.make()
    for steps in (60, 77):
        trial.folder.finish(a_result(steps=steps, flops=2.0 * steps, losses={30: 5.0, 60: 4.0}))
        assert read_row("any", resolve([]), [trial], Translation.measure).step_flops == 2.0


def test_the_two_errors_are_those_of_the_row_and_of_base_by_leaving_out_a_seed():
    value, estimate = steps_to_base(FAST, BASE)
    at = [steps_to_base([one], BASE)[0] for one in FAST]
    without = [steps_to_base(FAST, [one for one in BASE if one is not seed])[0] for seed in BASE]
    of_base = 2 / 3 * sum((one - fmean(without)) ** 2 for one in without)
    assert value == pytest.approx(fmean(at))
    assert [part.variance for part in estimate.parts] == pytest.approx([np.var(at, ddof=1) / 2, of_base])
    assert [part.freedom for part in estimate.parts] == [1, 2]
    assert steps_to_base(FAST[:1], BASE)[1] is steps_to_base(FAST, BASE[:1])[1] is None  # one seed spreads unknown


def test_intervals_hold_the_true_ratio():
    """Curves like those of trainings; seeds differ in their speed and their last loss, and validations are noisy."""
    rng, held, widths = np.random.default_rng(1), [], []
    for _ in range(300):
        true, curves = math.exp(rng.normal(0, 0.4)), []
        for speed in [1.0] * 4 + [true] * 3:
            own, shift = speed * math.exp(rng.normal(0, 0.05)), rng.normal(0, 0.002)
            curves.append({s: 2 + shift + 3 * (s * own) ** -0.5 + rng.normal(0, 0.0005) for s in range(100, 2001, 100)})
        _, one = steps_to_base(curves[4:], curves[:4])
        held.append(one.low <= -math.log(true) <= one.high)
        widths.append(one.half_width(0.95))
    assert np.mean(held) >= 0.93 and np.median(widths) < 0.3


@pytest.mark.parametrize(
    "more",
    [
        {"ends_anywhere": False},
        {"dataset": "another text"},
        {"vocabulary": "other tokens"},
        {"losses": [{}, FAST[0]]},
        {"losses": [{100: 2.0, 200: 1.0}] * 2},  # below base's lowest loss from the first validation on
    ],
)
def test_what_cannot_be_known_is_empty_and_has_its_reason(more):
    several, alone = made(BASE, FAST, SLOW), made(BASE, FAST, **more)
    assert not any(STEPS.title in note for note in several.notes)
    assert any(STEPS.title in note for note in alone.notes)
    assert not any(alone.records[1].get(key) for key in KEYS)


def test_results_without_losses_have_neither_column_nor_note():
    old = made([{}, {}], [{}, {}])
    assert not set(KEYS) & old.records[1].keys() and not any(STEPS.title in note for note in old.notes)


def test_the_page_has_the_columns_and_text_only_where_they_are_asked_for():
    whole, console = made(BASE, FAST), Console(width=400)
    assert STEPS.title in [one.column.name for one in page_columns(whole)]
    chosen = whole.chosen(["row", STEPS.title])
    for asked, one in ((False, whole), (True, chosen)):
        with console.capture() as capture:
            console.print(one.terminal(400))
        for text in (one.markdown(), one.latex(), " ".join(capture.get().split())):
            assert ("0.50" in text) == asked


@pytest.mark.parametrize(
    ("name", "ends_anywhere"),
    [(None, True), ("Constant", True), ("InverseSquareRootWithoutWarmup", True), ("Cosine", False), ("Linear", False)],
)
def test_a_rate_that_depends_on_the_last_step_makes_no_shorter_training(name, ends_anywhere):
    level = Level("test", {"optim.schedule": f"ablations.schedules.{name}"} if name else {})
    config = resolve([level])
    assert read_row("any", config, [], Translation.measure).ends_anywhere == ends_anywhere


def test_losses_are_averaged_at_the_steps_that_all_seeds_have():
    assert mean_losses([{10: 4.0, 20: 2.0}, {10: 2.0, 30: 1.0}]) == {10: 3.0}
