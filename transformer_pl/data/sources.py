"""Where text comes from (Section 5.1): the embedded corpus, a folder, or a dataset of the hub.

A corpus is read as a stream, as often as needed. An error in it names the file and the line.
"""

import functools
import gzip
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.files import check_regular, sha256
from transformer_pl.runtime.network import why_unreachable
from transformer_pl.task import task_of

if TYPE_CHECKING:
    from transformer_pl.config import Data

Pair = tuple[str, str]  # source and target

SPLITS = ("train", "val", "test")
LOCAL_COPIES = "TRANSFORMER_PL_DATA"  # environment variable: a folder with copies of the hub's datasets
BEGINNINGS = {"train": ("train",), "val": ("val", "dev"), "test": ("test",)}
_ALL_BEGINNINGS = tuple(itertools.chain.from_iterable(BEGINNINGS.values()))
LONGEST_LINE = 1 << 24  # bytes; more is no sentence, but a file of another kind
LARGEST_LIST = 1 << 30  # bytes of a JSON file that is one list, which is held in memory
TABLES = {"json": "json", "jsonl": "json", "parquet": "parquet"}  # ending of a file: its format
BROKEN = (OSError, EOFError, zlib.error, ValueError, RuntimeError)  # what is raised over a file that cannot be read


@dataclass(frozen=True)
class Corpus:
    """Parallel text in three splits.

    fingerprint: plain values that identify the text, wherever it lies.
    describe: one line for people.
    pairs: train, val or test -> its sentences (source, target) from the beginning; no sentence holds a newline.
    is_local: whether it can be read without a download.
    """

    fingerprint: dict[str, Any]
    describe: str
    pairs: Callable[[str], Iterator[Pair]]
    is_local: bool = True


def open_corpus(data: "Data") -> Corpus:
    """Return the corpus that `data` names, as its task reads it. Its text is not read yet.

    Raises an InputError if something is missing or ambiguous. `pairs` raises one for text that cannot be read.
    """
    corpus = task_of(data).corpus(data)
    return corpus if data.train_pairs is None else _shortened(corpus, data.train_pairs)


def parallel_text(data: "Data") -> Corpus:
    """Return the sentences in two languages that `data` names: see `open_corpus`."""
    if data.source == data.target:
        raise InputError(f"data.source = {data.source}: must differ from data.target, but does not; set one of them")
    if data.path is not None:
        return _folder(at_home(data.path), data)
    if data.hub is None:
        return _embedded(data)
    copy = _local_copy(data)
    return _folder(copy, data) if copy else _hub(data)


def _shortened(corpus: Corpus, count: int) -> Corpus:
    """The corpus with only the first `count` pairs of its training split."""

    def pairs(split: str) -> Iterator[Pair]:
        if split != "train":
            yield from corpus.pairs(split)
            return
        number = 0
        for pair in itertools.islice(corpus.pairs(split), count):
            number += 1
            yield pair
        if number < count:
            raise InputError(
                f"data.train_pairs = {count:,}: must be at most the training pairs of the text, but {corpus.describe} "
                f"has {number:,}; lower it, or leave it out for all"
            )

    return replace(
        corpus,
        fingerprint=corpus.fingerprint | {"train_pairs": count},
        describe=f"the first {count:,} training pairs of {corpus.describe}",
        pairs=pairs,
    )


def _embedded(data: "Data") -> Corpus:
    from transformer_pl.data import synthetic

    if {data.source, data.target} != {"en", "de"}:
        raise InputError(
            f"data.source = {data.source}, data.target = {data.target}: must be en and de, the languages of the "
            f"embedded corpus; name your own text with data.path=FOLDER"
        )

    def pairs(split: str) -> Iterator[Pair]:
        from_german = data.source == "de"
        return ((de, en) if from_german else (en, de) for en, de in synthetic.pairs(split))

    fingerprint = {"corpus": "embedded", "version": synthetic.VERSION}
    return Corpus(fingerprint, f"the embedded corpus, version {synthetic.VERSION}", pairs)


# ---------------------------------------------------------------------------------------------------------------------
# Files


@dataclass(frozen=True)
class Files:
    """The files of a split: one text file per language, or tables with both languages. Each may be in shards."""

    texts: dict[str, list[Path]]  # language: its shards
    tables: list[Path]

    def paths(self) -> dict[str, list[Path]]:
        return self.texts or {"pairs": self.tables}


def _folder(folder: Path, data: "Data") -> Corpus:
    names = listing(folder)
    files = _by_stem(folder, names, data)
    chosen = choose_splits(files, data, f"folder {folder}", names, _languages(data))
    splits = {role: files[name] for role, name in chosen.items()}
    mistakes = [mistake for files in splits.values() for mistake in _incomplete(files, folder, data)]
    if mistakes:
        raise InputError(*mistakes)

    def pairs(split: str) -> Iterator[Pair]:
        files = splits[split]
        return _text_pairs(files, data) if files.texts else _table_pairs(files.tables, data)

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


def listing(folder: Path) -> list[str]:
    """The names of the files of a folder, and below folders of splits: `train.en`, `train/0000.parquet`."""
    try:
        names = [path.name for path in folder.iterdir()]
        splits = [name for name in names if name.startswith(_ALL_BEGINNINGS) and (folder / name).is_dir()]
        return sorted([*names, *(f"{name}/{path.name}" for name in splits for path in (folder / name).iterdir())])
    except OSError as error:
        raise InputError(
            f"folder {folder}: must hold the corpus, but: {error.strerror}; give another with data.path=FOLDER"
        ) from None


def _by_stem(folder: Path, names: list[str], data: "Data") -> dict[str, Files]:
    """Return the corpus files of a folder by the beginning of their names.

    `train.en`, `train.de.gz`, `train.jsonl`, `train-00000-of-00003.parquet` and `train/0000.parquet` belong to `train`.
    """
    languages = f"{re.escape(data.source)}|{re.escape(data.target)}"
    part = r"(?P<stem>[^/]+?)(-\d+-of-\d+|/\d+)?"  # the second is how the hub stores what it has converted
    form = re.compile(rf"{part}\.((?P<language>{languages})|json|jsonl|parquet)(\.gz)?")
    by_stem: dict[str, Files] = {}
    for name in names:
        if match := form.fullmatch(name):
            files = by_stem.setdefault(match["stem"], Files({}, []))
            shards = files.texts.setdefault(match["language"], []) if match["language"] else files.tables
            shards.append(folder / name)
    return by_stem


def choose_splits(
    names: Iterable[str], data: "Data", place: str, present: Iterable[str] = (), kind: str = "split"
) -> dict[str, str]:
    """Return the name of each split: the name in `data`, or else the only one with the usual beginning.

    present: what an error message lists, if that is more than `names`. kind: what it calls them.
    """
    names = list(names)
    chosen, mistakes = {}, []
    for role in SPLITS:
        wanted = getattr(data, role)
        candidates = [name for name in names if (name == wanted if wanted else name.startswith(BEGINNINGS[role]))]
        if len(candidates) == 1:
            chosen[role] = candidates[0]
            continue
        rule = f"named {wanted}" if wanted else f"that begins with {' or '.join(BEGINNINGS[role])}"
        mistakes.append(
            f"{place}: must hold one {kind} {rule}, but holds "
            f"{_few(candidates or present or names)}; name it with data.{role}=NAME"
        )
    if mistakes:
        raise InputError(*mistakes)
    return chosen


def _languages(data: "Data") -> str:
    return f"{data.source}-{data.target} split"


def _few(names: Iterable[str], most: int = 12) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "") or "nothing"


def _incomplete(files: Files, folder: Path, data: "Data") -> Iterator[str]:
    """Yield an error message for each reason why the files of a split are not one complete text."""
    stored = [path.name for paths in (*files.texts.values(), files.tables) for path in paths]
    if files.texts and files.tables:
        yield f"folder {folder}: a split must be stored once, but is in {_few(stored)}; remove what is not meant"
        return
    for language in (data.source, data.target):
        if files.texts and language not in files.texts:
            yield (
                f"folder {folder}: a split must have {data.source} and {data.target}, but {language} is missing "
                f"beside {_few(stored)}; add it, or set data.source and data.target"
            )
    complete = True
    for shards in files.paths().values():
        names = [str(path.relative_to(folder)) for path in shards]
        counted = [re.fullmatch(r"[^/]+/(\d+)\.parquet", name) for name in names]
        if all(counted):  # no name says how many there are
            if [int(number[1]) for number in counted if number] != list(range(len(names))):
                yield f"folder {folder}: a split must have all its parts from 0 on, but has {_few(names)}; complete it"
                complete = False
            continue
        numbers = [re.search(r"-(\d+)-of-(\d+)\.", name) for name in names]
        if len(names) == 1 and not numbers[0]:
            continue
        if not all(numbers):
            yield f"folder {folder}: a split must be stored once, but is in {_few(names)}; remove what is not meant"
            complete = False
        elif [(int(n[1]), int(n[2])) for n in numbers if n] != [(i, len(names)) for i in range(len(names))]:
            yield f"folder {folder}: a split must have all its parts, once each, but has {_few(names)}; complete it"
            complete = False
    if complete and len({len(shards) for shards in files.paths().values()}) > 1:
        yield f"folder {folder}: a split must have as many parts in both languages, but has {_few(stored)}; mend it"


def digest_of(path: Path) -> str:
    with _readable(path):
        return sha256(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        check_regular(path)
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}; mend the file or its permissions") from None


def _text_pairs(files: Files, data: "Data") -> Iterator[Pair]:
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


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open a file, gzip or plain. What happens while it is read is reported, too."""
    with _readable(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        yield file


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, gzip or plain. Only \\n ends a line, not the other separators of Python."""
    with _opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
            if len(line) > LONGEST_LINE:
                raise InputError(
                    f"{path} line {number}: must have at most {LONGEST_LINE:,} bytes, but has more; "
                    "break it into sentences"
                )
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path} line {number}: must be UTF-8, but byte {error.start + 1} of the line is "
                    f"0x{line[error.start]:02x}; convert the file to UTF-8"
                ) from None
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield text.removesuffix("\n").removesuffix("\r")


def _table_pairs(paths: list[Path], data: "Data") -> Iterator[Pair]:
    """Yield the rows of json, jsonl and parquet files as a stream, without a copy in a cache."""
    for path in paths:
        kind = TABLES[path.name.removesuffix(".gz").rpartition(".")[2]]
        rows = 0
        try:
            chunks = _json_chunks(path) if kind == "json" else _parquet_chunks(path)
            for pair in _row_pairs(chunks, data, str(path)):
                rows += 1
                yield pair
        except InputError:
            raise
        except StopIteration:  # the library raises this for an empty file
            pass
        except BROKEN as error:
            raise InputError(f"{path}: cannot be read as {kind}: {_one_line(error)}; mend the file") from None
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
    with _opened(path) as file:
        is_list = ".json" in path.suffixes and file.read(1000).lstrip().startswith(b"[")
    if not is_list:
        yield from (json.loads(line) for line in lines(path) if line.strip())
        return
    with _opened(path) as file:
        text = file.read(LARGEST_LIST + 1)
    if len(text) > LARGEST_LIST:
        raise InputError(f"{path}: a list must have at most {LARGEST_LIST:,} bytes; write an object a line, as .jsonl")
    yield from json.loads(text.decode())


def _row_pairs(chunks: Iterator[dict[str, list]], data: "Data", place: str) -> Iterator[Pair]:
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
                f"{' and '.join(missing)} is missing; there is: {_few(chunk)}; set data.source and data.target"
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


def _one_line(error: Exception) -> str:
    """Return the message of an error on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _quiet_datasets() -> Any:
    """Import `datasets`, which takes 0.7 s, and switch off its progress bars and its log."""
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    return datasets


# ---------------------------------------------------------------------------------------------------------------------
# The hub


def _local_copy(data: "Data") -> Path | None:
    """Return the folder of a local copy below $TRANSFORMER_PL_DATA, or None. A subset may have a folder of its own."""
    root = os.environ.get(LOCAL_COPIES)
    if not root:
        return None
    folder = at_home(root) / _last_part(data.hub)
    if data.subset and (folder / data.subset).is_dir():
        folder = folder / data.subset
    return folder if folder.is_dir() else None


def _last_part(hub: str | None) -> str:
    return str(hub).rpartition("/")[2]


def _hub(data: "Data") -> Corpus:
    """Open a dataset of the hub at one commit. Once it is in the library's cache, it needs no network."""
    reachable = functools.cache(_hub_reachable)
    commit = data.revision if data.revision and re.fullmatch(r"[0-9a-f]{40}", data.revision) else None
    if commit is None:
        commit = _named_commit(data, reachable())

    @functools.cache
    def load() -> tuple[Any, dict[str, str]]:
        dataset = _load(data, commit, reachable())
        return dataset, choose_splits(dataset, data, f"dataset {data.hub}", kind=_languages(data))

    def pairs(split: str) -> Iterator[Pair]:
        dataset, names = load()
        return _row_pairs(dataset[names[split]].iter(1000), data, f"dataset {data.hub} {names[split]}")

    splits = {role: getattr(data, role) for role in SPLITS}
    fingerprint = {"hub": data.hub, "subset": data.subset, "commit": commit, "splits": splits}
    subset = f" {data.subset}" if data.subset else ""
    return Corpus(fingerprint, f"dataset {data.hub}{subset} at {commit[:8]}", pairs, is_local=False)


def _hub_reachable() -> bool:
    """Return whether the hub answers. `datasets` itself would take 24 s to give up."""
    import datasets
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE or datasets.config.HF_HUB_OFFLINE
    return not offline and why_unreachable(constants.ENDPOINT) is None


def _named_commit(data: "Data", reachable: bool) -> str:
    """Return the commit of a branch or tag: from the hub, or else the last one in this machine's cache."""
    import httpx
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:  # what the hub calls no name is a ValueError, too
        repository = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=str(data.hub), repo_type="dataset")
        if reachable:  # a download, even of a missing file, writes the commit to the cache
            with suppress(EntryNotFoundError):
                hf_hub_download(
                    str(data.hub), "README.md", repo_type="dataset", revision=data.revision, etag_timeout=10
                )
        return (repository / "refs" / (data.revision or constants.DEFAULT_REVISION)).read_text().strip()
    except FileNotFoundError:
        raise _no_network(data) from None
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:
        raise _hub_error(data, error) from None


def _load(data: "Data", commit: str, reachable: bool) -> Any:
    """Load all splits of the dataset at that commit, from the library's cache if they are there."""
    datasets = _quiet_datasets()
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        with _offline(not reachable):
            dataset = datasets.load_dataset(data.hub, data.subset, revision=commit)
    except (*BROKEN, datasets.exceptions.DatasetsError) as error:
        raise (_hub_error(data, error) if reachable else _no_network(data)) from None
    # without a network the library loads its latest copy, whatever the revision
    folders = {Path(file["filename"]).parent.name for part in dataset.values() for file in part.cache_files}
    if not reachable and folders != {commit}:
        raise _no_network(data)
    return dataset


@contextmanager
def _offline(offline: bool) -> Iterator[None]:
    """Do what HF_HUB_OFFLINE=1 does. The library reads that variable only when it is imported."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _no_network(data: "Data") -> InputError:
    root = os.environ.get(LOCAL_COPIES)
    searched = f" (no {_last_part(data.hub)} in {LOCAL_COPIES}={root})" if root else ""
    return InputError(
        f"data.hub = {data.hub}: must be reachable or in the cache, but there is no network to the hub{searched}; "
        f"set data.path=FOLDER, or {LOCAL_COPIES} to a folder with a copy"
    )


def _hub_error(data: "Data", error: Exception) -> InputError:
    named = f"data.hub = {data.hub}, data.subset = {data.subset}, data.revision = {data.revision}"
    return InputError(f"{named}: cannot be loaded: {_one_line(error)}; correct them, or set data.path=FOLDER")
