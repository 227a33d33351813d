"""The trials in a runs folder: all that are finished, and the one that a user names."""

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transformer_pl.config import CORPUS, KEYS, Config, Data, is_known_key
from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import parse_json, read_bytes, read_json, reading
from transformer_pl.task import SPLITS, Corpus, open_corpus
from transformer_pl.trials.records import LookRecord, LooksPlan, SweepPlan
from transformer_pl.trials.result import FILE as RESULT
from transformer_pl.trials.result import Result
from transformer_pl.trials.trial_folder import TrialFolder, trial_id

DECIDE_ANEW = "put back what has changed; or remove this file and those of later looks, to decide anew"
MOST_LISTED = 20  # trials in a message


class RunsFolder:
    """The trials of a runs folder. A command makes one: it lists the folder once, and reads each result once."""

    def __init__(self, path: Path):
        self.path = path
        self._folders: dict[str, TrialFolder] = {}  # by name
        self._weights: dict[str, list[TrialFolder]] = {}  # by the id of the weights, the finished trials that have them
        self._finished: set[str] = set()  # the names of these

    def trial(self, name: str) -> TrialFolder:
        """The folder of the trial with the id in this name, whatever a user has made of what stands before the id.

        Where there is none, it has the first name that was asked for: a trial may be that of several rows.
        """
        return self._by_id.setdefault(trial_id(name), self._folder(name))

    def with_id(self, id_: str) -> TrialFolder | None:
        """The folder of the trial with this id; None where there was none when the runs folder was listed, and none
        was asked for."""
        return self._by_id.get(id_)

    def finished(self) -> list[tuple[TrialFolder, Result]]:
        """The finished trials, as far as they were there when the runs folder was listed, with their results."""
        return [(folder, result) for folder in self.trials if (result := folder.result())]

    def with_weights(self, weights: str) -> list[TrialFolder]:
        """The trials with the weights of this id that have finished until now. It reads the results that are new."""
        for folder in map(self._folder, self._names()):
            if folder.name not in self._finished and folder.result():
                self._finished.add(folder.name)
                self._weights.setdefault(folder.weights_id, []).append(folder)
        return self._weights.get(weights, [])

    def like(self, folder: TrialFolder) -> list[TrialFolder]:
        """The trials whose folders are called like this one, but for the id."""
        return self._by_row.get(folder.name.rpartition("-")[0], [])

    @cached_property
    def trials(self) -> Sequence[TrialFolder]:
        """What lay in `trials` when the runs folder was listed, by name."""
        return [self._folder(name) for name in self._names()]

    @cached_property
    def _by_id(self) -> dict[str, TrialFolder]:
        return {folder.id: folder for folder in reversed(self.trials)}

    @cached_property
    def _by_row(self) -> dict[str, list[TrialFolder]]:
        rows: dict[str, list[TrialFolder]] = {}
        for folder in self.trials:
            rows.setdefault(folder.name.rpartition("-")[0], []).append(folder)
        return rows

    def _folder(self, name: str) -> TrialFolder:
        return self._folders.setdefault(name, TrialFolder(self.path / "trials" / name))

    def _names(self) -> list[str]:
        """The names of what lies in `trials` now."""
        try:
            return sorted(os.listdir(self.path / "trials"))
        except OSError:
            return []


def corpus_of_trials(data: Data, runs: RunsFolder) -> Corpus:
    """The corpus that `data` names, or, where it is not on this machine, what finished trials have recorded of it.

    That is its fingerprint, which is enough to find these trials. Those with all settings of `data` know it best, then
    those with the same text. Raises the InputError of `open_corpus` where no trial has recorded it, and another one
    where such trials have recorded different ones.
    """
    try:
        return open_corpus(data)
    except InputError:
        keys = [f"data.{key}" for key in ("task", *CORPUS, "sets", "source", "target", *SPLITS)]
        wanted = {key: value for key, value in Config(data=data).flat().items() if key.startswith("data.")}
        same: dict[str, tuple[dict[str, Any], str]] = {}  # by its JSON: a fingerprint, and a trial that has it
        alike: dict[str, tuple[dict[str, Any], str]] = {}
        for folder, result in runs.finished():
            other = {key for key, value in wanted.items() if (KEYS | result.config).get(key) != value}
            if other.isdisjoint(keys) and (fingerprint := folder.identity().get("data")) is not None:
                found = alike if other else same
                found[json.dumps(fingerprint, sort_keys=True)] = fingerprint, folder.name
        known = same or alike
        if not known:
            raise
        if len(known) > 1:
            rule = "is not here, and finished trials were trained on different ones of this name"
            names = " and ".join(name for _, name in known.values())
            raise InputError(
                f"data.path = {data.path}, data.hub = {data.hub}: {rule}: {names}; separate them by --runs"
            ) from None
        ((fingerprint, _),) = known.values()
        return Corpus(fingerprint, "a dataset that is not here", lambda split: iter(()), is_local=False)


def find(runs: Path, name: str) -> tuple[TrialFolder, Result]:
    """The one finished trial that `name` identifies. Raises an InputError unless there is exactly one.

    name: `SWEEP/ROW/sSEED`, such as `table3-A/h=4/s1`; a folder or a part of its name; or an id.
    """
    folder = Path(os.path.abspath(name))  # not resolved: a link belongs to the runs folder that it lies in
    if os.path.exists(folder / RESULT):  # False for a name that no file can have
        finished, name = RunsFolder(folder.parent.parent).finished(), folder.name
    else:
        finished = RunsFolder(runs).finished()
    ids = {name, *_ids_in_sweeps(runs, name)}
    exact = [(folder, result) for folder, result in finished if result.id in ids or folder.name == name]
    matching = exact or [(folder, result) for folder, result in finished if name in folder.name]
    if len(matching) == 1:
        return matching[0]
    names = [folder.name for folder, _ in matching or finished]
    more = f" and {len(names) - MOST_LISTED} more: see --list" if len(names) > MOST_LISTED else ""
    raise InputError(
        f"TRIAL {name}: must name one finished trial under {runs}, but {len(matching)} match; give SWEEP/ROW/sSEED, "
        f"such as table3-A/h=4/s1, or a folder or an id of these: {', '.join(names[:MOST_LISTED]) or 'none'}{more}"
    )


def trained_config(folder: TrialFolder, result: Result, changes: Mapping[str, Any] | None = None) -> Config:
    """The config in the result of a trial, with changes from the command line. Raises an InputError for invalid ones.

    It imports none of the classes that the result names.
    """
    known = {key: value for key, value in result.config.items() if is_known_key(key)}
    set_keys = {key: value for key, value in known.items() if value is not None or key not in KEYS}
    return resolve([Level(str(folder), set_keys), Level("command line", changes or {})])


def read_plan(folder: Path) -> dict[str, Any]:
    """The content of the plan.json of a sweep's folder; empty where there is none that can be read."""
    return read_json(folder / "plan.json", SweepPlan)


def begun_plan(folder: Path) -> dict[str, Any]:
    """The content of the plan.json of a sweep's folder, if something of it has been trained; empty before."""
    plan, trials = read_plan(folder), folder.parent.parent / "trials"
    has_begun = any((trials / trial["folder"]).exists() for trial in plan.get("trials", ()) if "folder" in trial)
    return plan if has_begun else {}


def begun_looks(folder: Path) -> dict[Path, LooksPlan | None]:
    """By file, the looks that were planned when the training of a sweep began: of plan.json, and of each look.

    Raises an InputError for a look's file that cannot be read.
    """
    begun: dict[Path, LooksPlan | None] = {path: read_look(path)["plan"] for path in sorted(folder.glob("look_*.json"))}
    plan = read_plan(folder)
    return begun | ({folder / "plan.json": plan.get("looks")} if plan else {})


def read_look(path: Path) -> LookRecord:
    """The file of a look. Raises an InputError where it cannot be read."""
    with reading(path, DECIDE_ANEW):
        return parse_json(read_bytes(path), LookRecord)


def _ids_in_sweeps(runs: Path, name: str) -> set[str]:
    """The ids of the trials that `SWEEP/ROW/sSEED` names; a sweep by its name, or by its folder, such as table3-A@demo.

    Without `/sSEED` they are those of every seed of the row.
    """
    ids = set()
    for path in (runs / "sweeps").glob("*/plan.json"):
        plan = read_plan(path.parent)
        for trial in plan.get("trials", []):
            rows = [f"{sweep}/{trial.get('row')}" for sweep in (plan.get("name"), path.parent.name)]
            if name in (*rows, *(f"{row}/s{trial.get('seed')}" for row in rows)):
                ids.add(trial.get("id"))
    return ids
