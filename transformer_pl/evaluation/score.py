"""Translations against references: sacreBLEU (Post 2018) on detokenised text, with its signature."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF


class Score(NamedTuple):
    bleu: float
    chrf: float
    signature: str  # of BLEU


def corpus_score(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU and chrF of a whole set, from 0 to 100."""
    bleu, chrf = BLEU(), CHRF()
    score = bleu.corpus_score(hypotheses, [references]).score
    return Score(score, chrf.corpus_score(hypotheses, [references]).score, str(bleu.get_signature()))


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """Of one sentence, by the n-grams that it has room for."""
    return BLEU(effective_order=True).sentence_score(hypothesis, [reference]).score


def sentence_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """BLEU's ten integers a sentence: matching and possible n-grams of 1 to 4, length of output and of reference.

    Summed over a set of sentences, they give its corpus BLEU.
    """
    bleu = BLEU(effective_order=True)
    scores = (bleu.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True))
    return [[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores]
