"""Text to token arrays: what is stored, once whatever happens, and which pairs are used."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from helpers import little_text

from transformer_pl.config import Data
from transformer_pl.data import prepare as preparing
from transformer_pl.data.prepare import fingerprint_id, prepare
from transformer_pl.data.prepared import Prepared, token_type
from transformer_pl.data.selection import count_pairs
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus, open_corpus

DATA = Data(vocab_size=300)
PAIRS = {
    "train": [("low lower", "tief tiefer"), (" \t", "leer"), ("newest widest", "neuest"), ("empty", "")] * 10,
    "val": [("  lowest ", "tiefst"), ("", "leer"), ("<s>\u2028", "\rneu 😀")],
    "test": [("wide", "weit")],
}


def in_memory(pairs=PAIRS, name="memory", read=lambda split: None) -> Corpus:
    """read: is called whenever a split is read."""

    def pairs_of(split):
        read(split)
        return iter(pairs[split])

    return Corpus({"corpus": name}, f"corpus {name}", pairs_of)


@pytest.fixture
def prepared(tmp_path):
    return prepare(DATA, tmp_path, in_memory())


def content(prepared) -> dict:
    return {path.name: path.read_bytes() for path in prepared.folder.iterdir()}


# What is stored


def test_a_blank_side_leaves_training_and_stays_in_evaluation(prepared):
    assert len(prepared.split("train").source) == len(prepared.split("train").target) == 20
    assert prepared.split("val").source.lengths[1] == 0
    counts = {name: (split["pairs"], split.get("blank")) for name, split in prepared.meta["splits"].items()}
    assert counts == {"train": (20, 20), "val": (3, None), "test": (1, None)}


def test_arrays_are_small_mapped_and_counted(prepared):
    tokens = prepared.split("train").source
    assert isinstance(tokens.flat, np.memmap) and (tokens.flat.dtype, tokens.offsets.dtype) == (np.uint16, np.int64)
    assert tokens.lengths.tolist() == [len(tokens[i]) for i in range(len(tokens))] == [len(row) for row in tokens]
    assert tokens.lengths.sum() == len(tokens.flat) == prepared.meta["splits"]["train"]["source_pieces"]
    assert prepared.is_counted() and len(prepared.tokenizer) == 300
    assert list(prepared.mean_lengths) == [side.lengths_with_special.mean() for side in prepared.split("train")]
    assert (token_type(2**16), token_type(2**16 + 1)) == (np.uint16, np.uint32)
    with pytest.raises(IndexError):
        tokens[len(tokens)]


def test_the_id_depends_on_the_text_and_the_tokenizer_settings():
    def name(corpus="memory", **changes):
        return fingerprint_id(Data(**{"vocab_size": 300} | changes), in_memory(name=corpus))

    assert name() == name(batch_tokens=7, max_length=9, path="elsewhere") and len(name()) == 16
    others = [{"vocab_size": 301}, {"source": "fr"}, {"target": "fr"}, {"train_pairs": 9}, {"max_words": 9}]
    assert len({name(), name("other"), *(name(**other) for other in others)}) == 7


# Once, whatever happens


def test_of_processes_at_the_same_time_one_works_and_the_others_wait(tmp_path):
    reads, begun, waiting = [], Event(), Event()

    def read(split):
        reads.append(split)
        begun.set()
        assert waiting.wait(60)

    def one(number):
        assert number == 0 or begun.wait(60)
        return prepare(DATA, tmp_path, in_memory(read=read), lambda stage, *_: "waiting" in stage and waiting.set())

    with ThreadPoolExecutor(4) as pool:
        all_prepared = list(pool.map(one, range(4)))
    # once: selected, encoded, the vocabulary learned, and documents looked for
    assert sorted(reads) == sorted([*PAIRS, *PAIRS, "train", "val", "test"])
    assert list((tmp_path / "data").iterdir()) == [all_prepared[0].folder]


def die(split):
    os.kill(os.getpid(), signal.SIGKILL)


def stopped(folder, at):
    """A process that is killed when the text is read for this time."""
    left = iter(range(at))
    prepare(DATA, folder, in_memory(read=lambda split: next(left, None) is None and die(split)))


@pytest.mark.parametrize("at", [0, 3, 5])  # while pairs are selected, while the vocabulary is learned, amid the arrays
def test_after_a_kill_the_text_is_prepared_anew(prepared, tmp_path, at):
    process = multiprocessing.get_context("fork").Process(target=stopped, args=(tmp_path / "other", at))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    again = prepare(DATA, tmp_path / "other", in_memory())
    assert content(again) == content(prepared)
    assert list((tmp_path / "other" / "data").iterdir()) == [again.folder]


@pytest.mark.parametrize("file", ["tokenizer.model", "train.source.tokens", "train.target.lengths", "val.source.txt"])
def test_a_file_that_is_missing_is_named(prepared, file):
    (prepared.folder / file).unlink()
    opened = Prepared(prepared.folder)
    with pytest.raises(InputError, match=str(prepared.folder / file)):
        _ = opened.tokenizer, opened.split("train"), opened.text("val")


@pytest.mark.parametrize("wrong", [{"corpus": 3}, {"settings": 8}, {"splits": {"train": 3}}, {"splits": None}])
def test_a_description_of_another_form_is_named(prepared, wrong):
    path = prepared.folder / "meta.json"
    meta = json.loads(path.read_text()) | wrong
    path.write_text(json.dumps({key: value for key, value in meta.items() if value is not None}))
    with pytest.raises(InputError, match=str(path)):
        _ = Prepared(prepared.folder).meta


def full(split, seen):
    seen.append(split)
    if len(seen) > 5:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_that_cannot_be_written_or_fills_up_is_named(tmp_path):
    seen = []
    with pytest.raises(InputError, match=f"{tmp_path}/data: .*--runs"):
        prepare(DATA, tmp_path, in_memory(read=lambda split: full(split, seen)))
    assert list((tmp_path / "data").iterdir()) == []
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(InputError, match=f"{tmp_path}/runs/data: .*--runs"):
        prepare(DATA, tmp_path / "runs", in_memory())


def test_a_vocabulary_is_learned_from_so_many_sentences_at_most(tmp_path, monkeypatch):
    """Source and target count. They are evenly spaced. Each pair has a sign of its own."""
    monkeypatch.setattr(preparing, "MOST_SENTENCES", 10)
    signs = [chr(0x4E00 + i) for i in range(40)]
    pairs = PAIRS | {"train": [(f"low {sign}", "tief") for sign in signs]}
    vocabulary = prepare(Data(vocab_size=275), tmp_path, in_memory(pairs)).tokenizer.vocabulary()
    assert [i for i, sign in enumerate(signs) if sign in vocabulary] == [0, 8, 16, 24, 32]


# Mistakes


@pytest.mark.parametrize(
    ("keys", "pairs", "named"),
    [
        ({}, {"train": []}, "train"),
        ({}, {"val": []}, "val"),
        ({}, {"train": [("a", " "), ("", "b")]}, "train"),
        ({"vocab_size": 9999}, {}, "data.vocab_size = 9999"),
        ({"vocab_size": 9}, {}, "data.vocab_size = 9"),
        ({"max_length": 1}, {}, "data.max_length = 1"),
        ({"train_pairs": 10_000}, {}, "data.train_pairs = 10,000"),
        ({"train_pairs": 2, "max_words": 2}, {"train": [("a b", "c"), ("a b c", "d")]}, "data.max_words = 2"),
        ({"max_words": 3}, {"val": [("a b c", "a b c d")]}, "data.max_words = 3"),
        ({}, {"train": [("a", "b\nc")]}, "train, pair 1"),
    ],
)
def test_a_text_that_cannot_be_used(tmp_path, keys, pairs, named):
    with pytest.raises(InputError) as error:
        prepare(Data(**{"vocab_size": 300} | keys), tmp_path, in_memory(PAIRS | pairs))
    (message,) = error.value.messages
    assert named in message
    assert not list((tmp_path / "data").glob(".*"))


# Which pairs are used

MIXED = {
    "train": [("a b", "c d"), ("a b", "c d"), ("a", "b c d"), ("a b c d e", "a b c d e"), ("a b", ""), ("a b", "c")]
    * 2,
    "val": [("a", "b"), ("a", "b")],
    "test": [("a", "b c d e f g h")],
}


@pytest.mark.parametrize(
    ("keys", "used", "left_out"),
    [({}, [0, 1, 2, 3, 5, 6, 7, 8, 9, 11], {"blank": 2}), ({"train_pairs": 5}, [0, 1, 2, 3], {"blank": 1})],
)
def test_training_pairs_that_the_keys_leave_out(tmp_path, keys, used, left_out):
    """Evaluation sets keep all of theirs."""
    prepared = prepare(Data(vocab_size=266, **keys), tmp_path, in_memory(MIXED))
    sentences = [prepared.tokenizer.decode(list(side)) for side in prepared.split("train")]
    assert list(zip(*sentences, strict=True)) == [MIXED["train"][i] for i in used]
    counts = {name: split["pairs"] for name, split in prepared.meta["splits"].items()}
    assert counts == {"train": len(used), "val": 2, "test": 1}
    counted = count_pairs(in_memory(MIXED), Data(**keys), lambda *_: None)
    assert counted["train"] == {"pairs": len(used)} | left_out
    assert counted["val"] == {"pairs": 2, "equal": 0, "seen": 0}  # a pair that comes twice need not be a training pair


def test_two_blank_lines_end_a_document_and_are_no_pair(tmp_path):
    text = little_text(tmp_path / "text")
    for side in ("en", "de"):
        lines = (text / f"val.{side}").read_text().splitlines()
        (text / f"val.{side}").write_text("\n\n".join(lines) + "\n\n")
    prepared = prepare(Data(path=str(text), vocab_size=300), tmp_path / "runs")
    assert len(prepared.text("val")[0]) == len(lines) and all(side.lengths.all() for side in prepared.split("val"))
    assert prepared.documents("val") == [*range(len(lines))]


def test_pairs_with_more_words_on_a_side_are_left_out_of_all_sets(tmp_path):
    """The first training pairs are those of the others. A subword is no word."""
    short, long = [("low tide", "tiefe Ebbe"), ("a b  c", "x")], [("a b c d", "x"), ("x", "a b c d")]
    pairs = {name: long + short for name in ("train", "val", "test")}
    prepared = prepare(Data(vocab_size=275, max_words=3, train_pairs=1), tmp_path, in_memory(pairs))
    counts = prepared.meta["splits"]
    assert [counts[name]["pairs"] for name in ("train", "val", "test")] == [1, 2, 2]
    assert prepared.tokenizer.decode(list(prepared.split("train").source)) == ["low tide"]
    assert [*zip(*prepared.text("val"), strict=True)] == [*zip(*prepared.text("test"), strict=True)] == short


def test_the_vocabulary_may_be_learned_from_another_text(tmp_path):
    """It is that text's own, and the text stays the trial's. Another text, or the same one elsewhere, is told apart."""
    few, many = little_text(tmp_path / "few", train=30), little_text(tmp_path / "many", train=200)
    data = Data(path=str(few), vocab_size=300)
    shared = data.model_copy(update={"vocabulary_from": str(many)})
    own, of_many, both = (
        prepare(one, tmp_path / "runs") for one in (data, data.model_copy(update={"path": str(many)}), shared)
    )
    assert both.tokenizer.vocabulary() == of_many.tokenizer.vocabulary() != own.tokenizer.vocabulary()
    assert both.text("val") == own.text("val") and len(both.split("train").source) == 30
    moved = shutil.copytree(many, tmp_path / "moved")
    ids = [
        fingerprint_id(one, open_corpus(one))
        for one in (shared, shared.model_copy(update={"vocabulary_from": str(moved)}), data)
    ]
    assert ids[0] == ids[1] == both.folder.name != ids[2]
    with pytest.raises(InputError, match="nowhere"):
        prepare(data.model_copy(update={"vocabulary_from": "nowhere"}), tmp_path / "runs")


@pytest.mark.parametrize("name", ["val.more", "more", "train.more"])
def test_another_further_set_is_encoded_anew(tmp_path, name):
    """Whatever its name begins with; what is as before is taken from the dataset with the set before."""
    text = str(little_text(tmp_path / "text"))
    for count in (3, 4):
        more = little_text(tmp_path / f"more{count}", test=count)
        prepared = prepare(Data(path=text, vocab_size=300, sets=(f"{name}={more}",)), tmp_path / "runs")
        assert len(prepared.split(name).source) == len(prepared.text(name)[0]) == count
        assert len(prepared.split("val").source) == 8
    assert (prepared.folder / "train.source.tokens").stat().st_nlink == 2


@pytest.mark.parametrize("file", ["train.de", "other/train.en"])
def test_a_text_that_changes_while_it_is_prepared_is_refused(tmp_path, file):
    """Though it is put back before the end: the id is that of what was hashed at first."""
    little_text(tmp_path / "text", 60)
    little_text(tmp_path / "text" / "other", 80)
    data = DATA.model_copy(update={"path": str(tmp_path / "text"), "vocabulary_from": str(tmp_path / "text" / "other")})
    exchanged, seen = tmp_path / "text" / file, list[str]()

    def exchange(what, done, total):
        if what.startswith("learning"):
            exchanged.rename(tmp_path / "kept")
            exchanged.write_text("another text\n" * len((tmp_path / "kept").read_text().splitlines()))
        elif "kept" in os.listdir(tmp_path):
            (tmp_path / "kept").replace(exchanged)
        seen.append(what)

    with pytest.raises(InputError, match="must not change"):
        prepare(data, tmp_path, on_progress=exchange)
    assert len(set(seen)) > 2 and not [path for path in (tmp_path / "data").iterdir()]
    assert prepare(data, tmp_path).is_counted()
