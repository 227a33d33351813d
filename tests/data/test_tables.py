import codecs
import gzip
import json

import pytest
from corpora import PAIRS, mistake, opened, read


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


@pytest.mark.parametrize("ending", ["jsonl.gz", "parquet"])
def test_a_broken_table(tables, ending, capfd):
    folder = tables(ending)
    (folder / f"test.{ending}").write_bytes(b'{"en": 1,\n{')
    assert mistake(folder).startswith(f"{folder / f'test.{ending}'}: cannot be read")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_line_that_is_no_json(tables, ending):
    """It is found in a later chunk too, and blank lines count."""
    folder = tables(ending)
    path = folder / f"test.{ending}"
    path.write_text('\n{"en": "x", "de": "y"}\n' * 1100 + '{"en": "x", "de": "y}\n')
    assert (
        mistake(folder) == f"{path} line 2201: must be JSON, but: Unterminated string starting at column 19; correct it"
    )
    path.write_text('\n{"en": "x", "de": "y"}\n' * 1100 + '{"en": "x", "de": 1}\n')
    assert mistake(folder) == f"{path} line 2201: de must be text, but is 1; fix the row"


def test_a_list_that_is_no_json(tables):
    folder = tables("json")
    (folder / "test.json").write_text('[{"en": "x", "de": "y"},\n {"en": "x" "de": "y"}]')
    place = f"{folder / 'test.json'} line 2: must be JSON, but: Expecting ',' delimiter at column 13; correct it"
    assert mistake(folder) == place


@pytest.mark.parametrize("nested", [False, True], ids=["columns", "translation"])
@pytest.mark.parametrize("row", [1, 2, 1001])
def test_a_row_without_a_key_is_no_missing_column(tables, row, nested):
    folder = tables("jsonl")
    rows = [{"en": "x", "de": "y"} for _ in range(1100)]
    del rows[row - 1]["de"]
    write_table(folder / "test.jsonl", [{"translation": one} for one in rows] if nested else rows)
    assert mistake(folder) == f"{folder / 'test.jsonl'} line {row}: de must be text, but is None; fix the row"


def test_columns_of_the_languages_go_before_translation(tables):
    folder = tables("jsonl")
    write_table(folder / "test.jsonl", [{"en": "x", "de": "y", "translation": "by hand"}])
    assert read(opened(folder))["test"] == [("x", "y")]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_parts_may_be_in_the_folder_of_their_split(tables, ending):
    folder = tables(ending)
    (folder / f"test.{ending}").unlink()
    (folder / "test").mkdir()
    for i, (en, de) in enumerate(PAIRS["test"]):
        write_table(folder / "test" / f"{i:04}.{ending}", [{"en": en, "de": de}])
    assert read(opened(folder)) == PAIRS
    (folder / "test" / f"0000.{ending}").unlink()
    assert "must have all its parts from 0 on" in mistake(folder)


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
    assert f"{folder / 'test.jsonl'} line 2: de must be text, but is {value}" in mistake(folder)


@pytest.mark.parametrize("row", ["null", "1", '"a"', "[1, 2]", "[]", "true"])
def test_a_row_that_is_no_object(tables, row):
    folder = tables("jsonl")
    for before, number in (('{"en": "x", "de": "y"}\n', 2), ("", 1)):
        (folder / "test.jsonl").write_text(f"{before}{row}\n")
        assert f"{folder / 'test.jsonl'} line {number}: must be an object, but is " in mistake(folder)
    (folder / "test.jsonl").write_text(f'{{"translation": {row}}}\n')
    assert "must have the columns en and de, or translation with both" in mistake(folder)


def test_half_a_character_is_no_text(tables):
    folder = tables("jsonl")
    (folder / "test.jsonl").write_text('{"en": "a\\ud800", "de": "b"}\n')
    assert f"{folder / 'test.jsonl'} line 1: en must be text, but is 'a\\ud800'; fix the row" in mistake(folder)


def test_a_list_of_rows_over_several_lines(tables):
    folder = tables("json")
    rows = [{"en": en, "de": de} for en, de in PAIRS["test"]]
    (folder / "test.json").write_text(json.dumps(rows, indent=2))
    assert read(opened(folder)) == PAIRS
    (folder / "test.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert read(opened(folder)) == PAIRS
    for text in (json.dumps(rows), json.dumps(rows, indent=2), "".join(f"{json.dumps(row)}\n" for row in rows)):
        (folder / "test.json").write_bytes(codecs.BOM_UTF8 + text.encode())
        assert read(opened(folder)) == PAIRS
