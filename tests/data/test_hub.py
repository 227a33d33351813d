import os
import re
import socket
import time

import pytest
from corpora import PAIRS, mistake, read

from transformer_pl.config import Data
from transformer_pl.data import hub as module
from transformer_pl.data.sources import open_corpus
from transformer_pl.levels import Level, resolve, scale_level
from transformer_pl.runtime.errors import InputError


@pytest.fixture(autouse=True)
def _no_cache_of_the_users(tmp_path_factory, monkeypatch):
    import datasets
    from huggingface_hub import constants

    monkeypatch.delenv("TRANSFORMER_PL_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_local_copy_stands_for_the_hub(folder, tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    folder.rename(tmp_path / "copies" / "wmt14")
    monkeypatch.setenv("TRANSFORMER_PL_DATA", str(tmp_path / "copies"))
    assert read(open_corpus(Data(hub="wmt/wmt14", subset="de-en"))) == PAIRS
    (tmp_path / "copies" / "wmt14").rename(tmp_path / "inner")
    (tmp_path / "copies" / "wmt14").mkdir()
    (tmp_path / "inner").rename(tmp_path / "copies" / "wmt14" / "de-en")
    assert read(open_corpus(Data(hub="wmt/wmt14", subset="de-en"))) == PAIRS


@pytest.fixture
def iwslt(tmp_path, monkeypatch):
    """A copy of iwslt2017 as the hub has it: a folder for each split, parquet files numbered from 0."""
    import datasets

    folder = tmp_path / "copies" / "iwslt2017" / "iwslt2017-en-de"
    names = {"train": ["train/0000", "train/0001"], "val": ["validation/0000"], "test": ["test/0000"]}
    for split, files in names.items():
        rows = [{"translation": {"en": en, "de": de}} for en, de in PAIRS[split]]
        for number, name in enumerate(files):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            part = rows[number :: len(files)] if number else rows[:: len(files)]
            datasets.Dataset.from_list(part).to_parquet(folder / f"{name}.parquet")
    monkeypatch.setenv("TRANSFORMER_PL_DATA", str(tmp_path / "copies"))
    return folder


def test_scale_iwslt_reads_a_copy_in_the_layout_of_the_hub(iwslt):
    data = resolve([scale_level("iwslt"), Level("test", {"data.val_count": None, "data.test_count": None})]).data
    train = [PAIRS["train"][0], PAIRS["train"][2], PAIRS["train"][1]]
    assert read(open_corpus(data)) == PAIRS | {"train": train}
    assert (data.source, data.target, data.subset) == ("en", "de", "iwslt2017-en-de")


def test_a_part_that_is_missing_in_a_folder_of_a_split(iwslt):
    (iwslt / "train" / "0000.parquet").unlink()
    assert "must have all its parts from 0 on, but has train/0001.parquet; complete it" in mistake(iwslt)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("hub", value) for value in ("../../x", "/x", "x/", "x//y", "a/b/c", "./x", "x/..")),
        *(("subset", value) for value in ("..", "../x", "/x", "a/b")),
        *(("revision", value) for value in ("../../x", "/x", "refs/../x", "main/")),
    ],
)
def test_names_of_the_hub_that_would_lead_out_of_a_folder(key, value):
    """Of copies, or of the library's cache: they are refused before anything is read."""
    with pytest.raises(InputError, match=rf"test: data\.{key} = {re.escape(value)}: must be "):
        resolve([Level("test", {"data.hub": "someone/texts", f"data.{key}": value})])


@pytest.mark.parametrize("revision", ["main", "refs/convert/parquet", "a-branch/of.mine", COMMIT])
def test_names_that_the_hub_has(revision):
    printed = {"data.hub": "some-one/Texts_1.0", "data.subset": "de-en", "data.revision": revision}
    assert resolve([Level("test", printed)]).flat().items() >= printed.items()


def test_a_name_that_the_hub_cannot_have():
    with pytest.raises(InputError, match=r"data\.hub = -x-/y, .* cannot be loaded: Repo id must use"):
        open_corpus(Data(hub="-x-/y"))


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_offline_is_reported_at_once(revision, monkeypatch):
    begun = time.monotonic()
    with pytest.raises(InputError) as error:
        read(open_corpus(Data(hub="wmt/wmt14", subset="de-en", revision=revision)))
    assert time.monotonic() - begun < 4
    assert str(error.value) == (
        "data.hub = wmt/wmt14: must be reachable or in the cache, but there is no network to the hub; "
        "set data.path=FOLDER, or TRANSFORMER_PL_DATA to the folder that holds a folder `wmt14` with a copy"
    )


def test_offline_names_the_folder_of_copies_that_had_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_PL_DATA", str(tmp_path))
    with pytest.raises(InputError, match=rf"no wmt14 in TRANSFORMER_PL_DATA={tmp_path}"):
        open_corpus(Data(hub="wmt/wmt14"))


def test_the_hub_is_asked_for_before_anything_is_loaded(monkeypatch):
    """A port at which no one listens answers no; one that listens, yes."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert module._hub_reachable()
    assert not module._hub_reachable()


@pytest.fixture
def hub(monkeypatch):
    """A hub that answers any request with the pairs, and notes what it was asked."""
    import datasets

    asked = []

    def load(*args, **options):
        asked.append((args, options))
        rows = {split: [{"translation": {"en": en, "de": de}} for en, de in pairs] for split, pairs in PAIRS.items()}
        rows["validation"] = rows.pop("val")
        return datasets.DatasetDict({split: datasets.Dataset.from_list(rows[split]) for split in rows})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(module, "_hub_reachable", lambda: True)
    return asked


def test_a_dataset_of_the_hub_is_read_at_its_commit(hub):
    corpus = open_corpus(Data(hub="wmt/wmt14", subset="de-en", revision=COMMIT))
    assert hub == []
    assert read(corpus) == read(corpus) == PAIRS
    assert hub == [(("wmt/wmt14", "de-en"), {"revision": COMMIT})]
    assert (corpus.fingerprint["hub"], corpus.fingerprint["commit"]) == ("wmt/wmt14", COMMIT)


def test_a_branch_is_resolved_to_its_commit(hub, monkeypatch):
    monkeypatch.setattr(module, "_named_commit", lambda data, reachable: COMMIT)
    open_corpus(Data(hub="wmt/wmt14", revision="main")).pairs("val").__next__()
    assert hub[0][1] == {"revision": COMMIT}


def test_the_commit_last_heard_of_serves_offline(hub, monkeypatch):
    from huggingface_hub import constants

    refs = os.path.join(constants.HF_HUB_CACHE, "datasets--wmt--wmt14", "refs")
    os.makedirs(refs)
    with open(os.path.join(refs, "main"), "w") as file:
        file.write(COMMIT)
    monkeypatch.setattr(module, "_hub_reachable", lambda: False)
    corpus = open_corpus(Data(hub="wmt/wmt14"))
    assert corpus.fingerprint["commit"] == COMMIT
    with pytest.raises(InputError, match="no network"):  # what the cache holds is not at this commit
        list(corpus.pairs("val"))


def test_a_split_that_the_hub_lacks(hub):
    corpus = open_corpus(Data(hub="wmt/wmt14", revision=COMMIT, val="dev"))
    with pytest.raises(InputError, match=r"dataset wmt/wmt14: must hold one en-de split named dev, but holds train, "):
        list(corpus.pairs("val"))


def test_what_the_hub_answers_is_reported_on_one_line(monkeypatch):
    import datasets

    def load(*args, **options):
        raise datasets.exceptions.DatasetNotFoundError("no such dataset\nlook again")

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(module, "_hub_reachable", lambda: True)
    with pytest.raises(
        InputError, match=r"data\.subset = x, .*: cannot be loaded: no such dataset look again; correct"
    ):
        list(open_corpus(Data(hub="no/no", subset="x", revision=COMMIT)).pairs("val"))
