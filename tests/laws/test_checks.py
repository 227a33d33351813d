"""The checks of a model: which components break a property, what is kept, exceptions, and every command that checks."""

import csv
import json

import pytest
import tiny_trials
import torch
from helpers import little_text, write_sweep

from transformer_pl.config import sizes
from transformer_pl.config.levels import Level, resolve
from transformer_pl.laws.checks import check_all, checks_of
from transformer_pl.model import Transformer
from transformer_pl.report.__main__ import main as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep.__main__ import main as sweep
from transformer_pl.trials.trial_folder import TrialFolder

OWN = """
from torch import nn
from transformer_pl.model import FeedForward, PostNormResidual

class LooksAhead(FeedForward):
    def forward(self, x):
        return super().forward(x + x.roll(-1, 1))

class Excused(LooksAhead):
    exempt = {
        "the_future_is_hidden": "to show what a leak is worth",
        "padding_changes_nothing": "it follows",
        "decoding_step_by_step_equals_decoding_at_once": "it follows",
    }

class HalfExcused(LooksAhead):
    exempt = {"the_future_is_hidden": "to show what a leak is worth"}

class RMSNorm(PostNormResidual):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.norm = nn.RMSNorm(config.d_model)

class ThirdLooksAhead(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.looks_ahead = site.layer == 2

    def forward(self, x):
        return super().forward(x + x.roll(-1, 1) if self.looks_ahead else x)

class Wrong(FeedForward):
    exempt = {}
"""
TINY = {"model.N": 2, "model.d_model": 16, "model.d_ff": 32, "model.h": 2}


def config(keys):
    return resolve([Level("test", TINY | keys)])


def messages(keys, runs):
    with pytest.raises(InputError) as caught:
        check_all([config(keys)], runs)
    return caught.value.messages


def test_all_broken_properties_are_told_and_what_is_excused_is_not(module, tmp_path):
    path = module(OWN)
    found = messages({"model.ffn": "stranger.LooksAhead"}, tmp_path)
    assert len(found) == 3  # a component that looks ahead also reads padding, and cannot decode step by step
    assert (
        found[0].startswith(f"model.ffn = stranger.LooksAhead ({path}, line 5)") and "the_future_is_hidden" in found[0]
    )
    assert not (tmp_path / "checks").exists()
    others = messages({"model.ffn": "stranger.HalfExcused"}, tmp_path)
    assert len(others) == 2 and not any("the_future_is_hidden" in message for message in others)


def test_a_component_that_differs_by_layer_is_measured_in_each(module, tmp_path):
    module(OWN)
    third = {"model.ffn": "stranger.ThirdLooksAhead"}
    check_all([config(third)], tmp_path)
    assert "the_future_is_hidden" in messages(third | {"model.N": 3}, tmp_path)[0]


WARM = """
from pathlib import Path
import torch
from transformer_pl.model import Transformer
from transformer_pl.model.loss import SmoothedCrossEntropy

class Warm(Transformer):
    def __init__(self, config, file: Path | None = None):
        super().__init__(config)
        if file:
            self.load_state_dict(torch.load(file))

class Loss(SmoothedCrossEntropy):
    pass
"""


def test_an_architecture_that_loads_weights_is_tested_at_sizes_that_it_has(module, tmp_path):
    """Others need other sizes: fewer layers, and in a rehearsal the subwords of a small text."""
    module(WARM)
    size = sizes(config({"model.N": 3}).model, 40)
    torch.save(Transformer(size).state_dict(), tmp_path / "weights")
    row = {"model.N": 3, "data.vocab_size": 40, "model.architecture": "stranger.Warm"}
    row |= {"model.architecture.file": str(tmp_path / "weights"), "data.path": str(little_text(tmp_path / "text"))}
    check_all([config(row | more) for more in ({}, {"optim.loss": "stranger.Loss", "optim.max_steps": 2})], tmp_path)
    with pytest.raises(InputError, match="size mismatch"):
        check_all([config(row | {"model.d_ff": 64})], tmp_path)


@pytest.mark.parametrize(
    "exempt", ["['the_future_is_hidden']", "{'the_future_is_hiden': 'why not'}", "{'bfloat16_is_close': ' '}"]
)
def test_an_exception_must_name_a_property_and_a_reason(module, tmp_path, exempt):
    module(OWN.replace("exempt = {}", f"exempt = {exempt}"))
    (found,) = messages({"model.ffn": "stranger.Wrong"}, tmp_path)
    assert found.startswith("stranger.Wrong.exempt")


def test_what_passed_is_checked_once_for_each_code_and_size(module, tmp_path):
    path, keys = module(OWN), {"model.residual": "stranger.RMSNorm"}

    def kept(*configs):
        check_all([config(keys | more) for more in configs], tmp_path)
        return {file: file.stat().st_mtime_ns for file in (tmp_path / "checks").glob("*")}

    first = kept({}, {"optim.warmup": 7}, {"model.p_drop": 0.3})
    assert len(first) == 1 and kept({}) == first
    path.write_text(OWN + "RMSNorm.rate = 1\n")
    assert len(kept({}, {"model.h": 4})) == 3
    (file,) = first
    path.write_text(OWN + "# a comment\n")
    file.write_text("{")  # what cannot be read is checked again
    kept({})
    assert json.loads(file.read_text())["found"]


def test_a_runs_folder_that_cannot_be_written_is_no_obstacle(module, tmp_path):
    module(OWN)
    (tmp_path / "file").touch()
    (checks,) = check_all([config({"model.residual": "stranger.RMSNorm"})], tmp_path / "file")
    assert checks.found and not checks.exempt


@pytest.mark.parametrize("method", ["grid", "random"])
def test_a_plan_refuses_a_component_that_breaks_a_property(module, tmp_path, method):
    """In a search each choice is checked."""
    module(OWN)
    values = ["transformer_pl.model.FeedForward", "stranger.LooksAhead"]
    more = {"method": method, "metric": {"name": "val/bleu", "goal": "maximize"}}
    more |= {"run_cap": 2} if method == "random" else {}
    write_sweep(tmp_path / "own.yaml", TINY | {"model.ffn": values}, **more)
    with tiny_trials.in_a_command(), pytest.raises(InputError, match="the_future_is_hidden"):
        sweep([str(tmp_path / "own.yaml"), "--plan", f"--runs={tmp_path / 'runs'}"])


def test_the_dearest_check_comes_last(module, tmp_path, capsys):
    """First keys and names, then the text, then one run of each row, and the laws at the end, which name their row."""
    module(OWN + "\n\nclass Fails(FeedForward):\n    def forward(self, x):\n        raise ValueError\n")
    text, leaks = little_text(tmp_path / "text"), "model.ffn=stranger.LooksAhead"
    fails, none = "model.ffn=stranger.Fails", "model.ffn=stranger.NoSuch"
    stages = [([leaks], 300, "must keep the law"), ([leaks, fails], 300, "must run"), ([leaks, fails], 261, "261")]
    for rows, size, named in [*stages, ([leaks, fails, none], 261, "NoSuch")]:
        keys = tiny_trials.TINY | {"data.path": text, "data.vocab_size": size, "variant": ["base", *rows]}
        write_sweep(tmp_path / "own.yaml", keys)
        code, _, told = tiny_trials.ended(sweep, str(tmp_path / "own.yaml"), f"--runs={tmp_path / 'runs'}")
        errors = [line for line in told.splitlines() if line.startswith("error: ")]
        assert code == 2 and errors and all(named in line for line in errors), told
    assert not [*(tmp_path / "runs").glob("trials/*")]
    names = []
    checks_of([config({"model.residual": "stranger.RMSNorm"})], tmp_path / "runs", names.append, rows=["the row"])
    assert names and all(name.startswith("the row: ") for name in names)


def test_rows_that_break_a_law_can_be_left_out(module, tmp_path, capsys):
    """The table has them as refused, with the reason, and as many rows as without it. Base cannot be left out."""
    module(OWN)
    keys = tiny_trials.TINY | {"data.path": little_text(tmp_path / "text")}
    file = write_sweep(
        tmp_path / "own.yaml", keys | {"variant": ["base", "model.ffn=stranger.LooksAhead", "model.h=2"]}
    )
    words = [str(file), "--skip-broken", f"--runs={tmp_path / 'runs'}"]
    code, _, _ = tiny_trials.ended(sweep, *words)
    (folder,) = (tmp_path / "runs" / "sweeps").iterdir()
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert code == 1 and [row["done"] for row in rows] == ["1", "0", "1"]
    assert [row["refused"] for row in rows] == ["0", "1", "0"]
    code, table, _ = tiny_trials.ended(report, str(file), "--format=md", f"--runs={tmp_path / 'runs'}")
    assert code == 0 and table.strip() == (folder / "table.md").read_text().strip()
    assert table.count(" was refused: ") == 1 and "the_future_is_hidden" in table
    assert "exempt = " not in table  # the plan has it in full
    (narrow,) = (folder.parents[1] / "trials").glob("h=2-*")
    TrialFolder(narrow).clear()
    TrialFolder(narrow).set_status("failed", why="no memory")  # which is no refusal
    _, table, _ = tiny_trials.ended(report, str(file), "--format=md", f"--runs={tmp_path / 'runs'}")
    assert table.count(" was refused: ") == 1 and "failed" in table
    assert len(json.loads((folder / "plan.json").read_text())["tested"]["rows"]) == 3
    write_sweep(file, keys | {"model.ffn": "stranger.LooksAhead", "variant": ["base", "model.h=2"]})
    code, _, told = tiny_trials.ended(sweep, *words)
    assert code == 2 and "the_future_is_hidden" in told


def test_a_result_tells_what_its_components_are_exempt_from(module, tmp_path):
    module(OWN)
    for options in ([], ["--rerun"]):  # the second one reads what was kept
        code, trial = tiny_trials.train(tmp_path / "runs", {"model.ffn": "stranger.Excused"}, *options)
        assert code == 0
        assert trial.result().exempt["stranger.Excused"]["padding_changes_nothing"] == "it follows"
    assert (trial.sources / "stranger.py").read_text() == OWN
