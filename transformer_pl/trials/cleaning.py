"""Looking back over a runs folder: what lies there, and what of it is of no more use."""

import json
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.recognise import (
    is_data,
    is_trial,
    is_unfinished_data,
    is_unfinished_file,
    planned_trials,
    reason_to_stay,
)
from transformer_pl.trials.trial import Trial


def list_runs(runs: Path, console: Console) -> None:
    """Every sweep and every trial: state, age, size on disk, score. What this project has not made is left out."""
    planned = _planned(runs)
    sweeps = sorted(planned, key=lambda folder: _age(folder / "plan.json"), reverse=True)
    trials = sorted(_trials(runs), key=lambda trial: _age(trial.folder), reverse=True)
    if not trials and not sweeps:
        console.print(f"{runs}: no sweep and no trial")
        return
    state_of = {trial.folder.name: trial.status()["state"] for trial in trials}
    table = _table("sweep", "trials", "age")
    for folder in sweeps:
        states = Counter(state_of.get(name, "new") for name in planned[folder])
        table.add_row(folder.name, ", ".join(f"{count} {state}" for state, count in states.items()), _ago(folder))
    console.print(table)
    console.print()
    table = _table("trial", "state", "age", "size", "val/bleu")
    for trial in trials:
        result = trial.result()
        bleu = ((result or {}).get("metrics") or {}).get("val/bleu")
        score = "-" if bleu is None else f"{bleu:.1f}"
        name = trial.folder.name
        table.add_row(name, state_of[name], _ago(trial.folder), _bytes(_size([trial.folder])), score)
    console.print(table)
    whole = _size([*(trial.folder for trial in trials), *sweeps, *filter(is_data, _folders(runs / "data"))])
    console.print(f"{len(trials)} trials, {_bytes(whole)} under {runs}, vocabularies and token arrays among it")


class Removable(NamedTuple):
    path: Path
    why: str
    stays: str | None = None  # why it may not be removed; None: it may


def clean(runs: Path, console: Console) -> int:
    """List what is broken, orphaned or superseded; remove it when the answer is yes."""
    candidates = find_removable(runs)
    for item in candidates:
        if item.stays:
            console.print(f"left alone: {item.path.relative_to(runs)} ({item.why}): {item.stays}", soft_wrap=True)
    waste = [item for item in candidates if not item.stays]
    if not waste:
        console.print(f"{runs}: nothing to clean")
        return 0
    table = _table("what", "why", "size")
    for item in waste:
        table.add_row(str(item.path.relative_to(runs)), item.why, _bytes(_size([item.path])))
    console.print(table)
    console.print(f"Remove {len(waste)}, {_bytes(_size(item.path for item in waste))} in all? [y/N] ", end="")
    try:
        answer = input()
    except EOFError:
        answer = ""
        console.print()
    if answer.strip().lower() not in ("y", "yes"):
        console.print("nothing was removed")
        return 0
    still = set(find_removable(runs))  # the answer may have taken a while
    waste = [item for item in waste if item in still]
    for item in waste:
        if item.path.is_dir():
            shutil.rmtree(item.path)
        else:
            item.path.unlink(missing_ok=True)
    console.print(f"removed {len(waste)}")
    return 0


def find_removable(runs: Path) -> list[Removable]:
    """What nobody will ask for again; not what the same command continues. Nothing may be at work there.

    Files that this project has not made are no waste; what holds some of them, or lies behind a link, stays.
    """

    def item(path: Path, why: str) -> Removable:
        return Removable(path, why, reason_to_stay(path, runs))

    trials = _trials(runs)
    useless = {trial.folder: why for trial in trials if (why := _why_broken(trial))}
    newer = "superseded: the same config has a newer result"
    useless |= {trial.folder: newer for trial in _superseded([t for t in trials if t.folder not in useless])}
    waste = [item(folder, why) for folder, why in useless.items()]
    for trial in trials:
        if trial.folder not in useless:
            waste += [item(path, why) for path, why in _useless_in(trial)]
    gone = {candidate.path for candidate in waste if not candidate.stays}
    kept = [trial for trial in trials if trial.folder not in gone]
    lost = [path for path in (runs / "trials").glob("*") if path.is_symlink() and not path.exists()]
    corpora = _folders(runs / "data")
    waste += [item(folder, "broken: never finished") for folder in corpora if is_unfinished_data(folder)]
    if not lost and all(trial.data() for trial in trials if trial.folder not in useless):
        # A folder that is no trial by its name, such as a copy, may be translated with all the same.
        used = {Trial(folder).data() for folder in _folders(runs / "trials") if folder not in gone}
        orphans = [folder for folder in corpora if is_data(folder) and folder.name not in used]
        waste += [item(folder, "orphaned: no trial is of this text") for folder in orphans]
    names = {path.name for path in (*lost, *(trial.folder for trial in kept))}
    for folder, planned in _planned(runs).items():
        if not names & set(planned):
            waste.append(item(folder, "orphaned: none of its trials is left"))
    return waste


def _useless_in(trial: Trial) -> Iterable[tuple[Path, str]]:
    """What is of no more use in the folder of a trial that is."""
    if trial.result() and (trial.folder / "checkpoints").exists():
        yield trial.folder / "checkpoints", "orphaned: its trial is finished"
    for path in filter(is_unfinished_file, sorted(trial.folder.glob(".*"))):
        yield path, "broken: never finished"


def _why_broken(trial: Trial) -> str | None:
    """Why a trial is of no use, and nothing goes on from it; None where that is not so."""
    status, finished = trial.status(), (trial.folder / "result.json").exists()
    if finished and trial.result() is None and os.access(trial.folder / "result.json", os.R_OK):
        return "broken: its result is damaged"
    if finished or any(trial.folder.glob("checkpoints/*.sha256")):
        return None
    if status["state"] == "failed":
        return f"broken: failed ({status.get('why', 'see its log')})"
    return "broken: never begun" if status["state"] == "new" else None


def _superseded(trials: list[Trial]) -> Iterable[Trial]:
    """Finished trials of which a newer one says the same of the same text: a part or the core has changed since."""
    newest: dict[str, Trial] = {}
    finished = [(trial, result) for trial in trials if (result := trial.result())]
    whole = [(trial, result) for trial, result in finished if {"scale", "config", "finished"} <= result.keys()]
    for trial, result in sorted(whole, key=lambda pair: str(pair[1]["finished"])):
        same = json.dumps([result["scale"], result["config"], trial.data()], sort_keys=True)
        if same in newest:
            yield newest[same]
        newest[same] = trial


def _trials(runs: Path) -> list[Trial]:
    return [Trial(folder) for folder in _folders(runs / "trials") if is_trial(folder)]


def _planned(runs: Path) -> dict[Path, list[str]]:
    """The folder of each sweep, and those of its trials by name."""
    plans = {folder: planned_trials(folder) for folder in _folders(runs / "sweeps")}
    return {folder: planned for folder, planned in plans.items() if planned is not None}


def _folders(place: Path) -> list[Path]:
    """The folders in one, links to folders among them. Raises an InputError where it cannot be read."""
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except NotADirectoryError:
        return []
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not place.is_symlink():
            return []
        raise InputError(f"{place}: must be a folder that can be read, but: {error.strerror}; mend it") from None


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(
            heading, overflow="fold", justify="right" if heading in ("age", "size", "val/bleu") else "left"
        )
    return table


def _age(path: Path) -> float:
    """Seconds since anything in it was written."""
    return time.time() - max((file.st_mtime for file in _files(path)), default=time.time())


def _ago(path: Path) -> str:
    seconds = _age(path)
    unit, size = next(((u, n) for u, n in (("d", 86400), ("h", 3600), ("min", 60)) if seconds >= 2 * n), ("s", 1))
    return f"{seconds / size:.0f} {unit}"


def _files(path: Path) -> list[os.stat_result]:
    """Of every file in it; one that goes while we look is not there."""
    found = []
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(OSError):
            status = file.lstat()
            if not stat.S_ISDIR(status.st_mode):
                found.append(status)
    return found


def _size(paths: Iterable[Path]) -> int:
    """Bytes on disk; a file that two trials share counts once."""
    return sum({(file.st_dev, file.st_ino): file.st_size for path in paths for file in _files(path)}.values())


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
