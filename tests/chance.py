"""Corpora of which everything is known: what chance does to the scores of rows, seeds and sentences."""

import numpy as np


def drawn(rng, rows, seeds, sentences, spread, gap=0.0, own=0.3, document=1):
    """BLEU's ten integers (rows, seeds, sentences, 10): what a seed, a sentence, a row with a sentence, and all of them
    together do to the chance of a matching word, on the scale of its logit. gap: by which each row is better, or the
    last one alone. spread: of the seeds of all rows, or of each as (rows, 1, 1). document: the sentences of each
    document, which also does something to all, and to each row."""
    length = rng.integers(5, 25, sentences)
    logit = 0.9 + rng.normal(0, 0.8, sentences) + rng.normal(0, spread, (rows, seeds, 1))
    logit = logit + rng.normal(0, 0.3, (rows, 1, sentences)) + rng.normal(0, own, (rows, seeds, sentences))
    logit += np.reshape(gap, (-1, 1, 1)) if np.ndim(gap) else np.eye(rows)[-1].reshape(-1, 1, 1) * gap
    if document > 1:
        of_documents = rng.normal(0, 0.5, sentences // document) + rng.normal(0, 0.3, (rows, 1, sentences // document))
        logit = logit + of_documents.repeat(document, -1)
    chance = 1 / (1 + np.exp(-logit))
    matching, possible = [], np.maximum(0, length[:, None] - np.arange(4))
    left = np.broadcast_to(length, chance.shape)
    for order in range(4):  # an n-gram more matches where the shorter one did
        left = rng.binomial(np.minimum(left, possible[:, order]), chance)
        matching.append(left)
    rest = np.broadcast_to(np.column_stack([possible, length, length]), (*chance.shape, 6))
    return np.concatenate([np.stack(matching, -1), rest], -1)
