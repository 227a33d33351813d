"""A third task, whole: digits are copied, and scored by the share of lines that are right."""

import numpy as np

from transformer_pl.task import Corpus, Measure, Scores, Task


class Copying(Task):
    measure = Measure("right", "right", 2, lambda sums: 100 * sums[..., 0] / np.maximum(sums[..., 1], 1))
    described = "right is the share of lines that are right"

    def corpus(self, data):
        lines = [" ".join(str(number * 7 % 1000)) for number in range(60)]
        return Corpus({"corpus": "digits"}, "digits", lambda split: ((line, line) for line in lines))

    def score(self, hypotheses, references, config):
        right = [[int(h == r), 1] for h, r in zip(hypotheses, references, strict=True)]
        return Scores({"right": 100 * sum(one for one, _ in right) / len(right)}, right, "exact")
