"""Interventions: what is changed of a trained model before it is scored (`decode.intervention`)."""

import torch

from transformer_pl.config import Config
from transformer_pl.config.components import build_derived
from transformer_pl.model import Transformer
from transformer_pl.runtime.errors import InputError, described
from transformer_pl.runtime.signals import component_code
from transformer_pl.train.random_numbers import same_random_numbers


class Intervention:
    """What `decode.intervention` names is derived from this class, and built as `Class(**options)`."""

    def __call__(self, model: Transformer) -> None:
        """Change the model in place."""
        raise NotImplementedError


class Unchanged(Intervention):
    """The model as it was trained."""

    def __call__(self, model: Transformer) -> None:
        return


def intervene(model: Transformer, config: Config) -> None:
    """Change a trained model in place as its config says, and leave it in evaluation mode.

    Random numbers begin with the trial's seed, so that the same trial is always the same model. Raises an InputError
    that names the intervention.
    """
    component, key = config.decode.intervention, "decode.intervention"
    place = f"{key} = {component.path}"
    model.eval()
    with same_random_numbers(config.seed):
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
