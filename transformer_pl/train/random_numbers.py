"""The states of the random number generators of torch, numpy and Python."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """The state of every random number generator, in plain types, which checkpoints can load."""
    name, keys, *rest = np.random.get_state(legacy=True)
    numbers = (name, np.asarray(keys).tolist(), *rest)
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # a training on a CPU takes no GPU
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": numbers, "cuda": cuda}


def restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if state["cuda"] is not None and torch.cuda.is_initialized():  # a trial may continue on another device
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def same_random_numbers(seed: int | None = None) -> Iterator[None]:
    """Whatever is drawn within this context, the numbers that are drawn after it are the same.

    seed: that the numbers within begin with; None: with those that come next.
    """
    state = random_state()
    try:
        for begin in (torch.manual_seed, np.random.seed, random.seed) if seed is not None else ():
            begin(seed)
        yield
    finally:
        restore_random_state(state)
