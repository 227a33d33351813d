"""Recognise what this project made in a runs folder, by names and by contents.

A runs folder may also hold files of other programs, and links to other places. Only what `reason_to_stay` has no
objection to may be removed.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from transformer_pl.data.prepare import digest
from transformer_pl.trials.names import (
    CHECKPOINT_FILES,
    CLAIM_FILES,
    DAMAGED_FILES,
    DATA_FILES,
    DATA_FOLDER,
    LINKS,
    SUBFOLDERS,
    SWEEP_FILES,
    TRIAL_FILES,
    TRIAL_FOLDER,
    TRIAL_FOLDER_AS_MADE,
    UNFINISHED_DATA_FOLDER,
    UNFINISHED_TRIAL_FILES,
    as_folder,
    sweep_title,
)

STATES = ("running", "stopped", "pruned", "failed", "diverged", "done")
MOST_NAMED = 3  # files that a reason to stay names


def is_trial(folder: Path) -> bool:
    """Whether a folder, or the target of a link, is a trial's: its name ends with an id, and its files confirm it.

    They confirm it if result.json has that id or status.json has a state; else if a claim on it is there, or the empty
    lock of an older version.
    """
    match = TRIAL_FOLDER.fullmatch(folder.name)
    if not match:
        return False
    result, has_status = _read(folder / "result.json"), _agrees(folder, "status.json")
    result_id = result.get("id") if isinstance(result, Mapping) else None
    if result_id not in (None, match["id"]) or has_status is False:
        return False
    was_claimed = any(_agrees(folder, name) for name in ("claim.1", "lock"))
    return bool(result_id or has_status or (was_claimed and TRIAL_FOLDER_AS_MADE.fullmatch(folder.name)))


def is_data(folder: Path) -> bool:
    """Whether a folder is a prepared corpus: its name is the digest of the content of its meta.json."""
    return bool(DATA_FOLDER.fullmatch(folder.name)) and _agrees(folder, "meta.json") is True


def is_unfinished_data(folder: Path) -> bool:
    """Whether a folder is a corpus whose preparation was interrupted."""
    return bool(UNFINISHED_DATA_FOLDER.fullmatch(folder.name)) and folder.is_dir()


def is_damaged_file(path: Path) -> bool:
    """Whether a file in a trial's folder is one that was set aside because it was damaged."""
    return bool(DAMAGED_FILES.fullmatch(path.name)) and path.is_file() and not path.is_symlink()


def is_unfinished_file(path: Path) -> bool:
    """Whether a file in a trial's folder is one that was not written to its end."""
    return bool(UNFINISHED_TRIAL_FILES.fullmatch(path.name)) and path.is_file() and not path.is_symlink()


class SweepPlan(NamedTuple):
    """What plan.json says of a sweep."""

    name: str
    trials: list[str]  # the names of their folders
    differs: str | None  # the options that the folder's name has a hash of; None: an older version did not keep them
    command: str | None  # that shows the table; None as well


def sweep_plan(folder: Path) -> SweepPlan | None:
    """The plan of a sweep's folder; None if the folder is not a sweep's."""
    if not _agrees(folder, "plan.json"):
        return None
    content = _read(folder / "plan.json")
    options = (content.get(key) for key in ("differs", "command"))
    differs, command = (option if isinstance(option, str) else None for option in options)
    return SweepPlan(content["name"], [trial["folder"] for trial in content["trials"]], differs, command)


def reason_to_stay(path: Path, runs: Path) -> str | None:
    """Why something that this project made must not be removed; None if it may be.

    It stays if its path contains a link, or if it holds something that this project has not made.
    """
    for place in (path, *path.parents):
        if place == runs:
            break
        if place.is_symlink():
            return f"{place.relative_to(runs)} is a link"
    if path.is_file():
        return None
    try:
        foreign = list(_foreign_entries(path))
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if not foreign:
        return None
    more = f" and {len(foreign) - MOST_NAMED} more" if len(foreign) > MOST_NAMED else ""
    return f"holds {', '.join(foreign[:MOST_NAMED])}{more}, which this project has not made"


def _foreign_entries(folder: Path) -> Iterator[str]:
    """The entries of a folder that this project has not made: by their name, their kind or their content."""
    names = _names(folder)
    for name, entry in _entries(folder):
        if entry.is_symlink():
            right_kind = bool(LINKS.fullmatch(name))
        elif entry.is_dir():
            right_kind = bool(SUBFOLDERS.fullmatch(name))
        else:
            right_kind = entry.is_file() and name not in ("checkpoints", "figures", "sources", "wandb")
        if not (right_kind and names.fullmatch(name)) or _agrees(folder, name) is False:
            yield name


def _names(folder: Path) -> re.Pattern:
    if folder.name == "checkpoints":
        return CHECKPOINT_FILES
    return {"trials": TRIAL_FILES, "sweeps": SWEEP_FILES, "data": DATA_FILES}[folder.parent.name]


def _entries(folder: Path) -> Iterator[tuple[str, os.DirEntry]]:
    """Everything below a folder, by its path from there; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name, entry
            if entry.is_dir(follow_symlinks=False):
                yield from ((f"{entry.name}/{name}", below) for name, below in _entries(Path(entry.path)))


# The content of the project's files


def _agrees(folder: Path, name: str) -> bool | None:
    """Whether a file has the content of the project's file of this name.

    None if it cannot be read, or if the project's file has no fixed content.
    """
    if name == "lock":
        return _is_empty(folder / name)
    check = _is_claim if CLAIM_FILES.fullmatch(name) else _CHECKS.get(name)
    content = _read(folder / name) if check else None
    return check(folder, content) if check and isinstance(content, Mapping) else None


def _is_empty(path: Path) -> bool | None:
    try:
        return path.stat().st_size == 0
    except OSError:
        return None


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None


def _is_result(folder: Path, content: Mapping[str, Any]) -> bool:
    match = TRIAL_FOLDER.fullmatch(folder.name)
    return match is not None and content.get("id") == match["id"]


def _is_status(folder: Path, content: Mapping[str, Any]) -> bool:
    return content.get("state") in STATES and {"time", "pid"} <= content.keys()


def _is_claim(folder: Path, content: Mapping[str, Any]) -> bool:
    return {"token", "state"} <= content.keys()


def _is_meta(folder: Path, content: Mapping[str, Any]) -> bool:
    data_id = digest(content.get("fingerprint", {}), content.get("settings", {}))
    return folder.name == data_id or folder.name.startswith(f".{data_id}.")


def _is_plan(folder: Path, content: Mapping[str, Any]) -> bool:
    name, scale, trials = (content.get(key) for key in ("name", "scale", "trials"))
    if not (isinstance(name, str) and isinstance(scale, str) and isinstance(trials, list)):
        return False
    has_its_name = re.fullmatch(rf"{re.escape(as_folder(sweep_title(name, scale)))}(-[0-9a-f]{{6}})?", folder.name)
    folders = [trial.get("folder") if isinstance(trial, dict) else None for trial in trials]
    return bool(has_its_name) and all(isinstance(name, str) and TRIAL_FOLDER.fullmatch(name) for name in folders)


_CHECKS: dict[str, Callable[[Path, Mapping[str, Any]], bool]] = {
    "result.json": _is_result,
    "status.json": _is_status,
    "env.json": lambda folder, content: {"host", "packages"} <= content.keys(),
    "identity.json": lambda folder, content: {"core", "data", "parts"} <= content.keys(),
    "config.yaml": lambda folder, content: {"model.N", "seed"} <= content.keys(),
    "meta.json": _is_meta,
    "plan.json": _is_plan,
}
