"""How the synthetic corpus writes the trees of its English sentences, in the brackets and labels of the Penn Treebank.

A tree is a text such as (NP (DT the) (NN dog)). A verb phrase has {} where its complements belong.
"""

import re

TIMES = {
    "today": "(NP (NN today))",
    "every day": "(NP (DT every) (NN day))",
    "now": "(ADVP (RB now))",
    "yesterday": "(NP (NN yesterday))",
    "on Monday": "(PP (IN on) (NP (NNP Monday)))",
    "tomorrow": "(NP (NN tomorrow))",
}
DETERMINERS = {"many": "JJ", "his": "PRP$", "my": "PRP$"}  # the others: DT
PREPOSITIONS = {"to": "TO"}  # the others: IN
WORD = re.compile(r"(?<= )[^\s()]+(?=\))")


def node(label: str, *parts: str) -> str:
    """A constituent, or a word with its part of speech. Parts that are empty are left out."""
    return f"({label} {' '.join(part for part in parts if part)})"


def prepositional(preposition: str, complement: str) -> str:
    return node("PP", node(PREPOSITIONS.get(preposition, "IN"), preposition), complement)


def complements(written: str) -> str:
    """What follows a verb, such as `for 1` and `1 up`, where digits stand for noun phrases."""

    def tree(match: re.Match) -> str:
        preposition, number, particle, adverb = match.groups()
        if preposition:
            return prepositional(preposition, number)
        return node("PRT", node("RP", particle)) if particle else node("ADVP", node("RB", adverb))

    return re.sub(r"(for|to) (\d)|(up|on|off)|(back|along)", tree, written)


def verb_phrase(tag: str, verb: str, inner: str = "{}") -> str:
    """A verb and what it governs."""
    return node("VP", node(tag, verb), inner)


def infinitive(verb_phrase: str) -> str:
    """`to` and a verb phrase."""
    return node("S", node("VP", node("TO", "to"), verb_phrase))


def subordinate(conjunction: str, clause: str) -> str:
    tag = node("WHADVP", node("WRB", conjunction)) if conjunction == "when" else node("IN", conjunction)
    return node("SBAR", tag, clause)


def question_phrase(words: str) -> str:
    """`why`, `when` or `how often`."""
    first, *rest = words.split()
    return node("WHADVP", node("WRB", first), *(node("RB", word) for word in rest))


def ended(tree: str, mark: str) -> str:
    """A sentence with its final mark in it."""
    return f"{tree[:-1]} {node('.', mark)})"


def capitalised(tree: str) -> str:
    return WORD.sub(lambda match: match[0][0].upper() + match[0][1:], tree, count=1)


def plain(tree: str) -> str:
    """The sentence of a tree, punctuation at the word before it."""
    return re.sub(r" (?=[.,?])", "", " ".join(WORD.findall(tree)))
