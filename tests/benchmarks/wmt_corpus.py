"""A corpus of random text with the size and the layout of WMT 2014, for what cannot be downloaded:

    python tests/benchmarks/wmt_corpus.py DIR [--pairs 4500000] [--subset de-en]

writes DIR/wmt14/de-en/{train,validation,test}-00000-of-0000N.parquet as the Hugging Face hub has them: a column
`translation` of structs with both languages, in row groups of 1,000. `export TRANSFORMER_PL_DATA=DIR` lets scale wmt14
read it. The text means nothing. Its words follow Zipf's law, its lengths those of WMT: 25 words a sentence in the mean,
with a long tail. A word's translation is the word of the same rank. One pair in a hundred occurs again, and one in a
thousand has an empty sentence.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

WORDS = 600_000  # different words of each language
EVALUATION = {"validation": 3000, "test": 3003}  # newstest2013 and newstest2014
SHARDS = 3  # of the training split, as on the hub
CHUNK = 50_000  # pairs made at a time
ROW_GROUP = 1000
MEAN_WORDS, SPREAD, MOST_WORDS = 25.0, 0.65, 400  # lengths are log-normal
REPEATED, EMPTY = 0.01, 0.001
PUNCTUATION = [",", ".", "-", "(", ")", '"', "'", ":", ";", "%"]  # as words: the most frequent ones
RARE = 3000  # words that hold a character of their own: names in other scripts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--pairs", type=int, default=4_500_000, help="of the training split (%(default)s)")
    parser.add_argument("--subset", default="de-en", help="both languages; English is one of them (%(default)s)")
    options = parser.parse_args()
    print(write_corpus(options.folder, options.pairs, options.subset))


def write_corpus(
    folder: Path, pairs: int, subset: str = "de-en", words: int = WORDS, evaluation: Mapping[str, int] = EVALUATION
) -> Path:
    """Write the corpus below `folder` and return the folder of its files. The same arguments give the same text."""
    place = folder / "wmt14" / subset
    place.mkdir(parents=True, exist_ok=True)
    for split, count in evaluation.items():
        write_table(place / f"{split}-00000-of-00001.parquet", text(split, count, subset, words))
    share = -(-pairs // SHARDS)
    for shard in range(SHARDS):
        count = min(share, pairs - shard * share)
        name = f"train-{shard:05}-of-{SHARDS:05}.parquet"
        write_table(place / name, text(f"train {shard}", count, subset, words))
    return place


def write_table(path: Path, columns: Iterator[pa.StructArray]) -> None:
    """Write a parquet file with the one column `translation`."""
    writer = None
    for column in columns:
        table = pa.table({"translation": column})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=ROW_GROUP)
    if writer:
        writer.close()


def text(split: str, count: int, subset: str, words: int = WORDS) -> Iterator[pa.StructArray]:
    """Yield `count` pairs of a split, in columns of at most CHUNK structs."""
    rng = np.random.default_rng(list(split.encode()))
    languages = subset.split("-")
    vocabularies = {language: vocabulary(language, words) for language in languages}
    chances = np.cumsum(1 / (np.arange(words) + 2.7) ** 1.05)
    chances /= chances[-1]
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        lengths = np.exp(rng.normal(np.log(MEAN_WORDS) - SPREAD**2 / 2, SPREAD, size)).astype(np.int64)
        lengths = lengths.clip(1, MOST_WORDS)
        ranks = np.searchsorted(chances, rng.random(int(lengths.sum())))
        ends = np.cumsum(lengths)
        columns = []
        for language in languages:
            kept = np.ones(len(ranks), bool) if language == "en" else rng.random(len(ranks)) > 0.08
            kept[ends - lengths] = True  # no sentence loses all of its words
            offsets = np.concatenate([[0], np.cumsum(kept)[ends - 1]]).astype(np.int32)
            each = pa.ListArray.from_arrays(pa.array(offsets), vocabularies[language].take(pa.array(ranks[kept])))
            columns.append(pc.binary_join(each, " "))
        column = pa.StructArray.from_arrays(columns, languages)
        if split.startswith("train"):
            column = with_noise(column, languages, rng)
        yield column


def with_noise(column: pa.StructArray, languages: list[str], rng: np.random.Generator) -> pa.StructArray:
    """Some pairs occur again, and some have an empty first sentence."""
    size = len(column)
    rows = np.where(rng.random(size) < REPEATED, rng.integers(0, size, size), np.arange(size))
    column = column.take(pa.array(rows))
    first = pc.if_else(pa.array(rng.random(size) < EMPTY), "", column.field(0))
    return pa.StructArray.from_arrays([first, column.field(1)], languages)


def vocabulary(language: str, words: int) -> pa.Array:
    """Different words of syllables, the frequent ones short, after the marks of punctuation."""
    rng = np.random.default_rng(list(language.encode()))
    starts = ["", *"bdfghklmnprstvwz", "st", "br", "tr", "pl", "gr", "sch" if language == "de" else "sh", "ch"]
    nuclei = [*"aeiou", "ei", "ie", "au", *("äöü" if language == "de" else "éè" if language == "fr" else "y")]
    codas = ["", "", *"nrslt", "ng", "st", "ck", "nd"]
    syllables = np.array(["".join(parts) for parts in np.array(np.meshgrid(starts, nuclei, codas)).reshape(3, -1).T])
    counts = np.minimum(1 + (np.log10(1 + np.arange(words)) * rng.uniform(0.3, 1.0, words)).astype(int), 6)
    parts = [np.where(counts > i, syllables[rng.integers(0, len(syllables), words)], "") for i in range(6)]
    found = parts[0].astype(object)
    for part in parts[1:]:
        found = found + part.astype(object)
    capital = rng.random(words) < (0.3 if language == "de" else 0.1)
    found = [word.capitalize() if big else word for word, big in zip(found, capital, strict=True)]
    found[: len(PUNCTUATION)] = PUNCTUATION
    rare = min(RARE, words // 20)
    found[-rare:] = [f"{chr(0x4E00 + i)}{word}" for i, word in enumerate(found[-rare:])]
    return pa.array(found)


if __name__ == "__main__":
    main()
