"""`sweep --list`: what lies in a runs folder, how large it is, and what is no longer needed. It removes nothing."""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from transformer_pl.config import KEYS, Data
from transformer_pl.data.prepared import Meta
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_json
from transformer_pl.runtime.terminal import counted, say
from transformer_pl.task import task_of
from transformer_pl.trials.result import Result
from transformer_pl.trials.runs_folder import read_plan
from transformer_pl.trials.trial import TRIAL_FOLDER, Trial, trial_id

Files = dict[Path, list[os.stat_result]]  # of each folder


def list_runs(runs: Path, console: Console) -> None:
    """Print the sweeps, trials and datasets of a runs folder, and what is not needed. Other files are left out."""
    plans = {folder: plan for folder in _folders(runs / "sweeps") if "trials" in (plan := read_plan(folder))}
    trials, datasets = _trials(runs), _datasets(runs)
    states = {trial.id: trial.state() for trial in trials}
    tables = {
        ("sweep", "trials", "differs by"): {path: _sweep_cells(path, plan, states) for path, plan in plans.items()},
        ("id", "trial", "state", "score"): {trial.folder: _trial_cells(trial, states) for trial in trials},
        ("dataset", "text"): {folder: [folder.name, meta["corpus"]] for folder, meta in datasets.items()},
    }
    files = {folder: _files(folder) for rows in tables.values() for folder in rows}
    if not files:
        say(console, f"{runs}: no sweep, no trial and no dataset")
        return
    for headings, rows in tables.items():
        if rows:
            console.print(_table(headings, rows, files), "")
    say(console, f"{counted(len(trials), 'trial')}, {_size(files, files)} under {runs}")
    if unneeded := find_unneeded(runs):
        say(console, f"nothing needs these ({_size(files, unneeded)}):")
        for folder, reason in unneeded.items():
            say(console, f"  {folder}: {reason}")


def _score(result: Result) -> str:
    """The score in the digits of its measure; in three where its task is not here."""
    form = "#.3g"
    with suppress(InputError):
        form = f".{task_of(Data(task=(KEYS | result.config)['data.task'])).measure.digits}f"
    return f"{result.main_metric} {result.main_score:{form}}"


def _sweep_cells(folder: Path, plan: dict[str, Any], states: dict[str, str]) -> list[str]:
    """The cells of a sweep. states: of the trials, by id."""
    counts = Counter(states.get(trial_id(trial.get("folder", "")), "new") for trial in plan["trials"])
    return [folder.name, ", ".join(f"{count} {state}" for state, count in counts.items()), plan.get("differs", "")]


def _trial_cells(trial: Trial, states: dict[str, str]) -> list[str]:
    """The cells of a trial. states: of the trials, by id."""
    result = trial.result()
    score = _score(result) if result else "-"
    return [trial.id, trial.folder.name.removesuffix(f"-{trial.id}"), states[trial.id], score]


def find_unneeded(runs: Path) -> dict[Path, str]:
    """The trials and datasets that are no longer needed, with the reasons.

    A trial is not needed if it has no result and no process trains it. A diverged trial has ended, and is needed. A
    dataset is not needed if no other trial names it, but all are while some other trial has not named its dataset yet.
    """
    trials = _trials(runs)
    found = {
        trial.folder: f"{trial.state()}, without a result"
        for trial in trials
        if trial.needs_training() and not trial.lock.is_held()
    }
    named = {trial.data() for trial in trials if trial.folder not in found}
    if None not in named:
        found |= {folder: "no other trial names this dataset" for folder in _datasets(runs) if folder.name not in named}
    return found


def _trials(runs: Path) -> list[Trial]:
    """The trials of a runs folder: the name of each ends with an id, and it has a status."""
    folders = [folder for folder in _folders(runs / "trials") if TRIAL_FOLDER.fullmatch(folder.name)]
    return [Trial(folder) for folder in folders if (folder / "status.json").exists()]


def _datasets(runs: Path) -> dict[Path, dict[str, Any]]:
    """The prepared datasets of a runs folder, whose names are hashes, each with its meta.json."""
    folders = [folder for folder in _folders(runs / "data") if re.fullmatch("[0-9a-f]{16}", folder.name)]
    return {folder: meta for folder in folders if (meta := read_json(folder / "meta.json", Meta))}


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []


def _table(headings: tuple[str, ...], rows: dict[Path, list[str]], files: Files) -> Table:
    """A table of folders, the one that has changed last first."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in (*headings, "changed", "size"):
        justify: Literal["right", "left"] = "right" if heading in ("size", "score") else "left"
        table.add_column(heading, overflow="fold", no_wrap=heading == "id", justify=justify)
    newest = {folder: max((file.st_mtime for file in files[folder]), default=0.0) for folder in rows}
    for folder in sorted(rows, key=newest.__getitem__, reverse=True):
        changed = time.strftime("%d %b %H:%M", time.localtime(newest[folder]))
        table.add_row(*rows[folder], changed, _size(files, [folder]))
    return table


def _files(folder: Path) -> list[os.stat_result]:
    """The status of every file in a folder. A file that is removed meanwhile is left out."""
    statuses = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                statuses.append(os.lstat(os.path.join(parent, name)))
    return statuses


def _size(files: Files, folders: Iterable[Path]) -> str:
    """What folders take on disk. A file that two trials share counts once."""
    sizes = {(file.st_dev, file.st_ino): file.st_size for folder in folders for file in files[folder]}
    return decimal(sum(sizes.values()))
