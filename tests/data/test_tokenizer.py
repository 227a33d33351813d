import re

import pytest

from transformer_pl.data.tokenizer import BOS, EOS, FIXED, PAD, JointBPE, Tokenizer, train_bpe
from transformer_pl.runtime.errors import InputError

pytestmark = pytest.mark.core

# The example of Sennrich et al. 2016, Section 3.2: `e s` is merged first, then `es t`.
WORDS = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
CHARACTERS = len(set("".join(WORDS))) + 1  # and the blank
ODD = ["", " ", "  low   lower  ", "\tlow\t", "<s> </s> <pad> <unk> <0x41>", "\x1b \x1b_", "\x00\x01\x7f", "⁇ ▅"]
ODD += ["😀 👩‍👩‍👧 e\u0301 é", "low\u2028low\u2029\x0b\x0c\x85\r", "\ufeff low \u00a0 low \u3000", "low" * 5000]


@pytest.fixture(scope="module")
def model() -> bytes:
    return train_bpe([*WORDS, "low lower newest widest"], 280)


def loaded(model: bytes) -> Tokenizer:
    tokenizer = JointBPE()
    tokenizer.load(model)
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer(model) -> Tokenizer:
    return loaded(model)


def encoded(tokenizer: Tokenizer, sentences: list[str]) -> list[list[int]]:
    return [ids.tolist() for ids in tokenizer.encode(sentences, "source")]


def test_every_text_comes_back_whether_or_not_training_saw_the_odd_signs(model):
    for tokenizer in map(loaded, (model, train_bpe([*ODD, *ODD], 330))):
        assert tokenizer.decode(tokenizer.encode(ODD, "source")) == ODD


def test_bytes_come_before_merges_which_are_those_of_the_paper():
    learned = loaded(train_bpe(WORDS, 4 + 256 + CHARACTERS + 2)).vocabulary()
    assert learned[4 + 256 : 4 + 256 + 2] == ["es", "est"]


def test_decoding_passes_over_the_marks(tokenizer):
    (pieces,) = encoded(tokenizer, ["low"])
    assert tokenizer.decode([[BOS, *pieces, EOS, PAD, PAD], [EOS], []]) == ["low", "", ""]


def test_a_model_cannot_write_a_second_line(tokenizer):
    newline = tokenizer.vocabulary().index("<0x0A>")
    low, er = encoded(tokenizer, ["low", "er"])
    assert tokenizer.decode([[*low, newline, *er]]) == ["low  er"]


@pytest.mark.parametrize(("size", "bound"), [(100, FIXED + CHARACTERS), (5000, None)])
def test_a_vocabulary_that_the_text_does_not_allow_is_refused_with_its_bound(size, bound):
    with pytest.raises(InputError, match=rf"^data\.vocab_size = {size}: ") as error:
        train_bpe(WORDS, size)
    least = int(re.search(r"at (?:least|most) (\d+)", str(error.value))[1])
    assert bound in (None, least) and len(loaded(train_bpe(WORDS, least))) == least


def test_a_sentence_with_sentencepieces_own_sign_is_skipped_and_comes_back():
    tokenizer = loaded(train_bpe([*WORDS, "xyz ▅", "xyz ▅"], 275))
    assert not {"x", "▅"} & set(tokenizer.vocabulary())
    assert tokenizer.decode(tokenizer.encode(["xyz ▅"], "source")) == ["xyz ▅"]


@pytest.mark.parametrize("name", ["<s>", "</s>", "<pad>", "<unk>", "<0x41>"])
def test_what_only_the_name_of_a_token_holds_is_bytes_and_comes_back(name):
    tokenizer = loaded(train_bpe([*WORDS, f"z {name} z", f"z{name}"], 275))
    assert "z" in tokenizer.vocabulary() and not set("<>") & set(tokenizer.vocabulary())
    assert tokenizer.decode(tokenizer.encode([f"low {name}"], "source")) == [f"low {name}"]


def test_a_mistake_found_while_reading_is_reported_as_it_is():
    def sentences():
        yield "low"
        raise InputError("line 2 is wrong")

    with pytest.raises(InputError, match="line 2 is wrong"):
        train_bpe(sentences(), 300)
