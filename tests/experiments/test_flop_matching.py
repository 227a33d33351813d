"""Equal budgets: rows that cost the same, and what the plan says of those that do not."""

import re

import pytest
from forked import command
from helpers import ROOT, shared_text
from transformer_pl.experiments.flop_matching import match_flops

from transformer_pl.config import sizes
from transformer_pl.experiments.cost import forward_cost, training_cost
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import Level, resolve
from transformer_pl.trials.runs_folder import finished_results

SWEEPS = [ROOT / "sweeps" / f"{name}.yaml" for name in ("table3", "layers")]


def spent(config):
    return training_cost(sizes(config.model, config.data.vocab_size), config.steps, 512, 25, 25).flops


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_rows_of_a_matched_sweep_cost_the_same(path):
    rows = read_sweep(path, seeds=["1"], sets={"optim.match": "flops"}).rows
    costs = [spent(row.configs[0]) for row in rows]
    assert max(costs) / min(costs) < 1.01  # steps are whole
    plain = read_sweep(path)
    assert [row.name for row in rows] == [row.name for row in plain.rows]
    assert max(map(spent, (row.configs[0] for row in plain.rows))) > 1.05 * min(costs)


def test_a_matched_row_is_the_trial_that_has_so_many_steps():
    keys = {"model.N": 2, "optim.duration": 3, "optim.max_steps": 1000}
    row = match_flops(resolve([Level("test", keys | {"optim.match": "flops"})]))
    assert row.steps > 1000
    assert row == resolve([Level("test", {"model.N": 2, "optim.max_steps": row.steps})])
    assert match_flops(row) == row
    base = resolve([Level("test", {"optim.match": "flops"})])
    assert match_flops(base) == resolve([])


@pytest.mark.parametrize("compare", ["params", "flops", "steps"])
def test_the_plan_says_how_far_a_row_is_off(tmp_path, compare):
    rows = [row.configs[0] for row in read_sweep(ROOT / "sweeps" / "table3.yaml").rows]
    costs = [forward_cost(sizes(config.model, config.data.vocab_size), 1, 25, 25) for config in rows]
    has = {"params": lambda i: costs[i].params, "flops": lambda i: spent(rows[i]), "steps": lambda i: rows[i].steps}
    expected = [f"{has[compare](i) / has[compare](0) - 1:+.0%}" for i in range(len(rows))]
    printed = command("sweep", "sweeps/table3.yaml", "--plan", "--compare", compare, "--runs", tmp_path, COLUMNS="200")
    assert printed.returncode == 0 and f"{compare} vs base" in printed.stdout, printed.stderr
    assert re.findall(r"[+-]\d+%", printed.stdout) == expected


def test_a_matched_trial_trains_for_its_budget(tmp_path):
    """Through the command: what the sweep planned is what train does."""
    sets = ["optim.match=flops", "optim.max_steps=8", "trainer.val_every=100", "model.width=0.25", "decode.beam=1"]
    sets += ["decode.extra=2", f"data.path={shared_text()}", "data.vocab_size=400"]
    printed = command("sweep", "sweeps/table3_B.yaml", "--seeds", 1, "--set", *sets, "--runs", tmp_path)
    assert printed.returncode == 0, printed.stdout + printed.stderr
    rows = read_sweep(ROOT / "sweeps" / "table3_B.yaml", sets=dict(pair.split("=") for pair in sets)).rows
    planned = [row.configs[0].steps for row in rows]
    assert len(set(planned)) > 1
    assert sorted(result["steps"] for result in finished_results(tmp_path)) == sorted(planned)


@pytest.mark.parametrize(
    ("key", "value"), [("data.batch_tokens", "2048"), ("model.width", "1.0"), ("optim.max_steps", "3000")]
)
def test_rows_of_other_batches_or_another_budget_cannot_be_matched(tmp_path, key, value):
    sweep = (ROOT / "sweeps" / "table3_B.yaml").read_text().replace("model.d_k=16", f"{key}={value}")
    (tmp_path / "sweep.yaml").write_text(sweep)
    printed = command(
        "sweep", tmp_path / "sweep.yaml", "--plan", "--set", "optim.match=flops", "--runs", tmp_path / "runs"
    )
    assert printed.returncode == 2 and f"{key} = {value}: must be the same in all rows" in printed.stderr
