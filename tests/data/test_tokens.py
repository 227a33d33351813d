import itertools

import numpy as np
import pytest

from transformer_pl.data.tokens import Tokens

SENTENCES = [[5, 6], [], [7], [8], [9, 10, 11]]


def tokens(sentences: list[list[int]]) -> Tokens:
    return Tokens(np.array(list(itertools.chain(*sentences)), np.uint16), np.cumsum([0, *map(len, sentences)]))


def rows(tokens: Tokens) -> list[list[int]]:
    return [one.tolist() for one in tokens]


def test_sentences_of_several_splits_are_joined_in_order():
    joined = Tokens.joined([tokens(part) for part in (SENTENCES[:3], [], SENTENCES[3:])])
    assert rows(joined) == SENTENCES
    assert joined.lengths.tolist() == [2, 0, 1, 1, 3]


@pytest.mark.parametrize("indexes", [[], [1], [4, 0, 1, 4], range(5)])
def test_sentences_are_taken_in_any_order_and_again(indexes):
    taken = tokens(SENTENCES).take(indexes)
    assert rows(taken) == [SENTENCES[i] for i in indexes]
    assert taken.flat.dtype == np.uint16
