"""Measuring the time of a sweep: what ends it early. tests/test_every_key_binds.py measures a real one."""

import json

import pytest
from helpers import ROOT

from transformer_pl.experiments.measure import EVERY, FIRST, _times, check_measurable, measured
from transformer_pl.experiments.plan import estimate_costs, plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.runtime.errors import InputError

SWEEP = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1", "2"])


def test_a_row_that_ends_before_its_last_step_is_named_with_what_it_said(tmp_path):
    trials, said = plan_trials(SWEEP, tmp_path), []
    with pytest.raises(
        InputError, match=r"h=4 s1: its training must reach step 50, but ended with exit code 0; it said"
    ):
        measured(
            estimate_costs(trials, []), trials[2:], lambda planned, runs: ["--version"], lambda one: 1, said.append
        )
    assert said == ["measuring h=4 s1: its first 50 steps"]


def test_trials_of_other_machines_cannot_be_measured_and_finished_ones_need_not(tmp_path):
    trials = plan_trials(SWEEP, tmp_path)
    estimates = estimate_costs(trials, [])
    with pytest.raises(InputError, match="the trials are trained elsewhere"):
        check_measurable(trials, lambda one: None)
    check_measurable(trials, lambda one: 1)
    check_measurable([], lambda one: None)
    assert measured(estimates, [], lambda planned, runs: [], lambda one: 1, print) == estimates


def test_a_trial_that_is_too_short_is_refused_before_anything_is_trained(tmp_path):
    """With the number of its steps, which `optim.duration` multiplies."""
    sets = {"optim.max_steps": "10", "optim.duration": "1.9"}
    short = plan_trials(read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1"], sets=sets), tmp_path)
    with pytest.raises(InputError, match=r"h=1 s1: must have at least 20 steps to be timed, but has 19 \(optim\.max_"):
        check_measurable(short, lambda one: 1)


def test_only_training_lines_from_the_first_step_on_are_timed(tmp_path):
    """In the steps before it, memory is found and layers are compiled."""
    lines = [
        {"step": step, "kind": "train", "train/loss": 4.0, "time": 100.0 + step} for step in (1, FIRST, FIRST + EVERY)
    ]
    lines.append({"step": FIRST, "kind": "validation", "val/loss": 4.0, "time": 500.0})
    assert _times(tmp_path) == {}
    folder = tmp_path / "trials" / "base"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert _times(tmp_path) == {FIRST: 100.0 + FIRST, FIRST + EVERY: 100.0 + FIRST + EVERY}
