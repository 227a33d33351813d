"""Bracketed trees: their linear form, what is left out of it, and mistakes in files."""

import gzip
import re

import pytest

from transformer_pl.config import Data
from transformer_pl.data import synthetic
from transformer_pl.data.corpus import SPLITS
from transformer_pl.data.sources import open_corpus
from transformer_pl.data.trees import read_trees
from transformer_pl.evaluation.brackets import read_linear
from transformer_pl.runtime.errors import InputError

DATA = Data(task="transformer_pl.tasks.parsing.Parsing")
DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .))"
LINEAR = ("The dog sleeps .", "(S (NP DT NN )NP (VP VBZ )VP . )S")


def read(text):
    return list(read_trees(iter(text.split("\n")), "trees"))


def rebuilt(words, linear):
    """A tree in brackets again, of its words and its linear form."""
    left, parts = iter(words.split()), []
    for token in linear.split():
        parts.append(token if token[0] == "(" else ")" if token[0] == ")" else f"({token} {next(left)})")
    return " ".join(parts).replace(" )", ")")


def test_every_tree_of_the_grammar_survives_the_way_there_and_back():
    for split in SPLITS:
        trees = synthetic.trees(split)
        pairs = list(open_corpus(DATA).pairs(split))
        assert [rebuilt(*pair) for pair in pairs] == trees
        assert all(read_linear(linear).balanced for _, linear in pairs)


def test_the_trees_are_of_the_sentences_of_the_corpus():
    for split in SPLITS:
        for (english, _), tree in zip(synthetic.pairs(split), synthetic.trees(split), strict=True):
            words = re.findall(r" ([^\s()]+)\)", tree)
            assert re.sub(r" (?=[.,?])", "", " ".join(words)) == english
            assert re.match(r"\((S|SQ|SBARQ) ", tree) and "()" not in tree


@pytest.mark.parametrize(
    "text",
    [
        DOG,
        f"(TOP {DOG})",
        f"( {DOG} )",
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
    ("text", "line", "rule"),
    [
        (f"{DOG}\n(S (NN a)", 2, "the tree that begins here must be closed"),
        (f"{DOG}\n(", 2, "the tree that begins here must be closed"),
        (f"{DOG}\n\n{DOG})", 3, "every bracket that is closed must be open, but is not: )"),
        ("(S (NN a)\n(NP))", 2, "a bracket must hold a word or brackets, but is empty: (NP)"),
        ("(S ((NN a)))", 1, "a bracket must begin with a label, but is followed by ("),
        ("()", 1, "a bracket must begin with a label, but is followed by )"),
        ("The dog sleeps.", 1, "a word must stand alone in the bracket of its label, but does not: The"),
        ("(S\n(NN a b))", 2, "a word must stand alone in the bracket of its label, but does not: b"),
        ("(S (NN a)\nb)", 2, "a word must stand alone in the bracket of its label, but does not: b"),
        ("(S a\n(NN b))", 2, "a bracket must hold a word or brackets, but holds both: a"),
    ],
)
def test_a_mistake_is_named_with_its_line(text, line, rule):
    with pytest.raises(InputError) as error:
        read(text)
    (message,) = error.value.messages
    assert message.startswith(f"trees line {line}: {rule}") and message.endswith(("fix the tree", "complete it"))


def folder(path, **files):
    for name, text in files.items():
        (path / name.replace("_", ".")).write_text(text)
    return open_corpus(DATA.model_copy(update={"path": str(path)}))


def test_a_folder_of_trees(tmp_path):
    with gzip.open(tmp_path / "test.mrg.gz", "wt") as file:
        file.write(DOG)
    corpus = folder(tmp_path, train_mrg=f"{DOG}\n{DOG}", dev_trees=f"\ufeff({DOG})\n")
    assert {split: list(corpus.pairs(split)) for split in SPLITS} == {
        "train": [LINEAR] * 2,
        "val": [LINEAR],
        "test": [LINEAR],
    }
    before = corpus.fingerprint
    assert folder(tmp_path, train_mrg=DOG).fingerprint != before


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train_mrg": DOG, "val_mrg": DOG}, r"must hold one treebank \(.mrg or .trees\) that begins with test, but"),
        ({"train_mrg": DOG, "train_trees": DOG}, "a split must be stored once, but is in train.mrg and train.trees"),
    ],
)
def test_a_folder_without_all_splits_is_named(tmp_path, files, message):
    with pytest.raises(InputError, match=message):
        folder(tmp_path, **files)


def test_a_mistake_in_a_file_is_named_with_file_and_line(tmp_path):
    corpus = folder(tmp_path, train_mrg=f"{DOG}\n(S", val_mrg="", test_mrg=DOG)
    with pytest.raises(InputError, match=rf"{tmp_path / 'train.mrg'} line 2: the tree that begins here must be closed"):
        list(corpus.pairs("train"))
    with pytest.raises(InputError, match=rf"{tmp_path / 'val.mrg'}: must hold trees, but is empty"):
        list(corpus.pairs("val"))


def test_a_dataset_of_the_hub_holds_no_trees():
    with pytest.raises(InputError, match=r"data\.hub = some/one: parsing reads trees from files"):
        open_corpus(DATA.model_copy(update={"hub": "some/one"}))
