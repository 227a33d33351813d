"""How long an epoch of a prepared text is. Needs no torch, so that a plan can say it."""

from functools import cache
from typing import NamedTuple

import numpy as np

from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokens import pairs_that_fit


class Epoch(NamedTuple):
    """One pass over the training pairs that fit."""

    batches: float  # to within a few per cent: it knows no batch of pairs of several lengths
    target_tokens: int  # EOS included, padding not


@cache
def epoch(prepared: Prepared, batch_tokens: int, max_length: int) -> Epoch:
    """The epoch of a text with batches of `batch_tokens` tokens per language, padding included.

    A batch holds pairs of about one length L, as many as fit: the whole part of batch_tokens / L.
    """
    source, target = (tokens.lengths_with_special for tokens in prepared.split("train"))
    fits = pairs_that_fit(source, target, batch_tokens, max_length)
    longer = np.maximum(source, target)[fits]
    return Epoch(float((1 / (batch_tokens // longer)).sum()), int(target[fits].sum()))
