"""What a plan says of a text before it is prepared, and what a sweep says when it is."""

import io

import pytest
from helpers import little_text
from rich.console import Console

from transformer_pl import sweep
from transformer_pl.config import Data
from transformer_pl.data.corpus import Corpus
from transformer_pl.data.prepare import fingerprint_id, prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.selection import survey
from transformer_pl.data.sources import open_corpus
from transformer_pl.data.tokenizer import VocabularyError, train_bpe, vocabulary_bounds
from transformer_pl.experiments import texts
from transformer_pl.experiments.texts import prepare_texts, survey_texts
from transformer_pl.runtime.errors import InputError

SWEEP = """
method: grid
parameters:
  data.path: {value: TEXT}
  data.vocab_size: {value: 300}
  optim.max_steps: {values: [4, 8]}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text").mkdir()
    return little_text(tmp_path / "text", 60, 8, 6)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=100)


def lines(folder, console, runs, **keys):
    data = Data(**{"path": str(folder), "vocab_size": 300} | keys)
    return survey_texts([(data, Prepared(runs / "data" / fingerprint_id(data, open_corpus(data))))], console)


def test_the_bounds_are_those_that_a_vocabulary_can_be_learned_with(folder):
    sentences = [sentence for pair in open_corpus(Data(path=str(folder))).pairs("train") for sentence in pair]
    least, greatest = vocabulary_bounds(sentences)
    for size in (least, greatest):
        train_bpe(sentences, size)
    for size in (1, least - 1, greatest + 1):
        with pytest.raises(VocabularyError):
            train_bpe(sentences, size)


def test_a_plan_says_how_large_a_text_is_and_which_vocabularies_it_allows(folder, console, tmp_path):
    pairs = list(open_corpus(Data(path=str(folder))).pairs("train"))
    least, greatest = vocabulary_bounds([sentence for pair in pairs for sentence in pair])
    words = [sum(len(pair[side].split()) for pair in pairs) / 60 for side in (0, 1)]
    (line,) = lines(folder, console, tmp_path)
    assert line.startswith(
        f"text: folder {folder} (train, val, test): 60 training pairs, 8 for validation, 6 for test;"
    )
    assert f"words in a sentence: en {words[0]:.1f}, de {words[1]:.1f}" in line
    assert line.endswith(f"data.vocab_size may be {least:,} to {greatest:,}")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("size", "bound"), [(100, 0), (9000, 1)])
def test_a_vocabulary_that_a_text_does_not_allow_is_refused_with_its_bound(folder, console, tmp_path, size, bound):
    """By the plan, and by the preparation."""
    data = Data(path=str(folder))
    named = rf"data\.vocab_size = {size}: .* {survey(open_corpus(data), data).vocabulary[bound]}"
    with pytest.raises(InputError, match=named):
        lines(folder, console, tmp_path, vocab_size=size)
    with pytest.raises(InputError, match=named):
        prepare(Data(path=str(folder), vocab_size=size), tmp_path)


def test_a_plan_finds_lines_that_do_not_align(folder, console, tmp_path):
    (folder / "val.de").write_text("eins\n")
    with pytest.raises(InputError, match=r"val\.en, .*/val\.de: .* line 2 "):
        lines(folder, console, tmp_path)


def test_pairs_with_an_empty_sentence_are_counted(folder, console, tmp_path):
    english = (folder / "train.en").read_text().split("\n", 2)
    (folder / "train.en").write_text("\n".join(["", "", english[2]]))
    assert "58 training pairs (2 with an empty sentence are left out)" in lines(folder, console, tmp_path)[0]


def test_a_text_that_must_be_downloaded_is_not_read_by_a_plan(console, tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "open_corpus", lambda data: Corpus({}, "dataset x", lambda split: 1 / 0, is_local=False))
    assert survey_texts([(Data(hub="x"), Prepared(tmp_path))], console) == [
        "text: dataset x; it is loaded and counted when it is prepared"
    ]


def test_a_preparation_says_what_it_does_and_what_it_has_made(folder, console, tmp_path):
    data = Data(path=str(folder), vocab_size=300)
    prepare_texts([data, data.model_copy(update={"max_length": 99})], tmp_path, console)
    *stages, text = console.file.getvalue().splitlines()
    assert stages == ["reading the text", "learning a vocabulary of 300 tokens", "encoding the text"]
    made = prepare(data, tmp_path)
    lengths = [made.mean_length("train", side) for side in ("source", "target")]
    assert "60 training pairs, 8 for validation, 6 for test" in text
    assert text.endswith(f"tokens in a sentence: en {lengths[0]:.1f}, de {lengths[1]:.1f}")
    assert lines(folder, console, tmp_path) == [text]  # a plan says the same from now on


def test_a_preparation_draws_one_line_in_a_terminal(folder, tmp_path):
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    prepare_texts([Data(path=str(folder), vocab_size=300)], tmp_path, console)
    drawn = console.file.getvalue()
    assert "encoding the text" in drawn and "\x1b[2K" in drawn  # it is removed again


def test_the_plan_of_a_sweep_and_of_a_search_check_their_text(folder, tmp_path, capsys):
    grid, search = tmp_path / "grid.yaml", tmp_path / "search.yaml"
    grid.write_text(SWEEP.replace("TEXT", str(folder)))
    goal = "metric: {name: val/bleu, goal: maximize}\nrun_cap: 2\n"
    search.write_text(goal + grid.read_text().replace("grid", "random").replace("[4, 8]", "[4, 1500]"))
    for file in (grid, search):
        words = [str(file), "--plan", f"--runs={tmp_path / 'runs'}"]
        assert sweep.main(words) == 0
        assert capsys.readouterr().out.count("data.vocab_size may be") == 1
        with pytest.raises(InputError, match=r"data\.vocab_size = 50: must be at least"):
            sweep.main([*words, "--set", "data.vocab_size=50"])
    assert not (tmp_path / "runs").exists()
