"""Text in a folder's files: every format says the same, and a mistake names its file and line."""

import gzip
import json

import pytest
from corpora import PAIRS, mistake, opened, read

from transformer_pl.config import Data
from transformer_pl.data.files import folder_corpus
from transformer_pl.data.selection import used_documents
from transformer_pl.runtime.errors import InputError

ROWS = {split: [{"en": en, "de": de} for en, de in pairs] for split, pairs in PAIRS.items()}
FINE = {"en": "x", "de": "y"}


def write_table(path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import datasets

        datasets.disable_progress_bars()
        datasets.Dataset.from_list(rows).to_parquet(path)
        return
    if path.suffix == ".tsv":
        path.write_text("".join(f"{row['en']}\t{row['de']}\n" for row in rows))
        return
    text = json.dumps(rows, indent=1) if ".json" in path.suffixes else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def tables(tmp_path):
    def write(ending, nested=False):
        folder = tmp_path / "tables [1] *"  # signs that a pattern would read otherwise
        for split, rows in ROWS.items():
            write_table(folder / f"{split}.{ending}", [{"translation": row} for row in rows] if nested else rows)
        return folder

    return write


def test_text_files_are_read_as_often_as_asked_in_both_directions(folder):
    corpus = opened(folder)
    assert read(corpus) == read(corpus) == PAIRS and str(folder) in corpus.description
    turned = read(opened(folder, source="de", target="en"))
    assert turned == {split: [pair[::-1] for pair in pairs] for split, pairs in PAIRS.items()}


@pytest.mark.parametrize("nested", [False, True], ids=["columns", "translation"])
@pytest.mark.parametrize("ending", ["json", "json.gz", "jsonl", "jsonl.gz", "parquet"])
def test_tables_are_read_like_text(tables, ending, nested, capfd):
    corpus = opened(tables(ending, nested))
    assert read(corpus) == read(corpus) == PAIRS
    assert capfd.readouterr() == ("", "")


TURNED = {split: [pair[::-1] for pair in pairs] for split, pairs in PAIRS.items()}


@pytest.mark.parametrize(
    ("columns", "keys", "expected"),
    [
        (None, {}, PAIRS),
        (None, {"source": "de", "target": "en"}, PAIRS),  # the source comes first
        (("en", "de"), {}, PAIRS),
        (("de", "en"), {}, PAIRS),
        (("en", "de"), {"source": "de", "target": "en"}, TURNED),
    ],
)
def test_lines_with_a_tab_are_read_in_the_order_of_their_head(tmp_path, columns, keys, expected):
    for (split, rows), ending in zip(ROWS.items(), ("tsv", "tsv.gz", "tsv"), strict=True):
        lines = [[row[column] for column in columns or ("en", "de")] for row in rows]
        text = "\r\n".join("\t".join(line) for line in ([columns, *lines] if columns else lines)).encode()
        (tmp_path / f"{split}.{ending}").write_bytes(gzip.compress(text) if ending == "tsv.gz" else text)
    assert read(opened(tmp_path, **keys)) == expected


def test_a_first_line_that_all_sets_share_is_a_heading_and_said_to_be_one(tables):
    """It is part of the fingerprint: without it the same files were read otherwise."""
    folder = tables("tsv")
    for path in folder.iterdir():
        path.write_text(f"source\ttarget\n{path.read_text()}")
    corpus = opened(folder)
    assert read(corpus) == PAIRS and "source" in corpus.description and "heading" in corpus.fingerprint
    (folder / "test.tsv").write_text("".join(f"{en}\t{de}\n" for en, de in PAIRS["test"]))
    corpus = opened(folder)
    assert read(corpus)["val"] == [("source", "target"), *PAIRS["val"]] and "heading" not in corpus.fingerprint
    assert "train and val" in corpus.description and "source\ttarget" not in opened(tables("tsv")).description


@pytest.mark.parametrize("line", ["", "a", "a\tb\tc", "\t\t"])
def test_a_line_without_one_tab_is_named(tables, line):
    folder = tables("tsv")
    (folder / "test.tsv").write_text(f"en\tde\na\tb\n{line}\na\n")
    assert f"{folder / 'test.tsv'} line 3" in mistake(folder)


@pytest.mark.parametrize("has_heading", [True, False])
def test_a_further_set_needs_a_test_split_alone_and_has_the_heading_of_the_others_or_none(
    tables, has_heading, tmp_path
):
    folder, lines = tables("tsv"), [f"{en}\t{de}\n" for en, de in PAIRS["test"]]
    for path in folder.glob("*.tsv"):
        path.write_text("source\ttarget\n" + path.read_text())
    (tmp_path / "a:b").mkdir()
    (tmp_path / "a:b" / "test.tsv").write_text("".join(["source\ttarget\n"] * has_heading + lines[::-1]))
    corpus = opened(folder, sets=(f"news={tmp_path / 'a:b'}:test", f"same={folder}"))
    assert read(corpus) == PAIRS and list(corpus.pairs("same")) == PAIRS["test"]
    assert list(corpus.pairs("news")) == PAIRS["test"][::-1]
    assert f"{tmp_path / 'a'}" in mistake(folder, sets=(f"news={tmp_path / 'a:b'}",))


DOCUMENTS = {  # files of a test set with two documents, of two sentences and of one
    "text": {"test.en": "a\nb\n\nc\n", "test.de": "A\nB\n\nC\n"},
    "jsonl": {"test.jsonl": [("a", "A", "one"), ("b", "B", "one"), ("c", "C", 2)]},
    "parquet": {"test.parquet": [("a", "A", "one"), ("b", "B", "one"), ("c", "C", "2")]},
    "sgm": {
        f"test-{kind}.{language}.sgm": f"<{kind}set><DOC docid='1'>\n<p>\n<seg id='1'>{one}</seg>"
        f"<seg id='2'>\n{two}</seg></p></DOC>\n<doc docid='2'>\n<hl><seg id='1'> {three} </seg></hl></doc></{kind}set>"
        for kind, language, one, two, three in (("src", "en", "a", "b", "c &amp; < d"), ("ref", "de", "A", "B", "C"))
    }
    | {"test-ref.en.sgm": "<refset><doc><seg>other</seg></doc></refset>"},
}


@pytest.mark.parametrize("form", DOCUMENTS)
def test_the_documents_of_a_set_are_known(folder, form):
    for path in folder.glob("test.*"):
        path.unlink()
    for name, content in DOCUMENTS[form].items():
        if isinstance(content, str):
            (folder / name).write_text(content)
        else:
            write_table(folder / name, [dict(zip(("en", "de", "document"), row, strict=True)) for row in content])
    corpus, data = opened(folder), Data(path=str(folder))
    third = "c & < d" if form == "sgm" else "c"
    assert [pair for pair in corpus.pairs("test") if any(pair)] == [("a", "A"), ("b", "B"), (third, "C")]
    assert used_documents("test", corpus, data) == [0, 0, 1]
    assert used_documents("val", corpus, data) == [0]


def test_segments_that_are_missing_on_one_side_are_named(folder):
    for path in folder.glob("test.*"):
        path.unlink()
    for name, segments in (("src.en", "<seg>a</seg><seg>b</seg>"), ("ref.de", "<seg>A</seg>")):
        (folder / f"test-{name}.sgm").write_text(f"<doc>{segments}</doc>")
    assert "test-src.en.sgm" in mistake(folder)


@pytest.mark.parametrize(("split", "name"), [("val", "dev2013"), ("val", "validation"), ("test", "test_2016_flickr")])
def test_splits_are_found_by_their_beginning(folder, split, name):
    for path in folder.glob(f"{split}.*"):
        path.rename(folder / path.name.replace(split, name, 1))
    assert read(opened(folder)) == PAIRS


@pytest.mark.parametrize("name", ["test-{}-of-12.{}", "test-{:05}-of-00012.{}"])
@pytest.mark.parametrize("endings", [("en", "de"), ("tsv",), ("jsonl",), ("parquet",)], ids="-".join)
def test_parts_are_read_in_their_order_and_must_all_be_there(folder, name, endings):
    pairs = [(f"word {i}", f"Wort {i}") for i in range(12)]
    for path in folder.glob("test.*"):
        path.unlink()
    for i, pair in enumerate(pairs):
        for side, ending in enumerate(endings):
            path = folder / name.format(i, ending)
            if len(endings) == 1:
                write_table(path, [dict(zip(("en", "de"), pair, strict=True))])
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(f"{pair[side]}\n")
    assert read(opened(folder))["test"] == pairs
    (folder / name.format(7, endings[-1])).unlink()
    assert str(folder) in mistake(folder) and name.format(0, endings[-1]) in mistake(folder)


def test_only_newline_ends_a_sentence(folder):
    odd = "a\u2028b\x0bc\x0cd\x85e\rf"
    (folder / "test.en").write_bytes(f"\ufeff{odd}\r\nlast".encode())
    assert [source for source, _ in opened(folder).pairs("test")] == [odd, "last"]


def test_a_newline_inside_a_row_becomes_a_blank_and_a_date_stays_text(tables):
    folder = tables("jsonl")
    rows = [{"en": "a\nb", "de": "c\n"}, {"en": "2021-01-01", "de": "12:00", "translation": "by hand"}]
    write_table(folder / "test.jsonl", rows)
    assert read(opened(folder))["test"] == [("a b", "c "), ("2021-01-01", "12:00")]


def test_the_fingerprint_is_that_of_the_text_not_of_the_folder(folder, tmp_path):
    before = opened(folder).fingerprint
    assert json.loads(json.dumps(before)) == before
    folder.rename(tmp_path / "elsewhere")
    assert opened(tmp_path / "elsewhere").fingerprint == before
    (tmp_path / "elsewhere" / "val.en.gz").write_bytes(gzip.compress(b"other\n"))
    assert opened(tmp_path / "elsewhere").fingerprint != before


# Mistakes


def test_every_split_that_is_missing_is_reported_at_once(folder):
    for path in [*folder.glob("val*"), *folder.glob("test*")]:
        path.unlink()
    with pytest.raises(InputError) as error:
        opened(folder)
    val, test = error.value.messages
    assert "data.val" in val and "data.test" in test and str(folder) in val and ".jsonl" in val


@pytest.mark.parametrize(
    "names",
    [
        ["train.csv", "val.csv", "test.csv"],
        ["src-train.txt", "tgt-train.txt", "src-val.txt", "tgt-val.txt", "src-test.txt", "tgt-test.txt"],
        ["wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"],
        ["train/data.tsv", "val/data.tsv", "test/data.tsv"],
        ["dataset_dict.json", "train/data-00000-of-00001.arrow", "validation/state.json", "test/state.json"],
    ],
    ids=["csv", "OpenNMT", "WikiText", "folders", "save_to_disk"],
)
@pytest.mark.parametrize("has_source", [True, False])
def test_a_folder_of_another_form_is_refused_by_what_is_there_and_what_is_wanted(tmp_path, names, has_source):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    with pytest.raises(InputError) as error:
        folder_corpus(tmp_path, Data(path=str(tmp_path)), has_source)
    (message,) = error.value.messages
    assert all(name.partition("/")[0] in message for name in names)
    assert "train.tsv" in message and ("train.en and train.de" if has_source else "train.txt") in message


@pytest.mark.parametrize(
    ("files", "keys", "named"),
    [
        (["dev.en", "dev.de"], {}, "data.val"),  # beside val
        ([], {"val": "dev"}, "data.val"),
        ([], {"train": "train.en"}, "data.train"),  # its ending is no part of the name
        (["test.en.gz"], {}, "test.en.gz"),  # twice
        (["test.jsonl"], {}, "test.jsonl"),
        (["test-0-of-2.en", "test-0-of-2.de"], {}, "test-0-of-2.en"),
        ([], {"target": "fr"}, "train.en"),  # a language is missing
    ],
)
def test_files_that_are_not_one_text_each(folder, files, keys, named):
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x\n")
    with pytest.raises(InputError) as error:
        opened(folder, **keys)
    assert any(named in message and str(folder) in message for message in error.value.messages)


@pytest.mark.parametrize(("lines", "first_missing"), [("eins\n", "line 2"), ("eins\nzwei\ndrei\n", "line 3")])
def test_lines_that_do_not_pair(folder, lines, first_missing):
    (folder / "test.de").write_text(lines)
    message = mistake(folder)
    assert str(folder / "test.en") in message and str(folder / "test.de") in message and first_missing in message


@pytest.mark.parametrize(
    "content",
    [b"plain text", gzip.compress(b"cut off" * 99)[:-9], b"\x1f\x8b\x08" + b"\x00" * 30],
    ids=["no gzip", "cut off", "zeros"],
)
def test_a_file_that_cannot_be_read(folder, content):
    (folder / "val.en.gz").write_bytes(content)
    assert str(folder / "val.en.gz") in mistake(folder)
    (folder / "val.en.gz").unlink()
    (folder / "val.en.gz").mkdir()
    assert str(folder / "val.en.gz") in mistake(folder)


@pytest.mark.parametrize("ending", ["json", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("content", [b'{"en": 1,\n{', b"[{]"])
def test_a_broken_table(tables, ending, content, capfd):
    folder = tables(ending)
    (folder / f"test.{ending}").write_bytes(content)
    assert str(folder / f"test.{ending}") in mistake(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("row", "nested"), [(1, False), (1, True), (1001, False)])
@pytest.mark.parametrize("wrong", [None, [1], {"en": "x"}, {"en": "x", "de": 3}, {"en": "x", "de": "a\ud800"}], ids=str)
def test_a_row_without_text_is_named(tables, row, nested, wrong):
    folder = tables("jsonl")
    rows = [FINE] * (row - 1) + [wrong, FINE]
    write_table(folder / "test.jsonl", [{"translation": one} for one in rows] if nested else rows)
    assert f"{folder / 'test.jsonl'} line {row}" in mistake(folder)
