"""The runs folder: whether it can be written, its lock, and the finished trials in it."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformer_pl.config import KEYS, Config, is_known_key
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import LISTED, InputError
from transformer_pl.runtime.files import try_lock, try_writing
from transformer_pl.trials.trial import Trial

DEFAULT_RUNS = Path("runs")
MOST_LISTED = 20  # trials in a message


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
        raise InputError(
            f"{runs / 'lock'}: must be a file that can be written, but: {error.strerror}; let its owner give you the "
            "right to write it, or choose another --runs"
        ) from None
    with file:
        if not try_lock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            holder = "a sweep or a trial is running there" if alone else "it is being cleaned"
            raise InputError(f"--runs {runs}: cleaning and training exclude each other, but {holder}; wait for it")
        yield


def trained_config(result: dict[str, Any], changes: Mapping[str, Any] | None = None) -> Config:
    """The config that a finished trial was trained with; `changes` of the command line over it.

    result: of `finished_results`. Raises an InputError for changes that are no valid config.
    """
    return resolve([trained_level(result), Level("command line", changes or {})])


def trained_level(result: dict[str, Any]) -> Level:
    """The keys that a finished trial was trained with, of those that this version knows."""
    known = {key: value for key, value in result["config"].items() if is_known_key(key)}
    return Level(str(result["folder"]), {key: v for key, v in known.items() if v is not None or key not in KEYS})


def finished_results(runs: Path) -> list[dict[str, Any]]:
    """The results of all finished trials in a runs folder, each with the path of its folder as `folder`."""
    results = []
    trials = runs / "trials"
    for name in sorted(os.listdir(trials)) if trials.is_dir() else ():
        if result := Trial(trials / name).result():
            results.append(result | {"folder": trials / name})
    return results


def find(runs: Path, name: str) -> dict[str, Any]:
    """The result of the one finished trial that `name` identifies. Raises an InputError unless there is exactly one."""
    results = finished_results(runs)
    folder = Path(os.path.abspath(name))  # not resolved: a link belongs to the runs folder that it lies in
    if os.path.exists(folder / "result.json"):  # False for a name that no file can have
        results, name = finished_results(folder.parent.parent), folder.name
    exact = [r for r in results if name in (r["id"], r["folder"].name)]
    matching = exact or [r for r in results if name in r["folder"].name]
    if len(matching) == 1:
        return matching[0]
    names = [r["folder"].name for r in matching or results]
    more = [f"and {len(names) - MOST_LISTED} more; see python -m transformer_pl.sweep --list --runs {runs}"]
    listed = "".join(f"{LISTED}{line}" for line in names[:MOST_LISTED] + (more if len(names) > MOST_LISTED else []))
    constraint = "must name one finished trial"
    if matching:
        raise InputError(
            f"TRIAL {name}: {constraint}, but {len(matching)} match; give a longer part of the name:{listed}"
        )
    raise InputError(
        f"TRIAL {name}: {constraint} under {runs}, but none matches" + (f"; finished are:{listed}" if listed else "")
    )
