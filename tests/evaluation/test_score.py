"""Scores are sacreBLEU's own."""

import numpy as np
import pytest
import sacrebleu

from transformer_pl.evaluation.score import corpus_score


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [1, 3, 12])
def test_the_score_of_a_set_equals_sacrebleu_s_bit_for_bit(seed, length):
    rng = np.random.default_rng(seed)
    words = np.array(["a", "cat", "sat", "on", "the", "mat", ",", "it's", "3.5"])
    references = [" ".join(rng.choice(words, length)) for _ in range(40)]
    hypotheses = [" ".join(word for word in text.split() if rng.random() > 0.2) for text in references]
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    score = corpus_score(hypotheses, references)
    assert score.bleu == bleu.corpus_score(hypotheses, [references]).score
    assert score.chrf == chrf.corpus_score(hypotheses, [references]).score
    assert score.signature == str(bleu.get_signature()) and len(score.statistics) == 40
