"""The finished trials in a runs folder."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_pl.config import KEYS, Config, is_known_key
from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import read_json
from transformer_pl.trials.records import SweepPlan
from transformer_pl.trials.trial import Trial

MOST_LISTED = 20  # trials in a message


def trained_config(result: dict[str, Any], changes: Mapping[str, Any] | None = None) -> Config:
    """The config that a finished trial was trained with; `changes` of the command line over it.

    result: of `finished_results`. Raises an InputError for changes that are no valid config.
    """
    known = {key: value for key, value in result["config"].items() if is_known_key(key)}
    set_keys = {key: value for key, value in known.items() if value is not None or key not in KEYS}
    return resolve([Level(str(result["folder"]), set_keys), Level("command line", changes or {})])


def finished_results(runs: Path) -> list[dict[str, Any]]:
    """The results of all finished trials in a runs folder, each with the path of its folder as `folder`."""
    folders = sorted(path.parent for path in (runs / "trials").glob("*/result.json"))
    return [result | {"folder": folder} for folder in folders if (result := Trial(folder).result())]


def find(runs: Path, name: str) -> dict[str, Any]:
    """The result of the one finished trial that `name` identifies. Raises an InputError unless there is exactly one.

    name: `SWEEP/ROW/sSEED`, such as `table3-A/h=4/s1`; a folder or a part of its name; or an id.
    """
    results = finished_results(runs)
    folder = Path(os.path.abspath(name))  # not resolved: a link belongs to the runs folder that it lies in
    if os.path.exists(folder / "result.json"):  # False for a name that no file can have
        results, name = finished_results(folder.parent.parent), folder.name
    ids = {name, *_ids_in_sweeps(runs, name)}
    exact = [r for r in results if r["id"] in ids or r["folder"].name == name]
    matching = exact or [r for r in results if name in r["folder"].name]
    if len(matching) == 1:
        return matching[0]
    names = [r["folder"].name for r in matching or results]
    more = f" and {len(names) - MOST_LISTED} more: see --list" if len(names) > MOST_LISTED else ""
    raise InputError(
        f"TRIAL {name}: must name one finished trial under {runs}, but {len(matching)} match; give SWEEP/ROW/sSEED, "
        f"such as table3-A/h=4/s1, or a folder or an id of these: {', '.join(names[:MOST_LISTED]) or 'none'}{more}"
    )


def read_plan(folder: Path) -> dict[str, Any]:
    """The content of the plan.json of a sweep's folder; empty where there is none that can be read."""
    return read_json(folder / "plan.json", SweepPlan)


def _ids_in_sweeps(runs: Path, name: str) -> set[str]:
    """The ids of the trials that `SWEEP/ROW/sSEED` names; a sweep by its name, or by its folder, such as table3-A@demo.

    Without `/sSEED` every seed of the row.
    """
    ids = set()
    for path in (runs / "sweeps").glob("*/plan.json"):
        plan = read_plan(path.parent)
        for trial in plan.get("trials", []):
            rows = [f"{sweep}/{trial.get('row')}" for sweep in (plan.get("name"), path.parent.name)]
            if name in (*rows, *(f"{row}/s{trial.get('seed')}" for row in rows)):
                ids.add(trial.get("id"))
    return ids
