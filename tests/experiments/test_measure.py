"""Measuring the time of a sweep: what ends it early. tests/test_every_key_binds.py measures a real one."""

import pytest
from helpers import ROOT

from transformer_pl.experiments.measure import check_measurable, measured
from transformer_pl.experiments.plan import estimate_costs, plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.runtime.errors import InputError

TABLE = ROOT / "sweeps" / "table3_A.yaml"


def test_a_row_that_ends_before_its_last_step_is_named(tmp_path):
    trials, said = plan_trials(read_sweep(TABLE, seeds=["1", "2"]), tmp_path), []
    estimates = estimate_costs(trials, [])
    assert measured(estimates, [], lambda planned, runs: [], lambda one: 1, said.append) == estimates and not said
    with pytest.raises(InputError, match="h=4 s1"):
        measured(estimates, trials[2:], lambda planned, runs: ["--version"], lambda one: 1, said.append)
    assert len(said) == 1 and "h=4 s1" in said[0]


def test_a_trial_that_is_too_short_is_refused_before_anything_is_trained(tmp_path):
    """With the number of its steps, which `optim.duration` multiplies."""
    sets = {"optim.max_steps": "10", "optim.duration": "1.9"}
    with pytest.raises(InputError, match=r"h=1 s1.* 19 "):
        check_measurable(plan_trials(read_sweep(TABLE, seeds=["1"], sets=sets), tmp_path))
    check_measurable(plan_trials(read_sweep(TABLE, seeds=["1"], sets=sets | {"optim.duration": "2"}), tmp_path))
