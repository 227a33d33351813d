"""Sentence pairs in tables: json, jsonl and parquet files, and the datasets of the hub. An error names the row."""

import codecs
import itertools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_pl.data.corpus import Pair, few
from transformer_pl.data.text_files import lines, opened
from transformer_pl.runtime.errors import InputError, shown

if TYPE_CHECKING:
    from transformer_pl.config import Data

LARGEST_LIST = 1 << 30  # bytes of a JSON file that is one list, which is held in memory
TABLES = {"json": "json", "jsonl": "json", "parquet": "parquet"}  # ending of a file: its format
BROKEN = (OSError, EOFError, zlib.error, ValueError, RuntimeError)  # what is raised over a file that cannot be read


def table_pairs(paths: list[Path], data: "Data") -> Iterator[Pair]:
    """Yield the rows of json, jsonl and parquet files as a stream, without a copy in a cache."""
    for path in paths:
        kind = TABLES[path.name.removesuffix(".gz").rpartition(".")[2]]
        rows = 0
        try:
            chunks = _json_chunks(path) if kind == "json" else _parquet_chunks(path)
            for pair in row_pairs(chunks, data, str(path)):
                rows += 1
                yield pair
        except InputError:
            raise
        except BROKEN as error:
            raise InputError(f"{path}: cannot be read as {kind}: {one_line(error)}; mend the file") from None
        if not rows:
            raise InputError(f"{path}: must hold rows, but is empty; give a file with text")


def _parquet_chunks(path: Path) -> Iterator[dict[str, list]]:
    """Yield columns of 1,000 rows each.

    `datasets` would hold the bytes of a whole file while it streams from it (5.2).
    """
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(1000):
            yield batch.to_pydict()


def _json_chunks(path: Path) -> Iterator[dict[str, list]]:
    """Yield columns of 1,000 rows each, of a file with an object a line or with one list of objects.

    `datasets` dies of a line `null` (pyarrow 23), and does not say which row is no object.
    """
    rows = _json_rows(path)
    number = 0
    while chunk := list(itertools.islice(rows, 1000)):
        for row in chunk:
            number += 1
            if not isinstance(row, dict):
                raise InputError(f"{path} row {number}: must be an object, but is {shown(row)}; mend the row")
        yield {key: [row.get(key) for row in chunk] for key in chunk[0]}


def _json_rows(path: Path) -> Iterator[Any]:
    with opened(path) as file:
        is_list = ".json" in path.suffixes and file.read(1000).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    if not is_list:
        yield from (json.loads(line) for line in lines(path) if line.strip())
        return
    with opened(path) as file:
        text = file.read(LARGEST_LIST + 1)
    if len(text) > LARGEST_LIST:
        raise InputError(f"{path}: a list must have at most {LARGEST_LIST:,} bytes; write an object a line, as .jsonl")
    yield from json.loads(text.decode("utf-8-sig"))


def row_pairs(chunks: Iterator[dict[str, list]], data: "Data", place: str) -> Iterator[Pair]:
    """Yield the sentence pairs of the columns {en, de} or {translation: {en, de}}."""
    languages = (data.source, data.target)
    row = 0
    for chunk in chunks:
        if "translation" in chunk:
            records = [record if isinstance(record, dict) else {} for record in chunk["translation"]]
            chunk = {key: [record.get(key) for record in records] for record in records[:1] for key in record}
        if missing := [language for language in languages if language not in chunk]:
            raise InputError(
                f"{place}: must have the columns {' and '.join(languages)}, or translation with both, but "
                f"{' and '.join(missing)} is missing; there is: {few(chunk)}; set data.source and data.target"
            )
        for pair in zip(*(chunk[language] for language in languages), strict=True):
            row += 1
            for language, text in zip(languages, pair, strict=True):
                if not isinstance(text, str) or not _is_unicode(text):
                    raise InputError(
                        f"{place} row {row}: {language} must be text, but is {shown(repr(text))}; mend the row"
                    )
            yield pair[0].replace("\n", " "), pair[1].replace("\n", " ")


def _is_unicode(text: str) -> bool:
    """Whether a text can be written: JSON can spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(error: Exception) -> str:
    """Return the message of an error on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
