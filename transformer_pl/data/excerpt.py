"""A dataset of a few sentences of a text, for a training that only tries whether it runs."""

import itertools
from contextlib import suppress
from pathlib import Path

from transformer_pl.config import ALL_PAIRS, Data
from transformer_pl.data import synthetic
from transformer_pl.data.prepare import Learned, learn_tokenizer, prepared_dataset, write_tokens
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.selection import used_pairs
from transformer_pl.data.tokenizer import FIXED, Tokenizer
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus, Pair, open_corpus, task_of

SENTENCES = {"train": 24, "val": 8, "test": 8}
MERGES = 40  # merges of a vocabulary that is learned from so few sentences


def write_excerpt(data: Data, runs: Path, folder: Path) -> tuple[Tokenizer, list[Pair]]:
    """Write a dataset of a few sentences of the row's own text to `folder/data`, in the tokens of its tokenizer.

    Returns the tokenizer that has made the tokens, and the pairs.
    """
    data = data.model_copy(update={"sets": ()})
    corpus = open_corpus(data)
    prepared = prepared_dataset(data, runs, corpus)
    pairs = {name: _few_pairs(name, count, data, corpus, prepared) for name, count in SENTENCES.items()}
    if prepared.is_counted():
        learned = Learned.of(prepared)
    else:  # a vocabulary that so few sentences allow
        least = FIXED + len(set(itertools.chain.from_iterable(itertools.chain.from_iterable(pairs["train"]))))
        enough = max(least, min(data.vocab_size, least + MERGES))
        for size in (enough, 2 * enough):  # it may have a vocabulary for each language
            with suppress(InputError):
                learned = learn_tokenizer(data.model_copy(update={"vocab_size": size}), lambda: pairs["train"])
                break
        else:
            learned = learn_tokenizer(data, lambda: pairs["train"])  # whose error names the number that was written
    (folder / "data").mkdir()
    data = data.model_copy(update={"vocab_size": len(learned.tokenizer)} | ALL_PAIRS)
    few = Corpus({}, "the sentences of a rehearsal", lambda name: iter(pairs[name]))
    counts = {name: {"pairs": len(pairs[name])} for name in pairs}
    write_tokens(folder / "data", data, few, learned, counts, on_progress=lambda *_: None)
    return learned.tokenizer, list(itertools.chain.from_iterable(pairs.values()))


def _few_pairs(name: str, count: int, data: Data, corpus: Corpus, prepared: Prepared) -> list[Pair]:
    """Sentences of a split: from the text if it can be read here, else from the prepared tokens, else synthetic.

    name: the split.
    count: how many sentences.
    data: the keys of the dataset.
    corpus: the text.
    prepared: the row's dataset, which need not be prepared yet.
    """
    if corpus.is_local:
        return list(itertools.islice(used_pairs(name, corpus, data), count))
    if not prepared.is_counted():
        pairs = synthetic.pairs(name)[:count]
        return pairs if task_of(data).has_source else [("", target) for _, target in pairs]
    split = prepared.split(name)
    chosen = evenly_spaced(len(split.source), count)
    source, target = (prepared.tokenizer.decode(side.take(chosen).rows()) for side in split)
    return list(zip(source, target, strict=True))
