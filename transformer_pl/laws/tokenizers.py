"""The laws of tokenizers (`data.tokenizer`)."""

from collections.abc import Sequence

from transformer_pl.config import UNK
from transformer_pl.data.prepared import SIDES
from transformer_pl.data.tokenizer import check_adds_nothing
from transformer_pl.laws.law import HOLDS, Finding, broken, untested
from transformer_pl.laws.small_training import SmallTraining
from transformer_pl.runtime.errors import described, shown
from transformer_pl.task import task_of

JOINED = 1000  # sentences that are joined to a long one
WHOLE = 0.9  # of the tokens that twice the sentence must have


class Subject:
    """A tokenizer, another one that has loaded what the first has returned, and sentences that are not blank."""

    def __init__(self, training: SmallTraining):
        assert training.written  # in this process
        self.again, (self.tokenizer, pairs) = training.prepared.tokenizer, training.written
        self.has_source = task_of(training.config.data).has_source
        sides = {side: [pair[i] for pair in pairs if pair[i].strip()] for i, side in enumerate(SIDES)}
        self.sentences = {side: sentences for side, sentences in sides.items() if sentences}

    def tokens(self, sentences: Sequence[str], side: str) -> list[list[int]]:
        return self.tokenizer.encode(sentences, side).rows()


def unequal(sentences: Sequence[str], tokens: Sequence[list[int]], others: Sequence[list[int]]) -> str:
    """The first sentence whose tokens differ from the others; empty where none does."""
    differ = ((text, one, other) for text, one, other in zip(sentences, tokens, others, strict=True) if one != other)
    return next((f"{shown(text)!r} is {shown(one)}, and {shown(other)}" for text, one, other in differ), "")


def every_token_has_a_text(subject: Subject) -> Finding:
    """`vocabulary` gives a text for each token, as many as the tokenizer has."""
    words, count = subject.tokenizer.vocabulary(), len(subject.tokenizer)
    texts = sum(isinstance(word, str) for word in words)
    return HOLDS if texts == len(words) == count else broken(f"it gives {texts} texts for {count} tokens")


def every_sentence_has_tokens(subject: Subject) -> Finding:
    """Every sentence has tokens, and some of them are known."""
    for side, sentences in subject.sentences.items():
        tokens = subject.tokens(sentences, side)
        if empty := [sentence for sentence, row in zip(sentences, tokens, strict=True) if not row]:
            return broken(f"{shown(empty[0])!r} has none")
        if all(token == UNK for row in tokens for token in row):
            return broken("all tokens are the unknown one")
    return HOLDS


def a_sentence_has_the_same_tokens_alone(subject: Subject) -> Finding:
    """A sentence has the same tokens alone as among others.

    Usual cause: padding to the longest sentence, or tokens that are drawn.
    """
    for side, sentences in subject.sentences.items():
        alone = [row for sentence in sentences for row in subject.tokens([sentence], side)]
        if wrong := unequal(sentences, subject.tokens(sentences, side), alone):
            return broken(f"{wrong} alone")
    return HOLDS


def a_long_sentence_keeps_its_end(subject: Subject) -> Finding:
    """A long sentence keeps the tokens of its end: twice the sentence has about twice the tokens.

    Usual cause: a setting that truncates.
    """
    for side, sentences in subject.sentences.items():
        long = " ".join(sentences * (JOINED // len(sentences)))
        try:
            once, twice = map(len, subject.tokens([long, f"{long} {long}"], side))
        except Exception as error:
            return untested(f"joined sentences are none of this task: {described(error)}")
        if twice < 2 * WHOLE * once:
            return broken(f"{len(long):,} characters have {once:,} tokens, and twice the same {twice:,}")
    return HOLDS


def it_adds_nothing_to_a_sentence(subject: Subject) -> Finding:
    """It adds nothing to a sentence: sentences come back no longer one by one than joined.

    Usual cause: a setting that pads.
    """
    for side, sentences in subject.sentences.items():
        check_adds_nothing(subject.tokenizer, sentences, side)  # raises an InputError
    return HOLDS


def its_tokens_become_text(subject: Subject) -> Finding:
    """The tokens of a sentence become a text again, which is not blank; without a source, the same text.

    Where there is no source the text is scored by its loss for each byte, which leaves out what is lost.
    """
    lost = ""
    for side, sentences in subject.sentences.items():
        texts = subject.tokenizer.decode(subject.tokens(sentences, side))
        if blank := [sentence for sentence, text in zip(sentences, texts, strict=True) if not text.strip()]:
            return broken(f"the text of {shown(blank[0])!r} is blank")
        if not subject.has_source and texts != sentences:
            lost = "its tokens do not give back the whole text: a loss for each byte leaves out what is lost"
    return Finding("holds", lost)


def loaded_again_it_gives_the_same_tokens(subject: Subject) -> Finding:
    """What `train` returns is all that `load` needs: loaded again it gives the same tokens.

    Usual cause: something that `train` keeps, and does not return.
    """
    for side, sentences in subject.sentences.items():
        again = subject.again.encode(sentences, side).rows()
        if wrong := unequal(sentences, subject.tokens(sentences, side), again):
            return broken(f"{wrong} after it was loaded again")
    return HOLDS
