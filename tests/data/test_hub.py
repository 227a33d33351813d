"""Datasets of the hub: copies of them, the cache of `datasets` without a network, and a hub that answers."""

import json
import shutil
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from corpora import PAIRS, read

from transformer_pl.config import Data
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import open_corpus

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = COMMIT[::-1]
NAMES = {"train": "train", "val": "validation", "test": "test"}
ROWS = {NAMES[split]: [{"translation": {"en": en, "de": de}} for en, de in PAIRS[split]] for split in PAIRS}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the libraries, and no network."""
    import datasets
    from huggingface_hub import constants

    datasets.disable_progress_bars()
    monkeypatch.delenv("TRANSFORMER_PL_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.fixture
def cached(cache):
    """The dataset is in the cache at COMMIT, which branch main was when it was loaded."""
    import datasets

    files = {}
    for split, rows in ROWS.items():
        files[split] = str(cache / f"{split}.parquet")
        datasets.Dataset.from_list(rows).to_parquet(files[split])
    datasets.load_dataset("parquet", data_files=files, cache_dir=cache / "parquet")
    (loaded,) = {path.parent for path in (cache / "parquet").rglob("*.arrow")}
    folder = cache / "datasets" / "wmt___wmt14" / "de-en" / "0.0.0" / COMMIT
    shutil.copytree(loaded, folder)
    for path in folder.glob("*.arrow"):
        path.rename(folder / path.name.replace("parquet-", "wmt14-"))
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"config_name": "de-en", "dataset_name": "wmt14"}))
    refs = cache / "hub" / "datasets--wmt--wmt14" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)


def mistake(**keys) -> str:
    with pytest.raises(InputError) as error:
        read(open_corpus(Data(**{"hub": "wmt/wmt14", "subset": "de-en"} | keys)))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_local_copy_stands_for_the_hub(folder, tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    folder.rename(tmp_path / "copies" / "wmt14")
    monkeypatch.setenv("TRANSFORMER_PL_DATA", str(tmp_path / "copies"))
    assert read(open_corpus(Data(hub="wmt/wmt14", subset="de-en"))) == PAIRS
    (tmp_path / "copies" / "wmt14").rename(tmp_path / "inner")
    (tmp_path / "copies" / "wmt14").mkdir()
    (tmp_path / "inner").rename(tmp_path / "copies" / "wmt14" / "de-en")
    assert read(open_corpus(Data(hub="wmt/wmt14", subset="de-en"))) == PAIRS
    assert str(tmp_path / "copies") in mistake(hub="some/other")


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_what_is_in_the_cache_is_read_without_a_network(cached, revision, capfd):
    corpus = open_corpus(Data(hub="wmt/wmt14", subset="de-en", revision=revision))
    assert (corpus.fingerprint["hub"], corpus.fingerprint["commit"]) == ("wmt/wmt14", COMMIT)
    assert read(corpus) == read(corpus) == PAIRS
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("keys", [{"revision": OTHER}, {"revision": "a-branch"}, {"subset": "fr-en"}])
def test_what_is_not_in_the_cache_is_reported_at_once(cached, keys):
    begun = time.monotonic()
    message = mistake(**keys)
    assert time.monotonic() - begun < 4
    assert all(f"data.{key} = {value}" in message for key, value in keys.items())
    assert "data.path" in message and "TRANSFORMER_PL_DATA" in message


@pytest.fixture
def online(cache, monkeypatch):
    """A hub that is reachable, and what `datasets` is asked for."""
    import datasets
    from huggingface_hub import constants

    asked = []

    def load(*arguments, **options):
        asked.append((arguments, options))
        return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in ROWS.items()})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield asked
        server.shutdown()


def test_a_dataset_is_loaded_once_at_its_commit_when_it_is_read(online):
    corpus = open_corpus(Data(hub="wmt/wmt14", subset="de-en", revision=COMMIT))
    assert online == []
    assert read(corpus) == read(corpus) == PAIRS
    assert online == [(("wmt/wmt14",), {"name": "de-en", "revision": COMMIT})]


def test_other_splits_are_another_text():
    """Else one would be taken for the other, as both are prepared in the folder that the fingerprint names."""
    keys = [{}, {"train": "half"}, {"val": "half"}, {"test": "half"}, {"subset": "de-en"}]
    texts = [open_corpus(Data(hub="wmt/wmt14", revision=COMMIT, **one)).fingerprint for one in keys]
    assert all(texts.count(one) == 1 for one in texts)


def test_the_hub_s_own_conversion_has_a_folder_for_each_subset(online, cache, monkeypatch):
    """Its branch says no names of subsets."""
    ref = cache / "hub" / "datasets--a--b" / "refs" / "refs" / "convert" / "parquet"  # as a download leaves it
    ref.parent.mkdir(parents=True)
    ref.write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: None)
    assert read(open_corpus(Data(hub="a/b", subset="de-en", revision="refs/convert/parquet"))) == PAIRS
    assert online == [(("a/b",), {"data_dir": "de-en", "revision": COMMIT})]
