"""A dataset of the Hugging Face hub, or a copy of it on this machine."""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformer_pl.config import Data
from transformer_pl.data.files import ROWS_AT_ONCE, document_of, folder_corpus, pair_of
from transformer_pl.data.selection import choose_splits
from transformer_pl.runtime.environment import why_unreachable
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import SPLITS, Corpus, Pair, of_document

CONVERTED = "refs/convert/parquet"  # a branch
LOCAL_COPIES = "TRANSFORMER_PL_DATA"  # environment variable: a folder with copies of the hub's datasets


def hub_corpus(data: Data, has_source: bool = True) -> Corpus:
    """Open a dataset of the hub at one commit. Once it is in the library's cache, it needs no network.

    A copy in the folder $TRANSFORMER_PL_DATA is read in its place. has_source: as for `folder_corpus`.
    """
    if root := os.environ.get(LOCAL_COPIES):
        folder = Path(os.path.expanduser(root), Path(str(data.hub)).name)
        for copy in (folder / (data.subset or ""), folder):  # a subset may have a folder of its own
            if copy.is_dir():
                return folder_corpus(copy, data, has_source)
    is_commit = data.revision and re.fullmatch(r"[0-9a-f]{40}", data.revision)
    commit = str(data.revision) if is_commit else _latest_commit(data)

    @functools.cache
    def load() -> tuple[Any, dict[str, str]]:
        dataset = _load(data, commit)
        return dataset.with_format("arrow"), choose_splits(dataset, data, f"dataset {data.hub}")

    def pairs(split: str) -> Iterator[Pair]:
        dataset, names = load()
        place = f"dataset {data.hub} {names[split]} row"
        rows = itertools.chain.from_iterable(table.to_pylist() for table in dataset[names[split]].iter(ROWS_AT_ONCE))
        pairs = ((row, pair_of(row, data, f"{place} {number}", has_source)) for number, row in enumerate(rows, start=1))
        return (of_document(pair, document_of(row)) for row, pair in pairs)

    splits = {role: getattr(data, role) for role in SPLITS}
    fingerprint = {"hub": data.hub, "subset": data.subset, "commit": commit, "splits": splits}
    subset = f" {data.subset}" if data.subset else ""
    return Corpus(fingerprint, f"dataset {data.hub}{subset} at {commit[:8]}", pairs, is_local=False)


@contextmanager
def _asking(data: Data) -> Iterator[bool]:
    """Turn errors of the hub, the network or the cache into an InputError. Yields whether the hub is out of reach.

    If it is, the libraries are told to read only their caches, because `datasets` would wait for 24 s.
    """
    import datasets  # takes 0.7 s
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE |= datasets.config.HF_HUB_OFFLINE or why_unreachable(constants.ENDPOINT) is not None
    try:
        yield constants.HF_HUB_OFFLINE
    except Exception as error:
        network = "there is no network to the hub: " if constants.HF_HUB_OFFLINE else ""
        copies = f"{LOCAL_COPIES}=DIR (now {os.environ.get(LOCAL_COPIES, 'not set')})"
        raise InputError(
            f"data.hub = {data.hub}, data.subset = {data.subset}, data.revision = {data.revision}: must be reachable "
            f"or in the cache, but {network}{error}; set data.path=FOLDER, or put a copy into "
            f"DIR/{Path(str(data.hub)).name} and set {copies}"
        ) from None


def _latest_commit(data: Data) -> str:
    """Return the commit of a branch or tag: from the hub, or else the last one in this machine's cache."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    with _asking(data):
        with suppress(EntryNotFoundError):  # a download, even of a missing file, writes the commit to the cache
            hf_hub_download(str(data.hub), "README.md", repo_type="dataset", revision=data.revision)
        repository = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=str(data.hub), repo_type="dataset")
        return (repository / "refs" / (data.revision or constants.DEFAULT_REVISION)).read_text().strip()


def _load(data: Data, commit: str) -> Any:
    """Load all splits of the dataset at that commit, from the library's cache if they are there."""
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    with _asking(data) as is_offline:
        # the hub's own conversion to parquet has a folder for each subset, and does not say their names
        subset = {"data_dir" if data.revision == CONVERTED else "name": data.subset}
        dataset = datasets.load_dataset(data.hub, revision=commit, **subset)
        # without a network the library loads its latest copy, whatever the revision
        folders = {Path(file["filename"]).parent.name for part in dataset.values() for file in part.cache_files}
        if is_offline and folders != {commit}:
            raise LookupError(f"commit {commit} is not in the cache")
        return dataset
