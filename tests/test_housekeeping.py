"""Looking back over a runs folder: what is listed, and what is thrown away on a yes."""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, command

from transformer_pl.housekeeping import find_waste
from transformer_pl.results import Trial, in_use


@pytest.fixture
def runs(smoke, tmp_path):
    """A copy of a finished sweep's folder, to be spoiled."""
    shutil.copytree(smoke[0], tmp_path / "runs")
    return tmp_path / "runs"


def trials(runs):
    return [Trial(path) for path in sorted((runs / "trials").iterdir())]


def clean(runs, answer):
    words = [sys.executable, "-m", "transformer_pl.sweep", "--clean", "--runs", str(runs)]
    return subprocess.run(words, cwd=ROOT, input=answer, capture_output=True, text=True, timeout=60)


def test_the_list_tells_state_age_size_and_score(runs):
    told = command("sweep", "--list", "--runs", runs, COLUMNS="160")
    assert told.returncode == 0
    (sweep,) = [line for line in told.stdout.splitlines() if line.startswith("smoke@demo ")]
    assert "4 done" in sweep
    for trial in trials(runs):
        (line,) = [line for line in told.stdout.splitlines() if line.startswith(trial.folder.name)]
        assert " done " in line and f"{trial.result()['metrics']['val/bleu']:.1f}" in line and "kB" in line


def test_a_whole_folder_needs_no_cleaning(runs):
    assert find_waste(runs) == []
    assert "nothing to clean" in clean(runs, "y\n").stdout
    empty = runs / "empty"
    assert "no sweep and no trial" in command("sweep", "--list", "--runs", empty).stdout
    assert "nothing to clean" in clean(empty, "").stdout


@pytest.fixture
def spoiled(runs):
    """Four kinds of waste, beside two trials that must stay; returns the folder and what should go."""
    kept, broken, failed, stopped = trials(runs)
    (broken.folder / "result.json").write_text('{"id": ')
    failed.clear()
    failed.set_status("failed", why="[enforce fail] at [/a/path]: the part is broken")
    (stopped.folder / "result.json").unlink()
    stopped.set_status("stopped")
    again = Trial(kept.folder.with_name(kept.folder.name[:-1] + "x"))  # as after a change of the core
    shutil.copytree(kept.folder, again.folder)
    result = kept.result()
    (again.folder / "result.json").write_text(json.dumps(result | {"id": "x", "finished": "2999-01-01 00:00:00"}))
    (kept.folder / "checkpoints").mkdir()  # goes with its trial, not by itself
    unused = runs / "data" / "0123456789abcdef"
    unused.mkdir()
    (unused / "train.source.npy").write_bytes(bytes(1000))
    gone = runs / "sweeps" / "gone@demo"
    gone.mkdir()
    (gone / "plan.json").write_text(json.dumps({"trials": [{"folder": "nothing"}]}))
    return runs, {broken.folder, failed.folder, kept.folder, unused, gone}, {again.folder, stopped.folder}


def test_waste_is_listed_and_goes_only_on_a_yes(spoiled):
    runs, waste, kept = spoiled
    for answer in ("", "n\n", "\n"):
        told = clean(runs, answer)
        assert told.returncode == 0 and "nothing was removed" in told.stdout
        assert all(path.exists() for path in waste)
    words = "".join(told.stdout.split())  # a narrow table folds
    assert all("".join(str(path.relative_to(runs)).split()) in words for path in waste if path.parent.name != "trials")
    assert "superseded" in told.stdout and "orphaned" in told.stdout and "broken" in told.stdout
    told = clean(runs, "y\n")
    assert "removed 5" in told.stdout
    assert not any(path.exists() for path in waste) and all(path.exists() for path in kept)
    assert find_waste(runs) == []


def test_nothing_is_cleaned_while_something_is_at_work(spoiled):
    runs, waste, _ = spoiled
    with in_use(runs):
        told = clean(runs, "y\n")
    assert told.returncode == 2 and "at work" in told.stderr
    assert all(path.exists() for path in waste)
    with in_use(runs, alone=True):
        told = command("train", "--runs", runs)
    assert told.returncode == 2 and "being cleaned" in told.stderr


def test_what_goes_on_from_a_checkpoint_stays(spoiled):
    """A trial that failed for want of room may be the reason for cleaning, and has most of its work behind it."""
    runs, _, _ = spoiled
    failed = next(trial for trial in trials(runs) if trial.status()["state"] == "failed")
    (failed.folder / "checkpoints").mkdir()
    (failed.folder / "checkpoints" / "last.sha256").write_text("0")
    assert failed.folder not in {one.path for one in find_waste(runs)}


def test_one_thing_at_a_time():
    for argv in ([], ["--list", "--clean"], ["sweeps/smoke.yaml", "--list"]):
        told = command("sweep", *argv)
        assert told.returncode == 2 and "one of FILE, --list and --clean" in told.stderr
