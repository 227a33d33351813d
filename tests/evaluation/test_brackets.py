"""Labelled F1 by evalb's rules, counted by hand; outputs that are no trees."""

import numpy as np
import pytest

from transformer_pl.config import Config
from transformer_pl.data.trees import read_trees
from transformer_pl.evaluation.brackets import bracket_counts, f1, is_tree
from transformer_pl.tasks.parsing import Parsing


def linear(tree):
    ((_, line),) = read_trees(iter([tree]), "test")
    return line


CALLED = "(S (NP (PRP He)) (VP (VBD called) (PRT (RP up)) (NP (DT the) (NN man)) (PP (IN in) (NP (NNP Rome)))) (. .))"


@pytest.mark.parametrize(
    ("output", "reference", "counts"),
    [
        (CALLED, CALLED, [7, 7, 7]),
        # "in Rome" belongs to the man: one bracket more, all others right
        (CALLED.replace("(NP (DT the) (NN man)) (PP (IN in) (NP (NNP Rome)))",
                        "(NP (NP (DT the) (NN man)) (PP (IN in) (NP (NNP Rome))))"), CALLED, [7, 8, 7]),
        (CALLED.replace("PRT", "ADVP"), CALLED, [7, 7, 7]),  # one label for evalb
        (CALLED.replace("(NP (PRP He))", "(VP (PRP He))"), CALLED, [6, 7, 7]),  # another label
        (CALLED.replace("(PRP He)", "(NN He)").replace("(RP up)", "(IN up)"), CALLED, [7, 7, 7]),  # parts of speech
        # the punctuation is taken out: where it is attached, and what holds it alone, do not count
        (CALLED[: -len(" (. .))")] + ")", CALLED, [7, 7, 7]),
        ("(S (NP (NN a)) (PRN (, ,)) (VP (VBZ b)))", "(S (NP (NN a) (, ,)) (VP (VBZ b)))", [3, 3, 3]),
        # the same bracket twice is two brackets
        ("(S (NP (NN a)))", "(S (NP (NP (NN a))))", [2, 2, 3]),
        ("(S (NP (NP (NN a))))", "(S (NP (NN a)))", [2, 3, 2]),
        # TOP does not count, wherever it is, and functions do not
        ("(TOP (S (NP (NN a)) (NP (NN b))))", "(X (S (NP-SBJ (NN a)) (NP=1 (NN b))))", [3, 3, 4]),
        ("(S (TOP (NP (NN a)) (NP (NN b))))", "(S (NP (NN a)) (NP (NN b)))", [3, 3, 3]),
        ("(NN a)", "(NP (NN a))", [0, 0, 1]),
    ],
)  # fmt: skip
def test_brackets_counted_by_hand(output, reference, counts):
    assert bracket_counts(linear(output), linear(reference)) == counts


REFERENCE = "(S (NP DT NN )NP (VP VBZ (NP NN )NP )VP . )S"


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        (REFERENCE, [4, 4, 4]),
        ("(S (NP DT NN )NP (VP VBZ (NP NN )NP )VP .", [4, 4, 4]),  # closed at the end
        ("(NP DT NN )NP (VP VBZ (NP NN )NP )VP . )S", [4, 4, 4]),  # opened at the beginning
        ("(S (NP DT NN )NP (VP VBZ (NP NN )NP . )S", [4, 4, 4]),  # )S closes the VP, whose full stop does not count
        ("(S (NP DT NN )NP (VP VBZ NN NN NN )VP . )S", [3, 3, 4]),  # words too many are left out
        ("(S (NP DT NN )NP (VP VBZ )VP )S", [1, 3, 4]),  # words too few: S and VP end too early
        ("", [0, 0, 4]),
        ("( ) )X (", [0, 0, 4]),  # brackets around nothing
        ("NN NN", [0, 0, 4]),
    ],
)
def test_an_output_that_is_no_tree_is_repaired_and_counts(output, counts):
    assert bracket_counts(output, REFERENCE) == counts
    assert is_tree(output, REFERENCE) == (output == REFERENCE)


def test_a_set_is_scored_by_its_sums_and_says_how_much_is_malformed():
    outputs = [REFERENCE, "(S (NP DT NN )NP (VP VBZ )VP )S", "(S NN )S"]
    references = [REFERENCE, REFERENCE, "(S (NP NN )NP )S"]
    scores = Parsing().score(outputs, references, Config())
    assert scores.statistics == [[4, 4, 4], [1, 3, 4], [1, 1, 2]]
    assert scores.metrics["precision"] == pytest.approx(100 * 6 / 8)
    assert scores.metrics["recall"] == pytest.approx(100 * 6 / 10)
    assert scores.metrics["f1"] == pytest.approx(200 * 0.75 * 0.6 / 1.35)
    assert scores.metrics["malformed"] == pytest.approx(100 / 3)
    assert Parsing().score_one(outputs[1], references[1], Config()) == pytest.approx(200 / 7)


def test_f1_of_sums():
    sums = np.array([[6, 8, 10], [0, 0, 0], [0, 0, 5], [3, 3, 3]])
    assert f1(sums) == pytest.approx([200 * 6 / 18, 0, 0, 100])
