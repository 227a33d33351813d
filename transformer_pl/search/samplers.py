"""Samplers and pruners: what draws the trials of a study, and what ends them early."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from transformer_pl.levels import parse_scalar
from transformer_pl.runtime.errors import InputError, suggestion
from transformer_pl.search.space import SCHEDULED, Search, is_scheduled
from transformer_pl.search.states import VALID_CONFIG

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


def sampler(search: Search, words: Sequence[str] | None) -> BaseSampler:
    """Return the sampler of `--sampler NAME [key=value ...]`, or by default that of the file's method."""
    return construct(SAMPLERS, words or ["random" if search.method == "random" else "tpe"], "--sampler")


def pruner(search: Search, words: Sequence[str] | None) -> BasePruner:
    """Return the pruner of `--pruner NAME [key=value ...]`, or by default that of the file's `early_terminate`.

    Raises an InputError where no goal is measured during training.
    """
    if words and words[0] != "none" and not is_scheduled(search.goals):
        raise InputError(
            f"--pruner {words[0]}: needs one metric that is logged on the schedule ({SCHEDULED}), but "
            f"{search.path} searches for {', '.join(search.goals)}; search for one of these, or leave it out"
        )
    if words or search.early is None:
        return construct(PRUNERS, words or ["none"], "--pruner")
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=search.early.first, reduction_factor=search.early.eta)


def construct(kinds: Mapping[str, Any], words: Sequence[str], flag: str) -> Any:
    """Construct one of SAMPLERS or PRUNERS from its name and options: `tpe n_startup_trials=5`.

    Raises an InputError that begins with the flag.
    """
    name, *options = words
    if name not in kinds:
        raise InputError(f"{flag} {name}: unknown {flag.removeprefix('--')}{suggestion(name, kinds)}")
    pairs = [option.partition("=") for option in options]
    if bare := [option for option, (_, _, value) in zip(options, pairs, strict=True) if not value]:
        raise InputError(f"{flag} {name}: {bare[0]}: must be key=value")
    if repeated := [key for key, count in Counter(key for key, _, _ in pairs).items() if count > 1]:
        raise InputError(f"{flag} {' '.join(words)}: {repeated[0]} must be given once; leave out one of them")
    try:
        return kinds[name](**{key: parse_scalar(value) for key, _, value in pairs})
    except (TypeError, ValueError, ImportError) as error:
        raise InputError(f"{flag} {' '.join(words)}: {error}") from None


def try_out(search: Search, sampler_words: Sequence[str] | None, pruner_words: Sequence[str] | None) -> None:
    """Draw twelve trials in memory: Optuna refuses some options, and misses some packages, only when it draws."""
    study = optuna.create_study(
        sampler=sampler(search, sampler_words),
        pruner=pruner(search, pruner_words),
        directions=list(search.goals.values()),
    )
    try:
        for number in range(12):
            trial = study.ask(dict(search.space))
            trial.set_constraint(VALID_CONFIG, 0.0)
            if len(search.goals) == 1:
                trial.report(number, 1)
                trial.should_prune()
            study.tell(trial, [float(number)] * len(search.goals))
    except Exception as error:  # any error would end the search
        raise InputError(
            f"--sampler or --pruner: must have options that Optuna can draw with, but: {error}; correct them, or "
            "install what is missing"
        ) from None
