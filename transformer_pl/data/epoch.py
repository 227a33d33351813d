"""How long an epoch of a prepared text is. Needs no torch, so that a plan can say it."""

from functools import cache
from typing import NamedTuple

import numpy as np

from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.errors import InputError


class Epoch(NamedTuple):
    """One pass over the training pairs that fit."""

    batches: float  # to within a few per cent: it knows no batch of pairs of several lengths
    target_tokens: int  # EOS included, padding not


def pairs_that_fit(
    source_lengths: np.ndarray, target_lengths: np.ndarray, batch_tokens: int, max_length: int
) -> np.ndarray:
    """True for each pair that is trained on: both sentences fit `max_length`, and a batch of their own."""
    return np.maximum(source_lengths, target_lengths) <= min(max_length, batch_tokens)


def nothing_fits_error(longer: np.ndarray, batch_tokens: int, max_length: int) -> InputError:
    """longer: the length of the longer sentence of each training pair, at least one, with its special token."""
    return InputError(
        f"data.max_length = {max_length}, data.batch_tokens = {batch_tokens}: some training pair must fit both, "
        f"but the shortest of {len(longer)} has {longer.min()} tokens, EOS included; raise them"
    )


@cache
def epoch(prepared: Prepared, batch_tokens: int, max_length: int) -> Epoch:
    """The epoch of a text with batches of `batch_tokens` tokens per language, padding included.

    A batch holds pairs of about one length L, as many as fit: the whole part of batch_tokens / L. Raises an InputError
    where the text is damaged.
    """
    source, target = (tokens.lengths_with_special for tokens in prepared.split("train"))
    fits = pairs_that_fit(source, target, batch_tokens, max_length)
    longer = np.maximum(source, target)[fits]
    return Epoch(float((1 / (batch_tokens // longer)).sum()), int(target[fits].sum()))
