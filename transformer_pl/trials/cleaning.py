"""`sweep --list` and `sweep --clean`: what a runs folder holds, and what of it can be removed."""

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from transformer_pl.runtime.files import read_json
from transformer_pl.runtime.terminal import ask, counted, say
from transformer_pl.trials.metrics import main_score
from transformer_pl.trials.trial import TRIAL_FOLDER, WRITTEN, Trial, trial_id

# What lies in the folders that `--clean` may remove: with anything else in it, a folder stays.
TRIAL_FILES = (*WRITTEN, "log.txt", "checkpoints", "sources", "wandb", "lock*")
DATA_FILES = ("meta.json", "tokenizer.model", "*.source.*", "*.target.*")


def list_runs(runs: Path, console: Console) -> None:
    """Print every sweep and every trial with state, last change, size and score. Other programs' files are left out."""
    plans = {folder: read_json(folder / "plan.json") for folder in _folders(runs / "sweeps")}
    plans = {folder: plan for folder, plan in plans.items() if "trials" in plan}
    trials = _trials(runs)
    if not trials and not plans:
        console.print(f"{runs}: no sweep and no trial")
        return
    files = {folder: _files(folder) for folder in (*plans, *(trial.folder for trial in trials))}
    states = {trial_id(trial.folder.name): trial.state() for trial in trials}
    table = _table("sweep", "trials", "changed", "differs by")
    for folder, plan in sorted(plans.items(), key=lambda item: _newest(files[item[0]]), reverse=True):
        counts = Counter(states.get(trial_id(trial["folder"]), "new") for trial in plan["trials"])
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        table.add_row(folder.name, told, _changed(files[folder]), plan["differs"])
    console.print(table)
    console.print()
    table = _table("id", "trial", "state", "changed", "size", "score")
    for trial in sorted(trials, key=lambda trial: _newest(files[trial.folder]), reverse=True):
        id_, result, changed = trial_id(trial.folder.name), trial.result(), _changed(files[trial.folder])
        score = "{} {:.1f}".format(*main_score(result)) if result else "-"
        table.add_row(id_, trial.folder.name[: -len(id_) - 1], states[id_], changed, _size(files[trial.folder]), score)
    console.print(table)
    everything = [file for of_one in (*files.values(), _files(runs / "data")) for file in of_one]
    console.print(f"{counted(len(trials), 'trial')}, {_size(everything)} under {runs}, datasets included")


def clean(runs: Path, console: Console) -> int:
    """List what is not needed, and remove it if the user answers yes. Returns the exit code."""
    waste = find_removable(runs)
    if not waste:
        console.print(f"{runs}: nothing to clean")
        return 0
    table = _table("what", "why", "changed", "size")
    for folder, reason in waste.items():
        files = _files(folder)
        table.add_row(str(folder.relative_to(runs)), reason, _changed(files), _size(files))
    console.print(table)
    if not ask(console, f"Remove all {len(waste)} ({_size(f for folder in waste for f in _files(folder))})?"):
        console.print("nothing was removed")
        return 0
    removed = 0
    for folder in waste.keys() & find_removable(runs).keys():  # the user may have taken long to answer
        try:
            shutil.rmtree(folder)
            removed += 1
        except OSError as error:  # such as another user's folder
            say(console, f"left alone: {folder}: {error.strerror or error}")
    console.print(f"removed {removed}")
    return int(removed < len(waste))


def find_removable(runs: Path) -> dict[Path, str]:
    """The trials without a result that no process holds, and the datasets that no other trial names, with the reasons.

    A diverged trial is finished: it stays. So does a folder with anything in it that this project has not made;
    and links stay, with what lies behind them.
    """
    found = {}
    for trial in _trials(runs):
        ended = trial.diverged_at() is not None or (trial.folder / "result.json").exists()
        if not ended and not trial.lock.is_held() and _holds_only(trial.folder, TRIAL_FILES):
            found[trial.folder] = f"{trial.state()}, without a result"
    staying = [Trial(path) for path in (runs / "trials").glob("*") if path not in found]
    if any(trial.lock.is_held() and not trial.data() for trial in staying):  # it has not yet said which dataset it uses
        return found
    used = {trial.data() for trial in staying}
    for dataset in _folders(runs / "data"):
        if dataset.name not in used and _is_dataset(dataset) and _holds_only(dataset, DATA_FILES):
            found[dataset] = "no trial uses this dataset"
    return found


def _holds_only(folder: Path, known: tuple[str, ...]) -> bool:
    """Whether a folder holds only files of these names, and such that were not written to their end."""
    patterns = [*known, *(f".{name}*" for name in known)]
    return not any(
        path.is_symlink() or not any(fnmatchcase(path.name, pattern) for pattern in patterns)
        for path in folder.iterdir()
    )


def _trials(runs: Path) -> list[Trial]:
    """The trials of a runs folder: the name of each ends with an id, and it has a status."""
    folders = [folder for folder in _folders(runs / "trials") if TRIAL_FOLDER.fullmatch(folder.name)]
    return [trial for trial in map(Trial, folders) if {"time", "pid"} <= trial.status().keys()]


def _is_dataset(folder: Path) -> bool:
    """Whether a folder is a prepared dataset: its name is a hash, and its meta.json says of what."""
    is_hash = re.fullmatch("[0-9a-f]{16}", folder.name) is not None
    return is_hash and {"fingerprint", "settings"} <= read_json(folder / "meta.json").keys()


def _folders(place: Path) -> list[Path]:
    """The folders in a folder, without links; none behind a link."""
    if place.is_symlink() or not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        justify: Literal["right", "left"] = "right" if heading in ("size", "score") else "left"
        table.add_column(heading, overflow="fold", no_wrap=heading == "id", justify=justify)
    return table


def _files(folder: Path) -> list[os.stat_result]:
    """The status of every file in a folder. A file that is removed meanwhile is left out."""
    statuses = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                statuses.append(os.lstat(os.path.join(parent, name)))
    return statuses


def _newest(files: Iterable[os.stat_result]) -> float:
    """When the newest file was written."""
    return max((file.st_mtime for file in files), default=0.0)


def _changed(files: Iterable[os.stat_result]) -> str:
    return time.strftime("%d %b %H:%M", time.localtime(_newest(files)))


def _size(files: Iterable[os.stat_result]) -> str:
    """What files take on disk. A file that two trials share counts once."""
    return decimal(sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values()))
