import errno
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import flip

from transformer_pl.config import Data
from transformer_pl.data import encode as module
from transformer_pl.data.corpus import Corpus
from transformer_pl.data.prepare import _alone, fingerprint_id, prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.selection import no_progress, select
from transformer_pl.data.tokens import Tokens
from transformer_pl.runtime.errors import InputError

DATA = Data(vocab_size=300)
PAIRS = {
    "train": [("low lower", "tief tiefer"), (" \t", "leer"), ("newest widest", "neuest"), ("empty", "")] * 10,
    "val": [("  lowest ", "tiefst"), ("", "leer"), ("<s>\u2028▁", "\rneu 😀")],
    "test": [("wide", "weit")],
}


def in_memory(pairs=PAIRS, name="memory") -> Corpus:
    return Corpus({"corpus": name}, f"corpus {name}", lambda split: iter(pairs[split]))


@pytest.fixture
def prepared(tmp_path):
    return prepare(DATA, tmp_path, in_memory())


def test_the_arrays_are_the_text(prepared):
    split = prepared.split("val")
    for side, tokens in enumerate(split):
        expected = [pair[side] for pair in PAIRS["val"]]
        assert prepared.tokenizer.decode([tokens[i] for i in range(len(tokens))]) == expected
        assert prepared.text("val")[side] == expected


def test_a_blank_side_leaves_training_and_stays_in_evaluation(prepared):
    assert len(prepared.split("train").source) == len(prepared.split("train").target) == 20
    assert len(prepared.split("val").source) == 3
    assert prepared.split("val").source.lengths[1] == 0
    assert {name: split["blank"] for name, split in prepared.meta["splits"].items()} == {
        "train": 20,
        "val": 1,
        "test": 0,
    }


def test_tokens_are_a_sequence_with_lengths(prepared):
    tokens = prepared.split("train").source
    assert tokens.lengths.tolist() == [len(tokens[i]) for i in range(len(tokens))] == [len(row) for row in tokens]
    assert tokens.lengths.sum() == len(tokens.flat) == prepared.meta["splits"]["train"]["source_pieces"]
    with pytest.raises(IndexError):
        tokens[len(tokens)]


def test_arrays_are_small_and_mapped(prepared):
    tokens = prepared.split("train").source
    assert isinstance(tokens.flat, np.memmap)
    assert tokens.flat.dtype == np.uint16
    assert tokens.offsets.dtype == np.int64


def test_a_large_vocabulary_takes_wider_numbers(tmp_path):
    writer = module._Writer(tmp_path, "x", 2**16 + 1, keep_text=False)
    writer.write(["a"], Tokens(np.array([2**16]), np.array([0, 1])))
    assert writer.finish() == 1
    assert np.load(tmp_path / "x.npy").tolist() == [2**16]


def test_chunks_leave_no_seam(tmp_path, monkeypatch, prepared):
    monkeypatch.setattr(module, "CHUNK", 3)
    other = prepare(DATA, tmp_path / "other", in_memory())
    for name in PAIRS:
        for one, two in zip(prepared.split(name), other.split(name), strict=True):
            assert np.array_equal(one.flat, two.flat)
            assert np.array_equal(one.offsets, two.offsets)


def test_a_corpus_is_prepared_once(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "train_bpe", None)
    again = prepare(DATA, tmp_path, in_memory())
    assert again.folder == prepared.folder == tmp_path / "data" / fingerprint_id(DATA, in_memory())
    assert len(again.folder.name) == 16


def test_the_id_depends_on_the_text_and_the_tokenizer_settings():
    def name(corpus="memory", **changes):
        return fingerprint_id(Data(**{"vocab_size": 300} | changes), in_memory(name=corpus))

    assert name() == name(batch_tokens=7, max_length=9, path="elsewhere")
    assert len({name(), name("other"), name(vocab_size=301), name(source="de", target="en")}) == 4


def test_the_vocabulary_of_a_huge_corpus_comes_from_evenly_spaced_sentences(tmp_path, monkeypatch):
    taught = []

    def train(sentences, vocab_size):
        taught.extend(sentences)
        raise InputError("enough")

    monkeypatch.setattr(module, "train_bpe", train)
    monkeypatch.setattr(module, "BPE_SENTENCES", 10)
    pairs = PAIRS | {"train": [(f"s{i}", f"t{i}") for i in range(20)]}
    with pytest.raises(InputError):
        prepare(DATA, tmp_path, in_memory(pairs))
    assert taught == [f"{side}{i}" for i in range(0, 20, 4) for side in "st"]


def test_a_folder_that_another_process_finishes_at_this_moment_is_no_error(tmp_path, monkeypatch):
    """It is there when this process makes it, and gone when this process looks whether it is a folder."""
    seen = []

    def looked(path):
        seen.append(path)
        if path.name.endswith(".unfinished") and seen.count(path) == 1:
            return False
        return os.path.isdir(path)

    prepared = prepare(DATA, tmp_path / "first", in_memory())
    unfinished = tmp_path / "data" / f".{prepared.folder.name}.unfinished"
    unfinished.mkdir(parents=True)
    monkeypatch.setattr(Path, "is_dir", looked)
    prepare(DATA, tmp_path, in_memory())
    assert unfinished in seen


def test_processes_at_the_same_time_do_not_meet(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        all_prepared = list(pool.map(lambda _: prepare(DATA, tmp_path, in_memory()), range(4)))
    assert [path.name for path in (tmp_path / "data").iterdir()] == [all_prepared[0].folder.name]
    assert len(all_prepared[3].split("train").source) == 20


def test_a_mistake_in_any_split_is_found_before_the_work(tmp_path, monkeypatch):
    def pairs(split):
        if split == "test":
            raise InputError("test.en line 7 is wrong")
        return iter(PAIRS[split])

    monkeypatch.setattr(module, "train_bpe", None)
    with pytest.raises(InputError, match="line 7"):
        prepare(DATA, tmp_path, Corpus({}, "", pairs))
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_that_is_missing_during_the_work_is_not_taken_for_the_lock(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"), _alone(tmp_path / "unfinished", no_progress):
        raise FileNotFoundError("nowhere")


@pytest.mark.parametrize("pair", [("a", "b\n"), ("a\nb", "c"), ("a", None), ("a", "b", "c"), "ab", None], ids=repr)
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_pair_that_is_not_two_lines_is_refused(tmp_path, split, pair):
    with pytest.raises(InputError) as error:
        prepare(DATA, tmp_path, in_memory(PAIRS | {split: [("a", "b"), pair]}))
    place = f"corpus memory: {split} pair 2 must be two texts, each without a newline, but is "
    assert str(error.value).startswith(place) and str(error.value).endswith("; strip the line")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_without_text(tmp_path, split):
    with pytest.raises(InputError, match=rf"^corpus memory: {split} must hold a pair with text in both languages"):
        prepare(DATA, tmp_path, in_memory(PAIRS | {split: []}))


def test_training_pairs_that_are_all_blank(tmp_path):
    with pytest.raises(InputError, match=r"train must hold .* none of its 2 pairs"):
        prepare(DATA, tmp_path, in_memory(PAIRS | {"train": [("a", " "), ("", "b")]}))


def test_a_vocabulary_that_does_not_fit_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=r"data\.vocab_size = 9999: must be at most"):
        prepare(Data(vocab_size=9999), tmp_path, in_memory())
    assert list((tmp_path / "data").iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(InputError, match=rf"^{tmp_path}/runs/data: must be writable, .*--runs"):
        prepare(DATA, tmp_path / "runs", in_memory())


def test_a_disk_that_fills_up_midway_is_reported_and_tidied(tmp_path, monkeypatch):
    def full(self, sentences, pieces):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module._Writer, "write", full)
    with pytest.raises(InputError, match=r"but: No space left on device; make room"):
        prepare(DATA, tmp_path, in_memory())
    assert list((tmp_path / "data").iterdir()) == []


def stopped_at(count, patched, tmp_path):
    """Prepare until this many chunks were encoded; the process ends there without tidying."""
    encode = module.Tokenizer.encode
    left = iter(range(count))

    def encode_some(tokenizer, sentences):
        next(left)  # StopIteration
        return encode(tokenizer, sentences)

    patched.setattr(module.Tokenizer, "encode", encode_some)
    with pytest.raises(StopIteration):
        prepare(DATA, tmp_path, in_memory())


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8, 12, 14, 15, 17])
def test_an_interrupted_preparation_is_continued(prepared, tmp_path, monkeypatch, count):
    """At any chunk; here each has 3 pairs. It does not read again what it has read, nor learn the vocabulary again."""
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "SAVED_EVERY", 2)
    with monkeypatch.context() as patched:
        stopped_at(count, patched, tmp_path / "other")
    (unfinished,) = (tmp_path / "other" / "data").iterdir()
    assert unfinished.name == f".{prepared.folder.name}.unfinished"
    encoded = []
    with monkeypatch.context() as patched:
        encode = module.Tokenizer.encode
        patched.setattr(module, "select", None)
        patched.setattr(module, "train_bpe", None)
        patched.setattr(
            module.Tokenizer, "encode", lambda *arguments: encoded.extend(arguments[1]) or encode(*arguments)
        )
        again = prepare(DATA, tmp_path / "other", in_memory())
    saved = {0: 0, 1: 0, 2: 0, 5: 6, 8: 12, 12: 18, 14: 20, 15: 20, 17: 23}[count]  # pairs
    assert len(encoded) == 2 * (20 + 3 + 1 - saved)
    assert list((tmp_path / "other" / "data").iterdir()) == [again.folder]
    files = [{path.name: path.read_bytes() for path in one.folder.iterdir()} for one in (prepared, again)]
    assert files[0] == files[1]


@pytest.mark.parametrize("damage", ["progress.json", "counts.json", "train.kept", "train.source.npy"])
def test_interrupted_work_that_was_damaged_is_not_continued(prepared, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(module, "SAVED_EVERY", 2)
    with monkeypatch.context() as patched:
        stopped_at(9, patched, tmp_path / "other")
    (unfinished,) = (tmp_path / "other" / "data").iterdir()
    (unfinished / damage).write_bytes(b"")
    again = prepare(DATA, tmp_path / "other", in_memory())
    assert again.meta["digests"] == prepared.meta["digests"]


def test_of_processes_at_the_same_time_one_works_and_the_others_wait(tmp_path, monkeypatch):
    learned, stages, train = [], [], module.train_bpe

    def slowly(*arguments):
        learned.append(arguments)
        time.sleep(0.2)
        return train(*arguments)

    monkeypatch.setattr(module, "train_bpe", slowly)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: prepare(DATA, tmp_path, in_memory(), lambda stage, *_: stages.append(stage)), range(4)))
    assert len(learned) == 1
    assert "waiting for another process that prepares this text" in stages


# Which pairs are used

MIXED = {
    "train": [("a b", "c d"), ("a b", "c d"), ("a", "b c d"), ("a b c d e", "a b c d e"), ("a b", ""), ("a b", "c")]
    * 2,
    "val": [("a", "b"), ("a", "b")],
    "test": [("a", "b c d e f g h")],
}


@pytest.mark.parametrize(
    ("keys", "used", "left_out"),
    [
        ({}, [0, 1, 2, 3, 5, 6, 7, 8, 9, 11], {"blank": 2}),
        ({"most_words": 4}, [0, 1, 2, 5, 6, 7, 8, 11], {"blank": 2, "long": 2}),
        ({"most_words": 5, "most_ratio": 2}, [0, 1, 3, 5, 6, 7, 9, 11], {"blank": 2, "uneven": 2}),
        ({"most_ratio": 1.5}, [0, 1, 3, 6, 7, 9], {"blank": 2, "uneven": 4}),
        ({"unique": True}, [0, 2, 3, 5], {"blank": 2, "repeated": 6}),
        (
            {"unique": True, "most_words": 4, "most_ratio": 2},
            [0, 5],
            {"blank": 2, "long": 2, "uneven": 2, "repeated": 4},
        ),
    ],
)
def test_training_pairs_that_the_keys_leave_out(tmp_path, keys, used, left_out):
    """Evaluation sets keep all of theirs."""
    prepared = prepare(Data(vocab_size=266, **keys), tmp_path, in_memory(MIXED))
    split = prepared.split("train")
    sentences = [prepared.tokenizer.decode(list(side)) for side in split]
    assert list(zip(*sentences, strict=True)) == [MIXED["train"][i] for i in used]
    splits = prepared.meta["splits"]
    assert {
        name: n for name, n in splits["train"].items() if name in ("blank", "long", "uneven", "repeated")
    } == left_out
    assert (splits["train"]["pairs"], splits["val"]["pairs"], splits["test"]["pairs"]) == (len(used), 2, 1)
    words = (sum(len(MIXED["train"][i][side].split()) for i in used) for side in (0, 1))
    assert select("train", in_memory(MIXED), Data(**keys)).words == tuple(words)


def test_cleaned_text_is_another_text():
    data = [Data(), Data(most_words=4), Data(most_ratio=2), Data(unique=True)]
    assert len({fingerprint_id(one, in_memory()) for one in data}) == 4


def test_cleaning_that_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=r"that the cleaning keeps, but none .* has; fix data\.most_words"):
        prepare(Data(most_words=1), tmp_path, in_memory(MIXED | {"train": [("a b", "c"), ("a", "b c")]}))


@pytest.mark.parametrize("is_prepared", [False, True])
def test_an_evaluation_set_that_is_not_whole_is_refused(tmp_path, is_prepared):
    """Before the work begins, and where the text is prepared already."""
    if is_prepared:
        prepare(DATA, tmp_path, in_memory())
    expected = Data(vocab_size=300, val_count=3000, test_count=1)
    with pytest.raises(InputError) as error:
        prepare(expected, tmp_path, in_memory())
    assert str(error.value) == (
        "data.val_count = 3,000: must be the number of val pairs, but corpus memory has 3; give the whole set, or set "
        "data.val_count=None"
    )
    assert bool(list((tmp_path / "data").iterdir())) == is_prepared
    prepare(Data(vocab_size=300, val_count=3, test_count=1), tmp_path, in_memory())


@pytest.mark.parametrize("file", ["tokenizer.model", "train.source.npy", "train.target.offsets.npy", "val.source.txt"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "flipped"])
def test_a_damaged_file_is_named(prepared, file, damage):
    path, opened = prepared.folder / file, Prepared(prepared.folder)
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        flip(path, at=1)
    else:
        path.write_bytes(path.read_bytes()[:-7] if damage == "cut" else b"")
    with pytest.raises(InputError, match=rf"{prepared.folder}/{file}: cannot be read: .*; the next training on this"):
        _ = opened.tokenizer, opened.split("train"), opened.text("val")


META = [b"", b"{", b"{}", b"[]", b"\xff\x00", bytes(300), b'{"corpus": "memory", "settings": {}, "splits": {}}']


@pytest.mark.parametrize("file", ["tokenizer.model", "train.source.npy", "test.target.offsets.npy", "val.source.txt"])
def test_what_is_damaged_is_prepared_anew(prepared, tmp_path, capsys, file):
    """And only that: whoever has the old files open reads on in them. It is kept under another name."""
    before = {path.name: path.read_bytes() for path in prepared.folder.iterdir()}
    flip(prepared.folder / file, at=1)
    damaged = (prepared.folder / file).read_bytes()
    opened = np.load(prepared.folder / "train.source.npy", mmap_mode="r")
    pieces = opened.tolist()
    again = prepare(DATA, tmp_path, in_memory())
    assert f"warning: {prepared.folder / file}: cannot be read: " in capsys.readouterr().err
    after = {path.name: path.read_bytes() for path in prepared.folder.iterdir()}
    assert after.pop(f"{file}.damaged") == damaged and after == before
    assert list((tmp_path / "data").iterdir()) == [again.folder] and not again.damage()
    assert opened.tolist() == pieces
    prepare(DATA, tmp_path, in_memory())
    assert not capsys.readouterr().err


@pytest.mark.parametrize("content", [None, *META])
def test_a_damaged_meta_is_as_none(prepared, tmp_path, capsys, content):
    path = prepared.folder / "meta.json"
    before = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    assert not Prepared(prepared.folder).is_counted()
    with pytest.raises(InputError, match=rf"{path}: cannot be read: "):
        _ = Prepared(prepared.folder).meta
    prepare(DATA, tmp_path, in_memory())
    assert capsys.readouterr().err.count(f"warning: {path}: cannot be read: ") == 1
    assert path.read_bytes() == before and Prepared(prepared.folder).is_counted()


def test_processes_that_find_the_same_damage_do_not_meet(prepared, tmp_path):
    flip(prepared.folder / "val.target.npy", at=1)
    with ThreadPoolExecutor(4) as pool:
        all_prepared = list(pool.map(lambda _: prepare(DATA, tmp_path, in_memory()), range(4)))
    assert not any(one.damage() for one in all_prepared)
    assert list((tmp_path / "data").iterdir()) == [prepared.folder]


def test_what_an_older_version_prepared_is_read(prepared, tmp_path, monkeypatch):
    """It has no digests."""
    meta = json.loads((prepared.folder / "meta.json").read_text())
    del meta["digests"]
    (prepared.folder / "meta.json").write_text(json.dumps(meta))
    monkeypatch.setattr(module, "train_bpe", None)
    again = prepare(DATA, tmp_path, in_memory())
    assert again.text("val") == prepared.text("val") and not again.damage()


def test_every_file_has_its_digest(prepared):
    files = {path for path in prepared.folder.iterdir() if path.name != "meta.json"}
    expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert prepared.meta["digests"] == expected and len(expected) == 1 + 12 + 4


def test_meta_says_what_was_prepared(prepared):
    meta = json.loads(Path(prepared.folder, "meta.json").read_text())
    assert meta["fingerprint"] == {"corpus": "memory"}
    assert meta["settings"]["vocab_size"] == 300 == len(prepared.tokenizer)
    assert meta["splits"]["val"]["pairs"] == 3
