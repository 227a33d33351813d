"""Turns what the user wrote into a `Config`: the keys and their types, the scales, and the levels that are merged.

A level is one source of settings, such as a scale or the command line. Components and tasks outside of this project may
import what this module names.
"""

from transformer_pl.config.help import unknown_key
from transformer_pl.config.keys import (
    ALL_PAIRS,
    COMPONENTS,
    CORPUS,
    EXTENSIONS,
    KEYS,
    SIZE_NAMES,
    WITH_OPTIONS,
    Config,
    Data,
    Decode,
    Model,
    Optim,
    TestSet,
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
from transformer_pl.config.types import Callback, Component, Count, Extension, Natural, Positive, Rate, Section
from transformer_pl.config.vocabulary import BOS, EOS, PAD, UNK
