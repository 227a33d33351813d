"""The samplers and pruners of a search, which are Optuna's: by their names, or as the sweep file says."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler

from transformer_pl.config import Component
from transformer_pl.config.components import build
from transformer_pl.config.levels import read_pairs
from transformer_pl.config.types import plain_value
from transformer_pl.runtime.errors import InputError, described, suggestion
from transformer_pl.search.space import Search
from transformer_pl.task import LOSSES

MOST_STARTUP, DRAWN = 60, 2  # trials that `check_drawing` makes, and how many of them the sampler draws

SAMPLERS = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "qmc": optuna.samplers.QMCSampler,
    "cma-es": optuna.samplers.CmaEsSampler,
    "gp": optuna.samplers.GPSampler,
    "nsga-ii": optuna.samplers.NSGAIISampler,
}
PRUNERS = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}


def sampler(search: Search, words: Sequence[str] | None, number: int = 0) -> BaseSampler:
    """Return the sampler of `--sampler NAME [key=value ...]`, or by default that of the file's method.

    number: the number of the trial to draw, by which it gets a seed of its own if the sampler has one (see `seed_of`).
    """
    words = words or ["random" if search.method == "random" else "tpe"]
    if (seed := seed_of(words)) is not None:
        trial_seed = np.random.SeedSequence((seed, number)).generate_state(1)[0]
        words = [f"seed={trial_seed}" if word.startswith("seed=") else word for word in words]
    if words[0] == "cma-es" and len(search.goals) > 1:
        goals = ", ".join(search.goals)
        raise InputError(f"--sampler cma-es: must have one goal, but the search is for {goals}; choose nsga-ii")
    return construct(SAMPLERS, words, "--sampler")


def seed_of(words: Sequence[str] | None) -> int | None:
    """The seed of a sampler; None without one, and for `qmc`, which keeps its place in the study.

    Each trial is drawn with a seed of its own, which is made of this seed and the number of the trial. So the draw does
    not depend on which process makes it; Optuna's own sequence would begin anew in each process.
    """
    name, *options = words or [""]
    seeds = [word.partition("=")[2] for word in options if word.startswith("seed=")]
    return int(seeds[0]) if len(seeds) == 1 and seeds[0].isdecimal() and name != "qmc" else None


def pruner(search: Search, words: Sequence[str] | None) -> BasePruner:
    """Return the pruner of `--pruner NAME [key=value ...]`, or by default that of the file's `early_terminate`.

    Raises an InputError where no goal is measured during training.
    """
    early = search.early_terminate
    prunes = words[0] != "none" if words else early is not None
    is_scheduled = [name in LOSSES or name.endswith("_sample") for name in search.goals] == [True]
    if prunes and not is_scheduled:
        place = "--pruner" if words else f"{search.path}: early_terminate"
        rule = "needs one goal that every validation measures, such as val/ppl"
        raise InputError(f"{place}: {rule}, but the search is for {', '.join(search.goals)}; leave it out")
    if words or early is None:
        return construct(PRUNERS, words or ["none"], "--pruner")
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=early.min_iter, reduction_factor=early.eta)


def construct(kinds: Mapping[str, Any], words: Sequence[str], flag: str) -> Any:
    """Construct one of SAMPLERS or PRUNERS from its name and options: `tpe n_startup_trials=5`."""
    name, *options = words
    if name not in kinds:
        raise InputError(f"{flag} {name}: unknown {flag.removeprefix('--')}{suggestion(name, kinds)}")
    pairs = read_pairs(options, f"{flag} {name}").values
    path = f"{kinds[name].__module__}.{kinds[name].__qualname__}"
    try:
        return build(Component(path=path, options={key: plain_value(value) for key, value in pairs.items()}))
    except InputError as error:
        raise InputError(*(f"{flag} {message.removeprefix(f'{path}: ')}" for message in error.messages)) from None
    except (TypeError, ValueError, ImportError) as error:
        raise InputError(f"{flag} {' '.join(words)}: {error}") from None


def check_drawing(search: Search, sampler: BaseSampler, pruner: BasePruner) -> None:
    """Draw trials of a study in memory. Raises an InputError where Optuna cannot.

    Random trials come first, because some of a sampler's arguments are used only after its start-up trials.
    """
    study = optuna.create_study(directions=list(search.goals.values()), sampler=RandomSampler(0), pruner=pruner)
    study.enqueue_trial(search.base_draw)
    try:
        for number in range(MOST_STARTUP):
            if number == MOST_STARTUP - DRAWN:
                study.sampler = sampler
            trial = study.ask(dict(search.space))
            if len(search.goals) == 1:
                for step in (1, 2, 3):
                    trial.report(float(number), step)
                    trial.should_prune()
            study.tell(trial, [float(number + goal) for goal in range(len(search.goals))])
    except Exception as error:  # whatever Optuna raises
        raise InputError(
            f"--sampler, --pruner: must draw trials, but fail at {described(error)}; change them"
        ) from None
