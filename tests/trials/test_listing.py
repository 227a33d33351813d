"""What `sweep --list` says of a runs folder."""

import io
import json
import os

from helpers import a_result
from rich.console import Console

from transformer_pl.runtime.files import write_json
from transformer_pl.trials.listing import list_runs
from transformer_pl.trials.trial_folder import TrialFolder

STATES = ("done", "diverged", "failed", "stopped", "pruned")


def make_trial(runs, number, state):
    """A trial as training leaves it in a state, with a checkpoint of `number` MB."""
    trial = TrialFolder(runs / "trials" / f"{state}-s1-{number:012x}")
    trial.checkpoints.mkdir(parents=True)
    with (trial.path / "checkpoints" / "last.ckpt").open("wb") as file:
        file.truncate(10**6 * number)  # which takes no disk
    trial.set_status(state, **({"step": 7} if state == "diverged" else {}))
    if state == "done":
        write_json(trial.path / "result.json", a_result(id=trial.id).model_dump())
    return trial


def listed(runs):
    """The words of the lines that `--list` prints, by the first word of each."""
    output = io.StringIO()
    list_runs(runs, Console(file=output, width=200))
    return {line.split()[0]: line.split()[1:] for line in output.getvalue().splitlines() if line.strip()}


def test_the_list_has_the_state_the_score_and_the_size_of_each_trial(tmp_path):
    for number, state in enumerate(STATES, start=1):
        make_trial(tmp_path, number, state)
    lines = listed(tmp_path)
    for number, state in enumerate(STATES, start=1):
        score = ["val/bleu", "30.00"] if state == "done" else ["-"]
        assert lines[f"{number:012x}"] == [f"{state}-s1", state, *score, f"{number}.0", "MB"]


def test_a_file_that_trials_share_counts_once_in_all(tmp_path):
    first, second = (make_trial(tmp_path, number, "stopped") for number in (5, 6))
    (second.checkpoints / "last.ckpt").unlink()
    os.link(first.checkpoints / "last.ckpt", second.checkpoints / "last.ckpt")
    assert listed(tmp_path)[f"{tmp_path}:"] == ["2", "trials,", "5.0", "MB"]


def test_what_only_looks_like_a_trial_is_not_listed(tmp_path):
    make_trial(tmp_path, 1, "failed")
    before = listed(tmp_path)
    files = {
        "court-cases/status.json": json.dumps({"state": "failed", "time": 1, "pid": 1}),
        "run-202611211530/log.txt": "a log of another program",  # a date, and twelve digits
    }
    for name, content in files.items():
        (tmp_path / "trials" / name).parent.mkdir(parents=True)
        (tmp_path / "trials" / name).write_text(content)
    assert listed(tmp_path) == before
