"""Interventions: what is changed of a trained model before it is scored (`decode.intervention`)."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng

from transformer_pl.config import Config
from transformer_pl.config.components import build_derived
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError, described
from transformer_pl.runtime.signals import component_code


class Intervention:
    """What `decode.intervention` names is derived from this class, and built as `Class(**options)`."""

    def __call__(self, model: Transformer) -> None:
        """Change the model in place."""
        raise NotImplementedError


class Unchanged(Intervention):
    """The model as it was trained."""

    def __call__(self, model: Transformer) -> None:
        return


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let the random numbers of torch, numpy and Python begin with a seed. Afterwards they go on as if none were drawn.

    A training on a CPU takes no GPU.
    """
    with isolate_rng(include_cuda=torch.cuda.is_initialized()):
        for begin in (torch.manual_seed, np.random.seed, random.seed):
            begin(seed)
        yield


def intervene(model: Transformer, config: Config) -> None:
    """Change a trained model in place as its config says, and leave it in evaluation mode.

    Random numbers begin with the trial's seed, so that the same trial is always the same model. Raises an InputError
    that names the intervention.
    """
    component, key = config.decode.intervention, "decode.intervention"
    place = f"{key} = {component.path}"
    model.eval()
    with seeded(config.seed):
        change = build_derived(key, component, Intervention)
        try:
            with component_code(), torch.no_grad():
                returned = change(model)
        except InputError as error:
            raise InputError(*(f"{place}: {message}" for message in error.messages)) from None
        except Exception as error:
            raise InputError(f"{place}: must change the model, but fails at {described(error)}; fix it") from None
    model.eval()  # the intervention may have put other layers in place
    if returned is not None:
        rule = f"must change the model in place and return nothing, but returns {type(returned).__name__}"
        raise InputError(f"{place}: {rule}; change the model that it is given")
