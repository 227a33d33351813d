"""Random text files: what the plan accepts is prepared and comes back whole; all else is refused with one message."""

import gzip
import json
import re
import shutil

import pytest
from any_input import ODD, VALUES, Ended, each_property, examples, told_or_done, try_examples
from hypothesis import strategies as st

from transformer_pl import sweep
from transformer_pl.config import Data
from transformer_pl.data.prepare import prepare

FINE = [odd for odd in ODD if odd not in ("\n", "\ud800")]  # what a line of a text may have
FINE_SENTENCES = st.one_of(
    st.lists(st.sampled_from([*FINE, "the ", "low ", "er"]), max_size=8).map(lambda words: f"a {''.join(words)}"),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=20),
    st.sampled_from(["", " ", "\t", "a " * 5_000, "é" * 5_000]),
)
SENTENCES = FINE_SENTENCES | st.sampled_from(ODD)
ENDS = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r", "\n\n"])
ENCODINGS = st.sampled_from(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "latin-1", "utf-32"])


def as_file(lines, end, encoding, last):
    """A text file. Halves of characters, which no file of text has, are written as they are."""
    text = end.join(lines) + (end if last else "")
    return text.encode(encoding, "surrogatepass" if encoding != "latin-1" else "replace")


def corpora(rows):
    """The contents of the six files: pairs of sentences, which are as many in both languages most of the time."""
    count = st.sampled_from([0, 0, 0, 1, 3])
    return st.tuples(
        *(st.lists(rows, min_size=2, max_size=5) for _ in range(3)),
        ENDS,
        ENCODINGS,
        st.booleans(),
        count,
        st.booleans(),
    )


def written(folder, splits, end, encoding, last, gone, zipped):
    """Write the files; `gone` lines are missing at the end of one of them."""
    for split, pairs in zip(("train", "val", "test"), splits, strict=True):
        for side, language in enumerate(("en", "de")):
            lines = [pair[side] for pair in pairs]
            lines = lines[: -gone or None] if (split, side) == ("test", 1) else lines
            content = as_file(lines, end, encoding, last)
            if zipped:
                content = gzip.compress(content)[: -gone or None]
            (folder / f"{split}.{language}{'.gz' if zipped else ''}").write_bytes(content)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    here = tmp_path_factory.mktemp("here")
    (here / "any.yaml").write_text("method: grid\nparameters: {data.path: {value: text}, model.h: {value: 8}}\n")
    return here


def planned(here, vocab_size=300) -> Ended:
    """What the plan says of the text. A vocabulary that it refuses is replaced by the nearest that it names."""
    words = ["any.yaml", "--plan", "--runs=runs", f"--set=data.vocab_size={vocab_size}"]
    printed = told_or_done(sweep.main, *words)
    bound = re.search(r"data\.vocab_size = \d+: must be at (?:least|most) (\d+)", printed.err)
    if bound and vocab_size == 300:
        return planned(here, int(bound[1]))
    return printed


def is_prepared(here, printed):
    """What the plan has accepted is prepared: its evaluation text is that of the files, and comes back from tokens."""
    bounds = re.search(r"may be ([\d,]+) to", printed.out)
    data = Data(path="text", vocab_size=int(bounds[1].replace(",", "")), max_length=10**9, batch_tokens=10**9)
    prepared = prepare(data, here / "runs")
    for split in ("val", "test"):
        for tokens, sentences in zip(prepared.split(split), prepared.text(split), strict=True):
            assert prepared.tokenizer.decode([tokens[i] for i in range(len(tokens))]) == sentences
    return prepared


@examples(corpora(st.tuples(FINE_SENTENCES, FINE_SENTENCES)) | corpora(st.tuples(SENTENCES, SENTENCES)))
def text_files(corpus, here):
    (here / "text").mkdir()
    *splits, end, encoding, last, gone, zipped = corpus
    written(here / "text", splits, end, encoding, last, gone, zipped)
    printed = planned(here)
    if printed.code == 0:
        prepared = is_prepared(here, printed)
        if encoding == "utf-8" and end == "\n" and "\n" not in "".join(map("".join, splits[1])):
            lines = [pair[0].removeprefix("\ufeff" * (i == 0)).removesuffix("\r") for i, pair in enumerate(splits[1])]
            assert prepared.text("val")[0] == lines[: len(prepared.text("val")[0])]
    else:
        assert not (here / "runs").exists()


ROWS = st.one_of(
    st.builds(lambda en, de: {"en": en, "de": de}, SENTENCES, SENTENCES),
    st.builds(lambda en, de: {"translation": {"en": en, "de": de}}, SENTENCES, SENTENCES),
    st.builds(lambda en, de: {"en": en, "de": de}, VALUES, SENTENCES),
    VALUES,
)
SAME_ROWS = st.one_of(*(st.lists(one, min_size=1, max_size=4) for one in (ROWS.branches[0], ROWS.branches[1], ROWS)))
KINDS = st.sampled_from(["jsonl", "json", "json", "jsonl.gz", "json.gz", "parquet"])


@examples(
    st.tuples(
        SAME_ROWS, KINDS, st.booleans(), st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=3)), max_size=1)
    )
)
def tables(corpus, here):
    """JSON of all kinds, some of it broken; what says that it is parquet is none."""
    rows, kind, is_list, broken = corpus
    (here / "text").mkdir()
    rows = [json.dumps(row, default=str) for row in rows]
    content = (f"[{','.join(rows)}]" if is_list else "\n".join(rows)).encode()
    for at, piece in broken:
        content = content[: at % (len(content) + 1)] + piece + content[at % (len(content) + 1) :]
    for split in ("train", "val", "test"):
        (here / "text" / f"{split}.{kind}").write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    if (printed := planned(here)).code == 0:
        is_prepared(here, printed)
    else:
        assert not (here / "runs").exists()


@each_property(text_files, tables)
def test_a_text_is_prepared_or_refused(holds, count, here, monkeypatch):
    monkeypatch.chdir(here)

    def fresh(example):
        for name in ("text", "runs"):
            shutil.rmtree(here / name, ignore_errors=True)
        holds(example, here)

    fresh.examples, fresh.__name__ = holds.examples, holds.__name__
    try_examples(fresh, count)


def test_a_line_of_a_megabyte_is_a_sentence(here, monkeypatch):
    monkeypatch.chdir(here)
    shutil.rmtree(here / "text", ignore_errors=True)
    (here / "text").mkdir()
    line = ("the lowest " * 100_000).strip()
    written(
        here / "text",
        [[("low", "tief"), (line, "lowest")], [(line, "tief")], [("low", "tief")]],
        "\n",
        "utf-8",
        True,
        0,
        False,
    )
    printed = planned(here)
    assert printed.code == 0 and is_prepared(here, printed).text("val")[0] == [line]
