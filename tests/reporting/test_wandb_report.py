"""The report at W&B: what is built, as the JSON that W&B's server would get. Sending it needs an account."""

import json
import sys

import pytest
from helpers import ROOT

from transformer_pl import report
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.reporting.table import table_of
from transformer_pl.reporting.wandb_report import WandbReport
from transformer_pl.runtime.errors import InputError

SMOKE = ROOT / "sweeps" / "smoke.yaml"


@pytest.fixture
def smoke_report(tmp_path):
    """Of trials that have W&B runs and no result, and of a sweep with a run for its own report."""
    sweep = read_sweep(SMOKE)
    planned = plan_trials(sweep, tmp_path)
    folder = tmp_path / "sweeps" / "smoke@demo"
    for number, place in enumerate((*(one.trial.folder for one in planned), folder)):
        (place / "wandb").mkdir(parents=True)
        (place / "wandb" / "run-id").write_text(f"run-{number}")
    trials = [one.trial.folder for one in planned]
    return WandbReport("my-project", folder, table_of(sweep, planned), trials, ["model.p_drop"], ["val/bleu"])


def spec(built):
    return json.loads(built._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))


def grids(blocks):
    """The runs and the panels of each panel grid."""
    for block in blocks:
        if block["type"] == "panel-grid":
            data = block["metadata"]
            yield data["runSets"][0], data["panelBankSectionConfig"]["panels"]


def test_the_report_holds_the_table_the_curves_by_row_and_the_axes_of_a_search(smoke_report):
    library = pytest.importorskip(
        "wandb_workspaces.reports.v2", reason="no wandb-workspaces: pip install -e '.[wandb]'"
    )
    built = smoke_report.build(library, entity="me")
    assert (built.project, built.title) == ("my-project", "smoke@demo")
    blocks = spec(built)["blocks"]
    (text,) = [block["content"] for block in blocks if block["type"] == "markdown-block"]
    assert text == smoke_report.table.markdown()
    results, curves, search = grids(blocks)
    ids = [
        [runs["filters"]["filters"][0][key] for key in ("key", "op", "value")] for runs, _ in (results, curves, search)
    ]
    trials = [f"run-{number}" for number in range(4)]
    run_id = {"section": "run", "name": "name"}
    assert ids == [[run_id, "IN", ["run-4"]], [run_id, "IN", trials], [run_id, "IN", trials]]
    assert [runs["grouping"] for runs, _ in (results, curves, search)] == [
        [],
        [{"section": "config", "name": "row.value"}],
        [],
    ]
    table, pictures = results[1]
    assert '"val": "results"' in json.dumps(table) and pictures["config"]["mediaKeys"] == ["Differences from base"]
    for panel, metric in zip(curves[1], ("val/ppl", "train/loss"), strict=True):
        drawn = panel["config"]
        assert (drawn["xAxis"], drawn["metrics"], drawn["groupBy"]) == ("step", [metric], "row.value")
        assert (drawn["groupAgg"], drawn["groupArea"]) == ("mean", "stddev")
    (axes,) = search[1]
    accessors = [column["accessor"] for column in axes["config"]["columns"]]
    assert accessors == ["config:model.p_drop.value", "summary:val/bleu"]


def test_a_grid_has_no_axes_and_a_sweep_that_was_not_published_no_results(smoke_report):
    library = pytest.importorskip("wandb_workspaces.reports.v2")
    (smoke_report.folder / "wandb" / "run-id").unlink()
    grid = WandbReport("my-project", smoke_report.folder, smoke_report.table, smoke_report.trials)
    ((runs, _),) = grids(spec(grid.build(library, entity="me"))["blocks"])
    assert runs["name"] == "trials"


def test_trials_without_runs_have_no_report(smoke_report):
    library = pytest.importorskip("wandb_workspaces.reports.v2")
    for folder in smoke_report.trials:
        (folder / "wandb" / "run-id").unlink()
    with pytest.raises(InputError, match="must have runs at W&B"):
        smoke_report.build(library, entity="me")


def test_without_a_key_the_report_says_what_to_do(tmp_path, monkeypatch):
    pytest.importorskip("wandb_workspaces")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(InputError, match=r"--format wandb: must reach W&B .*no API key; run `wandb login` first"):
        report.main([str(SMOKE), "--runs", str(tmp_path), "--format", "wandb"])


def test_without_the_package_the_report_says_how_to_install_it(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb_workspaces"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(InputError) as refused:
        report.main([str(SMOKE), "--runs", str(tmp_path), "--format", "wandb"])
    assert len(refused.value.messages) == 1 and "'.[wandb]'" in str(refused.value)
