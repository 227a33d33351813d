"""Equal budgets: a row that is simply bigger, or trained longer, is no ablation."""

from transformer_pl.config import Config, Model, sizes
from transformer_pl.experiments.cost import ASSUMED_LENGTH, forward_cost


def match_flops(config: Config) -> Config:
    """Return a config with `optim.match=flops` replaced by the number of steps that it stands for.

    These are as many steps as cost what `optim.max_steps` steps of the paper's base cost at this width and depth;
    `optim.duration` is ignored. The result is the config of a user who wrote that number. The base is assumed to have
    the same vocabulary and the same batches, so rows that differ in these cannot be matched.

    Raises an InputError for a component that does not run, because its operations have to be counted.
    """
    if config.optim.match == "steps":
        return config
    base = Model(width=config.model.width, depth=config.model.depth)
    base_flops, flops = (
        forward_cost(sizes(model, config.data.vocab_size), 1, ASSUMED_LENGTH, ASSUMED_LENGTH).flops
        for model in (base, config.model)
    )
    stated = {
        "match": "steps",
        "duration": 1.0,
        "max_steps": max(1, round(config.optim.max_steps * base_flops / flops)),
    }
    return config.model_copy(update={"optim": config.optim.model_copy(update=stated)})
