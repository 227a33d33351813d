"""A disk that is full from any crash point on: the trial ends with a clear message, and goes on once there is room."""

import os
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_trials
from helpers import little_text

from tests.test_bad_input import disk
from tests.training.test_crashes import SCENARIOS, SHARED, Whole, points
from transformer_pl.runtime import crash
from transformer_pl.runtime.crash import CRASH
from transformer_pl.runtime.errors import InputError, warn

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
            code, message = train(runs, whole)
        assert ballast.exists() and code in (1, 2), (at, code)
        printed = message + capsys.readouterr().err
        assert FULL.search(printed), printed
        ballast.unlink()
        warn.cache_clear()
        code, trial = tiny_trials.train(runs, whole.keys)
        assert code == 0
        tiny_trials.same(trial, whole.outcome)
