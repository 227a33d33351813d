"""A disk that is full from any crash point on: the trial ends with a clear message, and goes on once there is room."""

import os
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_trials
from helpers import little_text

from tests.test_bad_input import disk
from tests.training.test_crashes import SCENARIOS, SHARED, Whole, points
from transformer_pl.runtime import crash, files
from transformer_pl.runtime.crash import CRASH
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.processes import ThisMachine

FULL = re.compile(r"must be (a folder that can be written|writable), with room .*: No space left on device")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    text = little_text(tmp_path_factory.mktemp("text"), 60, 8, 6)
    return Whole(tmp_path_factory.mktemp("whole"), SCENARIOS["averaged"] | {"data.path": text})


def fill(path: Path) -> None:
    """Write a file until nothing more fits on its disk."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


class Told(tiny_trials.NoRun):
    """A W&B run that keeps with which exit code it was ended; None before that."""

    runs: list["Told"] = []
    exit_code: int | None = None

    def __init__(self, **about: Any):
        self.runs.append(self)

    def finish(self, exit_code: int, **options: Any) -> None:
        self.exit_code = exit_code


def train(runs: Path, whole: Whole) -> tuple[int, str]:
    """The exit code, and an error that ended the command."""
    try:
        return tiny_trials.train(runs, whole.keys)[0], ""
    except InputError as error:
        return 2, str(error)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(points() - {SHARED}))
@pytest.mark.parametrize("passing", ["first", "middle"])
def test_a_disk_that_is_full_from_a_crash_point_on(whole, tmp_path, monkeypatch, capsys, name, passing):
    times = 1 if passing == "first" else whole.passed[name] // 2 + 1
    at = f"{name}@{times}"
    (tmp_path / "disk").mkdir()
    with disk(tmp_path / "disk", "16m"):
        runs, ballast = tmp_path / "disk" / "runs", tmp_path / "disk" / "ballast"
        (runs / "trials").mkdir(parents=True)
        if not name.startswith("a text"):
            (runs / "data").symlink_to(whole.data)
        crash.PASSED.clear()
        warn.cache_clear()
        filling = SimpleNamespace(environ={CRASH: at}, getpid=os.getpid, kill=lambda *_: fill(ballast))
        with monkeypatch.context() as patch:
            patch.setattr(crash, "os", filling)
            patch.setattr(tiny_trials, "NoRun", Told)
            patch.setattr(Told, "runs", [])
            code, message = train(runs, whole)
            ended = [run.exit_code for run in Told.runs]
        printed = message + capsys.readouterr().err
        assert ballast.exists()
        if name == "a result: before the checkpoints are removed":  # these leave room for all that is still written
            assert code == 0 and ended == [0]
        else:
            assert code in (1, 2) and FULL.search(printed), printed
            assert ended in ([], [1]), "also W&B is told that it failed"
        ballast.unlink()
        warn.cache_clear()
        monkeypatch.setattr(ThisMachine, "is_dead", lambda machine, process: True)  # of the command before
        code, trial = tiny_trials.train(runs, whole.keys)
        assert code == 0
        tiny_trials.same(trial, whole.outcome)


def test_a_look_at_a_disk_leaves_nothing_where_it_is_killed(tmp_path, monkeypatch):
    there = []
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: there.append(list(tmp_path.iterdir())))
    files.try_writing(tmp_path)
    assert there == [[]]
