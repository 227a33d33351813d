import gzip
import json
import os
import re
import resource
import socket
import time

import pytest

from transformer_pl.config import Data
from transformer_pl.data import sources, synthetic
from transformer_pl.data.sources import SPLITS, open_corpus
from transformer_pl.levels import Level, resolve, scale_level
from transformer_pl.runtime.errors import InputError

PAIRS = {
    "train": [("a cat", "eine Katze"), ("a dog", "ein Hund"), ("", "leer")],
    "val": [("two cats", "zwei Katzen")],
    "test": [("two dogs", "zwei Hunde"), ("three", "drei")],
}


@pytest.fixture(autouse=True)
def _no_cache_of_the_users(tmp_path_factory, monkeypatch):
    import datasets
    from huggingface_hub import constants

    monkeypatch.delenv("TRANSFORMER_PL_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path):
    """A corpus as text files: plain, and gzip for the validation split."""
    folder = tmp_path / "text"
    folder.mkdir()
    for split, pairs in PAIRS.items():
        for language, sentences in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            content = "".join(f"{sentence}\n" for sentence in sentences).encode()
            if split == "val":
                (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(content, mtime=0))
            else:
                (folder / f"{split}.{language}").write_bytes(content)
    return folder


def read(corpus) -> dict[str, list]:
    return {split: list(corpus.pairs(split)) for split in SPLITS}


def opened(folder, **changes):
    return open_corpus(Data(path=str(folder), **changes))


def mistake(folder, **changes) -> str:
    """What a user is told who trains on this folder: one line."""
    with pytest.raises(InputError) as error:
        read(opened(folder, **changes))
    assert "\n" not in str(error.value)
    return str(error.value)


# The embedded corpus


def test_without_a_place_the_corpus_is_the_embedded_one():
    opened = open_corpus(Data())
    assert opened.fingerprint == {"corpus": "embedded", "version": synthetic.VERSION}
    assert list(opened.pairs("val")) == [tuple(pair) for pair in synthetic.pairs("val")]


def test_the_embedded_corpus_turns_round():
    turned = open_corpus(Data(source="de", target="en"))
    assert list(turned.pairs("val")) == [(de, en) for en, de in synthetic.pairs("val")]


def test_the_embedded_corpus_knows_two_languages():
    with pytest.raises(InputError, match=r"data\.source = en, data\.target = fr: must be en and de"):
        open_corpus(Data(target="fr"))


def test_the_two_languages_differ():
    with pytest.raises(InputError, match=r"data\.source = en: must differ from data\.target"):
        open_corpus(Data(source="en", target="en"))


# Text files


def test_text_files_are_read_as_often_as_asked(folder):
    corpus = opened(folder)
    assert read(corpus) == read(corpus) == PAIRS
    assert str(folder) in corpus.describe


def test_the_other_direction_swaps_the_sides(folder):
    assert read(opened(folder, source="de", target="en"))["val"] == [("zwei Katzen", "two cats")]


@pytest.mark.parametrize(("split", "name"), [("val", "dev2013"), ("val", "validation"), ("test", "test_2016_flickr")])
def test_splits_are_found_by_their_beginning(folder, split, name):
    for path in folder.glob(f"{split}.*"):
        path.rename(folder / path.name.replace(split, name, 1))
    assert read(opened(folder)) == PAIRS


def test_a_split_that_is_named_is_taken(folder):
    for language in ("en", "de"):
        (folder / f"newstest2013.{language}").write_bytes(b"named\n")
    assert read(opened(folder, val="newstest2013"))["val"] == [("named", "named")]


def test_only_newline_ends_a_sentence(folder):
    odd = "a\u2028b\x0bc\x0cd\x85e\rf"
    (folder / "test.en").write_bytes(f"\ufeff{odd}\r\nlast".encode())
    assert [source for source, _ in opened(folder).pairs("test")] == [odd, "last"]


def test_shards_belong_together(folder):
    for language, lines in (("en", "one\ntwo\n"), ("de", "eins\nzwei\n")):
        (folder / f"test.{language}").unlink()
        for i, line in enumerate(lines.splitlines()):
            (folder / f"test-{i:05}-of-00002.{language}").write_text(line + "\n")
    assert read(opened(folder))["test"] == [("one", "eins"), ("two", "zwei")]
    (folder / "test-00000-of-00002.en").unlink()
    assert "must have all its parts, once each, but has test-00001-of-00002.en; complete it" in mistake(folder)
    (folder / "test-00001-of-00002.en").rename(folder / "test.en")
    assert "must have as many parts in both languages" in mistake(folder)


def test_a_part_of_the_training_text_is_another_text(folder):
    corpus, whole = opened(folder, train_pairs=2), opened(folder)
    assert read(corpus) == PAIRS | {"train": PAIRS["train"][:2]}
    assert corpus.fingerprint != whole.fingerprint
    assert read(opened(folder, train_pairs=3)) == PAIRS
    assert mistake(folder, train_pairs=4).startswith("data.train_pairs = 4: must be at most the training pairs of the")


def test_the_fingerprint_is_that_of_the_text_not_of_the_folder(folder, tmp_path):
    before = opened(folder).fingerprint
    assert json.loads(json.dumps(before)) == before
    folder.rename(tmp_path / "elsewhere")
    assert opened(tmp_path / "elsewhere").fingerprint == before
    (tmp_path / "elsewhere" / "val.en.gz").write_bytes(gzip.compress(b"other\n"))
    assert opened(tmp_path / "elsewhere").fingerprint != before


def test_a_folder_that_is_missing(tmp_path):
    assert mistake(tmp_path / "none").startswith(f"folder {tmp_path / 'none'}: must hold the corpus, but: No such file")


def test_a_file_in_place_of_a_folder(folder):
    assert "Not a directory" in mistake(folder / "train.en")


def test_every_split_that_is_missing_is_reported_at_once(folder):
    for path in [*folder.glob("val*"), *folder.glob("test*")]:
        path.unlink()
    with pytest.raises(InputError) as error:
        opened(folder)
    val, test = error.value.messages
    place = f"folder {folder}: must hold one en-de split that begins with"
    assert val == f"{place} val or dev, but holds train.de, train.en; name it with data.val=NAME"
    assert test == f"{place} test, but holds train.de, train.en; name it with data.test=NAME"


def test_an_empty_folder(tmp_path):
    with pytest.raises(InputError, match="begins with train, but holds nothing; name it with"):
        opened(tmp_path)


def test_a_named_split_that_is_missing(folder):
    assert "split named dev, but holds test.de" in mistake(folder, val="dev")


def test_a_split_that_is_ambiguous(folder):
    for language in ("en", "de"):
        (folder / f"dev.{language}").write_text("x\n")
    assert "begins with val or dev, but holds dev, val; name it with data.val=NAME" in mistake(folder)
    assert read(opened(folder, val="dev"))["val"] == [("x", "x")]


def test_a_language_that_is_missing(folder):
    (folder / "test.de").unlink()
    assert "must have en and de, but de is missing beside test.en; add it" in mistake(folder)


@pytest.mark.parametrize(
    ("second", "listed"), [("test.en.gz", "test.en, test.en.gz"), ("test.jsonl", "test.de, test.en, test.jsonl")]
)
def test_a_split_that_is_there_twice(folder, second, listed):
    (folder / second).write_bytes(b"x")
    assert f"must be stored once, but is in {listed}; remove" in mistake(folder)


def test_lines_that_do_not_pair(folder):
    (folder / "test.de").write_text("eins\nzwei\ndrei\n")
    assert mistake(folder).startswith(
        f"{folder / 'test.en'}, {folder / 'test.de'}: must have equally many lines, but have 2 and 3"
    )
    (folder / "test.de").write_text("eins\n")
    assert "but have 2 and 1" in mistake(folder)


def test_an_empty_file(folder):
    for language in ("en", "de"):
        (folder / f"test.{language}").write_text("")
    assert mistake(folder).startswith(f"{folder / 'test.en'}: must hold sentences, one a line, but is empty")


def test_a_file_that_is_not_utf8(folder):
    (folder / "test.en").write_bytes("one\nna\u00efve\n".encode("latin-1"))
    assert mistake(folder).startswith(f"{folder / 'test.en'} line 2: must be UTF-8, but byte 3 of the line is 0xef")


@pytest.mark.parametrize(
    "content",
    [b"plain text", gzip.compress(b"cut off" * 99)[:-9], b"\x1f\x8b\x08" + b"\x00" * 30],
    ids=["no gzip", "cut off", "zeros"],
)
def test_a_broken_gzip(folder, content):
    (folder / "val.en.gz").write_bytes(content)
    assert mistake(folder).startswith(f"{folder / 'val.en.gz'}: cannot be read: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(folder):
    (folder / "test.en").chmod(0)
    assert "test.en: cannot be read: Permission denied" in mistake(folder)


def test_a_folder_in_place_of_a_file(folder):
    (folder / "test.en").unlink()
    (folder / "test.en").mkdir()
    assert "test.en: cannot be read: Is a directory" in mistake(folder)


# Tables


def write_table(path, rows) -> None:
    import datasets

    datasets.disable_progress_bars()
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
        return
    text = json.dumps(rows) if ".json" in path.suffixes else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def tables(tmp_path):
    def write(ending, nested=False):
        folder = tmp_path / "tables [1] *"  # signs that a pattern would read otherwise
        folder.mkdir()
        for split, pairs in PAIRS.items():
            rows = [{"en": en, "de": de} for en, de in pairs]
            write_table(folder / f"{split}.{ending}", [{"translation": row} for row in rows] if nested else rows)
        return folder

    return write


@pytest.mark.parametrize("nested", [False, True], ids=["columns", "translation"])
@pytest.mark.parametrize("ending", ["json", "jsonl", "jsonl.gz", "parquet"])
def test_tables_are_read_like_text(tables, ending, nested, capfd):
    corpus = opened(tables(ending, nested))
    assert read(corpus) == read(corpus) == PAIRS
    assert capfd.readouterr() == ("", "")


def test_a_folder_laid_out_like_the_hubs(tmp_path):
    for split, name in (("train", "train"), ("val", "validation"), ("test", "test")):
        rows = [{"translation": {"de": de, "en": en}} for en, de in PAIRS[split]]
        shards = [rows[:1], rows[1:]] if split == "train" else [rows]
        for i, shard in enumerate(shards):
            write_table(tmp_path / f"{name}-{i:05}-of-{len(shards):05}.parquet", shard)
    assert read(opened(tmp_path)) == PAIRS


def test_a_newline_inside_a_row_becomes_a_blank(tables):
    folder = tables("jsonl")
    write_table(folder / "test.jsonl", [{"en": "a\nb", "de": "c\n"}])
    assert read(opened(folder))["test"] == [("a b", "c ")]


@pytest.mark.parametrize("ending", ["json", "jsonl", "jsonl.gz", "parquet"])
def test_a_broken_table(tables, ending, capfd):
    folder = tables(ending)
    (folder / f"test.{ending}").write_bytes(b'{"en": 1,\n{')
    assert mistake(folder).startswith(f"{folder / f'test.{ending}'}: cannot be read")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_table(tables, content):
    folder = tables("jsonl")
    (folder / "test.jsonl").write_bytes(content)
    assert mistake(folder).startswith(f"{folder / 'test.jsonl'}: ")


def test_a_column_that_is_missing(tables):
    message = mistake(tables("jsonl"), target="fr")
    assert "must have the columns en and fr, or translation with both, but fr is missing; there is: en, de" in message


def test_a_language_that_is_missing_in_a_translation(tables):
    assert "but fr is missing; there is: " in mistake(tables("parquet", nested=True), target="fr")


@pytest.mark.parametrize("value", [None, 3])
def test_a_row_without_text(tables, value):
    folder = tables("jsonl")
    write_table(folder / "test.jsonl", [{"en": "x", "de": "y"}, {"en": "x", "de": value}])
    assert f"{folder / 'test.jsonl'} row 2: de must be text, but is {value}" in mistake(folder)


@pytest.mark.parametrize("row", ["null", "1", '"a"', "[1, 2]", "[]", "true"])
def test_a_row_that_is_no_object(tables, row):
    folder = tables("jsonl")
    for before, number in (('{"en": "x", "de": "y"}\n', 2), ("", 1)):
        (folder / "test.jsonl").write_text(f"{before}{row}\n")
        assert f"{folder / 'test.jsonl'} row {number}: must be an object, but is " in mistake(folder)
    (folder / "test.jsonl").write_text(f'{{"translation": {row}}}\n')
    assert "must have the columns en and de, or translation with both" in mistake(folder)


def test_half_a_character_is_no_text(tables):
    folder = tables("jsonl")
    (folder / "test.jsonl").write_text('{"en": "a\\ud800", "de": "b"}\n')
    assert f"{folder / 'test.jsonl'} row 1: en must be text, but is 'a\\ud800'; mend the row" in mistake(folder)


def test_a_list_of_rows_over_several_lines(tables):
    folder = tables("json")
    rows = [{"en": en, "de": de} for en, de in PAIRS["test"]]
    (folder / "test.json").write_text(json.dumps(rows, indent=2))
    assert read(opened(folder)) == PAIRS
    (folder / "test.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert read(opened(folder)) == PAIRS


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_text_that_would_never_end_is_not_read(folder, kind):
    path = folder / "train.en"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert mistake(folder).startswith(f"{path}: cannot be read: it is a pipe or a device, not a file")


def test_a_line_without_an_end_is_not_held_in_memory(folder):
    """A gzip file of 20 KB can hold one of 20 MB, and a little more a terabyte."""
    (folder / "train.en").unlink()
    (folder / "train.en.gz").write_bytes(gzip.compress(b"a\n" + bytes(20 << 20)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert f"{folder / 'train.en.gz'} line 2: must have at most 16,777,216 bytes" in mistake(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


# The hub

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


def test_a_path_goes_before_the_hub(folder):
    assert read(open_corpus(Data(path=str(folder), hub="wmt/wmt14"))) == PAIRS


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


def test_the_home_of_a_user_who_is_not_there():
    with pytest.raises(InputError, match=r"folder ~no-such-user/x: must hold the corpus, but: No such file"):
        open_corpus(Data(path="~no-such-user/x"))


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_offline_is_reported_at_once(revision, monkeypatch):
    begun = time.monotonic()
    with pytest.raises(InputError) as error:
        read(open_corpus(Data(hub="wmt/wmt14", subset="de-en", revision=revision)))
    assert time.monotonic() - begun < 4
    assert str(error.value) == (
        "data.hub = wmt/wmt14: must be reachable or in the cache, but there is no network to the hub; "
        "set data.path=FOLDER, or TRANSFORMER_PL_DATA to a folder with a copy"
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
        assert sources._hub_reachable()
    assert not sources._hub_reachable()


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
    monkeypatch.setattr(sources, "_hub_reachable", lambda: True)
    return asked


def test_a_dataset_of_the_hub_is_read_at_its_commit(hub):
    corpus = open_corpus(Data(hub="wmt/wmt14", subset="de-en", revision=COMMIT))
    assert hub == []
    assert read(corpus) == read(corpus) == PAIRS
    assert hub == [(("wmt/wmt14", "de-en"), {"revision": COMMIT})]
    assert (corpus.fingerprint["hub"], corpus.fingerprint["commit"]) == ("wmt/wmt14", COMMIT)


def test_a_branch_is_resolved_to_its_commit(hub, monkeypatch):
    monkeypatch.setattr(sources, "_named_commit", lambda data, reachable: COMMIT)
    open_corpus(Data(hub="wmt/wmt14", revision="main")).pairs("val").__next__()
    assert hub[0][1] == {"revision": COMMIT}


def test_the_commit_last_heard_of_serves_offline(hub, monkeypatch):
    from huggingface_hub import constants

    refs = os.path.join(constants.HF_HUB_CACHE, "datasets--wmt--wmt14", "refs")
    os.makedirs(refs)
    with open(os.path.join(refs, "main"), "w") as file:
        file.write(COMMIT)
    monkeypatch.setattr(sources, "_hub_reachable", lambda: False)
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
    monkeypatch.setattr(sources, "_hub_reachable", lambda: True)
    with pytest.raises(
        InputError, match=r"data\.subset = x, .*: cannot be loaded: no such dataset look again; correct"
    ):
        list(open_corpus(Data(hub="no/no", subset="x", revision=COMMIT)).pairs("val"))
