"""What a model is built from: the sizes of a config with its multipliers applied, and its components."""

from typing import Any

from transformer_pl.config.keys import (
    COMPONENTS,
    SIZE_NAMES,
    Component,
    Config,
    Model,
    Section,
    flat_section,
    without_section,
)
from transformer_pl.config.types import Count, Natural, multiplied

STACKS = ("N_encoder", "N_decoder")


class Site(str):
    """Where in the model a component is: `encoder`, `decoder` or `cross`, in which layer, around which sub-layer."""

    layer: int | None  # from 0; None for what is in no layer, such as a position
    sublayer: int | None  # of a residual: which sub-layer of the layer it wraps, from 0; None for other components

    def __new__(cls, name: str, layer: int | None = None, sublayer: int | None = None) -> "Site":
        site = super().__new__(cls, name)
        site.layer, site.sublayer = layer, sublayer
        return site


class Sizes(Model):
    """What a component is built from: a model whose multipliers are applied, with what was unset and the vocabulary."""

    N_encoder: Natural  # 0: the model is a decoder alone
    N_decoder: Count
    d_k: Count
    d_v: Count
    vocab_size: Natural

    def _replace(self, **values: Any) -> "Sizes":
        """The same with other values, as a named tuple gives them."""
        return self.model_copy(update=values)

    def with_layers(self, N: int) -> "Sizes":
        """The same with N layers in each stack that it has."""
        return self._replace(N=N, N_encoder=N if self.N_encoder else 0, N_decoder=N)


def sizes(model: Model, vocab_size: int) -> Sizes:
    """The effective sizes of a model that keeps the constraints (see `resolve`)."""
    d_model = multiplied(model.d_model, model.width)
    effective = {
        "N": multiplied(model.N, model.depth),
        "N_encoder": multiplied(model.N if model.N_encoder is None else model.N_encoder, model.depth),
        "N_decoder": multiplied(model.N_decoder or model.N, model.depth),
        "d_model": d_model,
        "d_ff": multiplied(model.d_ff, model.width),
        "d_k": d_model // model.h if model.d_k is None else multiplied(model.d_k, model.width),
        "d_v": d_model // model.h if model.d_v is None else multiplied(model.d_v, model.width),
    }
    return Sizes(**dict(model) | effective | {"width": 1.0, "depth": 1.0, "vocab_size": vocab_size})


def custom_components(section: Section) -> dict[str, Component]:
    """By slot, such as `ffn`, the components of a section that are not the paper's."""
    defaults = type(section).model_fields
    components = {slot: value for slot, value in section if isinstance(value, Component)}
    return {slot: component for slot, component in components.items() if component != defaults[slot].default}


def custom_components_by_key(config: Config) -> dict[str, Component]:
    """By key, such as `model.ffn` or `optim.optimizer`, the components of a config that are not the paper's."""
    components = {key: getattr(getattr(config, key.partition(".")[0]), without_section(key)) for key in COMPONENTS}
    return {key: component for key, component in components.items() if component != COMPONENTS[key]}


def effective_sizes(config: Config) -> dict[str, int]:
    """The sizes and steps of a config with its multipliers applied, under `effective.*`."""
    effective = dict(sizes(config.model, 0))
    names = [*SIZE_NAMES, *(key for key in STACKS if effective[key] != effective["N"])]
    return {f"effective.{key}": effective[key] for key in names} | {"effective.max_steps": config.steps}


def nominal_sizes(model: Model) -> dict[str, Any]:
    """The model's keys in the paper's numbers: d_k and d_v filled in, the multipliers left out."""
    values = flat_section("model", model)
    for key in ("model.d_k", "model.d_v"):
        values[key] = values[key] or model.d_model // model.h
    return {key: value for key, value in values.items() if key not in ("model.width", "model.depth")}
