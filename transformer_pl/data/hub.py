"""A dataset of the Hugging Face hub, or a copy of it on this machine."""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformer_pl.config import Data
from transformer_pl.data.files import ROWS, pair_of
from transformer_pl.data.selection import choose_splits
from transformer_pl.runtime.environment import why_unreachable
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import SPLITS, Corpus, Pair

LOCAL_COPIES = "TRANSFORMER_PL_DATA"  # environment variable: a folder with copies of the hub's datasets


def local_copy(data: Data) -> Path | None:
    """Return the folder of a local copy below $TRANSFORMER_PL_DATA, or None. A subset may have a folder of its own."""
    root = os.environ.get(LOCAL_COPIES)
    if not root:
        return None
    folder = Path(os.path.expanduser(root)) / Path(str(data.hub)).name
    if data.subset and (folder / data.subset).is_dir():
        folder = folder / data.subset
    return folder if folder.is_dir() else None


def hub_corpus(data: Data) -> Corpus:
    """Open a dataset of the hub at one commit. Once it is in the library's cache, it needs no network."""
    reachable = functools.cache(_reachable)
    named = data.revision and re.fullmatch(r"[0-9a-f]{40}", data.revision)
    commit = str(data.revision) if named else _latest_commit(data, reachable())

    @functools.cache
    def load() -> tuple[Any, dict[str, str]]:
        dataset = _load(data, commit, reachable())
        return dataset.with_format("arrow"), choose_splits(dataset, data, f"dataset {data.hub}")

    def pairs(split: str) -> Iterator[Pair]:
        dataset, names = load()
        place = f"dataset {data.hub} {names[split]} row"
        rows = itertools.chain.from_iterable(table.to_pylist() for table in dataset[names[split]].iter(ROWS))
        return (pair_of(row, data, f"{place} {number}") for number, row in enumerate(rows, start=1))

    splits = {role: getattr(data, role) for role in SPLITS}
    fingerprint = {"hub": data.hub, "subset": data.subset, "commit": commit, "splits": splits}
    subset = f" {data.subset}" if data.subset else ""
    return Corpus(fingerprint, f"dataset {data.hub}{subset} at {commit[:8]}", pairs, is_local=False)


def _reachable() -> bool:
    """Return whether the hub answers. `datasets` itself would take 24 s to give up."""
    import datasets
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE or datasets.config.HF_HUB_OFFLINE
    return not offline and why_unreachable(constants.ENDPOINT) is None


def _latest_commit(data: Data, reachable: bool) -> str:
    """Return the commit of a branch or tag: from the hub, or else the last one in this machine's cache."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        repository = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=str(data.hub), repo_type="dataset")
        if reachable:  # a download, even of a missing file, writes the commit to the cache
            with suppress(EntryNotFoundError):
                hf_hub_download(str(data.hub), "README.md", repo_type="dataset", revision=data.revision)
        return (repository / "refs" / (data.revision or constants.DEFAULT_REVISION)).read_text().strip()
    except Exception as error:  # of the hub, of the network, of the cache
        raise _cannot_be_loaded(data, reachable, error) from None


def _load(data: Data, commit: str, reachable: bool) -> Any:
    """Load all splits of the dataset at that commit, from the library's cache if they are there."""
    import datasets  # takes 0.7 s
    from huggingface_hub import constants

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    try:
        constants.HF_HUB_OFFLINE |= not reachable  # as the variable of that name, which is read at import
        dataset = datasets.load_dataset(data.hub, data.subset, revision=commit)
    except Exception as error:
        raise _cannot_be_loaded(data, reachable, error) from None
    # without a network the library loads its latest copy, whatever the revision
    folders = {Path(file["filename"]).parent.name for part in dataset.values() for file in part.cache_files}
    if not reachable and folders != {commit}:
        raise _cannot_be_loaded(data, reachable, f"commit {commit} is not in the cache")
    return dataset


def _cannot_be_loaded(data: Data, reachable: bool, reason: object) -> InputError:
    named = f"data.hub = {data.hub}, data.subset = {data.subset}, data.revision = {data.revision}"
    network = "" if reachable else "there is no network to the hub: "
    return InputError(
        f"{named}: must be reachable or in the cache, but {network}{reason}; correct it, or set "
        f"data.path=FOLDER, or {LOCAL_COPIES} (now {os.environ.get(LOCAL_COPIES, 'not set')}) to the folder that holds "
        f"a folder `{Path(str(data.hub)).name}` with a copy"
    )
