"""English constituency parsing (Section 6.3 and Table 4): a sentence is translated to its linearised tree.

Trees are bracketed in the style of the Penn Treebank, each over one line or several. Their linear form is that of
Vinyals et al. 2015 (arXiv:1412.7449): brackets with labels, and each part of speech in the place of its word.

    (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ sleeps)) (. .))     The dog sleeps .
                                                               (S (NP DT NN )NP (VP VBZ )VP . )S

The linear form leaves three things out: traces (-NONE-) with the constituents that dominate nothing else; what follows
- or = in a label (functions, indexes); and a root that has no label, or the label TOP, ROOT or S1.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer_pl.config import Config, Data
from transformer_pl.data.files import digests, lines, split_files
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.task import Corpus, Measure, Pair, Scores, Task

LINEARISING = 1  # raised whenever the same trees would give other lines; enters the fingerprint of the data
ROOTS = ("", "TOP", "ROOT", "S1")
TRACE = "-NONE-"
TOKEN = re.compile(r"[()]|[^\s()]+")

# evalb's parameters COLLINS.prm
PUNCTUATION = frozenset((",", ":", "``", "''", "."))
SAME = {"PRT": "ADVP"}
SIGNATURE = "evalb:COLLINS.prm|malformed:repaired|version:1"

Bracket = tuple[str, int, int]  # label, its first word, the word behind its last one


def f1(sums: np.ndarray) -> np.ndarray:
    """2 PR / (P + R) from 0 to 100. sums (..., 3): brackets that are right, of the outputs, of the references."""
    right, ours, theirs = (sums[..., i] for i in range(3))
    return 200 * right / np.maximum(ours + theirs, 1)


class Parsing(Task):
    """Sentences and their trees."""

    measure = Measure("f1", "F1", 3, f1)
    others = {"precision": "precision", "recall": "recall"}
    described = "F1 is of labelled brackets, by evalb's rules (COLLINS.prm; malformed outputs are repaired),"
    text = "the trees of the synthetic corpus"
    published = "table4"

    def corpus(self, data: Data) -> Corpus:
        """The trees of a folder (.mrg or .trees), or of the synthetic corpus."""
        if data.hub is not None and data.path is None:
            raise InputError(f"data.hub = {data.hub}: parsing reads trees from files; give their folder with data.path")
        if data.bleu is not None:
            raise InputError(f"data.bleu = {data.bleu}: parsing is scored by F1; leave it out")
        if data.path is None:
            from transformer_pl.data import synthetic

            place = f"the trees of the synthetic corpus, version {synthetic.VERSION}"
            fingerprint = {"corpus": "synthetic trees", "version": synthetic.VERSION, "linearising": LINEARISING}
            return Corpus(fingerprint, place, lambda split: read_trees(synthetic.trees(split), f"{place}, {split}"))
        described, splits = split_files(data.path, data, [("mrg",), ("trees",)])

        def pairs(split: str) -> Iterator[Pair]:
            for path in itertools.chain.from_iterable(splits[split].values()):
                yield from read_trees(lines(path), str(path))

        return Corpus({"trees": digests(splits), "linearising": LINEARISING}, f"trees of {described}", pairs)

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

    def sides(self, data: Data) -> tuple[str, str]:
        return "sentence", "tree"


def read_trees(written: Iterable[str], place: str) -> Iterator[Pair]:
    """Yield the words and the linear form of each tree. Raises an InputError with the line of the first mistake."""
    stack: list[list] = []  # the open brackets, each a list of its label, then its word or the brackets in it
    number = 0
    for number, line in enumerate(written, start=1):
        for token in TOKEN.findall(line):
            if token == "(":
                stack.append([])
                continue
            if not stack:
                raise InputError(f"{place} line {number}: must be in a bracket, but is not: {shown(token)}; fix it")
            if token != ")":
                stack[-1].append(token)
                continue
            node = stack.pop()
            if not stack and set(map(type, node)) <= {list}:
                node = ["", *node]  # a root without a label
            kinds = list(map(type, node))  # a label, then brackets or a word
            is_leaf = kinds == [str, str] and node[0] not in ROOTS
            if not is_leaf and (kinds[:1] != [str] or set(kinds[1:]) != {list}):
                rule = "must hold a label, then brackets or, unless it is a root, a word"
                raise InputError(f"{place} line {number}: the bracket {rule}, but holds {shown(node)}; fix the tree")
            if stack:
                stack[-1].append(node)
            else:
                words, linear = _linear(node, is_root=True)
                yield " ".join(words), " ".join(linear)
    if stack:
        raise InputError(f"{place} line {number}: the last tree must be closed, but is not; complete it")


def _linear(node: list[Any], is_root: bool = False) -> tuple[list[str], list[str]]:
    """The words of a tree and its linear form."""
    label, *children = node
    if isinstance(children[0], str):
        return ([], []) if label == TRACE else (children, [_bare(label)])
    words, inside = (list(itertools.chain(*parts)) for parts in zip(*map(_linear, children), strict=True))
    if words and not (is_root and label in ROOTS):
        inside = [f"({_bare(label)}", *inside, f"){_bare(label)}"]
    return words, inside


def _bare(label: str) -> str:
    """A label without functions and indexes: NP of NP-SBJ and of NP=2. Labels such as -LRB- stay."""
    return re.split(r"[-=]", label, maxsplit=1)[0] or label


def read_linear(line: str) -> tuple[list[str], list[Bracket], bool]:
    """Read a linear form: its parts of speech, its brackets, and whether every bracket is closed by its own label.

    Brackets that are missing are added at the beginning or the end.
    """
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
    return tags, brackets, balanced and not stack


def is_tree(hypothesis: str, reference: str) -> bool:
    """Whether an output needs no repair: its brackets are closed, and it has as many words as the reference."""
    tags, _, balanced = read_linear(hypothesis)
    return balanced and len(tags) == len(read_linear(reference)[0])


def bracket_counts(hypothesis: str, reference: str) -> list[int]:
    """The brackets of an output that are right, all of its brackets, and those of the reference, as evalb counts them.

    A bracket is right if one with the same label and the same words is in the reference; each is counted once. Parts of
    speech are no brackets. Words that are punctuation in the reference are taken out first, and constituents without
    words with them. The root is not counted. ADVP and PRT are one label (Sekine and Collins,
    https://nlp.cs.nyu.edu/evalb/, sections 6 and 7 of its README).

    evalb leaves out a sentence whose output is no tree, or has other words. This would flatter a model, so here the
    output is repaired as by Vinyals et al. (see `read_linear`): surplus words are left out, and missing words are in
    none of its constituents.
    """
    tags = read_linear(reference)[0]
    before = np.cumsum([0, *(tag not in PUNCTUATION for tag in tags)]).tolist()  # words that count before a position

    def counted(line: str) -> Counter[Bracket]:
        spans = (
            (SAME.get(label, label), before[min(start, len(tags))], before[min(end, len(tags))])
            for label, start, end in read_linear(line)[1]
            if label not in ROOTS
        )
        return Counter(span for span in spans if span[1] < span[2])

    ours, theirs = counted(hypothesis), counted(reference)
    return [(ours & theirs).total(), ours.total(), theirs.total()]
