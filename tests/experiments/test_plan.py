"""The plan, and the table of the results, as they are printed: in a terminal of 80 columns, and in a pipe."""

import io
import sys

import pytest
from helpers import ROOT, a_result
from rich.console import Console

from transformer_pl import sweep
from transformer_pl.experiments.plan import Plan, estimate_costs, plan_trials, print_plan
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.reporting.table import table_of
from transformer_pl.runtime.terminal import UNBROKEN, command_console, counted

PRE = "model.residual=ablations.pre_norm.PreNormResidual"
TABLE3 = read_sweep(ROOT / "sweeps" / "table3.yaml", seeds=["1"])


def printed(runs, width, compare=None, content=TABLE3):
    """The lines of a plan in a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    trials = plan_trials(content, runs)
    print_plan(Plan(content, trials, estimate_costs(trials, [])), console, compare)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("compare", [None, "flops"])
def test_the_rows_of_table_3_fit_80_columns_with_every_word_whole(tmp_path, compare):
    wide, narrow = (printed(tmp_path, width, compare) for width in (UNBROKEN, 80))
    assert max(map(len, narrow)) <= 80 and not any("…" in line for line in narrow)
    names = [word for row in TABLE3.rows for word in row.name.split()]
    words = {word for line in narrow for word in line.split()}
    assert {*names, "params", "FLOPs", "time", "trials"} <= words
    assert "max_steps=4500" in words
    for row in TABLE3.rows:  # and on one line each where there is room
        assert any(line.startswith(f"{row.name} ") for line in wide)


def test_the_table_of_table_3_fits_80_columns_with_every_word_whole(tmp_path):
    table = table_of(TABLE3, plan_trials(TABLE3, tmp_path))
    long = "PositionWithLearnedFrequencies"  # of an ablation of one's own
    (settings,) = (index for index, column in enumerate(table.columns) if column.name == "position")
    table.columns[settings] = table.columns[settings]._replace(cells=[long] * len(TABLE3.rows))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    console.print(table.terminal(80))
    lines = console.file.getvalue().splitlines()
    words = [word for line in lines for word in line.split()]
    assert max(map(len, lines)) <= 80 and words.count(f"position={long}") == len(TABLE3.rows)
    assert {"d_model=1024", "d_ff=4096", "P_drop=0.3", "duration=3.0", "BLEU", "seeds"} <= set(words)


def test_a_pipe_has_no_width_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS")
    assert command_console().width == UNBROKEN
    monkeypatch.setenv("COLUMNS", "72")
    assert command_console().width == 72


def test_one_is_not_counted_as_many(tmp_path):
    assert [counted(number, "trial") for number in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    one = TABLE3._replace(rows=TABLE3.rows[:1])
    assert printed(tmp_path, 80, content=one)[0] == "table3 at scale demo: 1 trial, 1 to train"


def test_the_plan_says_which_finished_rows_have_not_converged(tmp_path, capsys):
    """On the mean of the finished seeds of a row."""
    content = read_sweep(ROOT / "sweeps" / "table3_A.yaml", seeds=["1", "2"])
    falls = {"h=1": (0.03, 0.01), "h=4": (0.004, None), "base": (0.012, 0.001)}
    for planned in plan_trials(content, tmp_path):
        fall = falls.get(content.rows[planned.row].name, (None, None))[planned.config.seed - 1]
        if fall is not None:
            ended = {"fall": fall, "noise": 0.001, "validations": 5}
            planned.trial.make()
            planned.trial.finish(a_result(id=planned.identity.trial, convergence=ended))
    assert sweep.main([str(ROOT / "sweeps" / "table3_A.yaml"), "--plan", "--seeds=1,2", f"--runs={tmp_path}"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not converged")]
    assert "not converged: h=1 (2.0%); the perplexity still fell by more than 1%" in line


@pytest.mark.parametrize(
    ("file", "options", "named"),
    [
        ("table3_A", [], []),
        ("table3_B", [], []),
        (
            "table3_C",
            [],
            ["parameters 179K to 1.16M", "N 1 to 4", "peak learning rate 0.0015 to 0.0031", "--retune", PRE],
        ),
        ("table3_C", ["--set", PRE], ["parameters", "--retune"]),
        ("table3_C", ["--retune", "optim.lr_scale", "--budget=2"], []),
        ("table3_D", [], []),
        ("normalisation", [], ["peak learning rate", "--retune"]),
    ],
)
def test_the_plan_says_that_rows_of_other_size_or_rate_may_need_another_training(
    file, options, named, tmp_path, capsys
):
    """And names what can be done: each row tuned, the norm before each sub-layer where it is not."""
    assert sweep.main([str(ROOT / "sweeps" / f"{file}.yaml"), "--plan", f"--runs={tmp_path / 'runs'}", *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rows differ much")]
    assert len(lines) == bool(named)
    for line in lines:
        assert all(words in line for words in named) and (PRE in line) == (PRE in named)


@pytest.mark.parametrize("file", ["table3_A.yaml", "search_size.yaml"])
def test_the_plan_says_what_runs_at_once_on_what(file, tmp_path, capsys):
    assert sweep.main([str(ROOT / "sweeps" / file), "--plan", "--parallel=1", f"--runs={tmp_path / 'runs'}"]) == 0
    assert "to train, 1 at a time, each on " in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
