"""Translation (Section 5.1): parallel text, scored by BLEU."""

from collections.abc import Sequence

import numpy as np

from transformer_pl.config import Config, Data
from transformer_pl.data.sources import parallel_text
from transformer_pl.task import Corpus, Measure, Scores, Task


def bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU from 0 to 100 (Papineni et al. 2002), as sacreBLEU computes it with the smoothing `exp`.

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
        if data.target in ("ja", "ko"):
            from transformer_pl.tasks.bleu import check_tokeniser  # sacreBLEU takes half a second

            check_tokeniser(data.target)
        return parallel_text(data)

    def score(self, hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
        from transformer_pl.tasks.bleu import corpus_score, tokenised_bleu  # sacreBLEU takes half a second

        scores = corpus_score(hypotheses, references, config.data.target)
        if config.trainer.tokenised_bleu:
            scores.metrics["bleu_tokenised"] = tokenised_bleu(hypotheses, references, config.data.target)
        return scores
