"""The results of a search: a record of every trial, the best first."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from transformer_pl.config.levels import OF_SEEDS
from transformer_pl.config.types import SEEDS, as_word
from transformer_pl.plan.shared_options import TableOptions, sweep_folder
from transformer_pl.plan.sweep_file import LONGEST_NAME
from transformer_pl.runtime.command_line import refuse_options
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.search import study as studies
from transformer_pl.search.space import Search
from transformer_pl.search.study import counted_trials, shown_number
from transformer_pl.task import Corpus
from transformer_pl.trials.identity import row_identity
from transformer_pl.trials.result import exemptions
from transformer_pl.trials.runs_folder import RunsFolder, corpus_of_trials
from transformer_pl.trials.trial_folder import trial_id

BEST, FRONT = "best", "front"  # the states of the best trials, for one goal and several; see also `state_of`
OUTDATED = "outdated"  # the state of a trial whose code or text is no longer that of the file; it is drawn again
ENDED = ("done", "pruned", "diverged", "infeasible")  # the states of trials that need no training
ORDER = (BEST, FRONT, "done", "pruned", "diverged")  # the order of states in the table; other states follow
FRESH_SEEDS = 3  # with which the best trials are trained again
BEST_FILE = "best.yaml"  # with which they are trained


class SearchResults:
    """The trials of a study: the best first (all that share the best value, or the Pareto front), then the others."""

    def __init__(self, search: Search, study: optuna.Study, runs: Path):
        self.search, self.study, self.runs = search, study, runs
        self._folders = RunsFolder(runs)
        self.metrics = list(dict.fromkeys([*search.goals, "params"]))
        trials = counted_trials(study)
        self.outdated = {trial.number for trial in trials if self._is_outdated(trial)}
        if self.outdated:  # their values are not compared, neither here nor in figures
            self.study = optuna.create_study(directions=study.directions)
            self.study.add_trials(studies.without_outdated(study, self.outdated))
        front = [trial.values for trial in self.study.best_trials]
        states = {trial.number: self.state_of(trial) for trial in trials}
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

    def state_of(self, trial: FrozenTrial) -> str:
        """The state of a trial: `outdated`, that on the disk if the study has it as running, or that of the study."""
        if trial.number in self.outdated:
            return OUTDATED
        name = trial.user_attrs.get(studies.FOLDER)
        if name and trial.state == TrialState.RUNNING:
            return str(self._folders.trial(name).state())
        return studies.state_of(trial)

    @cached_property
    def _corpus(self) -> Corpus:
        """The text of all trials, which need not be here."""
        return corpus_of_trials(self.search.base.data, self._folders)

    def _is_outdated(self, trial: FrozenTrial) -> bool:
        """Whether a trial has ended with code, or a text, that is no longer that of the file."""
        name = trial.user_attrs.get(studies.FOLDER)
        if not name or trial.state not in (TrialState.COMPLETE, TrialState.PRUNED):
            return False
        corpus = self._corpus
        try:
            return self.search.trial(trial.params, corpus, self._folders).id != trial_id(name)
        except InputError:  # such as an option that its class no longer has
            return True

    def _rank(self, trial: FrozenTrial, state: str) -> tuple[int, float]:
        """The place of a trial in the table: by state, and then by the value of the first goal."""
        sign = 1 if next(iter(self.search.goals.values())) == "minimize" else -1
        if state not in ORDER:
            return len(ORDER), shown_number(trial)
        return ORDER.index(state), sign * trial.values[0] if trial.values else shown_number(trial)

    def _record(self, trial: FrozenTrial, state: str) -> dict[str, Any]:
        name = trial.user_attrs.get(studies.FOLDER)
        on_disk = self._folders.trial(name) if name else None  # whatever its folder is called now
        result = on_disk.result() if on_disk else None
        is_counted = state not in ("diverged", OUTDATED)  # the infinity of a diverged trial is for Optuna
        values = trial.values or [] if is_counted else []
        taken = self.search.taken(trial.params)
        known = {"params": result and result.params} | dict(zip(self.search.goals, values, strict=False))
        return {
            "trial": shown_number(trial),
            "base": studies.BASE in trial.user_attrs,
            "state": state,
            **{key: taken.get(key) for key in self.search.space},
            **{metric: known.get(metric) for metric in self.metrics},
            "exempt": "; ".join(exemptions([result] if result else [])) or None,
            "folder": on_disk.name if on_disk else None,
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


def find_results(
    file: Path, content: dict[str, Any], options: TableOptions, planned: bool = False
) -> SearchResults | None:
    """The results of the search that a sweep file describes; None where it has none, if it is only `planned`.

    Raises an InputError for a search without trials, and for options that are for grids.
    """
    refuse_options(options, ["base", "paper", *OF_SEEDS], f"is for the rows of a grid, but {file} searches")
    search = studies.search_from_options(file, content, options)
    with studies.answering_database():
        study = studies.find_study(search, sweep_folder(search, options), options.storage)
        results = SearchResults(search, study, options.runs) if study else None
    if not planned and not (results and results.records):
        remedy = "train it: python -m transformer_pl.sweep, with the same options"
        raise InputError(f"{file}: must have trials, but none was drawn yet; {remedy}")
    return results
