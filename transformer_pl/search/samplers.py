"""Samplers and pruners: what draws the trials of a study, and what ends them early."""

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.pruners import BasePruner

from transformer_pl.levels import parse_scalar, read_pairs
from transformer_pl.runtime.errors import InputError, suggestion
from transformer_pl.search.space import Search
from transformer_pl.task import LOSSES

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


def pruner(search: Search, words: Sequence[str] | None) -> BasePruner:
    """Return the pruner of `--pruner NAME [key=value ...]`, or by default that of the file's `early_terminate`.

    Raises an InputError where no goal is measured during training.
    """
    prunes = words[0] != "none" if words else search.early is not None
    is_scheduled = [name in LOSSES or name.endswith("_sample") for name in search.goals] == [True]
    if prunes and not is_scheduled:
        raise InputError(
            f"{'--pruner' if words else f'{search.path}: early_terminate'}: needs one goal that every validation "
            f"measures, such as val/ppl, but the search is for {', '.join(search.goals)}; change it, or leave it out"
        )
    if words or search.early is None:
        return construct(PRUNERS, words or ["none"], "--pruner")
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=search.early.min_iter, reduction_factor=search.early.eta)


def construct(kinds: Mapping[str, Any], words: Sequence[str], flag: str) -> Any:
    """Construct one of SAMPLERS or PRUNERS from its name and options: `tpe n_startup_trials=5`.

    Raises an InputError that begins with the flag.
    """
    name, *options = words
    if name not in kinds:
        raise InputError(f"{flag} {name}: unknown {flag.removeprefix('--')}{suggestion(name, kinds)}")
    pairs = read_pairs(options, f"{flag} {name}").values
    try:
        return kinds[name](**{key: parse_scalar(value) for key, value in pairs.items()})
    except (TypeError, ValueError, ImportError) as error:
        raise InputError(f"{flag} {' '.join(words)}: {error}") from None
