"""Measuring the time of a sweep: what ends it early. tests/test_every_key_binds.py measures a real one."""

import io
import signal

import pytest
from helpers import ROOT
from rich.console import Console

from transformer_pl.plan.plan import estimate_costs, plan_trials
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep.local import Workers
from transformer_pl.sweep.measure import measured

WORKERS = Workers(1, 1, [])
TABLE = ROOT / "sweeps" / "table3_A.yaml"


def test_a_row_that_ends_before_its_last_step_is_named(tmp_path):
    trials = plan_trials(read_sweep(TABLE, seeds=["1", "2"]), tmp_path)
    estimates, console = estimate_costs(trials, []), Console(file=io.StringIO())
    assert measured(estimates, [], WORKERS, console) == estimates and not console.file.getvalue()
    with pytest.raises(InputError, match="h=4 s1"):
        measured(estimates, [one._replace(argv=["--version"]) for one in trials[2:]], WORKERS, console)
    (said,) = console.file.getvalue().splitlines()
    assert "h=4 s1" in said
    assert signal.getsignal(signal.SIGHUP) != signal.SIG_IGN  # a closed terminal still ends the command


def test_a_row_that_is_too_short_to_be_timed_is_left_out(tmp_path):
    sets = {"optim.max_steps": "10", "optim.duration": "1.9"}
    trials = plan_trials(read_sweep(TABLE, seeds=["1"], sets=sets), tmp_path)
    estimates = estimate_costs(trials, [])
    assert measured(estimates, trials, WORKERS, Console(file=io.StringIO())) == estimates
