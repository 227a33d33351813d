import pytest
from corpora import PAIRS, mistake, opened, read

from transformer_pl.config import Data
from transformer_pl.data import synthetic
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.data.sources import open_corpus
from transformer_pl.runtime.errors import InputError


def test_without_a_place_the_corpus_is_the_synthetic_one():
    opened = open_corpus(Data())
    assert opened.fingerprint == {"corpus": "embedded", "version": synthetic.VERSION}
    assert list(opened.pairs("val")) == [tuple(pair) for pair in synthetic.pairs("val")]


def test_the_synthetic_corpus_turns_round():
    turned = open_corpus(Data(source="de", target="en"))
    assert list(turned.pairs("val")) == [(de, en) for en, de in synthetic.pairs("val")]


def test_the_synthetic_corpus_knows_two_languages():
    with pytest.raises(InputError, match=r"data\.source = en, data\.target = fr: must be en and de"):
        open_corpus(Data(target="fr"))


def test_the_two_languages_differ():
    with pytest.raises(InputError, match=r"data\.source = en: must differ from data\.target"):
        open_corpus(Data(source="en", target="en"))


def test_a_path_goes_before_the_hub(folder):
    assert read(open_corpus(Data(path=str(folder), hub="wmt/wmt14"))) == PAIRS


def test_a_part_of_the_training_text_is_another_text(folder):
    corpus, whole = opened(folder, train_pairs=2), opened(folder)
    assert read(corpus) == PAIRS | {"train": PAIRS["train"][:2]}
    assert corpus.fingerprint != whole.fingerprint
    assert read(opened(folder, train_pairs=3)) == PAIRS
    assert mistake(folder, train_pairs=4).startswith("data.train_pairs = 4: must be at most the training pairs of the")


LOWER = """
from dataclasses import replace
from transformer_pl.tasks.translation import Translation

class Lower(Translation):
    def corpus(self, data):
        corpus = super().corpus(data)
        return replace(corpus, pairs=lambda split: ((s.lower(), t.lower()) for s, t in corpus.pairs(split)))

class Cased(Translation):
    pass

class Unreadable(Translation):
    def corpus(self, data):
        return replace(super().corpus(data), pairs=lambda split: open("nowhere.txt"))
"""


def test_the_text_of_a_task_of_ones_own_is_named_by_its_path_and_code(module):
    """Whatever its fingerprint says. A comment is no code, and the project's tasks keep their names."""
    file, ids = module(LOWER), []
    for task, code in (
        ("transformer_pl.tasks.translation.Translation", LOWER),
        ("stranger.Cased", LOWER),
        ("stranger.Lower", LOWER),
        ("stranger.Lower", LOWER.replace("s.lower()", "s")),
        ("stranger.Lower", f"{LOWER}# a comment\n"),
    ):
        file.write_text(code)
        data = Data(task=task)
        ids.append(fingerprint_id(data, open_corpus(data)))
    assert len(set(ids[:4])) == 4 and ids[4] == ids[2]


def test_a_text_that_cannot_be_read_is_named(module, tmp_path):
    module(LOWER)
    corpus = open_corpus(Data(task="stranger.Unreadable"))
    with pytest.raises(
        InputError, match=r"^the synthetic corpus, version \d+: val must be readable, but: .*nowhere\.txt"
    ):
        list(corpus.pairs("val"))
