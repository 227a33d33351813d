"""From what the user wrote to the config that is trained. Every command that plans or trains a trial goes this way."""

from collections.abc import Iterable

from transformer_pl.components import check_components, without_defaults
from transformer_pl.config import Config
from transformer_pl.experiments.flop_matching import match_flops
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import check_task


def trial_config(levels: Iterable[Level]) -> Config:
    """Merge the levels, lowest first, check the components, and match the number of steps to the budget.

    Raises an InputError that lists every mistake of the keys, or else every mistake of the components.
    """
    return as_trained(resolve(levels))


def as_trained(config: Config) -> Config:
    """Check the components and the task of a config that was resolved, and match its steps to the budget.

    Options of components that have their defaults are left out, as they make no other trial.
    """
    if mistakes := [*check_components(config.model), *check_task(config.data)]:
        raise InputError(*mistakes)
    return match_flops(config.model_copy(update={"model": without_defaults(config.model)}))
