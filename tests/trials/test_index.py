"""The index of a runs folder: nothing is read twice, whatever has changed is read anew, and nobody needs the index."""

import os
import time

import pytest
from helpers import a_result, flip

from transformer_pl.runtime.files import sha256
from transformer_pl.trials import index, trial
from transformer_pl.trials.trial import Trial


@pytest.fixture
def finished(tmp_path):
    """A finished trial that was indexed; from here on as the next command sees it."""
    one = Trial(tmp_path / "runs" / "trials" / "demo-base-s1-0123456789ab")
    one.folder.mkdir(parents=True)
    (one.folder / "weights.pt").write_bytes(bytes(range(100)))
    one.finish(a_result())
    age(one)
    assert not one.needs_training()
    index.index_of(tmp_path / "runs").save()
    index._index.cache_clear()
    trial._damage.cache_clear()
    return Trial(one.folder)  # as another process has it


def age(one):
    for path in one.folder.iterdir():
        os.utime(path, (time.time() - 60, time.time() - 60))


def test_a_finished_trial_is_not_read_again(finished, monkeypatch):
    expected = finished.result()
    index._index.cache_clear()
    finished = Trial(finished.folder)
    monkeypatch.setattr(trial, "read_json", None)
    monkeypatch.setattr(trial, "_damage", None)
    assert finished.result() == expected and not finished.needs_training() and expected["metrics"]["val/bleu"] == 30


def test_what_has_changed_is_read_again(finished, capsys):
    flip(finished.folder / "weights.pt")
    assert finished.needs_training() and "weights.pt: cannot be used: its bytes" in capsys.readouterr().err
    finished.finish(a_result(metrics={"val/ppl": 3.0, "val/bleu": 31.0}))
    assert finished.result()["metrics"]["val/bleu"] == 31 and not finished.needs_training()
    (finished.folder / "result.json").unlink()
    assert finished.result() is None and finished.needs_training()


@pytest.mark.parametrize("damage", [lambda path: flip(path), os.unlink, lambda path: path.write_text("{}")])
def test_nobody_needs_the_index(finished, damage, monkeypatch):
    hashed = []
    monkeypatch.setattr(trial, "check_digest", lambda path, digest: hashed.append(sha256(path) == digest))
    damage(finished.folder.parents[1] / index.FILE)
    assert finished.result()["metrics"]["val/bleu"] == 30 and not finished.needs_training() and hashed == [True]


def test_what_may_change_without_another_time_is_not_kept(finished):
    """A file system may give two writes the same time."""
    os.utime(finished.folder / "weights.pt")
    runs = finished.folder.parents[1]
    (runs / index.FILE).unlink()
    assert not finished.needs_training()
    index.index_of(runs).save()
    index._index.cache_clear()
    status = (finished.folder / "weights.pt").stat()
    digest = finished.result()["digests"]["weights.pt"]
    assert not index.index_of(runs).is_whole(finished.folder / "weights.pt", digest, status)


def test_a_folder_that_cannot_be_written_has_no_index(finished, monkeypatch):
    def refuse(path, text):
        raise PermissionError

    monkeypatch.setattr(index, "write_atomically", refuse)
    (finished.folder.parents[1] / index.FILE).unlink()
    assert not finished.needs_training()
    index.index_of(finished.folder.parents[1]).save()


def test_a_renamed_folder_is_found_by_its_id(finished):
    runs = finished.folder.parents[1]
    assert Trial.at(runs, "0123456789ab", lambda: "demo-base-s1").folder == finished.folder
    renamed = finished.folder.rename(finished.folder.with_name("mine-0123456789ab"))
    assert Trial.at(runs, "0123456789ab", lambda: "demo-base-s1").folder == renamed
    assert Trial.at(runs, "ba9876543210", lambda: "demo-base-s1").folder.name == "demo-base-s1-ba9876543210"
