"""What the user wrote becomes a `Config`: keys and their types, the levels that are merged, sweep files, scales.

Components and tasks outside of this project may import what this module names.
"""

from transformer_pl.config.help import unknown_key
from transformer_pl.config.keys import (
    CLEANING,
    COMPONENTS,
    CORPUS,
    COUNTS,
    KEYS,
    SIZE_NAMES,
    SLOTS,
    Component,
    Config,
    Data,
    Decode,
    Model,
    Optim,
    Section,
    Trainer,
    is_known_key,
    slot_of_key,
    without_section,
)
from transformer_pl.config.sizes import (
    BOS,
    EOS,
    PAD,
    STACKS,
    UNK,
    Site,
    Sizes,
    effective_sizes,
    is_papers,
    nominal_sizes,
    not_papers,
    replaced,
    sizes,
)
from transformer_pl.config.types import Count, Positive
