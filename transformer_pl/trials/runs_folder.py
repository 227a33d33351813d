"""The runs folder: whether it can be written, its lock, and the finished trials in it."""

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformer_pl.config import Config, is_known_key
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import try_lock, try_writing
from transformer_pl.trials.trial import Trial

DEFAULT_RUNS = Path("runs")


def check_writable(runs: Path) -> None:
    """Raise an InputError with the system's reason where the runs folder cannot be written."""
    if reason := why_unwritable(runs):
        raise InputError(reason)


def why_unwritable(runs: Path) -> str | None:
    """Why nothing can be written to the runs folder; None where writing works."""
    try:
        try_writing(runs / "trials")
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return (
            f"--runs {runs}: must be a folder that can be written, with room on its disk, but: {error.strerror}"
            f"{place}; make room, or choose another folder with --runs"
        )
    return None


@contextmanager
def runs_lock(runs: Path, alone: bool = False) -> Iterator[None]:
    """Keep `--clean` away while trials are trained in the runs folder; `alone=True`: keep everything else away.

    Raises an InputError where another process holds the lock.
    """
    if not runs.is_dir():
        yield
        return
    try:
        file = (runs / "lock").open("a")
    except OSError as error:
        raise InputError(f"{runs / 'lock'}: must be a file that can be written, but: {error.strerror}") from None
    with file:
        if not try_lock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            holder = "a sweep or a trial is running there" if alone else "it is being cleaned"
            raise InputError(f"--runs {runs}: cleaning and training exclude each other, but {holder}; wait for it")
        yield


def trained_config(result: dict[str, Any], changes: Mapping[str, Any] | None = None) -> Config:
    """The config that a finished trial was trained with; `changes` of the command line over it.

    result: of `finished_results`. Raises an InputError for changes that are no valid config.
    """
    trained = {key: value for key, value in result["config"].items() if is_known_key(key) and value is not None}
    return resolve([Level(str(result["folder"]), trained), Level("command line", changes or {})])


def finished_results(runs: Path) -> list[dict[str, Any]]:
    """The results of all finished trials in a runs folder, each with the path of its folder as `folder`."""
    results = []
    for path in sorted((runs / "trials").glob("*/result.json")):
        if result := Trial(path.parent).result():
            results.append(result | {"folder": path.parent})
    return results
