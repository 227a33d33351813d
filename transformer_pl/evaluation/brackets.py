"""Labelled bracketing F1 (PARSEVAL) by the rules of evalb, with its parameters COLLINS.prm.

Source of the rules: Sekine and Collins, evalb, https://nlp.cs.nyu.edu/evalb/ (its README, sections 6 and 7). A bracket
is right if one with the same label and the same words is in the reference; each is counted once.

- Parts of speech are no brackets.
- The words that are punctuation (their part of speech in the reference is , : `` '' or .) are taken out first; a
  constituent without words goes with them. So do traces.
- TOP, the root of every tree, is not counted.
- ADVP and PRT are the same label.

evalb leaves out a sentence whose output is no tree, or has other words than the reference. This would flatter a model,
so here every output counts: it is repaired. As by Vinyals et al. 2015 (arXiv:1412.7449), brackets are added at the
beginning or the end to balance it. Words that it has too many are left out; those that it lacks are in none of its
constituents.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_pl.data.trees import ROOTS

PUNCTUATION = frozenset((",", ":", "``", "''", "."))
SAME = {"PRT": "ADVP"}
SIGNATURE = "evalb:COLLINS.prm|malformed:repaired|version:1"

Bracket = tuple[str, int, int]  # label, its first word, the word behind its last one


class Linear(NamedTuple):
    """A tree that was read from its linear form."""

    tags: list[str]  # the part of speech of each word
    brackets: list[Bracket]
    balanced: bool  # every bracket is closed by its own label


def read_linear(line: str) -> Linear:
    """Read the linear form of a tree (see data/trees.py). Brackets that are missing are added at its ends."""
    tags: list[str] = []
    brackets: list[Bracket] = []
    stack: list[tuple[str, int]] = []
    balanced = True
    for token in line.split():
        if token[0] == "(":
            stack.append((token[1:], len(tags)))
        elif token[0] == ")":
            label, start = stack.pop() if stack else (None, 0)
            balanced &= label == token[1:]
            brackets.append((token[1:] if label is None else label, start, len(tags)))
        else:
            tags.append(token)
    brackets += [(label, start, len(tags)) for label, start in stack]
    return Linear(tags, brackets, balanced and not stack)


def is_tree(hypothesis: str, reference: str) -> bool:
    """Whether an output needs no repair: its brackets are closed, and it has as many words as the reference."""
    output = read_linear(hypothesis)
    return output.balanced and len(output.tags) == len(read_linear(reference).tags)


def bracket_counts(hypothesis: str, reference: str) -> list[int]:
    """The brackets of an output that are right, all of its brackets, and those of the reference."""
    gold = read_linear(reference)
    counted = np.cumsum([0, *(tag not in PUNCTUATION for tag in gold.tags)]).tolist()  # words before each position
    ours, theirs = (_brackets(tree, counted) for tree in (read_linear(hypothesis), gold))
    return [(ours & theirs).total(), ours.total(), theirs.total()]


def _brackets(tree: Linear, counted: Sequence[int]) -> Counter[Bracket]:
    """The brackets that count, over the words that count."""
    last = len(counted) - 1
    brackets: Counter[Bracket] = Counter()
    for label, start, end in tree.brackets:
        first, behind = counted[min(start, last)], counted[min(end, last)]
        if first < behind and label not in ROOTS:
            brackets[SAME.get(label, label), first, behind] += 1
    return brackets


def f1(sums: np.ndarray) -> np.ndarray:
    """2 PR / (P + R) from 0 to 100. sums (..., 3): brackets that are right, of the outputs, of the references."""
    right, ours, theirs = (sums[..., i] for i in range(3))
    return 200 * right / np.maximum(ours + theirs, 1)
