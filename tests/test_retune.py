"""Every row at its own best: the same points for all, with a seed of their own."""

import math
import re

import pytest
import yaml
from conftest import a_result, command

from transformer_pl.errors import InputError
from transformer_pl.plan import plan
from transformer_pl.results import finished
from transformer_pl.retune import REACH, retuning
from transformer_pl.sweepfile import load

KEYS = ["optim.lr_scale", "optim.warmup"]
SMALL = {"model.width": 0.0625, "optim.max_steps": 20, "trainer.val_every": 10, "decode.beam": 1, "decode.extra": 2}


@pytest.fixture
def sweep_file(tmp_path):
    path = tmp_path / "rows.yaml"
    fixed = {key: {"value": value} for key, value in SMALL.items()}
    rows = {"variant": {"values": ["base", "model.h=4"]}, "seed": {"values": [0, 2]}}
    said = {"name": "rows", "method": "grid", "metric": {"name": "val/ppl"}, "parameters": fixed | rows}
    path.write_text(yaml.safe_dump(said, sort_keys=False))
    return path


def test_every_row_tries_the_same_points_with_a_seed_of_their_own(sweep_file):
    sweep = load(sweep_file)
    tuning = retuning(sweep, KEYS, 9, {"name": "val/ppl", "goal": "minimize"})
    base = sweep.base.flat()
    assert tuning.points[0] == {key: base[key] for key in KEYS} and len(tuning.points) == 9
    for key in KEYS:
        assert len({point[key] for point in tuning.points}) == 9  # none is wasted
        assert all(base[key] / REACH <= point[key] <= base[key] * REACH for point in tuning.points)
    tries = tuning.tries(sweep)
    tried = [[{key: row.configs[0].flat()[key] for key in KEYS} for row in tries.rows[at : at + 9]] for at in (0, 9)]
    assert tried[0] == tried[1] == tuning.points
    assert [row.configs[0].model.h for row in tries.rows] == [8] * 9 + [4] * 9
    assert {config.seed for config in tries.configs} == {1}  # the file has 0 and 2
    for row in tries.rows:  # what `train` is told is what it comes to
        assert all(row.keys[key] == row.configs[0].flat()[key] for key in KEYS)


@pytest.mark.parametrize(
    ("keys", "metric", "told"),
    [
        (["optim.lr_scal"], None, "optim.lr_scal: no such key; did you mean optim.lr_scale?"),
        (["seed"], None, "seed: must be of model or optim"),
        (["model.h"], None, "model.h: must be the same in all rows, but row `h=4` is about it"),
        (["model.d_k"], None, "model.d_k: must be a number other than 0 in base, but is None"),
        (KEYS, {"name": "params"}, "metric.name = params: must be one of val/bleu"),
    ],
)
def test_what_cannot_be_tuned_is_told(sweep_file, keys, metric, told):
    with pytest.raises(InputError, match=re.escape(told)):
        retuning(load(sweep_file), keys, 4, metric)


def test_rows_are_trained_at_their_best_and_the_table_says_so(sweep_file, tmp_path):
    runs = tmp_path / "runs"
    words = [sweep_file, "--runs", runs, "--retune", "optim.lr_scale", "--budget", 2, "--seeds", 2]
    runs.mkdir()
    early = command("report", *words)
    assert early.returncode == 2 and "4 of 4 trials are missing" in early.stderr
    told = command("sweep", *words, WANDB_MODE="disabled")
    assert told.returncode == 0, told.stdout + told.stderr

    results = {(r["config"]["model.h"], r["config"]["optim.lr_scale"], r["config"]["seed"]): r for r in finished(runs)}
    best = {}
    for h in (8, 4):
        tries = {rate: r["metrics"]["val/ppl"] for (row, rate, seed), r in results.items() if row == h and seed == 0}
        assert len(tries) == 2
        best[h] = min(tries, key=tries.get)
        assert {rate for row, rate, seed in results if row == h and seed == 2} == {best[h]}
    assert len(results) == 2 * (2 + 1)

    shown = command("report", *words, "--format", "md").stdout
    assert "Every row at its own best of the same 2 points of optim.lr_scale" in shown and "with seed 0" in shown
    (folder,) = (runs / "sweeps").iterdir()
    assert (folder / "table.md").read_text() == shown and (folder / "report.html").exists()
    again = command("sweep", *words, WANDB_MODE="disabled")
    assert again.returncode == 0 and " 0 to train" in again.stdout


def test_a_try_that_came_to_no_number_is_not_the_best(sweep_file, tmp_path):
    """Nor one that failed; a row that failed everywhere stays where the file has it."""
    sweep = load(sweep_file)
    tuning = retuning(sweep, ["optim.lr_scale"], 3, {"name": "val/ppl"})
    tried = plan(tuning.tries(sweep), tmp_path)
    for one, value in zip(tried, (math.nan, 9.0, 7.0, None, math.inf, math.nan), strict=True):
        if value is not None:
            one.trial.folder.mkdir(parents=True)
            one.trial.finish(a_result(metrics={"val/ppl": value, "val/bleu": 1.0}))
    rates = [row.configs[0].optim.lr_scale for row in tuning.best(sweep, tried).rows]
    assert rates == [tuning.points[2]["optim.lr_scale"], tuning.points[0]["optim.lr_scale"]]


@pytest.mark.parametrize(
    ("program", "file", "option", "kind"),
    [
        ("sweep", "search_size", ["--retune", "optim.warmup"], "the rows of a grid"),
        ("sweep", "search_size", ["--rerun"], "the rows of a grid"),
        ("report", "search_size", ["--test", "randomisation"], "the rows of a grid"),
        ("sweep", "smoke", ["--sampler", "tpe"], "a search"),
        ("report", "smoke", ["--storage", "sqlite:///study.db"], "a search"),
    ],
)
def test_an_option_of_the_other_kind_of_sweep_is_refused(tmp_path, program, file, option, kind):
    told = command(program, f"sweeps/{file}.yaml", *option, "--runs", tmp_path)
    assert told.returncode == 2 and f"{option[0]}: is for {kind}" in told.stderr
