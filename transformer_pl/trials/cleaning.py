"""`sweep --list` and `sweep --clean`: what a runs folder holds, and what of it can be removed."""

import json
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from transformer_pl.component_sources import changed_files, own_components
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.terminal import ask, counted, say
from transformer_pl.trials.identity import CORE_REVISION
from transformer_pl.trials.index import index_of
from transformer_pl.trials.names import trial_id
from transformer_pl.trials.recognise import (
    SweepPlan,
    is_damaged_file,
    is_data,
    is_trial,
    is_unfinished_data,
    is_unfinished_file,
    reason_to_stay,
    sweep_plan,
)
from transformer_pl.trials.runs_folder import trained_config
from transformer_pl.trials.schemas import main_score
from transformer_pl.trials.trial import Trial


def list_runs(runs: Path, console: Console, queued: Mapping[str, str] | None = None) -> None:
    """Print every sweep and every trial with state, age, size on disk and score. Other programs' files are left out.

    queued: the state, by id, of trials that a launcher has and that may have written nothing yet: `queued`, `running`.
    """
    planned = _planned(runs)
    for path in sorted((runs / "sweeps").glob("*/plan.json")):
        if path.parent not in planned:
            warn(f"{path}: cannot be read: it is damaged or not a plan of this sweep; the sweep is not listed")
    sweeps = sorted(planned, key=lambda folder: _age(_files(folder / "plan.json")), reverse=True)
    index = index_of(runs)
    trials = [Trial(folder) for folder in _folders(runs / "trials") if index.knows(folder) or is_trial(folder)]
    files = {folder: _files(folder) for folder in [*(trial.folder for trial in trials), *sweeps]}
    trials.sort(key=lambda trial: _age(files[trial.folder]), reverse=True)
    if not trials and not sweeps:
        console.print(f"{runs}: no sweep and no trial")
        return
    state_of = {trial.folder.name: trial.state() for trial in trials}
    for name, state in state_of.items():
        if state not in ("done", "diverged"):
            state_of[name] = (queued or {}).get(trial_id(name), state)
    by_id = {trial_id(name): state for name, state in state_of.items()}  # a user may have renamed a trial's folder
    table = _table("sweep", "trials", "age", "differs by")
    for folder in sweeps:
        states = Counter(by_id.get(trial_id(name), "new") for name in planned[folder].trials)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        table.add_row(folder.name, counts, _ago(files[folder]), planned[folder].differs or "")
    console.print(table)
    console.print()
    table = _table("trial", "state", "age", "size", "score")
    for trial in trials:
        result = trial.result()
        score = "{} {:.1f}".format(*main_score(result)) if result else "-"
        name = trial.folder.name
        table.add_row(name, state_of[name], _ago(files[trial.folder]), _bytes(_size(files[trial.folder])), score)
    console.print(table)
    texts = [_files(folder) for folder in _folders(runs / "data") if is_data(folder)]
    total = _size(chain(*files.values(), *texts))
    console.print(
        f"{counted(len(trials), 'trial')}, {_bytes(total)} under {runs}, vocabularies and token arrays included"
    )
    index.save()


class Removable(NamedTuple):
    """A file or folder that nobody needs any more."""

    path: Path
    reason: str  # why nobody needs it
    objection: str | None = None  # why it must not be removed all the same; None: it may be


def clean(runs: Path, console: Console, queued: Collection[str] = ()) -> int:
    """List what is broken, orphaned or superseded, and remove it if the user answers yes. Returns the exit code.

    Raises an InputError where a trial is being trained: other machines may see no lock of the runs folder.
    """
    if training := [trial for trial in _trials(runs) if trial.locked()]:
        raise InputError(
            f"--runs {runs}: cleaning and training exclude each other, but {training[0].folder.name} is being trained; "
            "wait for it"
        )
    candidates = find_removable(runs, queued)
    for item in candidates:
        if item.objection:
            say(console, f"left alone: {item.path.relative_to(runs)} ({item.reason}): {item.objection}")
    waste = [item for item in candidates if not item.objection]
    if not waste:
        console.print(f"{runs}: nothing to clean")
        return 0
    table = _table("what", "why", "size")
    for item in waste:
        table.add_row(str(item.path.relative_to(runs)), item.reason, _bytes(_size(_files(item.path))))
    console.print(table)
    total = _size(file for item in waste for file in _files(item.path))
    if not ask(console, f"Remove all {len(waste)} ({_bytes(total)})?"):
        console.print("nothing was removed")
        return 0
    still_removable = set(find_removable(runs, queued))  # the user may have taken long to answer
    waste = [item for item in waste if item in still_removable]
    removed = 0
    for item in waste:
        try:
            if item.path.is_dir():
                shutil.rmtree(item.path)
            else:
                item.path.unlink(missing_ok=True)
            removed += 1
        except OSError as error:  # such as another user's folder
            say(console, f"left alone: {item.path.relative_to(runs)} ({item.reason}): {error.strerror or error}")
    console.print(f"removed {removed}")
    return int(removed < len(waste))


def find_removable(runs: Path, queued: Collection[str] = ()) -> list[Removable]:
    """Broken, orphaned and superseded files and folders. Call it only while no command works in the runs folder.

    What a command can continue is not listed, and neither are files that this project has not made. A folder that
    holds such files, or lies behind a link, is listed with an objection.

    queued: the ids of trials that a launcher has queued. They stay, also where they have written nothing yet.
    """

    def item(path: Path, reason: str) -> Removable:
        return Removable(path, reason, reason_to_stay(path, runs))

    trials = [trial for trial in _trials(runs) if trial_id(trial.folder.name) not in queued]
    useless = {trial.folder: reason for trial in trials if (reason := _why_broken(trial))}
    newer = "superseded: the same config has a newer result"
    useless |= {trial.folder: newer for trial in _superseded([t for t in trials if t.folder not in useless])}
    waste = [item(folder, reason) for folder, reason in useless.items()]
    for trial in trials:
        if trial.folder not in useless:
            waste += [item(path, reason) for path, reason in _useless_in(trial)]
    removable = {candidate.path for candidate in waste if not candidate.objection}
    kept = [trial for trial in trials if trial.folder not in removable]
    dangling = [path for path in (runs / "trials").glob("*") if path.is_symlink() and not path.exists()]
    corpora = _folders(runs / "data")
    waste += [item(folder, "broken: never finished") for folder in corpora if is_unfinished_data(folder)]
    with_text = {trial_id(folder.name) for folder in _folders(runs / "trials") if Trial(folder).data()}
    all_tell = with_text.issuperset(queued) and all(trial.data() for trial in trials if trial.folder not in useless)
    if all_tell and not dangling:  # which text each trial uses
        # `translate` also accepts a folder that has no trial's name, such as a copy.
        used = {Trial(folder).data() for folder in _folders(runs / "trials") if folder not in removable}
        orphans = [folder for folder in corpora if is_data(folder) and folder.name not in used]
        waste += [item(folder, "orphaned: no trial uses this text") for folder in orphans]
    ids = {trial_id(path.name) for path in (*dangling, *(trial.folder for trial in kept))} | {*queued}
    for folder, plan in _planned(runs).items():
        if ids.isdisjoint(map(trial_id, plan.trials)):
            waste.append(item(folder, "orphaned: none of its trials is left"))
    return waste


def _useless_in(trial: Trial) -> Iterable[tuple[Path, str]]:
    """Files that nobody needs in the folder of a trial that is needed, each with the reason."""
    if trial.result() and (trial.folder / "checkpoints").exists():
        yield trial.folder / "checkpoints", "orphaned: its trial is finished"
    for path in filter(is_damaged_file, sorted(trial.folder.glob("*"))):
        yield path, "damaged: it was set aside"
    for path in filter(is_unfinished_file, sorted(trial.folder.glob(".*"))):
        yield path, "broken: never finished"


def _why_broken(trial: Trial) -> str | None:
    """Why a trial is broken and cannot be continued; None if it is not, or if it can be."""
    status, finished = trial.status(), (trial.folder / "result.json").exists()
    if finished and trial.result() is None and os.access(trial.folder / "result.json", os.R_OK):
        return "broken: its result is damaged"
    if finished or any(trial.folder.glob("checkpoints/*.sha256")):
        return None
    if status["state"] == "failed":
        return f"broken: failed ({status.get('why', 'see its log')})"
    return "broken: never begun" if status["state"] == "new" else None


def _superseded(trials: list[Trial]) -> Iterable[Trial]:
    """Finished trials for which a newer one has the same config and text: a component or the core has changed since.

    A trial of the present core and components is never among them: the next command would use it.
    """
    newest: dict[str, Trial] = {}
    finished = [(trial, result) for trial in trials if (result := trial.result())]
    for trial, result in sorted(finished, key=lambda pair: str(pair[1]["finished"])):
        same = json.dumps([result["scale"], result["config"], trial.data()], sort_keys=True)
        if same in newest and not _is_present(newest[same]):
            yield newest[same]
        newest[same] = trial


def _is_present(trial: Trial) -> bool:
    """Whether the core and the components of a finished trial are those of today."""
    result, inputs = trial.result(), trial.identity_inputs()
    if result is None or inputs is None or inputs["core"] != CORE_REVISION:
        return False
    try:
        model = trained_config(result | {"folder": trial.folder}).model
        return not changed_files(own_components(model).values(), trial.sources)
    except InputError:  # its keys are no longer known
        return False


def _trials(runs: Path) -> list[Trial]:
    return [Trial(folder) for folder in _folders(runs / "trials") if is_trial(folder)]


def _planned(runs: Path) -> dict[Path, SweepPlan]:
    """The folder of each sweep, with its plan."""
    plans = {folder: sweep_plan(folder) for folder in _folders(runs / "sweeps")}
    return {folder: plan for folder, plan in plans.items() if plan is not None}


def _folders(place: Path) -> list[Path]:
    """The folders in a folder, and the links to folders. Raises an InputError if it cannot be read."""
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except NotADirectoryError:
        return []
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not place.is_symlink():
            return []
        raise InputError(f"{place}: must be a folder that can be read, but: {error.strerror}; fix it") from None


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading in ("age", "size", "score") else "left")
    return table


def _age(files: Iterable[os.stat_result]) -> float:
    """Seconds since the newest file was written."""
    return time.time() - max((file.st_mtime for file in files), default=time.time())


def _ago(files: Iterable[os.stat_result]) -> str:
    seconds = _age(files)
    unit, size = next(((u, n) for u, n in (("d", 86400), ("h", 3600), ("min", 60)) if seconds >= 2 * n), ("s", 1))
    return f"{seconds / size:.0f} {unit}"


def _files(path: Path) -> list[os.stat_result]:
    """The status of every file in a folder. A file that is removed meanwhile is left out."""
    statuses = []
    inside = (f"{folder}/{name}" for folder, folders, names in os.walk(path) for name in (*folders, *names))
    for file in inside if path.is_dir() else [path]:
        with suppress(OSError):
            status = os.lstat(file)
            if not stat.S_ISDIR(status.st_mode):
                statuses.append(status)
    return statuses


def _size(files: Iterable[os.stat_result]) -> int:
    """Bytes on disk. A file that two trials share counts once."""
    return sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values())


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
