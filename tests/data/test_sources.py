"""Which text the keys name, and the fingerprint by which a trial knows it."""

import pytest
from corpora import mistake

from transformer_pl.config import Data
from transformer_pl.data import synthetic
from transformer_pl.data.prepare import fingerprint_id
from transformer_pl.task import open_corpus


def test_without_a_place_the_corpus_is_the_synthetic_one_in_both_directions():
    corpus, turned = open_corpus(Data()), open_corpus(Data(source="de", target="en"))
    assert corpus.fingerprint == {"corpus": "synthetic", "version": synthetic.VERSION}
    assert list(corpus.pairs("val")) == [tuple(pair) for pair in synthetic.pairs("val")]
    assert list(turned.pairs("val")) == [(de, en) for en, de in synthetic.pairs("val")]


@pytest.mark.parametrize(("keys", "named"), [({"target": "fr"}, "data.target = fr"), ({"target": "en"}, "data.source")])
def test_languages_that_cannot_be(keys, named):
    assert named in mistake(None, **keys)


LOWER = """
from dataclasses import replace
from transformer_pl.tasks.translation import Translation

class Lower(Translation):
    def corpus(self, data):
        corpus = super().corpus(data)
        return replace(corpus, pairs=lambda split: ((s.lower(), t.lower()) for s, t in corpus.pairs(split)))

class Cased(Translation):
    pass
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
