"""The index of a runs folder: what was read of finished trials, so that the next command need not read it again.

It may be deleted at any time. An entry counts as long as `result.json` has the time, the size and the inode that it
had, and each file that the result was made from its time and size.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from transformer_pl.runtime.files import check_regular, write_atomically

FILE = "index"
SETTLED_S = 2.0  # a file may change again without another time, as long as it is newer


class Index:
    """What this process knows of the finished trials in a runs folder."""

    def __init__(self, runs: Path):
        self.path = runs / FILE
        self._trials: dict[str, dict[str, Any]] = self._read()  # by the name of the folder
        self._is_new = False

    def result(self, path: Path, schema: str, read: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """The content of a result.json, by `read` where it is not known. schema: another one reads it anew."""
        stamp, name = _stamp(path), path.parts[-2]  # the stamp is taken first: the file may change while it is read
        entry = self._trials.get(name)
        if entry and entry["stamp"] == stamp and entry["schema"] == schema:
            return entry["result"]
        result = read()
        if result is not None and stamp:
            self._trials[name] = {"schema": schema, "stamp": stamp, "result": result, "files": {}}
            self._is_new = True
        return result

    def knows(self, folder: Path) -> bool:
        """Whether a finished trial with the id of this folder was read from it, and is as it was then."""
        entry = self._trials.get(folder.name)
        return (
            entry is not None
            and entry["stamp"] == _stamp(folder / "result.json")
            and folder.name.endswith(f"-{entry['result']['id']}")
        )

    def is_whole(self, path: Path, digest: str, status: os.stat_result) -> bool:
        """Whether a file of a finished trial is known to have this sha256. status: of the file as it is now."""
        entry = self._trials.get(path.parts[-2])
        return entry is not None and entry["files"].get(path.name) == [digest, status.st_mtime_ns, status.st_size]

    def keep_whole(self, path: Path, digest: str, status: os.stat_result) -> None:
        if entry := self._trials.get(path.parts[-2]):
            entry["files"][path.name] = [digest, status.st_mtime_ns, status.st_size]
            self._is_new = True

    def save(self) -> None:
        """Write the index, if there is anything new in it and the folder can be written."""
        if not self._is_new:
            return
        with suppress(OSError):
            there = set(os.listdir(self.path.parent / "trials"))
            latest = time.time_ns() - int(1e9 * SETTLED_S)
            settled = {}
            for name, entry in self._trials.items():
                if name in there and entry["stamp"][0] < latest:
                    files = {file: known for file, known in entry["files"].items() if known[1] < latest}
                    settled[name] = entry | {"files": files}
            text = json.dumps(settled)
            write_atomically(self.path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
            self._is_new = False

    def _read(self) -> dict[str, dict[str, Any]]:
        with suppress(OSError, ValueError):
            check_regular(self.path)
            digest, _, text = self.path.read_bytes().partition(b"\n")
            if hashlib.sha256(text).hexdigest().encode() == digest:
                return json.loads(text)
        return {}


@cache
def _index(runs: str) -> Index:
    return Index(Path(runs))


def index_of(runs: Path) -> Index:
    """The index of a runs folder, read once by this process."""
    return _index(os.path.abspath(runs))


def _stamp(path: Path) -> list[int] | None:
    with suppress(OSError):
        status = os.stat(path)
        return [status.st_mtime_ns, status.st_size, status.st_ino]
    return None
