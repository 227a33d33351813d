"""What the user wrote becomes a `Config`: keys and their types, the levels that are merged, sweep files, scales.

Components and tasks outside of this project may import what this module names.
"""

from transformer_pl.config.help import unknown_key
from transformer_pl.config.keys import (
    COMPONENTS,
    CORPUS,
    KEYS,
    PLUGINS,
    SIZE_NAMES,
    SLOTS,
    WITH_OPTIONS,
    Config,
    Data,
    Decode,
    Model,
    Optim,
    Trainer,
    is_known_key,
    is_option,
    without_section,
)
from transformer_pl.config.sizes import (
    STACKS,
    Site,
    Sizes,
    custom_components,
    custom_components_by_key,
    effective_sizes,
    nominal_sizes,
    sizes,
)
from transformer_pl.config.types import Callback, Component, Count, Natural, Plugin, Positive, Rate, Section
from transformer_pl.config.vocabulary import BOS, EOS, PAD, UNK
