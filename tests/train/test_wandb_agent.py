"""The agent of W&B itself starts what ships: its command line and its environment. Its server is not here."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from forked import command
from helpers import GRIDS, ROOT, SHIPPED, read_back, shared_text, wait_for
from tiny_trials import TINY
from wandb.wandb_agent import Agent

from transformer_pl.trials.trial_folder import TrialFolder

PROBED = [path for path in SHIPPED if path.stem in ("search_regularisation", "search_size")]
SHORT = TINY | {
    "model.width": "1/16",
    "model.depth": 0.5,
    "data.path": str(shared_text()),
    "data.hub": None,
}  # over what a file sets


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Let an agent start a trial as its server would ask it to; return the process and the folder of its results."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # the agent starts `python`
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc12345")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_RUN_ID", "")  # set by the agent: restored after the test

    def start(path, **values):
        sweep = yaml.safe_load(path.read_text())
        agent = Agent(api=None, queue=None, sweep_id="abc12345")
        agent._sweep_command = sweep["command"]
        drawn = {key: one_value(parameter) for key, parameter in sweep["parameters"].items()}
        given = drawn | SHORT | {"runs": str(tmp_path / "runs")} | values
        args = {key: {"value": value} for key, value in given.items()}
        answer = agent._process_command(
            {"type": "run", "run_id": "run4agent", "program": sweep["program"], "args": args}
        )
        assert "exception" not in answer, answer
        return agent, agent._run_processes["run4agent"], tmp_path / "runs"

    return start


def one_value(parameter):
    """A value that the server may draw for a parameter: the last of a list, the middle of a range."""
    if "values" in parameter:
        return parameter["values"][-1]
    if "value" in parameter:
        return parameter["value"]
    step = parameter.get("q", 1 if isinstance(parameter["min"], int) else None)
    middle = (parameter["min"] + parameter["max"]) / 2
    return middle if step is None else int(middle // step * step)


@pytest.mark.slow
@pytest.mark.parametrize("path", PROBED, ids=lambda path: path.stem)
def test_a_shipped_sweep_trains_under_the_agent(start, path):
    """Also with values as Python spells them."""
    spelled = {"data.train_pairs": None, "optim.eps": 1e-05}
    _, process, runs = start(path, **spelled)
    assert process.wait(timeout=300) == 0
    (folder,) = runs.glob("trials/*")
    result = TrialFolder(folder).result()
    sweep = yaml.safe_load(path.read_text())
    drawn = {key: one_value(parameter) for key, parameter in sweep["parameters"].items()} | spelled
    for key in result.config.keys() & drawn.keys() - SHORT.keys():
        assert result.config[key] == drawn[key]
    assert (sweep.get("metric") or sweep["metrics"][0])["name"] in result.metrics
    assert list(folder.glob("wandb/offline-run-*-run4agent"))  # which the agent named


def test_a_finished_trial_tells_the_agent_s_run_what_it_resulted_in(smoke, tmp_path):
    runs = shutil.copytree(smoke[0], tmp_path / "runs", symlinks=True)  # the agent adds a W&B run
    sweep = yaml.safe_load((ROOT / "sweeps" / "smoke.yaml").read_text())
    values = {key: completed["value"] for key, completed in sweep["parameters"].items() if "value" in completed}
    words = [f"--{key}={value}" for key, value in values.items()] + ["--variant=model.h=4", f"--runs={runs}"]
    before = {path: path.stat().st_mtime_ns for path in runs.glob("trials/*/result.json")}
    agent = {"WANDB_SWEEP_ID": "abc12345", "WANDB_RUN_ID": "run4agent", "WANDB_DIR": str(tmp_path)}
    completed = command("train", *words, **agent)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert before == {path: path.stat().st_mtime_ns for path in before}
    (folder,) = runs.glob("trials/*/wandb/offline-run-*-run4agent")
    record = json.loads(read_back(folder, "--summary"))
    result = TrialFolder(folder.parents[1]).result()
    assert record["summary"]["val/bleu"] == pytest.approx(result.metrics["val/bleu"])
    assert record["summary"]["params"] == result.params
    assert record["config"]["row"] == result.tags[-1] and record["config"]["sweep"] == "none"


@pytest.mark.slow
def test_a_trial_that_the_agent_stops_exits_143_and_is_marked_as_preempted(start):
    agent, process, runs = start(GRIDS[0], **{"optim.max_steps": 100_000, "trainer.val_every": 1000, "variant": "base"})
    wait_for(lambda: any('"train/loss"' in path.read_text() for path in runs.glob("trials/*/metrics.jsonl")), 120)
    wait_for(lambda: list(runs.glob("trials/*/wandb/offline-run-*-run4agent/*.wandb")), 120)
    agent._process_command({"type": "stop", "run_id": "run4agent"})
    assert process.wait(timeout=120) == 143
    (run,) = runs.glob("trials/*/wandb/offline-run-*-run4agent")
    records = [json.loads(line) for line in read_back(run).splitlines()]
    assert any("preempting" in record["type"] for record in records), {record["type"] for record in records}
