"""What `--list` shows of a runs folder, and what `--clean` removes from it on a yes."""

import io
import json
import os
import subprocess
import sys
import time
from unittest import mock

import pytest
from helpers import ROOT, a_result
from rich.console import Console

from transformer_pl.runtime.files import write_json
from transformer_pl.trials import cleaning
from transformer_pl.trials.cleaning import find_removable
from transformer_pl.trials.trial import Trial

STATES = ("done", "diverged", "failed", "stopped", "pruned")


def make_text(runs, vocab_size):
    """A prepared text, as far as `--clean` looks at it; returns its folder."""
    meta = {"fingerprint": {"files": "a"}, "settings": {"vocab_size": vocab_size}}
    folder = runs / "data" / f"{vocab_size:016x}"
    folder.mkdir(parents=True)
    write_json(folder / "meta.json", meta)
    for name in ("tokenizer.model", "train.source.tokens", "train.source.lengths", "val.target.txt"):
        (folder / name).write_bytes(bytes(100))
    return folder


def make_trial(runs, number, state, text):
    """A trial as training leaves it in a state."""
    trial = Trial(runs / "trials" / f"{state}-s1-{number:012x}")
    (trial.folder / "checkpoints").mkdir(parents=True)
    (trial.folder / "checkpoints" / "last.ckpt").write_bytes(bytes(1000))
    write_json(trial.folder / "env.json", {"data": text.name})
    trial.set_status(state, **({"step": 7} if state == "diverged" else {}))
    (trial.folder / "log.txt").write_text("a line")
    if state == "done":
        trial.finish(a_result(id=f"{number:012x}"))
    return trial


@pytest.fixture
def runs(tmp_path):
    """A runs folder with a trial in each state, a sweep of them, a text that they use and one that nobody uses."""
    runs = tmp_path / "runs"
    used, _ = make_text(runs, 300), make_text(runs, 400)
    trials = [make_trial(runs, number, state, used) for number, state in enumerate(STATES)]
    plan = {"name": "tiny", "scale": "demo", "differs": "--set optim.warmup=8"}
    plan["trials"] = [{"folder": trial.folder.name} for trial in trials] + [{"folder": f"new-s1-{9:012x}"}]
    (runs / "sweeps" / "tiny@demo").mkdir(parents=True)
    write_json(runs / "sweeps" / "tiny@demo" / "plan.json", plan)
    return runs


def names(found):
    """What is to go: the name of each trial without its id, and `text` for a text."""
    return sorted(path.name[:-13] if path.parent.name == "trials" else "text" for path in found)


WASTE = ["failed-s1", "pruned-s1", "stopped-s1", "text"]


def everything(folder):
    """Every file and link below a folder, with what it holds; links are not followed."""
    below = {path.relative_to(folder): path for path in folder.rglob("*")}
    return {
        name: path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for name, path in below.items()
    }


def listed(runs):
    """The words of each line that `--list` prints, by the first of them."""
    output = io.StringIO()
    cleaning.list_runs(runs, Console(file=output, width=200))
    return {line.split()[0]: line for line in output.getvalue().splitlines() if line.strip()}


def clean(runs, answer):
    """`--clean` for somebody who gives this answer: its exit code, and what it prints."""
    output = io.StringIO()
    with mock.patch("sys.stdin", io.StringIO(answer)):
        return cleaning.clean(runs, Console(file=output, width=200)), output.getvalue()


def test_the_list_tells_state_last_change_size_and_score(runs):
    lines = listed(runs)
    assert all(f"1 {state}" in lines["tiny@demo"] for state in (*STATES, "new"))
    assert "--set optim.warmup=8" in lines["tiny@demo"]
    for number, state in enumerate(STATES):
        _, name, told, *rest = lines[f"{number:012x}"].split()
        changed = time.strptime(f"{time.localtime().tm_year} {' '.join(rest[:3])}", "%Y %d %b %H:%M")
        assert (name, told) == (f"{state}-s1", state)
        assert abs(time.time() - time.mktime(changed)) < 120 and rest[4] in ("bytes", "kB")
        assert rest[5:] == (["val/bleu", "30.0"] if state == "done" else ["-"])


def test_waste_goes_on_a_yes_alone(runs):
    before = everything(runs)
    for answer in ("", "n\n", "\n"):
        code, printed = clean(runs, answer)
        assert code == 0 and everything(runs) == before
        assert all(name in printed for name in ("failed", "pruned", "stopped", "kB"))
    words = [sys.executable, "-m", "transformer_pl.sweep", "--clean", "--runs", str(runs)]
    assert subprocess.run(words, cwd=ROOT, input="y\n", text=True, timeout=60).returncode == 0
    left = {path.name[:-13] for path in (runs / "trials").iterdir()}
    assert left == {"done-s1", "diverged-s1"} and len(os.listdir(runs / "data")) == 1
    assert everything(runs).items() <= before.items() and (runs / "sweeps" / "tiny@demo" / "plan.json").exists()
    code, printed = clean(runs, "y\n")
    assert code == 0 and find_removable(runs) == {}


def test_a_trial_that_a_process_holds_stays_with_its_text(runs):
    (stopped,) = (runs / "trials").glob("stopped-*")
    trial = make_trial(runs, 8, "stopped", make_text(runs, 500))
    for name in (".weights.safetensors", ".metrics.jsonl.123"):  # of a process that was killed
        (trial.folder / name).write_text("half")
    with Trial(stopped).lock.hold(), trial.lock.hold():
        assert names(find_removable(runs)) == ["failed-s1", "pruned-s1", "text"]
        (trial.folder / "env.json").unlink()  # it has only just begun: any text may be its own
        assert names(find_removable(runs)) == ["failed-s1", "pruned-s1"]
    assert names(find_removable(runs)) == sorted([*WASTE, "stopped-s1", "text"])


# What others have put there


@pytest.mark.parametrize("name", ["notes.md", ".hidden", "plots/a.png", "weights.bak", ".git/config", "a\nb"])
def test_a_folder_with_a_file_of_others_in_it_stays_whole(runs, name):
    (failed,) = (runs / "trials").glob("failed-*")
    (text,) = (path for path in find_removable(runs) if path.parent.name == "data")
    for folder in (failed, text):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    before = [everything(folder) for folder in (failed, text)]
    assert clean(runs, "y\n")[0] == 0
    assert [everything(folder) for folder in (failed, text)] == before
    left = {path.name[:-13] for path in (runs / "trials").iterdir()}
    assert left == {"done-s1", "diverged-s1", "failed-s1"}


def test_what_only_looks_like_a_trial_or_a_text_is_none(runs):
    status = json.dumps({"state": "failed", "why": "the court was closed"})
    (text,) = (path for path in find_removable(runs) if path.parent.name == "data")
    meta = (text / "meta.json").read_text()
    files = {
        "data/my_corpus/meta.json": meta,  # of another folder
        "data/0123456789abcdef/train.source.tokens": "mine",
        "data/aaaaaaaaaaaaaaaa/meta.json": "[1, 2]",
        "trials/court-cases/status.json": json.dumps({"state": "failed", "time": 1, "pid": 1}),
        "trials/hearings/result.json": '{"id": ',
        "trials/run-202611211530/log.txt": "a log of another program",  # a date, and twelve digits
        "trials/base-s1-0a0a0a0a0a0a/status.json": status,  # no time and no process
        "trials/base-s1-0b0b0b0b0b0b/result.json": '{"id": "0b0b0b0b0b0b"}',
        "sweeps/notes@demo/plan.json": "plan: buy milk",
    }
    for name, content in files.items():
        (runs / name).parent.mkdir(parents=True)
        (runs / name).write_text(content)
    assert names(find_removable(runs)) == WASTE
    assert not any(name.split("/")[1] in line for name in files for line in listed(runs))
    clean(runs, "y\n")
    assert {name: (runs / name).read_text() for name in files} == files


@pytest.mark.parametrize("name", ["", "checkpoints", "status.json"])
def test_nothing_is_removed_behind_a_link_or_beside_one(runs, tmp_path, name):
    (failed,) = (runs / "trials").glob("failed-*")
    path, elsewhere = failed / name, tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes() if elsewhere.is_file() else everything(elsewhere)
    assert clean(runs, "y\n")[0] == 0
    assert path.is_symlink() and before == (elsewhere.read_bytes() if name == "status.json" else everything(elsewhere))
