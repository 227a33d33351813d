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


def list_runs(runs: Path, console: Console) -> None:
    """Print the sweeps, trials and datasets of a runs folder, and what is not needed. Other files are left out."""
    plans = {folder: plan for folder in _folders(runs / "sweeps") if "trials" in (plan := read_plan(folder))}
    trials, datasets = _trials(runs), _datasets(runs)
    files = {folder: _files(folder) for folder in (*plans, *(trial.folder for trial in trials), *datasets)}
    if not files:
        say(console, f"{runs}: no sweep, no trial and no dataset")
        return
    states = {trial.id: trial.state() for trial in trials}
    tables = {
        ("sweep", "trials", "differs by"): {
            folder: _sweep_cells(folder, plan, states) for folder, plan in plans.items()
        },
        ("id", "trial", "state", "score"): {trial.folder: _trial_cells(trial, states) for trial in trials},
        ("dataset", "text"): {folder: [folder.name, meta["corpus"]] for folder, meta in datasets.items()},
    }
    for headings, rows in tables.items():
        if rows:
            table = _table(*headings, "changed", "size")
            for folder in sorted(rows, key=lambda folder: _newest(files[folder]), reverse=True):
                table.add_row(*rows[folder], *_changed_and_size(files[folder]))
            console.print(table, "")
    say(
        console,
        f"{counted(len(trials), 'trial')}, {_size(file for folder in files for file in files[folder])} under {runs}",
    )
    if unneeded := find_unneeded(runs):
        size = _size(file for folder in unneeded for file in files[folder])
        say(console, f"nothing needs these ({size}):")
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


def _changed_and_size(files: list[os.stat_result]) -> tuple[str, str]:
    return time.strftime("%d %b %H:%M", time.localtime(_newest(files))), _size(files)


def _size(files: Iterable[os.stat_result]) -> str:
    """What files take on disk. A file that two trials share counts once."""
    return decimal(sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values()))
