"""Parsing as a task: trees and their linear form, F1 by evalb's rules, and a trial beside the paper's Table 4."""

import gzip
import json
import re

import numpy as np
import pytest
from helpers import ROOT
from tiny_trials import train

from transformer_pl.config import Config, Data
from transformer_pl.config.levels import resolve, scale_level
from transformer_pl.data import synthetic
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import SPLITS, open_corpus
from transformer_pl.tasks.parsing import Parsing, bracket_counts, f1, is_tree, read_linear, read_trees

SWEEP = read_sweep(ROOT / "sweeps" / "table4.yaml")
DATA = Data(task="transformer_pl.tasks.parsing.Parsing")
DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .))"
LINEAR = ("The dog sleeps .", "(S (NP DT NN )NP (VP VBZ )VP . )S")


def read(text):
    return list(read_trees(text.split("\n"), "trees"))


def rebuilt(words, linear):
    """A tree in brackets again, of its words and its linear form."""
    left, parts = iter(words.split()), []
    for token in linear.split():
        parts.append(token if token[0] == "(" else ")" if token[0] == ")" else f"({token} {next(left)})")
    return " ".join(parts).replace(" )", ")")


# Trees


def test_every_tree_of_the_grammar_survives_the_way_there_and_back():
    for split in SPLITS:
        trees = synthetic.trees(split)
        pairs = list(open_corpus(DATA).pairs(split))
        assert [rebuilt(*pair) for pair in pairs] == trees
        assert all(read_linear(linear)[2] for _, linear in pairs)
        for (english, _), (words, _), tree in zip(synthetic.pairs(split), pairs, trees, strict=True):
            assert re.sub(r" (?=[.,?])", "", words) == english
            assert re.match(r"\((S|SQ|SBARQ) ", tree) and "()" not in tree


@pytest.mark.parametrize(
    "text",
    [
        DOG,
        f"(TOP {DOG})",
        "( (S\n    (NP-SBJ-1 (DT The) (NN dog) )\n    (VP (VBZ sleeps) )\n    (. .) ))\n",
        "(ROOT (S (NP=2 (DT The) (NN dog)) (VP-TPC-3 (VBZ sleeps) (S (NP (-NONE- *T*-1)) (-NONE- 0))) (. .)))",
    ],
)
def test_roots_functions_traces_and_lines_do_not_count(text):
    assert read(text) == [LINEAR]


def test_several_trees_follow_each_other_on_a_line_or_over_lines():
    assert read(f"{DOG} {DOG}\n\n({DOG}\n)\n(NN Yes)") == [LINEAR] * 3 + [("Yes", "NN")]
    assert read("(S (-LRB- -LRB-) (NN a) (-RRB- -RRB-))") == [("-LRB- a -RRB-", "(S -LRB- NN -RRB- )S")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{DOG}\n(S (NN a)", 2),
        (f"{DOG}\n\n{DOG})", 3),
        ("(S (NN a)\n(NP))", 2),
        ("The dog sleeps.", 1),
        ("(S\n(NN a b))", 2),
        ("(S a\n(NN b))", 2),
        ("(NN a)\n(TOP Rain)", 2),
        ("((ROOT Rain))", 1),
    ],
)
def test_a_mistake_is_named_with_its_line(text, line):
    with pytest.raises(InputError, match=f"trees line {line}: "):
        read(text)


def test_a_folder_of_trees(tmp_path):
    (tmp_path / "train.mrg").write_text(f"{DOG}\n{DOG}")
    (tmp_path / "dev.trees").write_text(f"\ufeff({DOG})\n")
    (tmp_path / "test.mrg.gz").write_bytes(gzip.compress(DOG.encode()))
    data = DATA.model_copy(update={"path": str(tmp_path)})
    corpus = open_corpus(data)
    assert {split: len(list(corpus.pairs(split))) for split in SPLITS} == {"train": 2, "val": 1, "test": 1}
    assert {pair for split in SPLITS for pair in corpus.pairs(split)} == {LINEAR}
    (tmp_path / "train.mrg").write_text(f"{DOG}\n(S")
    assert open_corpus(data).fingerprint != corpus.fingerprint
    with pytest.raises(InputError, match=f"{tmp_path / 'train.mrg'} line 2"):
        list(corpus.pairs("train"))
    for name, named in (("train.trees", "train.trees"), ("test.mrg.gz", "data.test")):  # twice; missing
        (tmp_path / name).unlink() if (tmp_path / name).exists() else (tmp_path / name).write_text(DOG)
        with pytest.raises(InputError, match=named):
            open_corpus(data)


# F1


def linear(tree):
    ((_, line),) = read(tree)
    return line


def test_a_sentence_is_scored_as_evalb_scores_it():
    """The prepositional phrase is attached to the cat. By hand, over the words that are no punctuation:

    words      The0 dog1 saw2 a3 cat4 in5 Rome6
    reference  S 0-7, NP 0-2, VP 2-7, NP 3-5, PP 5-7, NP 6-7                 6 brackets
    output     S 0-7, NP 0-2, VP 2-7, NP 3-7, NP 3-5, PP 5-7, NP 6-7         7 brackets, of which 6 are right

    So evalb prints a recall of 6/6, a precision of 6/7 and an F1 of 12/13.
    """
    dog, cat, rome = "(NP (DT The) (NN dog))", "(NP (DT a) (NN cat))", "(PP (IN in) (NP (NNP Rome)))"
    reference = linear(f"(TOP (S {dog} (VP (VBD saw) {cat} {rome}) (. .)))")
    output = linear(f"(TOP (S {dog} (VP (VBD saw) (NP {cat} {rome})) (. .)))")
    assert bracket_counts(output, reference) == [6, 7, 6]
    scores = Parsing().score([output], [reference], Config())
    expected = {"recall": 100, "precision": 100 * 6 / 7, "f1": 100 * 12 / 13, "malformed": 0}
    assert scores.metrics == pytest.approx(expected)


CALLED = "(S (NP (PRP He)) (VP (VBD called) (PRT (RP up)) (NP (DT the) (NN man)) (PP (IN in) (NP (NNP Rome)))) (. .))"


@pytest.mark.parametrize(
    ("output", "reference", "counts"),
    [
        (CALLED, CALLED, [7, 7, 7]),
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
)
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
    expected = {"precision": 100 * 6 / 8, "recall": 60, "f1": 200 * 0.75 * 0.6 / 1.35, "malformed": 100 / 3}
    assert scores.metrics == pytest.approx(expected)
    assert f1(np.array([[6, 8, 10], [0, 0, 0], [0, 0, 5], [3, 3, 3]])) == pytest.approx([200 * 6 / 18, 0, 0, 100])


# A trial


def test_a_trial_on_trees_is_scored_by_f1(tmp_path):
    (tmp_path / "trees").mkdir()
    for split, count in (("train", 200), ("val", 12), ("test", 9)):
        (tmp_path / "trees" / f"{split}.mrg").write_text("\n".join(synthetic.trees(split)[:count]))
    keys = {"data.path": tmp_path / "trees", "data.task": DATA.task, "data.vocab_size": 400, "decode.extra": 20}
    code, trial = train(tmp_path / "runs", keys | {"model.h": 4})
    assert code == 0
    result = trial.result()
    names = ("loss", "ppl", "f1", "precision", "recall", "malformed")
    assert result.metrics.keys() == {f"{split}/{name}" for split in ("val", "test") for name in names}
    assert result.score == "f1" and result.signature.startswith("evalb:COLLINS.prm")
    prepared = json.loads((trial.path / "env.json").read_text())["data"]
    references = (trial.path.parents[1] / "data" / prepared / "val.target.txt").read_text().splitlines()
    assert all(line.startswith("(S") and " )S" in line for line in references) and len(references) == 12
    scores = Parsing().score(trial.hypotheses("val"), references, SWEEP.base)
    assert scores.metrics["f1"] == pytest.approx(result.metrics["val/f1"])


def test_the_sweep_is_that_of_section_6_3_at_its_scale():
    base, decode = resolve([scale_level("demo")]), SWEEP.base.decode
    assert (decode.beam, decode.alpha, decode.extra) == (21, 0.3, 100)
    assert (SWEEP.base.model.N, SWEEP.base.model.d_model) == (4, 1024)
    assert SWEEP.base.optim == base.optim and SWEEP.base.model.p_drop == base.model.p_drop == 0.1
