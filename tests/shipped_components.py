"""The components that the shipped sweeps name."""

from helpers import GRIDS

from transformer_pl.config import SLOTS
from transformer_pl.plan.sweep_file import read_sweep

OF_TRAINING = {"optim.loss", "optim.optimizer", "optim.schedule", "data.batches"}


def components(training=False):
    """By name, the keys of every component that a shipped grid names, and the paper's.

    training: also losses, optimizers, schedules and batches.
    """
    found = {"base": {}}
    slots = {f"model.{slot}" for slot in SLOTS} | (OF_TRAINING if training else set())
    for path in GRIDS:
        for row in read_sweep(path, None, None, {}).rows:
            flat = row.configs[0].flat()
            keys = {key: value for key, value in flat.items() if ".".join(key.split(".")[:2]) in slots}
            found[" ".join(str(value).rpartition(".")[2] for value in keys.values())] = keys
    return found
