"""Every kind of damage to every file: it is noticed and named, the damaged file stays, and the same command goes on.

It comes to the same result. The trials are tiny and trained in this process, those that are killed in a fork of it.
"""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_trials
from helpers import flip, little_text
from transformer_pl.trials.recognise import reason_to_stay

from tests.search.test_results import made
from tests.training.test_crashes import Whole, forked
from transformer_pl.runtime.crash import CRASH
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.processes import ThisMachine
from transformer_pl.search import storage
from transformer_pl.train import main
from transformer_pl.training import checkpoint
from transformer_pl.trials.cleaning import find_removable
from transformer_pl.trials.trial import Trial

AVERAGED = {"decode.average": 2, "trainer.val_every": 2, "optim.max_steps": 6, "trainer.checkpoint_minutes": 10}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def folder(path: Path) -> None:
    """A folder in its place, with something in it."""
    path.unlink()
    path.mkdir()
    (path / "something").touch()


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped": flip, "cut": cut, "empty": empty, "a folder": folder}


def each_damage(one: str) -> pytest.MarkDecorator:
    """A test of every damage; all but one are slow."""
    kinds = [kind if kind == one else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in DAMAGE]
    return pytest.mark.parametrize("damage", kinds)


@pytest.fixture(autouse=True)
def _nothing_was_said_before():
    warn.cache_clear()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A trial that nothing has happened to."""
    text = little_text(tmp_path_factory.mktemp("text"), 60, 8, 6)
    return Whole(tmp_path_factory.mktemp("whole"), AVERAGED | {"data.path": text})


def copied(whole: Whole, tmp_path: Path) -> Trial:
    """A copy of it, to be damaged."""
    runs = tmp_path / "runs"
    shutil.copytree(whole.data.parent, runs)
    (path,) = (runs / "trials").iterdir()
    return Trial(path)


@pytest.fixture(scope="module")
def killed(whole, tmp_path_factory):
    """The runs folder of a trial that was killed in its fifth step, with two checkpoints."""
    runs = tmp_path_factory.mktemp("killed") / "runs"
    runs.mkdir()
    shutil.copytree(whole.data, runs / "data")
    assert forked(runs, whole.keys, {CRASH: "a step: after it@5"}) == -signal.SIGKILL
    return runs


def go_on(whole: Whole, runs: Path) -> tuple[int, Trial]:
    """The same command again."""
    return tiny_trials.train(runs, whole.keys)


def content(path: Path) -> object:
    return sorted(one.name for one in path.iterdir()) if path.is_dir() else path.read_bytes()


def gone_on(whole: Whole, trial: Trial, path: Path, damage: str, capsys) -> None:
    """Damage a file and train on: it is named and set aside, and the result is the same."""
    DAMAGE[damage](path)
    damaged = content(path)
    code, same_trial = go_on(whole, trial.folder.parents[1])
    printed = capsys.readouterr().err
    assert code == 0 and same_trial.folder == trial.folder
    assert f"warning: {path.with_name(path.name.replace('.sha256', '.ckpt'))}: " in printed, printed
    aside = path.with_name(f"{path.name}.damaged")
    assert content(aside) == damaged
    if aside.is_file():
        assert reason_to_stay(aside.parent, trial.folder.parents[1]) is None, "--clean must know every file"
    tiny_trials.same(trial, whole.outcome)


@each_damage("flipped")
@pytest.mark.parametrize("name", ["last.ckpt", "last.sha256", "previous.ckpt"])
def test_a_damaged_checkpoint(whole, killed, tmp_path, capsys, name, damage):
    shutil.copytree(killed, tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob(f"trials/*/checkpoints/{name}")
    gone_on(whole, Trial(path.parents[1]), path, damage, capsys)


@each_damage("cut")
def test_all_checkpoints_damaged(whole, killed, tmp_path, capsys, damage):
    shutil.copytree(killed, tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob("trials/*/checkpoints/last.ckpt")
    DAMAGE[damage](path.with_name("previous.ckpt"))
    gone_on(whole, Trial(path.parents[1]), path, damage, capsys)
    assert path.with_name("previous.ckpt.damaged").exists()


@each_damage("flipped")
def test_damaged_metrics_of_a_trial_in_training(whole, killed, tmp_path, capsys, damage):
    """A checkpoint has them, too."""
    shutil.copytree(killed, tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob("trials/*/metrics.jsonl")
    gone_on(whole, Trial(path.parent), path, damage, capsys)


@each_damage("flipped")
def test_damaged_weights_to_be_averaged(whole, killed, tmp_path, damage):
    """Only another training can make them again."""
    shutil.copytree(killed, tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob("trials/*/checkpoints/weights.000000004.pt")
    DAMAGE[damage](path)
    damaged = content(path)
    with pytest.raises(InputError, match=rf"{path}: cannot be averaged: .*; it is set aside as .*\.damaged, .* anew"):
        go_on(whole, tmp_path / "runs")
    assert content(path.with_name(f"{path.name}.damaged")) == damaged
    code, trial = go_on(whole, tmp_path / "runs")
    assert code == 0
    tiny_trials.same(trial, whole.outcome)


@each_damage("flipped")
@pytest.mark.parametrize("name", ["result.json", "weights.pt", "metrics.jsonl", "hyp.test.txt", "scores.val.jsonl"])
def test_a_damaged_file_of_a_finished_trial(whole, tmp_path, capsys, name, damage):
    trial = copied(whole, tmp_path)
    gone_on(whole, trial, trial.folder / name, damage, capsys)
    assert (trial.folder / "result.json.damaged").exists()


@each_damage("flipped")
@pytest.mark.parametrize("name", ["tokenizer.model", "train.source.npy", "val.target.offsets.npy", "meta.json"])
def test_a_damaged_text(whole, killed, tmp_path, capsys, name, damage):
    shutil.copytree(killed, tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob(f"data/*/{name}")
    (trial,) = (tmp_path / "runs" / "trials").iterdir()
    gone_on(whole, Trial(trial), path, damage, capsys)


def test_damage_after_damage_keeps_both(whole, tmp_path):
    trial = copied(whole, tmp_path)
    for number in ("", "-2"):
        flip(trial.folder / "scores.val.jsonl")
        warn.cache_clear()
        assert go_on(whole, tmp_path / "runs")[0] == 0
        assert (trial.folder / f"scores.val.jsonl.damaged{number}").exists()
    found = {item.path.name: item for item in find_removable(tmp_path / "runs")}
    names = {f"{name}.damaged{number}" for name in ("result.json", "scores.val.jsonl") for number in ("", "-2")}
    assert found.keys() == names and not any(item.objection for item in found.values())


def test_weights_that_somebody_has_removed_are_not_missed(whole, tmp_path, capsys):
    trial = copied(whole, tmp_path)
    (trial.folder / "weights.pt").unlink()
    assert go_on(whole, tmp_path / "runs")[0] == 0
    assert "finished already" in capsys.readouterr().out and not (trial.folder / "weights.pt").exists()


@pytest.mark.parametrize("place", [".", "trials/{}"])
def test_a_folder_that_vanishes_and_comes_back(whole, tmp_path, monkeypatch, capsys, place):
    """In its fourth step. Nothing is made in its place."""
    runs, steps = tmp_path / "runs", []
    runs.mkdir()
    shutil.copytree(whole.data, runs / "data")

    def vanish(name: str) -> None:
        steps.append(name)
        if steps.count("a step: after it") == 4:
            (trial,) = (runs / "trials").iterdir()
            (runs / place.format(trial.name)).rename(tmp_path / "elsewhere")
            steps.append(str(runs / place.format(trial.name)))

    monkeypatch.setattr(checkpoint, "crash_point", vanish)
    words = [f"--{key}={value}" for key, value in (tiny_trials.TINY | whole.keys).items()]
    with tiny_trials.in_a_command():
        assert main([f"--runs={runs}", *words]) == 1
    gone = Path(next(name for name in steps if name.startswith("/")))
    assert not gone.exists()
    assert (
        "has vanished while its trial was trained; bring it back, and run the same command again"
        in capsys.readouterr().err
    )
    monkeypatch.undo()
    (tmp_path / "elsewhere").rename(gone)
    monkeypatch.setattr(ThisMachine, "is_dead", lambda machine, process: True)  # of the first command
    code, trial = go_on(whole, runs)
    assert code == 0
    tiny_trials.same(trial, whole.outcome)


@pytest.mark.parametrize("times", [1, 2])
def test_a_folder_in_the_place_of_a_study(tmp_path, capsys, times):
    search, study = made(tmp_path, lambda drawn: 2.5, trials=2)
    path = tmp_path / "sweeps" / study.study_name / storage.JOURNAL
    for number in ("", "-2")[:times]:
        path.mkdir(parents=True)
        assert storage.create_study(search, path.parent, None, None, None).trials == []
        name = f"{path.name}.damaged{number}"
        assert path.with_name(name).is_dir() and f"it is set aside as {name}" in capsys.readouterr().err
        path.unlink()


def test_an_empty_study_is_named(tmp_path, capsys):
    search, study = made(tmp_path, lambda drawn: 2.5, trials=2)
    path = tmp_path / "sweeps" / study.study_name / storage.JOURNAL
    path.parent.mkdir(parents=True)
    storage.create_study(search, path.parent, None, None, None).enqueue_trial(search.base_draw)
    assert not capsys.readouterr().err
    empty(path)
    assert storage.create_study(search, path.parent, None, None, None).trials == []
    assert f"warning: {path}: is empty; the study begins anew" in capsys.readouterr().err
