"""A language model: texts are read, and the loss of each says how well the model predicts them.

The model is the decoder of Figure 1 alone (`model.N_encoder=0`). A line is a document; one that is longer than
`data.max_length` is cut into consecutive pieces, which are one unit of the statistics.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from transformer_pl.config import Config, Data
from transformer_pl.data.files import folder_corpus
from transformer_pl.data.hub import hub_corpus
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus, Measure, Scores, Task

SYNTHETIC = {"en": 0, "de": 1}  # the sides of the synthetic corpus


def bits_per_byte(sums: np.ndarray) -> np.ndarray:
    """The loss in bits for each byte of text. sums (..., 3): bytes, nats, tokens."""
    return sums[..., 1] / math.log(2) / sums[..., 0]


class LanguageModel(Task):
    """Documents and their loss per byte, which is comparable between models with different tokenizers."""

    measure = Measure(
        "bpb", "bits/byte", 1, bits_per_byte, of_loss=True, highest=math.inf, lower_is_better=True, digits=3
    )
    described = "bits/byte is the loss of the text, and of its ends, in bits for each of its bytes in UTF-8"
    text = "one side of the synthetic corpus"
    has_source = False
    unit = "line"

    def corpus(self, data: Data) -> Corpus:
        """The documents of a folder, else of a dataset of the hub, else sentences of the synthetic corpus.

        If the dataset is for translation, the documents are its sentences in `data.target`.
        """
        if data.path is not None:
            corpus = folder_corpus(data.path, data, has_source=False)
        else:
            corpus = _synthetic(data) if data.hub is None else hub_corpus(data, has_source=False)
        return replace(corpus, fingerprint=corpus.fingerprint | {"text": data.target})

    def score(self, hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
        """The number of bytes of each document, and one for its end. The evaluation adds their loss, by the model."""
        return Scores({}, [[len(document.encode()) + 1] for document in references], "utf-8, one byte for each end")

    def sides(self, data: Data) -> tuple[str, str]:
        return "the beginning of a text", "its continuation"


def _synthetic(data: Data) -> Corpus:
    """One side of the synthetic corpus, with more sentences than a translator is trained on."""
    from transformer_pl.data import synthetic

    if data.target not in SYNTHETIC:
        ours = "must be en or de, as in the synthetic corpus; name your own text with data.path=FOLDER"
        raise InputError(f"data.target = {data.target}: {ours}")
    side = SYNTHETIC[data.target]
    return Corpus(
        {"corpus": "synthetic", "version": synthetic.VERSION, "train": synthetic.LARGE["train"]},
        f"sentences of the synthetic corpus in {data.target}, version {synthetic.VERSION}",
        lambda split: (("", pair[side]) for pair in synthetic.pairs(split, large=True)),
    )
