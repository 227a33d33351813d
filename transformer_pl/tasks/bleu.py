"""Translations against references: sacreBLEU (Post 2018) on detokenised text, with its signature; the paper's BLEU."""

import re
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF

from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Scores


def check_tokeniser(language: str) -> None:
    """Raise an InputError where sacreBLEU lacks the tokeniser of this language: Japanese and Korean need a package."""
    try:
        BLEU(trg_lang=language)
    except RuntimeError:
        raise InputError(
            f"data.target = {language}: BLEU of this language must have its tokeniser, which is not installed; run "
            f"`pip install -c constraints.txt 'sacrebleu[{language}]'`"
        ) from None


def corpus_score(hypotheses: Sequence[str], references: Sequence[str], language: str = "") -> Scores:
    """BLEU and chrF of a whole set, from 0 to 100; for each sentence the numbers of `sentence_statistics`.

    language: of these texts. sacreBLEU splits Chinese (`zh`), Japanese (`ja`) and Korean (`ko`), which have no blanks
    between words, by tokenisers of their own, and all others alike (`13a`).
    """
    metrics = {"bleu": BLEU(trg_lang=language), "chrf": CHRF()}
    scores = {name: metric.corpus_score(hypotheses, [references]).score for name, metric in metrics.items()}
    statistics = sentence_statistics(hypotheses, references, language)
    return Scores(scores, statistics, str(metrics["bleu"].get_signature()))


def sentence_statistics(hypotheses: Sequence[str], references: Sequence[str], language: str = "") -> list[list[int]]:
    """Return BLEU's ten integers per sentence: matching and possible n-grams of order 1 to 4, both lengths.

    The lengths are those of the hypothesis and of the reference. Summed over a set, the integers give its corpus BLEU.
    """
    bleu = BLEU(effective_order=True, trg_lang=language)
    scores = (bleu.sentence_score(h, [r]) for h, r in zip(hypotheses, references, strict=True))
    return [[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores]


def tokenised_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> float:
    """Return the BLEU of a whole set as the paper's authors computed it, from 0 to 100.

    It is of Moses tokens, with compounds split at their hyphens, and without smoothing, as in tensor2tensor's script
    get_ende_bleu.sh. language: of these texts; Moses has rules for `de`, `fr` and others, and takes English ones else.
    """
    tokens = [paper_tokens(texts, language) for texts in (hypotheses, references)]
    return BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(tokens[0], [tokens[1]]).score


def paper_tokens(texts: Sequence[str], language: str) -> list[str]:
    """Return the tokens that the paper's BLEU counts, with a blank between two of them.

    Typographic quotes and apostrophes become plain ones first, as in the references that the authors had. The low
    quote is not in Moses's list. Of `a-b-c` only the first hyphen is split, as by the script: matches do not overlap.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # an optional dependency, which takes half a second

    normalise, tokenise = MosesPunctNormalizer().replace_unicode_punct, MosesTokenizer(language).tokenize
    tokens = (tokenise(normalise(text.replace("„", '"')), return_str=True) for text in texts)
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text) for text in tokens]
