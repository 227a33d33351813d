"""`sweep --list`: the trials in a runs folder, with state, score and size."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from transformer_pl.runtime.terminal import counted, say
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_folder import TRIAL_FOLDER

Files = list[os.stat_result]


def list_runs(runs: Path, console: Console) -> None:
    """Print a line for each trial. Only result.json and status.json are read; what has neither is no trial."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("id", "trial", "state", "score", "size"):
        justify: Literal["left", "right"] = "right" if heading in ("score", "size") else "left"
        table.add_column(heading, overflow="fold", no_wrap=heading == "id", justify=justify)
    all_files: list[Files] = []
    for folder in RunsFolder(runs).trials:
        state, result = folder.state(), folder.result()
        if state == "new" or not TRIAL_FOLDER.fullmatch(folder.name):
            continue
        score = f"{result.main_metric} {result.main_score:#.4g}" if result else "-"
        files = _files(folder.path)
        table.add_row(folder.id, folder.name.removesuffix(f"-{folder.id}"), state, score, _size([files]))
        all_files.append(files)
    if all_files:
        console.print(table)
    say(console, f"{runs}: {counted(len(all_files), 'trial')}, {_size(all_files)}")


def _files(folder: Path) -> Files:
    """The status of every file in a folder. A file that is removed meanwhile is left out."""
    statuses = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                statuses.append(os.lstat(os.path.join(parent, name)))
    return statuses


def _size(folders: Iterable[Files]) -> str:
    """What the files of folders take. A file that two trials share counts once."""
    sizes = {(file.st_dev, file.st_ino): file.st_size for files in folders for file in files}
    return decimal(sum(sizes.values()))
