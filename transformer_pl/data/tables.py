"""Sentence pairs in tables: json, jsonl and parquet files, and the datasets of the hub. An error names the row."""

import codecs
import itertools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_pl.config import Data
from transformer_pl.data.corpus import Pair, few
from transformer_pl.data.text_files import lines, opened
from transformer_pl.runtime.errors import InputError, shown

LARGEST_LIST = 1 << 30  # bytes of a JSON file that is one list, which is held in memory
TABLES = {"json": "json", "jsonl": "json", "parquet": "parquet"}  # ending of a file: its format
BROKEN = (OSError, EOFError, zlib.error, ValueError, RuntimeError)  # what is raised over a file that cannot be read


def table_pairs(paths: list[Path], data: Data) -> Iterator[Pair]:
    """Yield the rows of json, jsonl and parquet files as a stream, without a copy in a cache."""
    for path in paths:
        kind = TABLES[path.name.removesuffix(".gz").rpartition(".")[2]]
        rows = 0
        try:
            if kind == "json":
                named, again = itertools.tee(_json_rows(path))
                places = (place for place, _ in again)
                pairs = row_pairs(_json_chunks(path, named), data, str(path), places)
            else:
                pairs = row_pairs(_parquet_chunks(path), data, str(path))
            for pair in pairs:
                rows += 1
                yield pair
        except InputError:
            raise
        except BROKEN as error:
            raise InputError(f"{path}: cannot be read as {kind}: {one_line(error)}; fix the file") from None
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


def _json_chunks(path: Path, rows: Iterator[tuple[str, Any]]) -> Iterator[dict[str, list]]:
    """Yield columns of 1,000 rows each. A row that lacks a key of another one has None there.

    `datasets` dies of a line `null` (pyarrow 23), and does not say which row is no object.
    """
    while chunk := list(itertools.islice(rows, 1000)):
        for place, row in chunk:
            if not isinstance(row, dict):
                raise InputError(f"{path} {place}: must be an object, but is {shown(row)}; fix the row")
        yield _columns([row for _, row in chunk])


def _columns(rows: list[dict[str, Any]]) -> dict[str, list]:
    keys = dict.fromkeys(itertools.chain.from_iterable(rows))
    return {key: [row.get(key) for row in rows] for key in keys}


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each row with its place, of a file with an object a line (`line 7`) or with one list (`row 7`)."""
    with opened(path) as file:
        is_list = ".json" in path.suffixes and file.read(1000).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    if not is_list:
        for number, line in enumerate(lines(path), start=1):
            if line.strip():
                yield f"line {number}", _parsed(line, path, number)
        return
    with opened(path) as file:
        text = file.read(LARGEST_LIST + 1)
    if len(text) > LARGEST_LIST:
        raise InputError(f"{path}: a list must have at most {LARGEST_LIST:,} bytes; write an object a line, as .jsonl")
    yield from ((f"row {number}", row) for number, row in enumerate(_parsed(text.decode("utf-8-sig"), path), start=1))


def _parsed(text: str, path: Path, line: int = 1) -> Any:
    """The value of a JSON text, which begins at this line of the file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = error.msg.removesuffix(" at")  # as in `Unterminated string starting at`
        raise InputError(
            f"{path} line {line + error.lineno - 1}: must be JSON, but: {message} at column {error.colno}; correct it"
        ) from None


def row_pairs(
    chunks: Iterator[dict[str, list]], data: Data, place: str, rows: Iterator[str] | None = None
) -> Iterator[Pair]:
    """Yield the sentence pairs of the columns {en, de} or {translation: {en, de}}.

    rows: what a message calls each row, such as `line 7`; without them they are counted.
    """
    languages = (data.source, data.target)
    rows = rows or (f"row {number}" for number in itertools.count(1))
    for chunk in chunks:
        if "translation" in chunk and not set(languages) <= chunk.keys():
            chunk = _columns([record if isinstance(record, dict) else {} for record in chunk["translation"]])
        if missing := [language for language in languages if language not in chunk]:
            raise InputError(
                f"{place}: must have the columns {' and '.join(languages)}, or translation with both, but "
                f"{' and '.join(missing)} is missing; there is: {few(chunk)}; set data.source and data.target"
            )
        for pair in zip(*(chunk[language] for language in languages), strict=True):
            row = next(rows)
            for language, text in zip(languages, pair, strict=True):
                if not isinstance(text, str) or not _is_unicode(text):
                    raise InputError(f"{place} {row}: {language} must be text, but is {shown(repr(text))}; fix the row")
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
