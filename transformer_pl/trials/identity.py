"""Two configs compared: where they differ, and whether they are the same trial."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_pl.config import KEYS, SIZE_NAMES, SLOTS, Config, effective_sizes, without_section

# Of the trainer's keys, these change a result: precision its numbers, bleu_sample which numbers are measured.
RESULT_TRAINER_KEYS = ("trainer.precision", "trainer.bleu_sample")
CORE_REVISION = 1  # raised whenever the core's numerics change: older results are then no longer reused


def config_difference(config: Config, base: Config) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, with the value of each; None where a key is not set."""
    ours, theirs = config.flat(), base.flat()
    return {
        key: (ours.get(key), theirs.get(key))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    }


def describe_difference(config: Config, base: Config) -> str:
    """What differs from the base, in short: `h=4`, `N=2 position=LearnedPosition`; `base` where nothing does."""
    changes = []
    for key, (value, _) in config_difference(config, base).items():
        if key in RESULT_TRAINER_KEYS or (key != "seed" and not key.startswith("trainer.")):
            name = without_section(key)
            changes.append(f"{name}={str(value).rpartition('.')[2] if name in SLOTS else value}")
    return " ".join(changes) or "base"


class Identity(NamedTuple):
    """`trial`: everything that its result depends on. `weights`: the same less what only decoding reads."""

    trial: str
    weights: str


# The data's fingerprint says what these say of the text, and says it better.
_OF_THE_TEXT = ("data.path", "data.hub", "data.subset", "data.revision")
_AS_PRODUCTS = (*(f"model.{k}" for k in (*SIZE_NAMES, "width", "depth")), "optim.max_steps", "optim.duration")
_OF_DECODING = ("decode.beam", "decode.alpha", "decode.extra")


def identity(config: Config, fingerprint: Mapping[str, Any], part_sources: Mapping[str, str]) -> Identity:
    """Which trial this is: equal identities give equal results, and are trained once.

    Keys at their default are left out, so that a key added later orphans no result; sizes enter as effective sizes.
    `fingerprint` identifies the text, `part_sources` the source of each part that is not the core's.
    """
    enters = {
        key: value
        for key, value in config.flat().items()
        if value != KEYS.get(key, ...)
        and key not in (*_OF_THE_TEXT, *_AS_PRODUCTS)
        and (key in RESULT_TRAINER_KEYS or not key.startswith("trainer."))
    }
    enters |= effective_sizes(config) | {"seed": config.seed, "core": CORE_REVISION}
    enters |= {"data": dict(fingerprint), "parts": dict(part_sources)}
    if config.decode.average > 1:  # the checkpoints that are averaged stand this far apart
        enters["trainer.val_every"] = config.trainer.val_every
    weights = {key: value for key, value in enters.items() if key not in _OF_DECODING}
    return Identity(_digest(enters), _digest(weights))


def row_identity(config: Config) -> str:
    """The same for all seeds of a row, and for rows that multipliers or equal values have made the same."""
    flat = config.flat()
    return identity(config.model_copy(update={"seed": 0}), {key: flat[key] for key in _OF_THE_TEXT}, {}).trial


def same_row(config: Config, other: Config) -> bool:
    """Whether two configs are the same row of a table, whatever their seeds: base, if `other` is base."""
    return row_identity(config) == row_identity(other)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
