"""Where text comes from (Section 5.1): the synthetic corpus, a folder, or a dataset of the hub.

A corpus is read as a stream, as often as needed. An error in it names the file and the line.
"""

from collections.abc import Iterator

from transformer_pl.config import Data
from transformer_pl.data.files import folder_corpus
from transformer_pl.data.hub import hub_corpus, local_copy
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus, Pair


def parallel_text(data: Data) -> Corpus:
    """Return the sentences in two languages that `data` names. Their text is not read yet.

    Raises an InputError if something is missing or ambiguous."""
    if data.source == data.target:
        raise InputError(f"data.source = {data.source}: must differ from data.target, but does not; set one of them")
    if data.path is not None:
        return folder_corpus(data.path, data)
    if data.hub is None:
        return _synthetic(data)
    copy = local_copy(data)
    return folder_corpus(copy, data) if copy else hub_corpus(data)


def _synthetic(data: Data) -> Corpus:
    from transformer_pl.data import synthetic

    if {data.source, data.target} != {"en", "de"}:
        raise InputError(
            f"data.source = {data.source}, data.target = {data.target}: must be en and de, the languages of the "
            f"synthetic corpus; name your own text with data.path=FOLDER"
        )

    def pairs(split: str) -> Iterator[Pair]:
        from_german = data.source == "de"
        return ((de, en) if from_german else (en, de) for en, de in synthetic.pairs(split))

    fingerprint = {"corpus": "synthetic", "version": synthetic.VERSION}
    return Corpus(fingerprint, f"the synthetic corpus, version {synthetic.VERSION}", pairs)
