"""The identity of a trial, which keys enter it, and how two configs differ."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformer_pl.config import (
    COMPONENTS,
    CORPUS,
    KEYS,
    PLUGINS,
    SIZE_NAMES,
    STACKS,
    Config,
    Plugin,
    effective_sizes,
    without_section,
)

# Of the trainer's keys, these change a result: precision its numbers, val_every too (a validation draws a number from
# the generator of a CPU's dropout, and decode.average averages over validations), the others what is measured.
RESULT_TRAINER_KEYS = ("trainer.precision", "trainer.val_every", "trainer.val_sample", "trainer.tokenised_bleu")
CORE_REVISION = 5  # raised whenever the core's numerics change: older results are then no longer reused


def config_difference(config: Config, base: Config) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, with the value of each; None where a key is not set."""
    return mapping_difference(config.flat(), base.flat())


def mapping_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys in which two mappings differ, with both values; None where a key is missing."""
    return {
        key: (ours.get(key), theirs.get(key))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    }


def describe_difference(config: Config, base: Config) -> str:
    """How a config differs from the base, in short: `h=4`, `N=2 position=LearnedPosition`; `base` where it does not."""
    changes = []
    for key, (value, _) in config_difference(config, base).items():
        if key in _OF_THE_HUB and value is None:
            continue
        if key in _NAMING_THE_CORPUS:
            changes += [name] if (name := f"data={config.data.short_name}") not in changes else []
        elif key in PLUGINS:
            ours, theirs = result_plugins(config).get(key, []), result_plugins(base).get(key, [])
            names = "+".join(one.path.rpartition(".")[2] for one in ours)
            changes += [f"{without_section(key)}={names or None}"] if ours != theirs else []
        elif key in RESULT_TRAINER_KEYS or not (key == "seed" or key.startswith("trainer.")):
            is_class = key in (*COMPONENTS, "data.task")
            changes.append(f"{without_section(key)}={str(value).rpartition('.')[2] if is_class else value}")
    return " ".join(changes) or "base"


def result_plugins(config: Config) -> dict[str, list[Plugin]]:
    """By key, the callbacks and loggers that are part of the identity, as the config says of each."""
    return {
        key: chosen
        for key, plugins in config.trainer.plugins.items()
        if (chosen := [one for one in plugins if one.in_identity])
    }


@dataclass(frozen=True)
class Identity:
    """What a trial depends on, and hashes of it, as 12 hexadecimal digits."""

    inputs: Mapping[str, Any]

    @cached_property
    def trial(self) -> str:
        """Of everything that decides on its result; machines and versions of packages only round differently."""
        return _digest(self.inputs)

    @cached_property
    def weights(self) -> str:
        """The same without the keys that only decoding reads."""
        return _digest({key: value for key, value in self.inputs.items() if key not in _OF_DECODING})


# The fingerprint of the data identifies the dataset better than these keys do.
_OF_THE_CORPUS = tuple(f"data.{key}" for key in CORPUS)
_NAMING_THE_CORPUS = ("data.path", "data.hub", "data.name")
_OF_THE_HUB = ("data.subset", "data.revision")  # None for a corpus that has none, such as a folder
_AS_PRODUCTS = (*(f"model.{k}" for k in (*SIZE_NAMES, *STACKS, "width", "depth")), "optim.max_steps", "optim.duration")
_NOT_INPUTS = {*_OF_THE_CORPUS, "data.name", *_AS_PRODUCTS}
_OF_DECODING = ("decode.beam", "decode.alpha", "decode.extra", "trainer.tokenised_bleu")


def identity(config: Config, fingerprint: Mapping[str, Any], component_sources: Mapping[str, str]) -> Identity:
    """The identity of a trial. Equal identities give equal results and are trained once.

    Keys at their default are left out, so that results stay valid when a key is added. Sizes enter as effective sizes.
    fingerprint: identifies the text. component_sources: for each slot whose component is not the core's, a digest of
    its code.
    """
    inputs = {
        key: value
        for key, value in config.flat().items()
        if value != KEYS.get(key, ...)
        and key not in _NOT_INPUTS
        and (key in RESULT_TRAINER_KEYS or not key.startswith("trainer."))
    }
    inputs |= {key: [one.as_written for one in plugins] for key, plugins in result_plugins(config).items()}
    inputs |= effective_sizes(config) | {"seed": config.seed, "core": CORE_REVISION}
    inputs |= {"data": dict(fingerprint), "parts": dict(component_sources)}
    return Identity(inputs)


def row_identity(config: Config) -> str:
    """The identity of a config without its seed. Rows are equal if their effective sizes and other keys are."""
    text = {key: getattr(config.data, key) for key in CORPUS}
    return identity(config.model_copy(update={"seed": 0}), text, {}).trial


def same_row(config: Config, other: Config) -> bool:
    """Whether two configs are the same row of a table, whatever their seeds: base, if `other` is base."""
    return row_identity(config) == row_identity(other)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
