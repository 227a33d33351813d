"""The grammar that made transformer_pl/data/synthetic.tsv.gz:  python tests/benchmarks/synthetic_corpus.py

    python tests/benchmarks/synthetic_corpus.py SEED FOLDER

draws another training text of the same size, beside the validation and test sets of the file, for `data.path=FOLDER`.

A synchronous grammar builds both sides of a sentence at once. It covers agreement of determiner, adjective and noun in
gender, number and case; subject-verb agreement; government by verbs and prepositions; present, perfect and modals;
verb-second with inversion, verb-final subordinate clauses, questions; separable verbs that an English particle selects;
compounds, numerals, names; pronouns that agree with an antecedent; words whose translation hangs on the context (know:
kennen, wissen; eat: essen, fressen; when: wann, wenn, als; to: zu, nach). The German is orthographic and grammatical,
the meaning often whimsical.

The words are those of lexicon.yaml. English is written as trees, in the brackets and labels of the Penn Treebank:
(NP (DT the) (NN dog)). A verb phrase has {} where its complements belong.
"""

import gzip
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from transformer_pl.data.synthetic import FILE, LARGE, SIZES, WORD, pairs, sentence
from transformer_pl.runtime.files import read_yaml

SEED = 1706

# Difficulty: the share of each construction where the grammar has the choice.
QUESTION, SUBORDINATE = 0.05, 0.10  # kinds of sentence; the rest are simple statements
THAT, FRONTED_CLAUSE, IT = 0.35, 0.40, 0.60  # in complex sentences; `it` only where one noun can be its antecedent
COPULA, PAST, MODAL = 0.12, 0.35, 0.12  # in clauses; the remaining tense is the present
TIME, FRONTED_TIME = 0.14, 0.50
NAME, PRONOUN = 0.40, 0.35  # of people; the rest are noun phrases
PLURAL, ADJECTIVE, COMPOUND, NUMERAL = 0.18, 0.14, 0.07, 0.15  # in noun phrases; numerals in plural ones

LEXICON = SimpleNamespace(**read_yaml(Path(__file__).with_name("lexicon.yaml")))
CASES = ("nom", "acc", "dat")


def node(label: str, *parts: str) -> str:
    """A constituent, or a word with its part of speech. Parts that are empty are left out."""
    return f"({label} {join(*parts)})"


def join(*words: str) -> str:
    """The words that are not empty, with a space between two."""
    return " ".join(word for word in words if word)


def verb_phrase(tag: str, verb: str) -> str:
    """A verb, and {} for what it governs."""
    return node("VP", node(tag, verb), "{}")


class Phrase(NamedTuple):
    """A noun phrase on both sides."""

    subject: str  # English, as a tree
    object: str
    german: tuple[str, str, str]  # by case
    plural: bool
    word: str  # what it names: no two phrases of a clause share it
    kind: str  # its semantic class
    gender: str = ""  # of a single animal or thing, for which `it` may stand; else empty
    pronoun: bool = False


class Clause(NamedTuple):
    """A clause on both sides, its words not yet ordered: English trees, then German words."""

    subject: Phrase
    verb: str  # the verb phrase of a statement
    auxiliary: str  # of a question: what stands before the subject, and in `base` the verb phrase behind it
    base: str
    rest: str
    finite: str
    end: str  # separable prefix, participle, infinitive or predicate
    separable: bool  # the end and the finite verb are one word where they meet
    pronouns: str  # pronouns are complements before the time; `complements` stand behind it
    complements: str
    time: tuple[str, str]  # English, German
    antecedents: list[Phrase]  # what `it` may stand for

    def english(self, first: str = "", last: str = "") -> str:
        """A main or subordinate clause: subject, verb, object, time, between what it begins and ends with."""
        return node("S", first, self.subject.subject, self.verb.format(join(self.rest, self.time[0], last)))

    def english_question(self, word: str) -> str:
        """Subject and auxiliary inverted, with do-support."""
        asked = node("SQ", self.auxiliary, self.subject.subject, self.base.format(join(self.rest, self.time[0])))
        return node("SBARQ", word, asked) if word else asked

    def german(self) -> str:
        """The finite verb second, behind the subject."""
        return join(self.subject.german[0], self.finite, self._field(), self.end)

    def german_inverted(self, first: str) -> str:
        """The finite verb second, behind another constituent; first in a yes-no question."""
        return join(first, self.finite, self.subject.german[0], self._field(), self.end)

    def german_subordinate(self) -> str:
        """The finite verb last."""
        verbs = self.end + self.finite if self.separable else join(self.end, self.finite)
        return join(self.subject.german[0], self._field(), verbs)

    def _field(self) -> str:
        return join(self.pronouns, self.time[1], self.complements)


def pick(rng: Random, rows: list) -> Any:
    """Draw a row: a few are frequent and most are rare, as in real text (Zipf 1935)."""
    u = rng.random()  # only multiplied, which gives the same on every platform
    return rows[int(len(rows) * u * u * u * u)]


def numeral(rng: Random) -> tuple[str, str]:
    """A number from 2 to 12 or from 20 to 59, whose German names the unit first."""
    if rng.random() < 0.5:
        return tuple(pick(rng, LEXICON.units[1:]))
    (tens, zig), unit = pick(rng, LEXICON.tens), int(rng.random() * 10)
    english, german = LEXICON.units[unit - 1]
    return (f"{tens}-{english}", f"{german}und{zig}") if unit else (tens, zig)


def noun_phrase(rng: Random, kinds: str, taken: Sequence[str] = ()) -> Phrase:
    """A name, a pronoun, or determiner, adjective and noun, of one of these classes, and of a word not taken."""
    kind = kinds[int(rng.random() * len(kinds))]
    while (phrase := _phrase(rng, kind)).word in taken:
        pass
    return phrase


def _phrase(rng: Random, kind: str) -> Phrase:
    roll = rng.random()
    if kind == "Y" or (kind == "P" and roll < NAME):
        name = pick(rng, LEXICON.names[kind])
        english = node("NP", node("NNP", name))
        return Phrase(english, english, (name,) * 3, False, name, kind)
    if kind == "P" and roll < NAME + PRONOUN:
        subject, other, number, *german = pick(rng, LEXICON.pronouns)
        nominative, accusative = (node("NP", node("PRP", pronoun)) for pronoun in (subject, other))
        return Phrase(nominative, accusative, tuple(german), number == "p", subject, kind, pronoun=True)

    singular, plural, gender, einzahl, mehrzahl = pick(rng, LEXICON.nouns[kind])
    is_plural = rng.random() < PLURAL
    english, noun = (node("NNS", plural), mehrzahl) if is_plural else (node("NN", singular), einzahl)
    if kind not in "PA" and rng.random() < COMPOUND:
        modifier, first = pick(rng, [row for row in LEXICON.modifiers if row[0] != singular])
        english, noun = join(node("NN", modifier), english), first + noun.lower()
    nouns = [noun, noun, noun + "n" if is_plural and noun[-1] not in "ns" else noun]

    determiner, articles, endings = _determiner(rng, is_plural, "p" if is_plural else gender)
    declined = [""] * 3
    if rng.random() < ADJECTIVE:
        adjective, _, stem = pick(rng, LEXICON.adjectives[kind])
        english, declined = join(node("JJ", adjective), english), [stem + ending for ending in endings]
    if determiner == "(DT a)" and re.match(r"\(\w+ [aeiou]", english):
        determiner = "(DT an)"
    english = node("NP", determiner, english)
    german = tuple(map(join, articles, declined, nouns))
    return Phrase(english, english, german, is_plural, singular, kind, "" if is_plural or kind == "P" else gender)


def _determiner(rng: Random, is_plural: bool, declension: str) -> tuple[str, list[str], list[str]]:
    """A determiner or a numeral: English, German by case, the endings of an adjective after it."""
    if is_plural and rng.random() < NUMERAL:
        english, german = numeral(rng)
        return node("CD", english), [german] * 3, LEXICON.endings["strong"][declension]
    row = pick(rng, [row for row in LEXICON.determiners if row[is_plural] is not None])
    english, (stem, own, after) = row[is_plural], row[2:]
    articles = [stem + ending for ending in LEXICON.endings[own][declension]]
    return english, articles, LEXICON.endings[after][declension]


def clause(rng: Random, tense: str, verbs: list = LEXICON.verbs) -> Clause:
    """A clause in a tense (present, past or modal), with one of these verbs or, for the general ones, the copula."""
    time = pick(rng, LEXICON.times[tense]) if rng.random() < TIME else ("", "")
    if verbs is LEXICON.verbs and tense != "modal" and rng.random() < COPULA:
        return predicate(rng, tense, noun_phrase(rng, "PAFCDMTL"))._replace(time=time)
    english, rest, german, governed, kinds = pick(rng, verbs)
    phrases = [noun_phrase(rng, kinds)]
    pronouns, complements = "", ""

    def add(case: str, classes: str, preposition: str = "") -> str:
        nonlocal pronouns, complements
        phrase = noun_phrase(rng, classes, [other.word for other in phrases])
        phrases.append(phrase)
        words = join(preposition, phrase.german[CASES.index(case)])
        if phrase.pronoun and not preposition:
            pronouns = join(pronouns, words)
        else:
            complements = join(complements, words)
        return phrase.object

    rest = rest.format(*[add(*complement) for complement in governed])

    verb_fields: Any = conjugate(rng, tense, english, rest, german, phrases[0].plural)
    antecedents = [phrase for phrase in phrases if phrase.gender]
    return Clause(phrases[0], *verb_fields, pronouns, complements, time, antecedents)  # type: ignore[call-arg]


def conjugate(rng: Random, tense: str, english: str, rest: str, german: str, plural: bool) -> tuple:
    """The fields of a clause from `verb` to `separable`. The German past is the perfect.

    tense: present, past or modal. english, german: the forms of the verb, as lexicon.yaml has them. rest: what the
    English verb governs. plural: the number of the subject.
    """
    base, third, past = english.split()
    infinitive, singular, *sein, participle = german.split()
    prefix, _, infinitive = infinitive.rpartition("-")
    asked = verb_phrase("VB", base)
    if tense == "past":
        finite = ("sind" if plural else "ist") if sein else ("haben" if plural else "hat")
        return verb_phrase("VBD", past), "(VBD did)", asked, rest, finite, prefix + participle, False
    if tense == "modal":
        verb, auxiliary, behind, finite = pick(rng, LEXICON.modals["plural" if plural else "singular"])
        return verb.format(asked), auxiliary, behind.format(asked), rest, finite, prefix + infinitive, False
    if plural:
        return verb_phrase("VBP", base), "(VBP do)", asked, rest, infinitive, prefix, True
    return verb_phrase("VBZ", third), "(VBZ does)", asked, rest, singular, prefix, True


def predicate(rng: Random, tense: str, subject: Phrase) -> Clause:
    """The copula and an adjective: `is old`, `alt ist`."""
    english, german, _ = pick(rng, LEXICON.adjectives[subject.kind])
    tag, be, sein = LEXICON.copula[tense][subject.plural]
    verb, rest = verb_phrase(tag, be), node("ADJP", node("JJ", english))
    return Clause(subject, verb, node(tag, be), "{}", rest, sein, german, False, "", "", ("", ""), [])


def question(rng: Random, tense: str) -> tuple[str, str]:
    """A yes-no question, or one with a question word. Sentences get their final mark in `tree_and_german`."""
    asked = clause(rng, tense)
    word, wort = "", ""
    if rng.random() < 0.5:
        asked = asked._replace(time=("", ""))
        word, wort = pick(rng, LEXICON.question_words)
    return asked.english_question(word), asked.german_inverted(wort)


def statement(rng: Random, main: Clause, last: str = "") -> tuple[str, str]:
    """A main clause, its time first or inside. last: what the English one ends with."""
    english, german = main.time
    if not english or rng.random() >= FRONTED_TIME:
        return main.english(last=last), main.german()
    main = main._replace(time=("", ""))
    return main.english(english, last), main.german_inverted(german)


def complex_sentence(rng: Random, tense: str) -> tuple[str, str]:
    """A main and a subordinate clause: `that` after a matrix verb, or an adverbial clause, behind or in front."""
    if rng.random() < THAT:
        english, german = statement(rng, clause(rng, tense, LEXICON.matrix_verbs), "{}")
        that_clause = clause(rng, draw_tense(rng))
        english = english.format(node("SBAR", "(IN that)", that_clause.english()))
        return english, f"{german}, dass {that_clause.german_subordinate()}"
    main = clause(rng, tense)
    tense = "present" if tense == "modal" else tense  # no `will` after `when`
    conjunction, wort = pick(rng, LEXICON.conjunctions)
    wort = "als" if wort == "wenn" and tense == "past" else wort
    if len(main.antecedents) == 1 and rng.random() < IT:
        (antecedent,) = main.antecedents
        pronoun = {"m": "er", "f": "sie", "n": "es"}[antecedent.gender]
        english = node("NP", node("PRP", "it"))
        it = Phrase(english, english, (pronoun,) * 3, False, "it", antecedent.kind)
        adverbial = predicate(rng, tense, it)
        is_behind = True
    else:
        adverbial = clause(rng, tense)
        is_behind = rng.random() >= FRONTED_CLAUSE
    english = node("SBAR", conjunction, adverbial.english())
    german = join(wort, adverbial.german_subordinate())
    if is_behind:
        before, davor = statement(rng, main, english)
        return before, f"{davor}, {german}"
    return main.english(f"{english} (, ,)"), main.german_inverted(german + ",")


def draw_tense(rng: Random) -> str:
    """Present, past or modal."""
    roll = rng.random()
    return "past" if roll < PAST else "modal" if roll < PAST + MODAL else "present"


def tree_and_german(rng: Random) -> tuple[str, str]:
    """One pair: the tree of an English sentence, and the German sentence. Pairs recur."""
    roll = rng.random()
    tense = draw_tense(rng)
    mark = "."
    if roll < QUESTION:
        english, german = question(rng, tense)
        mark = "?"
    elif roll < QUESTION + SUBORDINATE:
        english, german = complex_sentence(rng, tense)
    else:
        english, german = statement(rng, clause(rng, tense))
    for words, contracted in LEXICON.contractions.items():
        german = german.replace(f" {words} ", f" {contracted} ")
    english = WORD.sub(lambda first: first[0][0].upper() + first[0][1:], english, count=1)
    english = f"{english[:-1]} {node('.', mark)})"
    return english.replace(" )", ")"), german[0].upper() + german[1:] + mark


def drawn(count: int, seed: int = SEED, without: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str, str]]:
    """So many pairs as (English, German, tree), the same on every platform, in an order that splits can be cut from.

    No sentence occurs twice on either side, or is one of the pairs `without`.
    """
    rng, found = Random(seed), list[tuple[str, str, str]]()
    sources, targets = {english for english, _ in without}, {german for _, german in without}
    while len(found) < count:
        tree, german = tree_and_german(rng)
        english = sentence(tree)
        if english not in sources and german not in targets:
            sources.add(english)
            targets.add(german)
            found.append((english, german, tree))
    # The frequent sentences are drawn first; shuffled, the splits share one distribution.
    return sorted(found, key=lambda _: rng.random())


def corpus() -> bytes:
    """The content of the file: the pairs of the large corpus, and for those of the small one their place in it."""
    places = {pair: str(place) for place, pair in enumerate(drawn(sum(SIZES.values())))}
    lines = [f"{places.get(pair, '')}\t{pair[1]}\t{pair[2]}\n" for pair in drawn(sum(LARGE.values()))]
    return "".join(lines).encode()


def write_text(seed: int, folder: Path) -> None:
    """Write a folder of text: as many other training pairs as the corpus has, and its validation and test sets."""
    splits = {split: pairs(split) for split in ("val", "test")}
    splits["train"] = [pair[:2] for pair in drawn(SIZES["train"], seed, splits["val"] + splits["test"])]
    folder.mkdir(parents=True)
    for split, lines in splits.items():
        for language, sentences in zip(("en", "de"), zip(*lines, strict=True), strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{sentence}\n" for sentence in sentences))


if __name__ == "__main__":
    if sys.argv[1:]:
        write_text(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        FILE.write_bytes(gzip.compress(corpus(), mtime=0))
