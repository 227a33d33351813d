"""The finished trials in a runs folder."""

import json
import os
from pathlib import Path
from typing import Any

from transformer_pl.config import CORPUS, KEYS, Config, Data
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_json
from transformer_pl.task import SPLITS, Corpus, open_corpus
from transformer_pl.trials.records import SweepPlan
from transformer_pl.trials.result import Result, read_result
from transformer_pl.trials.trial import Trial

MOST_LISTED = 20  # trials in a message


def finished_trials(runs: Path) -> list[tuple[Trial, Result]]:
    """All finished trials in a runs folder, with their results."""
    folders = [path.parent for path in sorted((runs / "trials").glob("*/result.json"))]
    return [(Trial(folder, found=result), result) for folder in folders if (result := read_result(folder))]


def corpus_of_trials(data: Data, runs: Path) -> Corpus:
    """The corpus that `data` names, or, where it is not on this machine, what finished trials have recorded of it.

    That is its fingerprint, which is enough to find these trials. Those with all settings of `data` know it best, then
    those with the same text. Raises the InputError of `open_corpus` where no trial has recorded it, and another one
    where such trials have recorded different ones.
    """
    try:
        return open_corpus(data)
    except InputError:
        keys = [f"data.{key}" for key in ("task", *CORPUS, "source", "target", *SPLITS)]
        wanted = {key: value for key, value in Config(data=data).flat().items() if key.startswith("data.")}
        same: dict[str, tuple[dict[str, Any], str]] = {}  # by its JSON: a fingerprint, and a trial that has it
        alike: dict[str, tuple[dict[str, Any], str]] = {}
        for trial, result in finished_trials(runs):
            other = {key for key, value in wanted.items() if (KEYS | result.config).get(key) != value}
            if other.isdisjoint(keys) and "data" in trial.identity.inputs:
                fingerprint = trial.identity.inputs["data"]
                found = alike if other else same
                found[json.dumps(fingerprint, sort_keys=True)] = fingerprint, trial.folder.name
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


def find(runs: Path, name: str) -> Trial:
    """The one finished trial that `name` identifies. Raises an InputError unless there is exactly one.

    name: `SWEEP/ROW/sSEED`, such as `table3-A/h=4/s1`; a folder or a part of its name; or an id.
    """
    finished = finished_trials(runs)
    folder = Path(os.path.abspath(name))  # not resolved: a link belongs to the runs folder that it lies in
    if os.path.exists(folder / "result.json"):  # False for a name that no file can have
        finished, name = finished_trials(folder.parent.parent), folder.name
    ids = {name, *_ids_in_sweeps(runs, name)}
    exact = [trial for trial, result in finished if result.id in ids or trial.folder.name == name]
    matching = exact or [trial for trial, _ in finished if name in trial.folder.name]
    if len(matching) == 1:
        return matching[0]
    names = [trial.folder.name for trial in matching or [trial for trial, _ in finished]]
    more = f" and {len(names) - MOST_LISTED} more: see --list" if len(names) > MOST_LISTED else ""
    raise InputError(
        f"TRIAL {name}: must name one finished trial under {runs}, but {len(matching)} match; give SWEEP/ROW/sSEED, "
        f"such as table3-A/h=4/s1, or a folder or an id of these: {', '.join(names[:MOST_LISTED]) or 'none'}{more}"
    )


def read_plan(folder: Path) -> dict[str, Any]:
    """The content of the plan.json of a sweep's folder; empty where there is none that can be read."""
    return read_json(folder / "plan.json", SweepPlan)


def begun_plan(folder: Path) -> dict[str, Any]:
    """The content of the plan.json of a sweep's folder, if something of it has been trained; empty before."""
    plan, trials = read_plan(folder), folder.parent.parent / "trials"
    has_begun = any((trials / trial["folder"]).exists() for trial in plan.get("trials", ()) if "folder" in trial)
    return plan if has_begun else {}


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
