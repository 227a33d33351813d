import gzip
import json
import os
import resource

import pytest
from corpora import PAIRS, mistake, opened, read

from transformer_pl.config import Data
from transformer_pl.data.sources import open_corpus
from transformer_pl.runtime.errors import InputError


def test_text_files_are_read_as_often_as_asked(folder):
    corpus = opened(folder)
    assert read(corpus) == read(corpus) == PAIRS
    assert str(folder) in corpus.description


def test_the_other_direction_swaps_the_sides(folder):
    assert read(opened(folder, source="de", target="en"))["val"] == [("zwei Katzen", "two cats")]


@pytest.mark.parametrize(("split", "name"), [("val", "dev2013"), ("val", "validation"), ("test", "test_2016_flickr")])
def test_splits_are_found_by_their_beginning(folder, split, name):
    for path in folder.glob(f"{split}.*"):
        path.rename(folder / path.name.replace(split, name, 1))
    assert read(opened(folder)) == PAIRS


def test_a_language_may_have_a_dot_and_other_files_may_be_there(folder):
    for path in list(folder.iterdir()):
        split, language = path.name.split(".", 1)
        path.rename(folder / f"{split}.clean.{language}")
    for name in (".en", "README.md", "train.clean.fr", "train/x.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no pair")
    assert read(opened(folder, source="clean.en", target="clean.de")) == PAIRS
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


def test_parts_in_the_folder_of_a_split_may_be_text(folder):
    for language, lines in (("en", ("one", "two")), ("de", ("eins", "zwei"))):
        (folder / f"test.{language}").unlink()
        (folder / "test").mkdir(exist_ok=True)
        for i, line in enumerate(lines):
            (folder / "test" / f"{i:04}.{language}").write_text(f"{line}\n")
    assert read(opened(folder))["test"] == [("one", "eins"), ("two", "zwei")]
    (folder / "test" / "0001.de").unlink()
    assert "must have as many parts in both languages" in mistake(folder)
    (folder / "test" / "0000.en").unlink()
    assert "must have all its parts from 0 on, but has test/0001.en; complete it" in mistake(folder)


def test_numbers_of_parts_need_no_zeros_before_them(folder):
    pairs = [(f"word {i}", f"Wort {i}") for i in range(12)]
    for side, language in enumerate(("en", "de")):
        (folder / f"test.{language}").unlink()
        (folder / "test").mkdir(exist_ok=True)
        for i, pair in enumerate(pairs):
            (folder / "test" / f"{i}.{language}").write_text(f"{pair[side]}\n")
            (folder / f"other-{i}-of-12.{language}").write_text(f"{pair[side]}\n")
    assert read(opened(folder))["test"] == read(opened(folder, test="other"))["test"] == pairs


def test_a_split_that_is_named_may_be_a_folder_of_parts(folder):
    (folder / "news").mkdir()
    for language in ("en", "de"):
        (folder / "news" / f"0.{language}").write_text(f"named {language}\n")
    assert read(opened(folder, val="news"))["val"] == [("named en", "named de")]


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
    naming = (
        "where NAME is without its ending: train for train.en; files end in .en and .de, or .json, .jsonl, .parquet"
    )
    assert val == f"{place} val or dev, but holds train; name it with data.val=NAME, {naming}"
    assert test == f"{place} test, but holds train; name it with data.test=NAME, {naming}"


def test_an_empty_folder(tmp_path):
    with pytest.raises(InputError, match="begins with train, but holds nothing; name it with"):
        opened(tmp_path)


def test_a_named_split_that_is_missing(folder):
    assert "split named dev, but holds test, train, val; name it with data.val=NAME" in mistake(folder, val="dev")


def test_the_remedy_for_a_name_with_its_ending_is_true(folder):
    message = mistake(folder, train="train.en")
    assert "named train.en, but holds test, train, val; name it with data.train=NAME" in message
    assert "NAME is without its ending: train for train.en" in message
    assert read(opened(folder, train="train")) == PAIRS


def test_files_with_other_endings_are_listed(tmp_path):
    (tmp_path / "train.txt").write_text("a\tb\n")
    with pytest.raises(InputError, match=r"holds train\.txt; .*; files end in \.en and \.de, or \.json,"):
        opened(tmp_path)


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


def test_the_home_of_a_user_who_is_not_there():
    with pytest.raises(InputError, match=r"folder ~no-such-user/x: must hold the corpus, but: No such file"):
        open_corpus(Data(path="~no-such-user/x"))
