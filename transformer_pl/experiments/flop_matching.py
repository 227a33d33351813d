"""Equal budgets: a row that is simply bigger, or trained longer, is no ablation."""

from transformer_pl.config import Config, Model, sizes
from transformer_pl.experiments.cost import ASSUMED_LENGTH, forward_cost


def match_flops(config: Config) -> Config:
    """With `optim.match=flops`: as many steps as cost what `optim.max_steps` steps of the paper's base cost at this
    width and depth, whatever `optim.duration` says. The steps are then stated as if someone had written them. Of the
    same batches of the same vocabulary: rows that differ in these cannot be matched.

    Raises an InputError for a part that does not run, for its operations have to be counted.
    """
    if config.optim.match == "steps":
        return config
    base = Model(width=config.model.width, depth=config.model.depth)
    paid, taken = (
        forward_cost(sizes(model, config.data.vocab_size), 1, ASSUMED_LENGTH, ASSUMED_LENGTH).flops
        for model in (base, config.model)
    )
    stated = {"match": "steps", "duration": 1.0, "max_steps": max(1, round(config.optim.max_steps * paid / taken))}
    return config.model_copy(update={"optim": config.optim.model_copy(update=stated)})
