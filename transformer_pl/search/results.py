"""The results of a search: a record of every trial, the best first."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from transformer_pl.config.types import as_word
from transformer_pl.plan.shared_options import OF_SEEDS, TableOptions, sweep_folder
from transformer_pl.plan.sweep_file import LONGEST_NAME, read_sweep
from transformer_pl.runtime.command_line import refuse_options
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.search import study as studies
from transformer_pl.search.space import Search
from transformer_pl.search.study import counted_trials, shown_number, state_of
from transformer_pl.trials.identity import row_identity
from transformer_pl.trials.result import exemptions
from transformer_pl.trials.trial import Trial

BEST, FRONT = "best", "front"  # the states of the best trials, for one goal and several; see also `state_of`
ORDER = (BEST, FRONT, "done", "pruned", "diverged")  # the order of states in the table; other states follow
SEEDS = 2**32  # that there are
FRESH_SEEDS = 3  # with which the best trials are trained again
BEST_FILE = "best.yaml"  # with which they are trained


class SearchResults:
    """The trials of a study: the best first (all that share the best value, or the Pareto front), then the others."""

    def __init__(self, search: Search, study: optuna.Study, runs: Path):
        self.search, self.study, self.runs = search, study, runs
        self.metrics = list(dict.fromkeys([*search.goals, "params"]))
        trials, front = counted_trials(study), [trial.values for trial in study.best_trials]
        states = {trial.number: state_of(trial) for trial in trials}
        for trial in trials:
            if states[trial.number] == "done" and trial.values in front:
                states[trial.number] = FRONT if len(search.goals) > 1 else BEST
        self.trials = sorted(trials, key=lambda trial: self._rank(trial, states[trial.number]))
        # What results.csv and plan.json have of each trial. A metric is None if it was not measured, or diverged.
        self.records = [self._record(trial, states[trial.number]) for trial in self.trials]

    @cached_property
    def best_sweep(self) -> dict[str, Any] | None:
        """The content of a sweep file with base and the best trials; None where base is the best."""
        chosen = zip(self.trials, self.records, strict=True)
        return sweep_of(self.search, [trial.params for trial, record in chosen if record["state"] in (BEST, FRONT)])

    @cached_property
    def why_not_trained(self) -> Sequence[str]:
        """Why the sweep command would refuse `best_sweep`; nothing where it would not."""
        return why_not_trained(self.best_sweep)

    def _rank(self, trial: FrozenTrial, state: str) -> tuple[int, float]:
        """The place of a trial in the table: by state, and then by the value of the first goal."""
        sign = 1 if next(iter(self.search.goals.values())) == "minimize" else -1
        rank = ORDER.index(state) if state in ORDER else len(ORDER)
        return rank, sign * trial.values[0] if trial.values else shown_number(trial)

    def _record(self, trial: FrozenTrial, state: str) -> dict[str, Any]:
        name = trial.user_attrs.get(studies.FOLDER)
        on_disk = Trial.at(self.runs, name) if name else None  # whatever its folder is called now
        result = on_disk.result() if on_disk else None
        values = [] if state == "diverged" else trial.values or []  # the infinity of a diverged trial is for Optuna
        taken = self.search.taken(trial.params)
        known = {"params": result and result.params} | dict(zip(self.search.goals, values, strict=False))
        return {
            "trial": shown_number(trial),
            "base": studies.BASE in trial.user_attrs,
            "state": state,
            **{key: taken.get(key) for key in self.search.space},
            **{metric: known.get(metric) for metric in self.metrics},
            "exempt": "; ".join(exemptions([result] if result else [])) or None,
            "folder": on_disk.folder.name if on_disk else None,
        }


def sweep_of(search: Search, draws: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The content of a sweep file with base and drawn trials, with seeds that the search has not used; None where all
    are as base.

    A trial was chosen by its score, which is therefore too good. Only other seeds can say how good it is.
    """
    of_base, seen, variants = search.config({})[1], {row_identity(search.base)}, list[str]()
    for drawn in draws:
        config, keys = search.config(drawn)
        if (identity := row_identity(config)) not in seen:  # base and a drawn config may be equal
            seen.add(identity)
            # An option is written beside its class, which would otherwise begin without it.
            changed = {key for key, value in keys.items() if key not in of_base or of_base[key] != value}
            own = [key for key in keys if key in changed or key.rpartition(".")[0] in changed]
            variants.append(" ".join(f"{key}={as_word(keys[key])}" for key in own))
    if not variants:
        return None
    other_sets = f"-{value_digest(search.sets, 6)}" if search.sets else ""  # other --set, other table
    fixed = {"scale": search.scale, **of_base}
    return {
        "program": "transformer_pl/train/__main__.py",
        "name": f"{search.name[: LONGEST_NAME - 12]}-best{other_sets}",
        "project": search.project,
        "method": "grid",
        "parameters": {
            **{key: {"value": value} for key, value in fixed.items()},
            "variant": {"values": ["base", *variants]},
            "seed": {"values": fresh_seeds(search)},
        },
    }


def fresh_seeds(search: Search) -> list[int]:
    """Seeds that a search has not used."""
    return [(search.seed + n) % SEEDS for n in range(1, FRESH_SEEDS + 1)]


def why_not_trained(content: dict[str, Any] | None) -> Sequence[str]:
    """Why the sweep command would refuse a file with the content of `sweep_of`; nothing where it would not."""
    try:
        if content:
            read_sweep(Path(BEST_FILE), content=content)
    except InputError as error:
        return error.messages
    return ()


def without_best(search: Search) -> Sequence[str]:
    """Why best.yaml could not be trained with certain draws of a search, each of them alone."""
    contents = []
    for drawn in search.single_draws():
        with suppress(InputError):  # no valid config, which is not trained
            contents.append(sweep_of(search, [drawn]))
    return list(dict.fromkeys(mistake for content in contents for mistake in why_not_trained(content)))


def find_results(file: Path, content: dict[str, Any], options: TableOptions, planned: bool = False) -> tuple[Any, Any]:
    """The search that a sweep file describes, and its results; None where it has none, if it is only `planned`.

    Raises an InputError for a search without trials, and for options that are for grids.
    """
    refuse_options(options, ["base", "paper", *OF_SEEDS], f"is for the rows of a grid, but {file} searches")
    search = studies.search_from_options(file, content, options)
    study = studies.find_study(search, sweep_folder(search, options), options.storage)
    results = study and SearchResults(search, study, options.runs)
    if not planned and not (results and results.records):
        remedy = "train it: python -m transformer_pl.sweep, with the same options"
        raise InputError(f"{file}: must have trials, but none was drawn yet; {remedy}")
    return search, results
