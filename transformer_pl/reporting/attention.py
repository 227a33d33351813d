"""The attention weights that the page shows: of a few validation sentences, by row and site."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from transformer_pl.data.batches import Batch, collate
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.evaluation.evaluate import attention_maps, trained_model
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.runtime.errors import InputError

ATTENTION_SENTENCES = 4  # whose attention is shown
MAX_LENGTH = 40  # tokens of a sentence whose attention is shown, in either language


SiteWeights = dict[str, dict[str, Any]]  # packed weights by site


class Sentence(NamedTuple):
    """A sentence whose attention is shown."""

    text: str
    batch: Batch  # of this sentence alone
    tokens: Mapping[str, list[str]]  # `source` and `target`


def attention_pictures(
    sweep: Sweep, shown: Sequence[PlannedTrial], among: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """For a few sentences the text, the tokens, and the weights by row and site; and by the names of rows without any,
    why.

    shown: one trial per row. Rows must use the tokenizer of the first one, so that positions are the same. among: the
    sentences are chosen among this number of evenly spaced ones.
    """
    if not shown:
        return [], {}
    names, text = [sweep.rows[one.row].name for one in shown], shown[0].prepared
    try:
        sentences = _short_sentences(text, among)
    except InputError as error:
        return [], dict.fromkeys(names, str(error))
    weights: dict[str, list[SiteWeights]] = {}  # by row
    errors: dict[str, str] = {}
    for name, one in zip(names, shown, strict=True):
        try:
            weights[name] = _weights(one, text, sentences)
        except (InputError, RuntimeError) as error:  # such as a GPU without memory
            errors[name] = str(error)
    if not weights:
        return [], errors
    by_sentence = zip(sentences, *weights.values(), strict=True)
    return [
        {"text": sentence.text, "rows": dict(zip(weights, of_rows, strict=True))} | sentence.tokens
        for sentence, *of_rows in by_sentence
    ], errors


def _short_sentences(text: Prepared, among: int) -> list[Sentence]:
    """The sentences of the validation set that are shown. Raises an InputError where none is short enough."""
    split, sources = text.split("val"), text.text("val")[0]
    lengths = np.maximum(split.source.lengths, split.target.lengths)
    short = [i for i in evenly_spaced(len(sources), among) if lengths[i] < MAX_LENGTH]
    if not short:
        raise InputError(f"of {among} sentences, none has fewer than {MAX_LENGTH} tokens")
    batches = {i: collate(split, np.array([i])) for i in short[:ATTENTION_SENTENCES]}
    vocabulary = text.tokenizer.vocabulary()
    return [Sentence(sources[i], batch, _tokens(vocabulary, batch)) for i, batch in batches.items()]


def _tokens(vocabulary: Sequence[str], batch: Batch) -> dict[str, list[str]]:
    """The tokens of the source and of what the decoder reads, as text."""
    token_ids = {"source": batch.source[0], "target": batch.target_in[0]}
    return {side: [vocabulary[token] for token in ids.tolist()] for side, ids in token_ids.items()}


def _weights(one: PlannedTrial, text: Prepared, sentences: Sequence[Sentence]) -> list[SiteWeights]:
    """The weights of a trial for each sentence. Its model is in memory during this call alone.

    Raises an InputError where its tokenizer is another, its file of weights is damaged, or no layer reports weights.
    """
    if one.prepared.folder != text.folder:
        raise InputError("its tokenizer is another")
    one.trial.intact("weights.pt")
    with trained_model(one.config, text, one.trial) as model:
        maps = [attention_maps(model, batch.source, batch.target_in) for _, batch, _ in sentences]
    if not any(maps):
        raise InputError("its layers do not report attention weights")
    return [{site: _pack(torch.cat(layers).cpu()) for site, layers in by_site.items()} for by_site in maps]


def _pack(weights: torch.Tensor) -> dict[str, Any]:
    """weights (layers, heads, queries, keys) from 0 to 1, as base64 of one byte per weight, 255 for 1."""
    layers, heads = weights.shape[:2]
    data = (weights * 255).round().to(torch.uint8).numpy().tobytes()
    return {"layers": layers, "heads": heads, "data": base64.b64encode(data).decode()}
