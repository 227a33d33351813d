"""--retune: every row tries the same points, with one seed of their own, and is trained at its best."""

import math

import pytest
from forked import command
from helpers import a_result, shared_text, write_sweep
from tiny_trials import ended

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.retune import REACH, plan_retuning
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.trials.runs_folder import RunsFolder

KEYS = ["optim.lr_scale", "optim.warmup"]
SMALL = {"model.width": 0.0625, "optim.max_steps": 20, "trainer.val_every": 10, "decode.beam": 1, "decode.extra": 2}
SMALL |= {"data.path": str(shared_text()), "data.vocab_size": 400, "model.N": 2}


@pytest.fixture
def sweep_file(tmp_path):
    keys = SMALL | {"variant": ["base", "model.h=4"], "seed": [0, 2]}
    return write_sweep(tmp_path / "rows.yaml", keys, metric={"name": "val/ppl"})


def test_every_row_tries_the_same_points_with_one_seed_that_is_not_the_file_s(sweep_file):
    sweep = read_sweep(sweep_file)
    tuning = plan_retuning(sweep, KEYS, 9, {"name": "val/ppl", "goal": "minimize"})
    base = sweep.base.flat()
    assert tuning.points[0] == {key: base[key] for key in KEYS} and len(tuning.points) == 9
    for key in KEYS:
        assert len({point[key] for point in tuning.points}) == 9  # no two tries are the same
        assert all(base[key] / REACH <= point[key] <= base[key] * REACH for point in tuning.points)
        spread = [math.log(point[key] / base[key], REACH) for point in tuning.points]
        assert min(spread) < -0.6 and max(spread) > 0.6 and abs(sum(spread)) < 1  # on a scale of logarithms
    tries = tuning.tries(sweep)
    tried = [[{key: row.configs[0].flat()[key] for key in KEYS} for row in tries.rows[at : at + 9]] for at in (0, 9)]
    assert tried[0] == tried[1] == tuning.points
    assert [row.configs[0].model.h for row in tries.rows] == [8] * 9 + [4] * 9
    assert {config.seed for config in tries.configs} == {1}  # the file has 0 and 2
    for row in tries.rows:  # the arguments of `train` give the row's config
        assert all(row.keys[key] == row.configs[0].flat()[key] for key in KEYS)


@pytest.mark.parametrize(
    ("keys", "metric", "named"),
    [
        (["optim.lr_scal"], None, ["optim.lr_scal", "optim.lr_scale?"]),
        (["seed"], None, ["seed"]),
        (["model.h"], None, ["model.h", "h=4"]),
        (["model.d_k"], None, ["model.d_k", "None"]),
        (KEYS, {"name": "params"}, ["metric.name = params", "val/bleu"]),
        (KEYS, {"name": "val/bleu", "goal": "minimize"}, ["metric.goal = minimize", "val/bleu"]),
    ],
)
def test_what_cannot_be_retuned_is_an_error(sweep_file, keys, metric, named):
    with pytest.raises(InputError) as caught:
        plan_retuning(read_sweep(sweep_file), keys, 4, metric)
    assert all(word in str(caught.value) for word in named)


def test_options_and_keys_near_a_bound_can_be_retuned(sweep_file):
    """Of an option that is not given the center is its default; no point is tried that base cannot have."""
    sweep = read_sweep(sweep_file, sets={"model.p_drop": "0.5", "optim.optimizer": "ablations.muon.Muon"})
    points = plan_retuning(sweep, ["model.p_drop", "optim.optimizer.momentum"], 8, None).points
    assert points[0] == {"model.p_drop": 0.5, "optim.optimizer.momentum": 0.95} and len(points) == 8
    assert all(point["model.p_drop"] < 1 for point in points)
    for key in ("optim.optimizer.momentums", "optim.optimizer.betas", "optim.loss.gamma"):
        with pytest.raises(InputError, match=key):
            plan_retuning(sweep, [key], 4, None)


def test_a_budget_that_no_grid_holds_is_refused_at_once(sweep_file):
    with pytest.raises(InputError, match="--budget 9999999"):
        plan_retuning(read_sweep(sweep_file), KEYS, 9_999_999, None)


def test_whole_numbers_that_round_alike_are_tried_once(sweep_file):
    sweep = read_sweep(sweep_file, sets={"optim.warmup": "3"})
    points = [point["optim.warmup"] for point in plan_retuning(sweep, ["optim.warmup"], 8, None).points]
    assert len(set(points)) == 8 and points[0] == 3
    with pytest.raises(InputError, match="--budget 10"):
        plan_retuning(sweep, ["optim.warmup"], 10, None)


def test_a_larger_budget_has_the_same_tries_and_more(sweep_file):
    sweep = read_sweep(sweep_file)
    few, more = (plan_retuning(sweep, KEYS, budget, None).points for budget in (5, 9))
    assert more[:5] == few


def test_every_row_is_trained_at_its_best_point_and_the_table_has_a_note(sweep_file, tmp_path):
    runs = tmp_path / "runs"
    words = [sweep_file, "--runs", runs, "--retune", "optim.lr_scale", "--budget", 2, "--seeds", 2]
    assert ended(sweep.main, *words, "--plan")[0] == 0
    runs.mkdir()
    assert ended(report.main, *words)[0] == 2
    completed = command("sweep", *words, WANDB_MODE="disabled")
    assert completed.returncode == 0, completed.stdout + completed.stderr

    settings = "model.h", "optim.lr_scale", "seed"
    results = {tuple(map(result.config.get, settings)): result for _, result in RunsFolder(runs).finished()}
    best, tries_of = {}, {}
    for h in (8, 4):
        tries = {rate: r.metrics["val/ppl"] for (row, rate, seed), r in results.items() if row == h and seed == 0}
        tries_of[h], best[h] = tries, min(tries, key=tries.get)
        assert len(tries) > 2  # the better one of two values is always an end
        assert {rate for row, rate, seed in results if row == h and seed == 2} == {best[h]}
    assert len(results) == sum(len(tried) for tried in tries_of.values()) + 2

    _, shown, _ = ended(report.main, *words, "--format", "md")
    assert "2 points of optim.lr_scale" in shown and "seed 0" in shown
    (folder,) = (runs / "sweeps").iterdir()
    assert (folder / "table.md").read_text() == shown and (folder / "report.html").exists()
    (of_tries,) = (path.read_text() for path in folder.rglob("tries.svg"))
    assert "optim.lr_scale" in of_tries and "h=4" in of_tries
    assert ended(sweep.main, *words, "--plan")[1].count(" 0 to train") == 2
    _, more, _ = ended(sweep.main, *words[:-1], 3, "--plan")
    assert more.count(" 0 to train") == 1 and "2 trials left" in more  # the tries are done


@pytest.mark.parametrize("optima", [(0.1, 1.0), (10.0, 0.4), (3.0, 2.5)])
def test_a_row_goes_on_until_two_tried_values_lie_beyond_its_best_one_on_either_side(sweep_file, tmp_path, optima):
    """So that each finds its optimum, which lies up to ten times beyond the file's value, within a factor of two."""
    sweep, further = read_sweep(sweep_file), True
    tuning, center = plan_retuning(sweep, ["optim.lr_scale"], 5, {"name": "val/ppl"}), sweep.base.optim.lr_scale
    while further:
        tried = plan_trials(tuning.tries(sweep), RunsFolder(tmp_path))
        for one in tried:
            optimum = center * optima[one.config.model.h == 4]
            one.folder.make()
            ppl = 3 + math.log(one.config.optim.lr_scale / optimum) ** 2
            one.folder.finish(a_result(metrics={"val/ppl": ppl, "val/bleu": 1.0}))
        if further := tuning.further(sweep, tried):
            tuning = further
    found = tuning.best(sweep, tried)
    for row, optimum in zip(found.rows, optima, strict=True):
        chosen = row.configs[0].optim.lr_scale
        assert 0.5 <= chosen / (center * optimum) <= 2
        values = sorted(point["optim.lr_scale"] for name, point, _ in found.tried if name == row.name)
        assert 2 <= values.index(chosen) < len(values) - 2
    gone_on = [row.name for row, optimum in zip(sweep.rows, optima, strict=True) if not 0.4 <= optimum <= 2.5]
    note = found.notes[-1].partition("tried beyond it: ")[2].partition(".")[0]
    assert set(gone_on) <= set(note.split(", ")) and "Still best" not in found.notes[-1]


def test_a_row_that_is_best_at_every_end_is_named(sweep_file, tmp_path):
    sweep, further = read_sweep(sweep_file), True
    tuning = plan_retuning(sweep, ["optim.lr_scale"], 3, {"name": "val/ppl"})
    while further:
        tried = plan_trials(tuning.tries(sweep), RunsFolder(tmp_path))
        for one in tried:
            one.folder.make()
            ppl = (
                3 + abs(math.log(one.config.optim.lr_scale))
                if one.config.model.h == 8
                else 9 - one.config.optim.lr_scale / 100
            )
            one.folder.finish(a_result(metrics={"val/ppl": ppl, "val/bleu": 1.0}))
        if further := tuning.further(sweep, tried):
            tuning = further
    assert "Still best at such an end: h=4." in tuning.best(sweep, tried).notes[-1]


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("val/ppl", (math.inf, 9.0, 7.0, None, math.inf, math.inf), [2, 0]),
        (None, (5.0, 9.0, 7.0, 3.0, 2.0, 4.0), [1, 2]),
    ],
)
def test_the_best_try_has_the_best_metric(sweep_file, tmp_path, metric, values, best):
    """The lowest perplexity or the highest score. One that is not finite, failed or diverged is never the best: a row
    without any finite try keeps the file's values."""
    sweep = read_sweep(sweep_file)
    tuning = plan_retuning(sweep, ["optim.lr_scale"], 3, metric and {"name": metric})
    tried = plan_trials(tuning.tries(sweep), RunsFolder(tmp_path))
    for one, value in zip(tried, values, strict=True):
        if value is not None:
            one.folder.make()
            one.folder.finish(a_result(metrics={"val/ppl": value, "val/bleu": value if metric is None else 1.0}))
    found = tuning.best(sweep, tried)
    assert [row.configs[0].optim.lr_scale for row in found.rows] == [tuning.points[i]["optim.lr_scale"] for i in best]
    assert ("1 diverged or failed" in found.notes[-1]) == (None in values)
    assert found.base == found.rows[0].configs[0]  # what the others are compared with is tuned as they are
