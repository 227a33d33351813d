"""Parallel text in the files of a folder, which data/README.md describes."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_pl.config import Data
from transformer_pl.data.corpus import ALL_BEGINNINGS, SPLITS, Corpus, Pair, choose_splits, few, split_kind
from transformer_pl.data.tables import TABLES, table_pairs
from transformer_pl.data.text_files import digest_of, lines
from transformer_pl.runtime.errors import InputError


@dataclass(frozen=True)
class Files:
    """The files of a split: one text file per language, or tables with both languages. Each may be in shards."""

    texts: dict[str, list[Path]]  # language: its shards
    tables: list[Path]

    def paths(self) -> dict[str, list[Path]]:
        return self.texts or {"pairs": self.tables}


def folder_corpus(folder: Path, data: Data) -> Corpus:
    """The sentences in a folder's files. Raises an InputError for files that are missing, ambiguous or incomplete."""
    names = listing(folder, [name for role in SPLITS if (name := getattr(data, role))])
    files = _by_stem(folder, names, data)
    tables = ", ".join(f".{ending}" for ending in TABLES)
    naming = (
        f", where NAME is without its ending: train for train.{data.source}; files end in .{data.source} and "
        f".{data.target}, or {tables}"
    )
    chosen = choose_splits(files, data, f"folder {folder}", names, split_kind(data), naming)
    splits = {role: files[name] for role, name in chosen.items()}
    mistakes = [mistake for files in splits.values() for mistake in _incomplete(files, folder, data)]
    if mistakes:
        raise InputError(*mistakes)

    def pairs(split: str) -> Iterator[Pair]:
        files = splits[split]
        return _text_pairs(files, data) if files.texts else table_pairs(files.tables, data)

    fingerprint = {
        "files": {
            f"{role}.{part}": [digest_of(path) for path in paths]
            for role, files in splits.items()
            for part, paths in files.paths().items()
        }
    }
    return Corpus(fingerprint, f"folder {folder} ({', '.join(chosen.values())})", pairs)


def at_home(path: str) -> Path:
    """With `~` as a shell reads it; a user that is not there is no error yet, as in a shell."""
    return Path(os.path.expanduser(path))


def listing(folder: Path, named: Sequence[str] = ()) -> list[str]:
    """The names of the files of a folder, and below folders of splits: `train.en`, `train/0000.parquet`.

    named: splits whose names do not begin with train, val, dev or test. Numbers in names are ordered by their values.
    """
    try:
        names = [path.name for path in folder.iterdir()]
        splits = [name for name in names if name.startswith(ALL_BEGINNINGS) or name in named]
        splits = [name for name in splits if (folder / name).is_dir()]
        parts = [f"{name}/{path.name}" for name in splits for path in (folder / name).iterdir()]
        return sorted([*names, *parts], key=_by_number)
    except OSError as error:
        raise InputError(
            f"folder {folder}: must hold the corpus, but: {error.strerror}; give another with data.path=FOLDER"
        ) from None


def _by_number(name: str) -> list[tuple[str, int]]:
    """A key that sorts `train/2.en` before `train/10.en`."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


def _by_stem(folder: Path, names: list[str], data: Data) -> dict[str, Files]:
    """Return the corpus files of a folder by the beginning of their names: see `_stem_and_kind`."""
    by_stem: dict[str, Files] = {}
    for name in names:
        stem, kind = _stem_and_kind(name, data)
        if stem:
            files = by_stem.setdefault(stem, Files({}, []))
            shards = files.tables if kind is None else files.texts.setdefault(kind, [])
            shards.append(folder / name)
    return by_stem


def _stem_and_kind(name: str, data: Data) -> tuple[str | None, str | None]:
    """Return the beginning of a file's name, and its language or None if it is a table. No corpus file: no beginning.

    `train.en`, `train.de.gz`, `train.jsonl`, `train-00000-of-00003.parquet` and `train/0000.en` belong to `train`.
    """
    plain = name.removesuffix(".gz")
    endings = [ending for ending in (data.source, data.target, *TABLES) if plain.endswith(f".{ending}")]
    if not endings:
        return None, None
    ending = max(endings, key=len)
    stem = re.sub(r"(-\d+-of-\d+|/\d+)\Z", "", plain.removesuffix(f".{ending}"))  # parts, as the hub stores them
    return None if "/" in stem else stem, ending if ending in (data.source, data.target) else None


def _incomplete(files: Files, folder: Path, data: Data) -> Iterator[str]:
    """Yield an error message for each reason why the files of a split are not one complete text."""
    stored = [path.name for paths in (*files.texts.values(), files.tables) for path in paths]
    if files.texts and files.tables:
        yield f"folder {folder}: a split must be stored once, but is in {few(stored)}; remove what is not meant"
        return
    for language in (data.source, data.target):
        if files.texts and language not in files.texts:
            yield (
                f"folder {folder}: a split must have {data.source} and {data.target}, but {language} is missing "
                f"beside {few(stored)}; add it, or set data.source and data.target"
            )
    wrong = [mistake for shards in files.paths().values() if (mistake := _wrong_parts(shards, folder))]
    yield from wrong
    if not wrong and len({len(shards) for shards in files.paths().values()}) > 1:
        yield f"folder {folder}: a split must have as many parts in both languages, but has {few(stored)}; fix it"


def _wrong_parts(shards: list[Path], folder: Path) -> str | None:
    """What is wrong with the parts of a split: `train/0000.en` and so on, or `train-00000-of-00003.en`."""
    names = [str(path.relative_to(folder)) for path in shards]
    counted = [re.fullmatch(r"[^/]+/(\d+)\.[^/]+", name) for name in names]
    if all(counted):  # no name says how many there are
        if [int(number[1]) for number in counted if number] == list(range(len(names))):
            return None
        return f"folder {folder}: a split must have all its parts from 0 on, but has {few(names)}; complete it"
    numbers = [re.search(r"-(\d+)-of-(\d+)\.", name) for name in names]
    if len(names) == 1 and not numbers[0]:
        return None
    if not all(numbers):
        return f"folder {folder}: a split must be stored once, but is in {few(names)}; remove what is not meant"
    if [(int(n[1]), int(n[2])) for n in numbers if n] == [(i, len(names)) for i in range(len(names))]:
        return None
    return f"folder {folder}: a split must have all its parts, once each, but has {few(names)}; complete it"


def _text_pairs(files: Files, data: Data) -> Iterator[Pair]:
    for source, target in zip(files.texts[data.source], files.texts[data.target], strict=True):
        sources, targets = lines(source), lines(target)
        pairs = 0
        for pairs, sentence in enumerate(sources, start=1):
            other = next(targets, None)
            if other is None:
                raise _unequal(source, pairs + sum(1 for _ in sources), target, pairs - 1)
            yield sentence, other
        if rest := sum(1 for _ in targets):
            raise _unequal(source, pairs, target, pairs + rest)
        if not pairs:
            raise InputError(f"{source}: must hold sentences, one a line, but is empty; give a file with text")


def _unequal(source: Path, sources: int, target: Path, targets: int) -> InputError:
    return InputError(
        f"{source}, {target}: must have equally many lines, but have {sources} and {targets}; align the two files"
    )
