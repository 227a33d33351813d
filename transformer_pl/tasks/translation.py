"""Translation (Section 5.1): sentence pairs in two languages, scored by sacreBLEU (Post 2018), and by the paper's BLEU.

sacreBLEU and sacremoses are imported where they are used: each takes half a second.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import numpy as np

from transformer_pl.config import Config, Data
from transformer_pl.data.files import folder_corpus
from transformer_pl.data.hub import hub_corpus
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus, Measure, Scores, Task

TOKENISERS = {  # sacreBLEU's, by the language's code
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}


# Letters of Thai, Lao, Tibetan, Burmese, Khmer, kana and Han, which are written without blanks between words
UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def primary(language: str) -> str:
    """The language of a code that may also name a region or a script: `zh` of zh-CN and zh_Hans."""
    return re.split("[-_]", language.lower())[0]


def tokeniser(data: Data) -> str:
    """The tokeniser by which sacreBLEU splits the target language."""
    return data.bleu or TOKENISERS.get(primary(data.target), "13a")


def have_no_words(references: Iterable[str]) -> bool:
    """Whether most letters are of scripts without blanks, and most of the texts have none."""
    characters, blanks = Counter[str](), list[bool]()
    for reference in references:
        characters.update(reference)
        blanks.append(len(reference.split()) > 1)
    letters = {character: count for character, count in characters.items() if character.isalpha()}
    unspaced = sum(count for letter, count in letters.items() if UNSPACED.match(letter))
    return 2 * unspaced > sum(letters.values()) and 2 * sum(blanks) < len(blanks)


def bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU from 0 to 100 (Papineni et al. 2002) of many sets at once: sacreBLEU's, with smoothing `exp`.

    sums (..., 10): matching n-grams of orders 1 to 4, possible n-grams of orders 1 to 4, length of outputs and of
    references.
    """
    matching, possible = sums[..., :4], sums[..., 4:8]
    length, reference_length = sums[..., 8], sums[..., 9]
    halvings = np.cumsum(matching == 0, -1)  # exp: the k-th precision without a match counts 2^-k matches
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(matching > 0, matching, 0.5**halvings) / possible
        log_brevity_penalty = np.minimum(0.0, 1 - reference_length / length)
        score = 100 * np.exp(log_brevity_penalty + np.log(precisions).mean(-1))
    return np.where(matching.any(-1) & (possible > 0).all(-1), score, 0.0)


class Translation(Task):
    """Sentences and their translations."""

    measure = Measure("bleu", "BLEU", 10, bleu)
    others = {"chrf": "chrF"}
    described = "BLEU is sacreBLEU"
    text = "the synthetic corpus"
    published = "table3"

    def corpus(self, data: Data) -> Corpus:
        """The pairs of a folder, else of a dataset of the hub, else of the synthetic corpus."""
        if data.source == data.target:
            raise InputError(f"data.source = {data.source}: must differ from data.target; set one of them")
        if (name := tokeniser(data)).endswith("mecab"):
            from sacrebleu.metrics import BLEU

            try:
                BLEU(tokenize=name)
            except RuntimeError:
                install = f"pip install -c constraints.txt 'sacrebleu[{name[:2]}]'"
                which = f"data.bleu = {data.bleu}" if data.bleu else f"data.target = {data.target}"
                raise InputError(f"{which}: its BLEU needs a tokeniser; run `{install}`") from None
        if data.path is not None:
            return folder_corpus(data.path, data)
        return _synthetic(data) if data.hub is None else hub_corpus(data)

    def scoring(self, data: Data) -> str:
        return f"{self.described} with the tokeniser {tokeniser(data)}"

    def check_references(self, data: Data, references: Iterable[str]) -> None:
        """Refuse references that the tokeniser would take for one word each: their BLEU is 0.0."""
        if tokeniser(data) in ("13a", "intl") and have_no_words(references):
            rule = f"splits at blanks, but the references in {data.target} have words without them"
            remedy = "set data.bleu to zh (Chinese), ja-mecab (Japanese) or char (any other)"
            raise InputError(f"data.bleu = {tokeniser(data)}: {rule}; {remedy}")

    def score(self, hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
        """BLEU, by the tokeniser of `data.bleu` or of the language, and chrF."""
        from sacrebleu.metrics import BLEU, CHRF

        metric = BLEU(tokenize=tokeniser(config.data))
        scores = [metric.corpus_score([h], [[r]]) for h, r in zip(hypotheses, references, strict=True)]
        statistics = [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]
        sums = np.sum(statistics, axis=0).tolist()
        whole = BLEU.compute_bleu(sums[:4], sums[4:8], sums[8], sums[9], smooth_method="exp")  # metric.corpus_score
        metrics = {"bleu": whole.score, "chrf": CHRF().corpus_score(hypotheses, [references]).score}
        return Scores(metrics, statistics, str(metric.get_signature()))


class PaperTranslation(Translation):
    """Translation that is also scored by the BLEU of the paper's authors. Needs sacremoses."""

    others = Translation.others | {"bleu_tokenised": "BLEU tok."}

    def corpus(self, data: Data) -> Corpus:
        if find_spec("sacremoses") is None:
            remedy = "pip install sacremoses, or choose Translation"
            raise InputError(f"data.task = {data.task}: needs the package sacremoses; {remedy}")
        return super().corpus(data)

    def score(self, hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
        scores = super().score(hypotheses, references, config)
        tokenised = tokenised_bleu(hypotheses, references, primary(config.data.target))
        return scores._replace(metrics=scores.metrics | {"bleu_tokenised": tokenised})


def _synthetic(data: Data) -> Corpus:
    """The synthetic corpus, in either direction."""
    from transformer_pl.data import synthetic

    if {data.source, data.target} != {"en", "de"}:
        ours = "must be en and de, as in the synthetic corpus; name your own dataset with data.path=FOLDER"
        raise InputError(f"data.source = {data.source}, data.target = {data.target}: {ours}")
    return Corpus(
        {"corpus": "synthetic", "version": synthetic.VERSION},
        f"the synthetic corpus, version {synthetic.VERSION}",
        lambda split: ((en, de) if data.source == "en" else (de, en) for en, de in synthetic.pairs(split)),
    )


def tokenised_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> float:
    """Return the BLEU of a whole set as the paper's authors computed it, from 0 to 100.

    It counts Moses tokens, with compounds split at their hyphens, and has no smoothing, as in tensor2tensor's script
    get_ende_bleu.sh. Moses has rules for `de`, `fr` and others, and takes the English ones for any other language.
    """
    from sacrebleu.metrics import BLEU

    tokens = [paper_tokens(sentences, language) for sentences in (hypotheses, references)]
    return BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(tokens[0], [tokens[1]]).score


def paper_tokens(sentences: Sequence[str], language: str) -> list[str]:
    """Return the tokens that the paper's BLEU counts, with a blank between two of them.

    Typographic quotes and apostrophes become plain ones first, as in the references that the authors had. The low
    quote is not in Moses's list. Of `a-b-c` only the first hyphen is split, as by the script: matches do not overlap.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # an optional dependency

    normalise, tokenise = MosesPunctNormalizer().replace_unicode_punct, MosesTokenizer(language).tokenize
    tokens = (tokenise(normalise(sentence.replace("„", '"')), return_str=True) for sentence in sentences)
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in tokens]
