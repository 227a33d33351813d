"""What `sweep --list` says of a runs folder: what is there, how large it is, and what nothing needs."""

import io
import json
import re
import time

import pytest
from forked import command
from helpers import a_result
from rich.console import Console

from transformer_pl.runtime.files import write_json
from transformer_pl.trials.listing import find_unneeded, list_runs
from transformer_pl.trials.result import write_result
from transformer_pl.trials.trial import Trial

STATES = ("done", "diverged", "failed", "stopped", "pruned")
COUNTS = {"pairs": 1, "source_pieces": 2, "target_pieces": 2}


def make_dataset(runs, vocab_size, size=100):
    """A prepared dataset, as far as `--list` looks at it; returns its folder."""
    meta = {"corpus": f"text {vocab_size}", "fingerprint": {}, "settings": {"vocab_size": vocab_size}}
    folder = runs / "data" / f"{vocab_size:016x}"
    folder.mkdir(parents=True)
    write_json(folder / "meta.json", meta | {"splits": dict.fromkeys(("train", "val", "test"), COUNTS)})
    (folder / "tokenizer.model").write_bytes(bytes(size))
    return folder


def make_trial(runs, number, state, dataset):
    """A trial as training leaves it in a state, with a checkpoint of `number` MB."""
    trial = Trial(runs / "trials" / f"{state}-s1-{number:012x}")
    (trial.folder / "checkpoints").mkdir(parents=True)
    with (trial.folder / "checkpoints" / "last.ckpt").open("wb") as file:
        file.truncate(10**6 * number)  # which takes no disk
    write_json(trial.folder / "env.json", {"data": dataset.name})
    trial.set_status(state, **({"step": 7} if state == "diverged" else {}))
    if state == "done":
        write_result(a_result(id=f"{number:012x}"), trial.folder)
    return trial


@pytest.fixture
def runs(tmp_path):
    """A runs folder with a trial in each state, a sweep of them, a dataset that they use, and one that nobody uses."""
    runs = tmp_path / "runs"
    used, _ = make_dataset(runs, 300), make_dataset(runs, 400, 5 * 10**6)
    trials = [make_trial(runs, number, state, used) for number, state in enumerate(STATES, start=1)]
    plan = {"name": "tiny", "scale": "demo", "differs": "--set optim.warmup=8"}
    plan["trials"] = [{"folder": trial.folder.name} for trial in trials] + [{"folder": f"new-s1-{9:012x}"}]
    (runs / "sweeps" / "tiny@demo").mkdir(parents=True)
    write_json(runs / "sweeps" / "tiny@demo" / "plan.json", plan)
    return runs


def listed(runs):
    """The lines that `--list` prints, by the first word of each."""
    output = io.StringIO()
    list_runs(runs, Console(file=output, width=200))
    return {line.split()[0]: line for line in output.getvalue().splitlines() if line.strip()}


def names(found):
    """The name of each trial without its id, and `dataset` for a dataset."""
    return sorted(path.name[:-13] if path.parent.name == "trials" else "dataset" for path in found)


UNNEEDED = ["dataset", "failed-s1", "pruned-s1", "stopped-s1"]


def test_the_list_has_state_score_last_change_and_size(runs):
    lines = listed(runs)
    assert all(f"1 {state}" in lines["tiny@demo"] for state in (*STATES, "new"))
    assert "--set optim.warmup=8" in lines["tiny@demo"]
    for number, state in enumerate(STATES, start=1):
        score = "val/bleu 30.0" if state == "done" else "-"
        row = re.fullmatch(
            rf"{number:012x} +{state}-s1 +{state} +{score} +(\d+ \w+ [\d:]+) +{number}\.0 MB *", lines[f"{number:012x}"]
        )
        changed = time.strptime(f"{time.localtime().tm_year} {row[1]}", "%Y %d %b %H:%M")
        assert abs(time.time() - time.mktime(changed)) < 120
    assert "text 400" in lines[f"{400:016x}"] and "5.0 MB" in lines[f"{400:016x}"]


def test_what_nothing_needs_is_named_with_its_size_and_stays(runs):
    before = sorted(runs.rglob("*"))
    done = command("sweep", "--list", "--runs", runs)
    assert done.returncode == 0 and sorted(runs.rglob("*")) == before
    _, _, told = done.stdout.partition("nothing needs these (17.0 MB):\n")  # of 3, 4 and 5 MB, and a dataset of 5
    assert names(find_unneeded(runs)) == UNNEEDED
    assert [line.split(":")[0].strip() for line in told.splitlines()] == [*map(str, find_unneeded(runs))]


def test_a_trial_that_a_process_holds_is_needed_with_its_dataset(runs):
    (stopped,) = (runs / "trials").glob("stopped-*")
    trial = make_trial(runs, 8, "stopped", make_dataset(runs, 500))
    with Trial(stopped).lock.hold(), trial.lock.hold():
        assert names(find_unneeded(runs)) == ["dataset", "failed-s1", "pruned-s1"]
        (trial.folder / "env.json").unlink()  # it has only just begun: any dataset may be its own
        assert names(find_unneeded(runs)) == ["failed-s1", "pruned-s1"]
    assert names(find_unneeded(runs)) == sorted([*UNNEEDED, "stopped-s1", "dataset"])


def test_what_only_looks_like_a_trial_or_a_dataset_is_not_listed(runs):
    (dataset,) = (path for path in find_unneeded(runs) if path.parent.name == "data")
    files = {
        "data/my_corpus/meta.json": (dataset / "meta.json").read_text(),
        "data/0123456789abcdef/train.source.tokens": "mine",
        "data/aaaaaaaaaaaaaaaa/meta.json": "[1, 2]",
        "trials/court-cases/status.json": json.dumps({"state": "failed", "time": 1, "pid": 1}),
        "trials/run-202611211530/log.txt": "a log of another program",  # a date, and twelve digits
        "sweeps/notes@demo/plan.json": "plan: buy milk",
    }
    before = listed(runs)
    for name, content in files.items():
        (runs / name).parent.mkdir(parents=True)
        (runs / name).write_text(content)
    assert listed(runs) == before and names(find_unneeded(runs)) == UNNEEDED
