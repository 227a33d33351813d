"""A dataset in the files of a folder, which data/README.md describes: text, tsv, json, jsonl and parquet.

They are not read by `datasets`: it ends a line also at a lone carriage return, which pairs the wrong sentences, and it
turns a JSON text such as 2021-01-01 into a date.
"""

import gzip
import html
import itertools
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformer_pl.config import Data, TestSet
from transformer_pl.data.selection import BEGINNINGS, choose_splits
from transformer_pl.runtime.digests import file_digest
from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.runtime.files import reading
from transformer_pl.task import SPLITS, Corpus, Pair, PairOfDocument, by_blank, of_document

TABLES = ("tsv", "json", "jsonl", "parquet")  # endings of files that hold both languages
TEXT = "txt"  # the ending of files of texts alone, without a source
DOCUMENT_COLUMN = "document"  # the column of a table that says of which document a row is
TEXT_COLUMN = "text"  # the column of such texts in a table, if no column has the name of the language
REMEDY = "fix the file or its permissions"
SplitFiles = dict[str, dict[str, list[Path]]]  # by split and ending
ROWS_AT_ONCE = 1000  # rows of a table that are in memory at a time


def folder_corpus(folder: str | Path, data: Data, has_source: bool = True) -> Corpus:
    """The sentences in a folder's files. Raises an InputError for files that are missing, ambiguous or incomplete.

    has_source: False reads texts alone: from plain text (.txt), a column of a table, or the target language of pairs.
    """
    forms = [(data.source, data.target), *((table,) for table in TABLES), _sgm_endings(data)]
    if not has_source:
        forms += [(TEXT,), (data.target,)]
    described, splits = split_files(folder, data, forms)
    if not has_source:  # of pairs the target alone, which may be of the language that the key of the source names
        target = data.target
        splits = {split: {target: of[target]} if target in of else of for split, of in splits.items()}

    tables = {split: files["tsv"][0] for split, files in splits.items() if files.keys() == {"tsv"}}
    heading, of_heading = _heading({split: next(lines(path), "") for split, path in tables.items()}, data)
    described += of_heading

    before = _states(splits)
    fingerprint = {"files": digests(splits)} | ({} if heading is None else {"heading": heading})
    return Corpus(
        fingerprint,
        described,
        lambda split: _pairs(splits[split], data, has_source, heading),
        is_unchanged=lambda: _states(splits) == before,
    )


def _sgm_endings(data: Data) -> tuple[str, str]:
    """The endings of a set in WMT's files."""
    return f"src.{data.source}.sgm", f"ref.{data.target}.sgm"


def _pairs(files: dict[str, list[Path]], data: Data, has_source: bool, heading: str | None) -> Iterator[Pair]:
    """The pairs of a split. files: by ending."""
    joined = itertools.chain.from_iterable
    if has_source and data.source in files:
        return by_blank(joined(map(_text_pairs, files[data.source], files[data.target])))
    if len(files) == 2:
        pairs = joined(map(_sgm_pairs, *(files[ending] for ending in _sgm_endings(data))))
        return pairs if has_source else (of_document(("", pair[1]), pair.document) for pair in pairs)
    ((ending, paths),) = files.items()
    if ending not in TABLES:
        return by_blank(("", line) for line in joined(map(lines, paths)))
    return joined(_table_pairs(path, ending, data, has_source, heading) for path in paths)


def _heading(first: Mapping[str, str], data: Data) -> tuple[str | None, str]:
    """The heading of tsv files, and how the dataset's description names it. first: the first line of each set.

    It is a line that all sets share, and that does not name the languages. One of two sets counts as a pair, and is
    named, too.
    """
    if isinstance(data, TestSet):
        return data.heading, "" if data.heading is None else _of_heading(data.heading)
    counts, names = Counter(filter(None, first.values())), sorted([data.source, data.target])
    shared = [split for split, line in first.items() if counts[line] > 1 and sorted(line.split("\t")) != names]
    line = first[shared[0]] if shared else ""
    if len(shared) == len(SPLITS):
        return line, _of_heading(line)
    rule = f"the first line of {' and '.join(shared)}, `{shown(line)}`, counts as a pair; delete it if it is a heading"
    return None, f"; {rule}" if shared else ""


def _of_heading(line: str) -> str:
    return f", whose first line `{shown(line)}` is a heading"


def _table_pairs(path: Path, ending: str, data: Data, has_source: bool, heading: str | None) -> Iterator[Pair]:
    """The pairs of the rows of a table."""
    tsv = partial(_tsv, data, heading)
    readers: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {"tsv": tsv, "parquet": _parquet}
    with reading(path, REMEDY):
        for place, row in readers.get(ending, _json)(path):
            yield of_document(pair_of(row, data, f"{path} {place}", has_source), document_of(row))


def split_files(folder: str | Path, data: Data, forms: Sequence[tuple[str, ...]]) -> tuple[str, SplitFiles]:
    """What to call the dataset of a folder, and the files of each split by their endings.

    forms: sets of endings; files with all endings of a set are a whole split, such as (en, de) or (json,). A file may
    be compressed by gzip, or be in parts, such as train-00000-of-00003.en. Raises an InputError for splits that are
    missing or incomplete.
    """
    folder = Path(os.path.expanduser(folder))
    found = _found_files(folder, itertools.chain.from_iterable(forms))
    whole = ", or ".join(" and ".join(f".{ending}" for ending in form) for form in forms)
    there = _check_form(folder, data, forms, found)
    hint = f", without its ending, which must be {whole}"
    chosen = choose_splits(sorted(found), data, f"folder {folder}", hint, there)

    def files_of(role: str) -> dict[str, list[Path]]:
        files = {ending: sorted(parts) for ending, parts in sorted(found[chosen[role]].items())}
        numbers = [[(part, count) for part, count, _ in parts] for parts in files.values()]
        count = len(numbers[0])
        is_whole = all(of_ending == [(part, count) for part in range(count)] for of_ending in numbers)
        if not is_whole or set(files) not in map(set, forms):
            names = shown(", ".join(path.name for parts in files.values() for *_, path in parts))
            rule = f"{role} must be stored once and whole, as {whole}"
            remedy = "add or remove files, or name its languages with data.source and data.target"
            raise InputError(f"folder {folder}: {rule}, but is in {names}; {remedy}")
        return {ending: [path for *_, path in parts] for ending, parts in files.items()}

    return f"folder {folder} ({', '.join(chosen.values())})", collect_errors(files_of, chosen)


def _check_form(folder: Path, data: Data, forms: Sequence[tuple[str, ...]], splits: Iterable[str]) -> list[str]:
    """What a folder holds. Raises an InputError for one of another form, unless the keys name its splits.

    splits: those that have been found.
    """
    there = sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir())
    first, *others = data.splits
    is_usual = any(split.startswith(BEGINNINGS[first]) for split in splits)
    if there and not is_usual and not any(getattr(data, role) for role in data.splits):
        names = ", or ".join(" and ".join(f"{first}.{ending}" for ending in form) for form in forms)
        rule = f"must hold {names}{', and the same of val and test' if others else ''}"
        raise InputError(f"folder {folder}: {rule}, but holds {shown(', '.join(there))}; convert or rename them")
    return there


def _found_files(folder: Path, endings: Iterable[str]) -> dict[str, dict[str, list[tuple[int, int, Path]]]]:
    """By split and ending, the files of a folder: which part each is, of how many, and its path."""
    if not folder.is_dir():
        raise InputError(f"folder {folder}: is no folder; give that of the dataset")
    ending = "|".join(map(re.escape, sorted(endings, key=len, reverse=True)))
    part = r"-(?P<part>\d+)-of-(?P<parts>\d+)"
    name = re.compile(rf"(?P<split>.+?)({part})?(\.|-(?=(src|ref)\.))(?P<ending>{ending})((?<!parquet)\.gz)?")
    found: dict[str, dict[str, list[tuple[int, int, Path]]]] = defaultdict(lambda: defaultdict(list))
    for path in folder.iterdir():
        if match := name.fullmatch(path.name):
            found[match["split"]][match["ending"]].append((int(match["part"] or 0), int(match["parts"] or 1), path))
    return found


def _states(splits: SplitFiles) -> list[tuple[int, ...]]:
    """What changes when a file is written or exchanged, though it be put back."""
    found = (path.stat() for files in splits.values() for paths in files.values() for path in paths if path.exists())
    return [(state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for state in found]


def digests(splits: SplitFiles) -> dict[str, list[str]]:
    """The SHA-256 of the content of each file, by split and ending: they identify a dataset."""

    def digest(path: Path) -> str:
        with reading(path, REMEDY):
            return file_digest(path)

    return {
        f"{split}.{ending}": [digest(path) for path in paths]
        for split, files in splits.items()
        for ending, paths in files.items()
    }


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, gzip or plain. Only \\n ends a line, not the other separators of Python."""
    with reading(path, REMEDY), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path} line {number}: must be UTF-8, but: {error}; convert the file") from None
            yield text.removesuffix("\n").removesuffix("\r")


def _text_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the lines of two files in pairs."""
    for number, pair in enumerate(itertools.zip_longest(lines(source), lines(target)), start=1):
        if None in pair:
            shorter = source if pair[0] is None else target
            lacks = f"line {number} is missing in {shorter.name}"
            raise InputError(f"{source}, {target}: must have equally many lines, but {lacks}; align the files")
        yield pair


def _sgm_pairs(source: Path, target: Path) -> Iterator[PairOfDocument]:
    """Yield the segments of two files of WMT in pairs, with the documents of the first."""
    for pair in itertools.zip_longest(_segments(source), _segments(target)):
        if None in pair:
            raise InputError(f"{source}, {target}: must have equally many segments, but have not; align the files")
        yield of_document((pair[0][1], pair[1][1]), pair[0][0])


def _segments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each segment with the number of its document. A newline in a segment becomes a blank."""
    document = 0
    for tag in re.finditer(r"(?is)<doc\b[^>]*>|<seg\b[^>]*>(.*?)</seg>", "\n".join(lines(path))):
        if tag[1] is None:
            document += 1
        else:
            yield document, html.unescape(tag[1]).replace("\n", " ").strip()


def _tsv(data: Data, heading: str | None, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each row with its place. A first line with the names of the languages says which comes first.

    heading: any other first line that is no row.
    """
    names = [data.source, data.target]
    for number, line in enumerate(lines(path), start=1):
        cells = line.split("\t")
        if len(cells) != 2:
            rule = "must have one tab, between the sentences of a pair"
            raise InputError(f"{path} line {number}: {rule}, but has {len(cells) - 1}: {shown(line)}; correct it")
        if number == 1 and sorted(cells) == sorted(names):
            names = cells
        elif number > 1 or line != heading:
            yield f"line {number}", dict(zip(names, cells, strict=True))


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each row with its place. `datasets` would hold the bytes of a whole file while it streams from it."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, pre_buffer=False) as file:
        batches = (batch.to_pylist() for batch in file.iter_batches(ROWS_AT_ONCE))
        yield from ((f"row {i}", row) for i, row in enumerate(itertools.chain.from_iterable(batches), start=1))


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each row with its place. The file holds one object a line or, where its name says .json, one list."""
    first = next((line for line in lines(path) if line.strip()), "")
    if ".json" in path.suffixes and first.lstrip().startswith("["):
        yield from ((f"row {i}", row) for i, row in enumerate(json.loads("\n".join(lines(path))), start=1))
        return
    for number, line in enumerate(lines(path), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path} line {number}: must be JSON, but: {error}; correct it") from None
            yield f"line {number}", row


def document_of(row: Any) -> Any:
    """What says of which document a row is; None: not known."""
    found = row.get(DOCUMENT_COLUMN) if isinstance(row, dict) else None
    return None if found is None else str(found)


def pair_of(row: Any, data: Data, place: str, has_source: bool = True) -> Pair:
    """The sentences of a row {en, de} or {translation: {en, de}}. A newline in one becomes a blank.

    has_source: False accepts a row {de} or {text} too, and leaves the source empty.
    """
    names = [data.source, data.target] if has_source else [data.target]
    columns = row if isinstance(row, dict) else {}
    if not set(names) <= columns.keys() and isinstance(columns.get("translation"), dict):
        columns = columns["translation"]
    if not has_source and data.target not in columns:
        names = [TEXT_COLUMN]
    try:
        sentences = [columns[name].replace("\n", " ") for name in names]
        "".join(sentences).encode()  # JSON can spell halves of characters, which are no text
        return (sentences[0], sentences[1]) if has_source else ("", sentences[0])
    except (KeyError, AttributeError, TypeError, UnicodeEncodeError):
        columns_of = f"text in {data.source} and {data.target} (data.source, data.target)"
        if not has_source:
            columns_of = f"text in {data.target} (data.target) or in {TEXT_COLUMN}"
        raise InputError(f"{place}: must have {columns_of}, or in translation, but is {shown(row)}; fix it") from None
