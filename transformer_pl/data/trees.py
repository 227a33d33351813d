"""Bracketed trees in the style of the Penn Treebank, and their linear form (Vinyals et al. 2015, arXiv:1412.7449).

A tree, over one line or several, becomes its words and a line of brackets with labels. Each part of speech stands in
the place of its word:

    (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ sleeps)) (. .))     The dog sleeps .
                                                               (S (NP DT NN )NP (VP VBZ )VP . )S

Left out are traces (-NONE-) with the constituents that dominate nothing else, what follows - or = in a label
(functions, indexes), and a root that has no label, or TOP, ROOT or S1.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_pl.config import Data
from transformer_pl.data.corpus import Corpus, Pair, choose_splits
from transformer_pl.data.folder import at_home, listing
from transformer_pl.data.text_files import digest_of, lines
from transformer_pl.runtime.errors import InputError, shown

LINEARISING = 1  # raised whenever the same trees would give other lines; enters the fingerprint of the data
ROOTS = ("", "TOP", "ROOT", "S1")
TRACE = "-NONE-"
TREE_FILE = re.compile(r"(?P<stem>.+)\.(mrg|trees)(\.gz)?")
TOKEN = re.compile(r"[()]|[^\s()]+")


def treebank(data: Data) -> Corpus:
    """The trees that `data` names: of a folder, or of the synthetic corpus. They are not read yet.

    Raises an InputError if something is missing or ambiguous. `pairs` raises one for text that is no tree.
    """
    if data.path is not None:
        return _folder(at_home(data.path), data)
    if data.hub is not None:
        raise InputError(f"data.hub = {data.hub}: parsing reads trees from files; give their folder with data.path")
    from transformer_pl.data import synthetic

    def pairs(split: str) -> Iterator[Pair]:
        place = f"the synthetic corpus, {split}"
        return read_trees(iter(synthetic.trees(split)), place)

    fingerprint = {"corpus": "embedded trees", "version": synthetic.VERSION, "linearising": LINEARISING}
    return Corpus(fingerprint, f"the trees of the synthetic corpus, version {synthetic.VERSION}", pairs)


def _folder(folder: Path, data: Data) -> Corpus:
    names = listing(folder)
    files: dict[str, Path] = {}
    for name in names:
        if match := TREE_FILE.fullmatch(name):
            if match["stem"] in files:
                raise InputError(
                    f"folder {folder}: a split must be stored once, but is in {files[match['stem']].name} and {name}; "
                    "remove what is not meant"
                )
            files[match["stem"]] = folder / name
    naming = ", where NAME is without its ending: train for train.mrg"
    chosen = choose_splits(files, data, f"folder {folder}", names, "treebank (.mrg or .trees)", naming)
    splits = {role: files[name] for role, name in chosen.items()}

    def pairs(split: str) -> Iterator[Pair]:
        trees = 0
        for pair in read_trees(lines(splits[split]), str(splits[split])):
            trees += 1
            yield pair
        if not trees:
            raise InputError(f"{splits[split]}: must hold trees, but is empty; give a file with trees")

    fingerprint = {"trees": {role: digest_of(path) for role, path in splits.items()}, "linearising": LINEARISING}
    return Corpus(fingerprint, f"trees of folder {folder} ({', '.join(chosen.values())})", pairs)


class _Open(NamedTuple):
    """A bracket that is not closed yet."""

    label: str
    line: int
    words: list[str]
    inside: list[str]  # the linear form of what is in it
    leaf: list[str]  # a word, where the label is a part of speech
    children: list[str]  # their labels


def read_trees(text: Iterator[str], place: str) -> Iterator[Pair]:
    """Yield the words and the linear form of each tree. Raises an InputError with the line of the first mistake."""
    stack: list[_Open] = []
    expects_label = False
    for number, line in enumerate(text, start=1):
        for token in TOKEN.findall(line):
            if expects_label:
                label = "" if token in "()" else token
                if not label and (stack or token == ")"):
                    raise _mistake(place, number, "a bracket must begin with a label, but is followed by", token)
                stack.append(_Open(label, number, [], [], [], []))
                expects_label = False
                if label:
                    continue
            if token == "(":
                if stack and stack[-1].leaf:
                    raise _mistake(
                        place, number, "a bracket must hold a word or brackets, but holds both:", stack[-1].leaf[0]
                    )
                expects_label = True
            elif token == ")":
                if not stack:
                    raise _mistake(place, number, "every bracket that is closed must be open, but is not:", token)
                closed = stack.pop()
                if not closed.leaf and not closed.children:
                    raise _mistake(
                        place, number, "a bracket must hold a word or brackets, but is empty:", f"({closed.label})"
                    )
                if not stack:
                    yield _sentence(closed)
                else:
                    _add(closed, stack[-1])
            else:
                if not stack or not stack[-1].label or stack[-1].leaf or stack[-1].children:
                    raise _mistake(
                        place, number, "a word must stand alone in the bracket of its label, but does not:", token
                    )
                stack[-1].leaf.append(token)
    if stack or expects_label:
        begun = stack[0].line if stack else number
        raise InputError(f"{place} line {begun}: the tree that begins here must be closed, but is not; complete it")


def _add(closed: _Open, parent: _Open) -> None:
    """Add a closed bracket to the one that it is in. A trace, and what dominates only traces, leaves nothing."""
    parent.children.append(closed.label)
    if closed.leaf and closed.label != TRACE:
        parent.words.extend(closed.leaf)
        parent.inside.append(bare(closed.label))
    elif closed.words:
        parent.words.extend(closed.words)
        label = bare(closed.label)
        parent.inside.extend([f"({label}", *closed.inside, f"){label}"])


def _sentence(root: _Open) -> Pair:
    if root.label in ROOTS:
        return " ".join(root.words), " ".join(root.inside)
    whole = _Open("", root.line, [], [], [], [])
    _add(root, whole)
    return " ".join(whole.words), " ".join(whole.inside)


def bare(label: str) -> str:
    """A label without functions and indexes: NP of NP-SBJ and of NP=2. Those such as -LRB- stay."""
    return re.split(r"[-=]", label, maxsplit=1)[0] or label


def _mistake(place: str, line: int, rule: str, token: str) -> InputError:
    return InputError(f"{place} line {line}: {rule} {shown(token)}; fix the tree")
