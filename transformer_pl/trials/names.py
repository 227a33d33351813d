"""The names of the folders in a runs folder."""

import hashlib
import re
from pathlib import Path

TRIAL_FOLDER = re.compile(r".*-(?P<id>[0-9a-f]{12})")  # a user may change what stands before the id


def as_folder(name: str) -> str:
    """A sweep's title as the name of its folder; with a short hash where characters were replaced, as others may be."""
    folder = re.sub(r"[^A-Za-z0-9@._-]+", "-", name)
    return folder if folder == name else f"{folder}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def sweep_title(name: str, scale: str) -> str:
    """The name of a sweep's folder, and of its report at W&B: `table3-A@demo`."""
    return f"{name}@{Path(scale).stem}"


def trial_id(folder: str) -> str:
    """The id of a trial whose folder has this name, whatever a user has made of what stands before it."""
    return folder.rpartition("-")[2]


def trial_folder(readable: str, id_: str) -> str:
    """The name of a trial's folder: `readable`, shortened to 60 characters before its `-s` and seed; and the id."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", readable).strip("-")
    seed = re.search(r"-s\d+$", name)
    end = seed[0] if seed else ""
    return f"{name.removesuffix(end)[: 60 - len(end)].strip('-')}{end}-{id_}"
