"""The laws of tokenizers and of tasks."""

import numpy as np
import pytest

from tests.laws.rehearsals import broken, each_law, of_parts, path
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.laws import tasks, tokenizers
from transformer_pl.laws.law import laws_of
from transformer_pl.runtime.errors import InputError
from transformer_pl.tasks.translation import Translation

# ---------------------------------------------------------------------------------------------------------------------
# Tokenizers


class OfShortSentences(JointBPE):
    def to_ids(self, sentences, side):
        assert all(len(sentence) < 1000 for sentence in sentences)
        return super().to_ids(sentences, side)


class TooFew(JointBPE):
    def to_ids(self, sentences, side):
        return super().to_ids(sentences, side)[:-1]


class Fractions(JointBPE):
    def to_ids(self, sentences, side):
        return [[float(token) for token in row] for row in super().to_ids(sentences, side)]


class TooFewTexts(JointBPE):
    def to_texts(self, ids):
        return super().to_texts(ids)[:-1]


class Blank(JointBPE):
    def to_texts(self, ids):
        return ["" for _ in ids]


class NoSide(JointBPE):
    def to_texts(self, ids, side):
        return super().to_texts(ids)


class Empty(JointBPE):
    def to_ids(self, sentences, side):
        return [[] for _ in sentences]


class Unknown(JointBPE):
    def to_ids(self, sentences, side):
        return [[3 for _ in row] for row in super().to_ids(sentences, side)]


class Truncates(JointBPE):
    def to_ids(self, sentences, side):
        return [row[:512] for row in super().to_ids(sentences, side)]


class TruncatesMuch(JointBPE):
    # beyond what the joined sentences have once, and not twice
    def to_ids(self, sentences, side):
        return [row[:8000] for row in super().to_ids(sentences, side)]


class NoText(JointBPE):
    def vocabulary(self):
        return list(range(len(super().vocabulary())))


class Pads(JointBPE):
    def to_ids(self, sentences, side):
        rows = super().to_ids(sentences, side)
        longest = max(map(len, rows), default=0)
        return [[*row, *[3] * (longest - len(row))] for row in rows]


class ForgetsOffset(JointBPE):
    offset = 0

    def train(self, pairs, vocab_size):
        self.offset = 5
        return super().train(pairs, vocab_size)

    def to_ids(self, sentences, side):
        return [[4 + (token + self.offset - 4) % 200 for token in row] for row in super().to_ids(sentences, side)]


class Exclaims(JointBPE):
    def to_texts(self, ids):
        return [f"{text}!!!" for text in super().to_texts(ids)]


# ---------------------------------------------------------------------------------------------------------------------
# Tasks


class Fails(Translation):
    def score(self, hypotheses, references, config):
        if hypotheses != references:
            raise KeyError("score")
        return super().score(hypotheses, references, config)


class Contradicts(Translation):
    def score(self, hypotheses, references, config):
        scores = super().score(hypotheses, references, config)
        return scores._replace(metrics=scores.metrics | {"bleu": scores.metrics["bleu"] / 2})


class Swapped(Translation):
    def score(self, hypotheses, references, config):
        scores = super().score(hypotheses, references, config)
        order = [*range(8), 9, 8]
        swapped = [[row[i] for i in order] for row in scores.statistics]
        bleu = float(self.measure.of_sums(np.sum(swapped, 0)))
        return scores._replace(statistics=swapped, metrics={"bleu": bleu})


def keys_of(part):
    return {"data.tokenizer" if issubclass(part, JointBPE) else "data.task": path(part)}


def test_a_right_tokenizer_breaks_no_law_and_what_is_not_tested_is_not_said_to_hold(row, tmp_path):
    found = of_parts(row(keys_of(OfShortSentences)), tmp_path)
    assert not broken(found) and found["a_long_sentence_keeps_its_end"].state == "untested"


BROKEN = [
    (NoText, "every_token_has_a_text"),
    (Empty, "every_sentence_has_tokens"),
    (Unknown, "every_sentence_has_tokens"),
    (Pads, "a_sentence_has_the_same_tokens_alone"),
    (Truncates, "a_long_sentence_keeps_its_end"),
    (TruncatesMuch, "a_long_sentence_keeps_its_end"),
    *((part, "its_tokens_become_text") for part in (Blank, TooFewTexts, NoSide)),
    (Exclaims, "it_adds_nothing_to_a_sentence"),
    (ForgetsOffset, "loaded_again_it_gives_the_same_tokens"),
    (Contradicts, "its_score_is_that_of_the_sums"),
    (Fails, "its_score_is_that_of_the_sums"),
    (Swapped, "the_last_number_of_a_line_depends_on_its_reference_alone"),
]


@each_law(BROKEN)
def test_a_part_breaks_its_law(row, tmp_path, part, law):
    found = of_parts(row(keys_of(part)), tmp_path)
    assert found[law].is_broken and found[law].how


@pytest.mark.parametrize("part", [TooFew, Fractions])
def test_a_tokenizer_that_makes_no_dataset_is_refused(row, tmp_path, part):
    with pytest.raises((InputError, RuntimeError, TypeError)):  # of which the child process makes an InputError
        of_parts(row(keys_of(part)), tmp_path)


def test_every_law_of_tokenizers_and_tasks_can_be_broken():
    assert {law for _, law in BROKEN} == laws_of(tokenizers).keys() | laws_of(tasks).keys()
