"""Makes the config that is trained from what the user wrote, for every command that plans or trains a trial."""

from collections.abc import Iterable

from transformer_pl.config import Config, Model, sizes
from transformer_pl.config.components import check_components, without_defaults
from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.tokenizer import tokenizer_settings
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import check_task
from transformer_pl.tasks.translation import tokeniser
from transformer_pl.trials.flops import ASSUMED_LENGTH, forward_costs, loss_flops


def trial_config(levels: Iterable[Level]) -> Config:
    """The config that is trained: the levels merged, lowest first, and its steps matched to the budget.

    Raises an InputError that lists every mistake of the keys, or else every mistake of the components and the task.
    """
    config = resolve(levels)
    if mistakes := mistakes_of_parts(config):
        raise InputError(*mistakes)
    return as_trained(config)


def mistakes_of_parts(config: Config, whole: bool = True) -> list[str]:
    """The mistakes of the components and the task: their import, their signature, their options.

    whole: whether options without a default must be given.
    """
    mistakes = check_components(config, whole)
    for check in (lambda: check_task(config), lambda: tokenizer_settings(config.data)):
        try:
            check()
        except InputError as error:
            mistakes += [message for message in error.messages if message not in mistakes]
    return mistakes


def as_trained(config: Config) -> Config:
    """A config without mistakes as it is trained: its steps matched to the budget.

    Options of components that have their defaults are left out, as they make no other trial, and so is the tokeniser
    that the target language has by itself.
    """
    plain = config.with_values({"data.bleu": None})
    return match_flops(without_defaults(plain if config.data.bleu == tokeniser(plain.data) else config))


def check_match(passes: Iterable[tuple[str, float | None]]) -> None:
    """Raise an InputError for rows whose FLOPs optim.match=flops cannot match, as it counts one pass for each batch.

    passes: the name of each row, and how many passes it computes for each of the core's batches; None: not known.
    """
    rule = "must compute one pass of the model for each of the core's batches with optim.match=flops, as it counts one"
    found = {name: "how many is not known" if n is None else f"computes {n:g}" for name, n in passes if n != 1}
    if found:
        raise InputError(*(f"row `{name}`: {rule}, but {what}; leave it out" for name, what in found.items()))


def match_flops(config: Config) -> Config:
    """Return a config with `optim.match=flops` replaced by the number of steps that it stands for.

    These are as many steps as cost what `optim.max_steps` steps of the paper's base cost at this width and depth;
    `optim.duration` is ignored. The base is assumed to have the same vocabulary and the same batches.

    Raises an InputError for a component that does not run, because its operations have to be counted.
    """
    if config.optim.match == "steps":
        return config
    kind = config.model.N_encoder and None  # None: the base's own encoder; 0: none, as here
    base = Model(width=config.model.width, depth=config.model.depth, N_encoder=kind)
    models = base, config.model
    passes = [(sizes(model, config.data.vocab_size), 1, ASSUMED_LENGTH, ASSUMED_LENGTH) for model in models]
    base_cost, cost = forward_costs(passes)
    flops = cost.flops + loss_flops(config.optim, *passes[1])
    steps = max(1, round(config.optim.max_steps * base_cost.flops / flops))
    return config.with_values({"optim.match": "steps", "optim.duration": 1.0, "optim.max_steps": steps})
