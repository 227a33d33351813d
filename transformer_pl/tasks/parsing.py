"""English constituency parsing (Section 6.3 and Table 4): a sentence is translated to its linearised tree."""

from collections.abc import Sequence

import numpy as np

from transformer_pl.config import Config, Data
from transformer_pl.data.corpus import Corpus
from transformer_pl.data.trees import treebank
from transformer_pl.evaluation.brackets import SIGNATURE, bracket_counts, f1, is_tree
from transformer_pl.task import Measure, Scores, Task


class Parsing(Task):
    """Sentences and their trees."""

    measure = Measure("f1", "F1", 3, f1)
    others = {"precision": "precision", "recall": "recall"}
    described = "F1 is of labelled brackets, by evalb's rules (COLLINS.prm; malformed outputs are repaired),"
    text = "the trees of the synthetic corpus"
    published = "table4"

    def corpus(self, data: Data) -> Corpus:
        return treebank(data)

    def score(self, hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
        """Beside F1: precision, recall, and the share of outputs that are no tree of their sentence, in %."""
        pairs = list(zip(hypotheses, references, strict=True))
        statistics = [bracket_counts(*pair) for pair in pairs]
        right, ours, theirs = sums = np.sum(statistics, axis=0)
        metrics = {
            "f1": float(f1(sums)),
            "precision": 100 * float(right) / max(1, int(ours)),
            "recall": 100 * float(right) / max(1, int(theirs)),
            "malformed": 100 * sum(not is_tree(*pair) for pair in pairs) / len(pairs),
        }
        return Scores(metrics, statistics, SIGNATURE)

    def score_one(self, hypothesis: str, reference: str, config: Config) -> float:
        return float(f1(np.array(bracket_counts(hypothesis, reference))))

    def sides(self, data: Data) -> tuple[str, str]:
        return "sentence", "tree"
