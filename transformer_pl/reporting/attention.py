"""The attention weights that the page shows: of a few validation sentences, by row and site."""

import base64
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

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


def attention_pictures(sweep: Sweep, shown: Sequence[PlannedTrial], among: int) -> list[dict[str, Any]]:
    """For a few sentences the text, the tokens, and the weights by row and site.

    shown: one trial per row. A row has pictures if it uses the tokenizer of the first one, so that positions are the
    same, its layers report weights, and they can be loaded. among: the sentences are chosen among this number of evenly
    spaced ones.
    """
    sentences: list[tuple[dict[str, Any], Batch]] = []
    for one in shown:
        with suppress(InputError, RuntimeError):  # the text or the weights are not here, or a GPU lacks memory
            sentences = sentences or _short_sentences(shown[0].prepared, among)
            if one.prepared.folder != shown[0].prepared.folder:
                continue
            for (picture, _), by_site in zip(sentences, _weights(one, [batch for _, batch in sentences]), strict=True):
                if by_site:
                    picture["rows"][sweep.rows[one.row].name] = by_site
    return [picture for picture, _ in sentences if picture["rows"]]


def _short_sentences(text: Prepared, among: int) -> list[tuple[dict[str, Any], Batch]]:
    """The sentences of the validation set that are shown: text and tokens, without weights yet, and a batch of each."""
    split, sources = text.split("val"), text.text("val")[0]
    lengths = np.maximum(split.source.lengths, split.target.lengths)
    short = [i for i in evenly_spaced(len(sources), among) if lengths[i] < MAX_LENGTH]
    vocabulary, sentences = text.tokenizer.vocabulary(), []
    for i in short[:ATTENTION_SENTENCES]:
        batch = collate(split, np.array([i]))
        sides = {"source": batch.source[0], "target": batch.target_in[0]}  # the decoder reads the target
        tokens = {side: [vocabulary[token] for token in ids.tolist()] for side, ids in sides.items()}
        sentences.append(({"text": sources[i], "rows": {}} | tokens, batch))
    return sentences


def _weights(one: PlannedTrial, batches: Sequence[Batch]) -> list[dict[str, dict[str, Any]]]:
    """The packed weights of a trial for each batch, by site, empty where no layer reports any. Its model is in memory
    during this call alone."""
    with trained_model(one.config, one.prepared, one.trial) as model:
        maps = [attention_maps(model, batch.source, batch.target_in) for batch in batches]
    return [{site: _pack(torch.cat(layers).cpu()) for site, layers in by_site.items()} for by_site in maps]


def _pack(weights: torch.Tensor) -> dict[str, Any]:
    """weights (layers, heads, queries, keys) from 0 to 1, as base64 of one byte per weight, 255 for 1."""
    layers, heads = weights.shape[:2]
    data = (weights * 255).round().to(torch.uint8).numpy().tobytes()
    return {"layers": layers, "heads": heads, "data": base64.b64encode(data).decode()}
