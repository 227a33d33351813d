"""`train --from=TRIAL`: a trial is repeated exactly, and what differs from then is told."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import tiny_trials
import torch
from helpers import flip
from transformer_pl.trials.repeat import Earlier

from transformer_pl.runtime.errors import InputError
from transformer_pl.train import main
from transformer_pl.trials.identity import CORE_REVISION
from transformer_pl.trials.trial import Trial


def repeat(trial, runs, *words):
    with tiny_trials.in_a_command():
        code = main([f"--from={trial}", f"--runs={runs}", *words])
    (folder,) = (runs / "trials").iterdir()
    return code, Trial(folder)


def edit(path, **values):
    """Change values of a JSON file; a key may be dotted."""
    content = json.loads(path.read_text())
    for key, value in values.items():
        *outer, name = key.split("__")
        inner = content
        for one in outer:
            inner = inner[one]
        inner[name] = value
    content.pop("digest", None)  # of a result: then its content is believed
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A trial of two threads that did not name them, its repetition where one is usual, and what that printed."""
    here = tmp_path_factory.mktemp("repeat")
    keys = {"trainer.threads": None, "model.position": "ablations.learned_position.LearnedPosition", "decode.beam": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        code, trial = tiny_trials.train(here / "then", keys)
        assert code == 0 and trial.environment()["threads"] == 2
        patch.setenv("OMP_NUM_THREADS", "1")
        code, again = repeat(trial.folder, here / "again")
        assert code == 0
    return trial, again


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished trial, and the repetition."""
    trial, again = finished
    folder = tmp_path / "then" / "trials" / trial.folder.name
    shutil.copytree(trial.folder, folder)
    return Trial(folder), again


def test_a_repetition_has_equal_results(finished, tmp_path, capsys):
    trial, again = finished
    weights = [torch.load(one.folder / "weights.pt") for one in finished]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert trial.folder.name == again.folder.name and again.environment()["threads"] == 2
    assert again.result()["name"] == trial.result()["name"] and again.result()["scale"] == trial.result()["scale"]
    printed = again.log.read_text()
    said = f"repeats {trial.folder}; nothing that was recorded differs from then\n"
    equal = rf"equal to {re.escape(str(trial.folder))}: \d metrics, and the bytes of [\w., ]*weights\.pt"
    assert said in printed
    assert repeat(trial.folder, again.folder.parents[1])[0] == 0  # the same command again, and it is not trained again
    printed = capsys.readouterr().out
    assert "finished already" in printed and said in printed and re.search(equal, printed)


@pytest.mark.parametrize(
    ("file", "value", "line"),
    [
        ("env", {"packages__torch": "1.0"}, "torch: 1.0 -> .*"),
        ("env", {"python": "2.7.18"}, r"Python: 2\.7\.18 -> 3\..*"),
        ("env", {"cpu": "abacus"}, "CPU: abacus -> .*"),
        ("env", {"gpus": ["NVIDIA H200", "NVIDIA H200"]}, "GPUs: NVIDIA H200, NVIDIA H200 -> none"),
        ("env", {"threads": 7}, "threads of each process: 7 -> 2"),
        ("env", {"commit": "f00"}, "git commit: f00 -> .*"),
        ("env", {"changed": True, "diff": "f00"}, r"files changed since that commit: yes \(f00\) -> .*"),
        ("env", {"data": "0123456789abcdef"}, "prepared text: 0123456789abcdef -> .*"),
        ("env", {"tokenizer": None}, "tokenizer: not recorded -> [0-9a-f]*"),
        ("identity", {"core": CORE_REVISION - 1}, f"core revision {CORE_REVISION - 1} -> {CORE_REVISION}"),
        ("identity", {"optim.warmup": 5}, "optim.warmup 5 -> 4"),
        ("result", {"config": {"model.gone": 3}}, "model.gone = 3: this version has no such key"),
    ],
)
def test_each_thing_that_differs_is_told(copied, file, value, line):
    """One line for one thing."""
    trial, again = copied
    edit(trial.folder / f"{file}.json", **value)
    (said,) = Earlier.named(str(trial.folder), again.folder.parents[1]).differences(again)
    assert re.fullmatch(line, said), said


def test_an_edited_component_is_told_before_the_training(module, tmp_path, capsys):
    source = "from transformer_pl.model import FeedForward\n\nclass Own(FeedForward):\n    pass\n"
    file = module(source)
    _, trial = tiny_trials.train(tmp_path / "then", {"model.ffn": "stranger.Own"})
    file.write_text(source.replace("pass", "def forward(self, x):\n        return 2 * super().forward(x)"))
    for name in [name for name in sys.modules if name == "stranger"]:
        del sys.modules[name]
    capsys.readouterr()
    code, again = repeat(trial.folder, tmp_path / "again")
    printed = capsys.readouterr().out
    assert code == 0 and again.folder.name[-12:] != trial.folder.name[-12:]
    assert "what differs from then:\n" in printed and f"  stranger.py was edited since {trial.folder.name}\n" in printed
    apart = printed.partition(f"not equal to {trial.folder}:\n")[2]
    assert re.search(r"^  val/loss \S+ -> \S+ \([+-]\S+\)$", apart, re.MULTILINE) and "other bytes: " in apart
    assert printed.index("was edited") < printed.index("val/loss") < printed.index("not equal")


def test_a_difference_in_the_results_alone_is_told(copied):
    trial, again = copied
    edit(trial.folder / "result.json", digests__weights="0")  # a file that the repetition lacks
    earlier = Earlier.named(str(trial.folder), again.folder.parents[1])
    count = len(again.result()["metrics"])
    assert earlier.compared(again.result())[1:] == [f"  every metric is equal, all {count}", "  other bytes: weights"]
    metrics = again.result()["metrics"]
    now = again.result() | {"metrics": metrics | {"val/ppl": metrics["val/ppl"] + 0.5, "val/new": 1.0}}
    ppl, new, _ = earlier.compared(now)[1:]
    assert re.fullmatch(r"  val/ppl \S+ -> \S+ \(\+0\.5\)", ppl) and new == "  val/new not measured -> 1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.h=4"], "--from: takes every key from the trial, but --model.h=4 is given; leave that out"),
        (["--seed", "2"], "--from: takes every key from the trial, but --seed 2 is given; leave that out"),
        (["--scale=demo"], "--from: takes every key from the trial, but --scale is given; leave that out"),
        (["--variant=base"], "--from: takes every key from the trial, but --variant is given; leave that out"),
    ],
)
def test_no_other_key_is_taken(finished, tmp_path, words, message):
    with pytest.raises(InputError, match=re.escape(message)):
        main([f"--from={finished[0].folder}", f"--runs={tmp_path / 'again'}", *words])
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("runs", ["then", "then/../then", "link"])
def test_it_is_repeated_in_another_runs_folder(copied, tmp_path, runs):
    """In its own it would count as finished."""
    (tmp_path / "link").symlink_to("then")
    with pytest.raises(InputError, match=r"must be another folder than the one that holds .*; add --runs=FOLDER"):
        main([f"--from={copied[0].folder}", f"--runs={tmp_path / runs}"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("result.json", None, "TRIAL .* must name one finished trial under .* but none matches"),
        ("result.json", "flipped", "TRIAL .* must name one finished trial"),
        ("env.json", None, r"env\.json: must be what the trial recorded, .*, but: No such file or directory; repeat"),
        ("env.json", "{", r"env\.json: must be what the trial recorded"),
        ("env.json", '{"packages": 3}', r"env\.json: must be what the trial recorded, .*, but: packages: .*; repeat"),
        ("env.json", '{"changed": "yes"}', r"env\.json: must be what the trial recorded, .*, but: changed: .*"),
        ("identity.json", "", r"identity\.json: must be what the trial recorded"),
    ],
)
def test_a_trial_that_is_not_finished_or_damaged_is_refused(copied, tmp_path, name, content, message):
    path = copied[0].folder / name
    if content == "flipped":
        flip(path)
    elif content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=message) as raised:
        main([f"--from={copied[0].folder}", f"--runs={tmp_path / 'again'}"])
    assert len(raised.value.messages) == 1 and not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["nothing", "a/b", "x" * 5000, "\0"])
def test_an_unknown_trial_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="must name one finished trial under runs, but none matches"):
        main([f"--from={name}", "--runs=again"])
    assert not os.listdir(tmp_path)


def test_an_id_means_a_trial_of_the_default_runs_folder(copied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("then").rename("runs")
    earlier = Earlier.named(copied[0].folder.name[-12:], Path("again"))
    assert earlier.trial.folder == Path("runs/trials") / copied[0].folder.name
