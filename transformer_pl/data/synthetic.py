"""A synthetic English-German parallel corpus, generated here: the data of the scale `demo`, with nothing to download.

A synchronous grammar builds both sides of a sentence at once. It covers agreement of determiner, adjective and noun in
gender, number and case; subject-verb agreement; government by verbs and prepositions; present, perfect and modals;
verb-second with inversion, verb-final subordinate clauses, questions; separable verbs that an English particle selects;
compounds, numerals, names; pronouns that agree with an antecedent; words whose translation hangs on the context (know:
kennen, wissen; eat: essen, fressen; when: wann, wenn, als; to: zu, nach). The German is orthographic and grammatical,
the meaning often whimsical. The source determines the target, so a perfect model approaches 100 BLEU.
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import islice
from random import Random
from typing import Any, NamedTuple

VERSION = 2  # raised whenever a generated sentence changes; enters the fingerprint of the data
SIZES = {"train": 5_000, "val": 500, "test": 500}
SEED = 1706

# Difficulty: the share of each construction where the grammar has the choice.
QUESTION, SUBORDINATE = 0.10, 0.25  # kinds of sentence; the rest are simple statements
THAT, FRONTED_CLAUSE, IT = 0.35, 0.40, 0.60  # in complex sentences; `it` only where one noun can be its antecedent
COPULA, PAST, MODAL = 0.12, 0.35, 0.12  # in clauses; the remaining tense is the present
TIME, FRONTED_TIME, ADJUNCT = 0.14, 0.50, 0.04
NAME, PRONOUN = 0.40, 0.35  # of people; the rest are noun phrases
PLURAL, ADJECTIVE, COMPOUND, NUMERAL = 0.18, 0.14, 0.07, 0.15  # in noun phrases; numerals in plural ones
SKEW = 1.0  # 0 draws words evenly; towards 1, the first of a list grow more frequent, as in real text


def table(text: str, cell: str | None = None, row: str = ";") -> list[list[str]]:
    """The rows of a written table, each a list of its cells."""
    return [[word.strip() for word in line.split(cell)] for line in text.strip().split(row)]


# --- Lexicon ---------------------------------------------------------------------------------------------------------
# Semantic classes: Person, Animal, Food, Clothing, Document, Machine (to switch on), Thing, Location, citY.
# English singular and plural, German gender, singular and plural. No nouns of the weak (-n) declension.
NOUNS = {
    "P": table("""friend friends m Freund Freunde; child children n Kind Kinder; teacher teachers m Lehrer Lehrer;
        sister sisters f Schwester Schwestern; doctor doctors m Arzt Ärzte"""),
    "A": table("dog dogs m Hund Hunde; cat cats f Katze Katzen; horse horses n Pferd Pferde"),
    "F": table("apple apples m Apfel Äpfel; egg eggs n Ei Eier"),
    "C": table("coat coats m Mantel Mäntel; shirt shirts n Hemd Hemden"),
    "D": table("book books n Buch Bücher; letter letters m Brief Briefe; newspaper newspapers f Zeitung Zeitungen"),
    "M": table("lamp lamps f Lampe Lampen; radio radios n Radio Radios"),
    "T": table("table tables m Tisch Tische; clock clocks f Uhr Uhren; picture pictures n Bild Bilder"),
    "L": table("house houses n Haus Häuser; garden gardens m Garten Gärten; school schools f Schule Schulen"),
}
MODIFIERS = table("garden Garten; school Schul; winter Winter")
NAMES = {"P": ["Anna", "Peter", "Maria", "Thomas", "Julia"], "Y": ["Berlin", "London", "Paris"]}
# English subject and object, number, German nominative, accusative and dative.
PRONOUNS = table("he him s er ihn ihm; she her s sie sie ihr; they them p sie sie ihnen; we us p wir uns uns")
# Of people and animals, and of the rest: English, German predicative form, German stem of the attributive forms.
LIVING = table("old alt alt; small klein klein; good gut gut; young jung jung; tired müde müd")
LIFELESS = table("old alt alt; small klein klein; new neu neu; good gut gut; expensive teuer teur")

# Verbs: English base, third person, past | complements 1, 2 and particle | German infinitive (prefix-stem: separable),
# third person, participle (after `ist`: its auxiliary) | of each complement, (preposition) case:classes in German |
# classes of the subject. No English verb whose past is its base: it would hide the tense.
VERBS = table("""
    see sees saw | 1 | sehen sieht gesehen | acc:PATDL | PPA
    look looks looked | for 1 | suchen sucht gesucht | acc:PADTC | PPA
    call calls called | 1 up | an-rufen ruft gerufen | acc:P | P
    work works worked | | arbeiten arbeitet gearbeitet | | P
    come comes came | back | zurück-kommen kommt ist gekommen | | PPA
    help helps helped | 1 | helfen hilft geholfen | dat:PA | PPA
    sleep sleeps slept | | schlafen schläft geschlafen | | PPA
    give gives gave | 1 2 | geben gibt gegeben | dat:PA acc:DTFC | P
    take takes took | 1 along | mit-nehmen nimmt genommen | acc:PADTC | P
    know knows knew | 1 | kennen kennt gekannt | acc:PADL | P
    turn turns turned | 1 on | an-machen macht gemacht | acc:M | P
    turn turns turned | 1 off | aus-machen macht gemacht | acc:M | P
    give gives gave | 2 to 1 | geben gibt gegeben | dat:PA acc:DTFC | P
    go goes went | to 1 | gehen geht ist gegangen | zu dat:L | PPA
    go goes went | to 1 | fahren fährt ist gefahren | nach dat:Y | P
    eat eats ate | 1 | essen isst gegessen | acc:F | P
    eat eats ate | 1 | fressen frisst gefressen | acc:F | A
""", "|", "\n")  # fmt: skip
MATRIX_VERBS = table("""
    know knows knew | | wissen weiß gewusst | | P
    say says said | | sagen sagt gesagt | | P
    believe believes believed | | glauben glaubt geglaubt | | P
""", "|", "\n")  # fmt: skip
# English and German third person singular, then plural. German `will` is English `wants to`, which takes do-support.
MODALS = table("can,kann,can,können; will,wird,will,werden; must,muss,must,müssen; wants to,will,want to,wollen", ",")
TIMES = {
    "present": table("today,heute; every day,jeden Tag; now,jetzt", ","),
    "past": table("yesterday,gestern; today,heute; on Monday,am Montag", ","),
    "modal": table("tomorrow,morgen; today,heute; on Monday,am Montag", ","),
}
ADJUNCTS = table("with|mit dat:PA; for|für acc:P; in|in dat:LY", "|")
CONJUNCTIONS = table("because weil; when wenn; although obwohl")
QUESTION_WORDS = table("why,warum; when,wann; how often,wie oft", ",")
CONTRACTIONS = {"in dem": "im", "in das": "ins", "zu dem": "zum", "zu der": "zur"}
UNITS = table("""one ein; two zwei; three drei; four vier; five fünf; six sechs; seven sieben; eight acht; nine neun;
    ten zehn; eleven elf; twelve zwölf""")
TENS = table("twenty zwanzig; thirty dreißig; forty vierzig; fifty fünfzig")

# Declension by gender (p: plural): endings of the nominative, accusative and dative.
DER = {"m": "er en em", "f": "e e er", "n": "es es em", "p": "e e en"}
EIN = {"m": "- en em", "f": "e e er", "n": "- - em", "p": "e e en"}
ARTICLE = {"m": "er en em", "f": "ie ie er", "n": "as as em", "p": "ie ie en"}
WEAK = {"m": "e en en", "f": "e e en", "n": "e e en", "p": "en en en"}
MIXED = {"m": "er en en", "f": "e e en", "n": "es es en", "p": "en en en"}
STRONG = {"p": "e e en"}
# English singular and plural (-: has none), German stem, its endings, the endings of an adjective after it.
DETERMINERS = [
    ("the", "the", "d", ARTICLE, WEAK), ("a", "", "ein", EIN, MIXED), ("-", "many", "viel", DER, STRONG),
    ("his", "his", "sein", EIN, MIXED), ("this", "these", "dies", DER, WEAK), ("my", "my", "mein", EIN, MIXED),
]  # fmt: skip
CASES = ("nom", "acc", "dat")

GOVERNED = re.compile(r"(?:(\w+) )?(\w+):(\w+)")  # (preposition) case:classes


# --- Trees -----------------------------------------------------------------------------------------------------------
# English is written in the brackets and labels of the Penn Treebank: (NP (DT the) (NN dog)). A verb phrase has {} where
# its complements belong.
TIME_TREES = {
    "today": "(NP (NN today))",
    "every day": "(NP (DT every) (NN day))",
    "now": "(ADVP (RB now))",
    "yesterday": "(NP (NN yesterday))",
    "on Monday": "(PP (IN on) (NP (NNP Monday)))",
    "tomorrow": "(NP (NN tomorrow))",
}
DETERMINER_TAGS = {"many": "JJ", "his": "PRP$", "my": "PRP$"}  # the others: DT
PREPOSITIONS = {"to": "TO"}  # the others: IN
WORD = re.compile(r"(?<= )[^\s()]+(?=\))")


def node(label: str, *parts: str) -> str:
    """A constituent, or a word with its part of speech. Parts that are empty are left out."""
    return f"({label} {' '.join(part for part in parts if part)})"


def prepositional(preposition: str, complement: str) -> str:
    return node("PP", node(PREPOSITIONS.get(preposition, "IN"), preposition), complement)


def complement_trees(written: str) -> str:
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


def plain(tree: str) -> str:
    """The sentence of a tree, punctuation at the word before it."""
    return re.sub(r" (?=[.,?])", "", " ".join(WORD.findall(tree)))


# --- Grammar ---------------------------------------------------------------------------------------------------------


class Phrase(NamedTuple):
    """A noun phrase on both sides."""

    subject: str  # English, as a tree
    object: str
    german: tuple[str, str, str]  # by case
    plural: bool
    word: str  # what it names: no two phrases of a clause share it
    kind: str  # its semantic class
    gender: str = ""  # of what `it` may stand for: one animal or thing
    pronoun: bool = False


class Clause(NamedTuple):
    """A clause on both sides, its words not yet ordered: English trees, then German words."""

    subject: Phrase
    verb: str  # the verb phrase of a statement
    auxiliary: str  # before the subject of a question, and what of the verb phrase is left behind it
    base: str
    rest: str
    finite: str
    end: str  # separable prefix, participle, infinitive or predicate
    separable: bool  # the end and the finite verb are one word where they meet
    pronouns: str  # complements before the time, and those behind it
    complements: str
    time: tuple[str, str]  # English, German
    antecedents: list[Phrase]  # what `it` may stand for

    def english(self, first: str = "", last: str = "") -> str:
        """Subject, verb, object, time: of a main clause and of a subordinate one; what else it begins and ends with."""
        return node("S", first, self.subject.subject, self.verb.format(join(self.rest, self.time[0], last)))

    def english_question(self, word: str) -> str:
        """Subject and auxiliary inverted, with do-support."""
        behind = self.base.format(join(self.rest, self.time[0]))
        asked = node("SQ", self.auxiliary, self.subject.subject, behind)
        return node("SBARQ", question_phrase(word), asked) if word else asked

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
    """Draw a row, by `random()` and exact arithmetic alone: the same on every platform."""
    u = rng.random()
    return rows[int(len(rows) * u * (1 - SKEW + SKEW * u))]


def join(*words: str) -> str:
    """The words that are there, a space between."""
    return " ".join(word for word in words if word)


def decline(stem: str, endings: str) -> list[str]:
    """The nominative, accusative and dative of a determiner or an adjective."""
    return [stem + ending.strip("-") for ending in endings.split()]


def adjectives(kind: str) -> list[list[str]]:
    """Those that may be said of a semantic class."""
    return LIVING if kind in "PA" else LIFELESS


def numeral(rng: Random) -> tuple[str, str]:
    """A number from 2 to 12 or from 20 to 59, whose German names the unit first."""
    if rng.random() < 0.5:
        return tuple(pick(rng, UNITS[1:]))
    (tens, zig), unit = pick(rng, TENS), int(rng.random() * 10)
    return (f"{tens}-{UNITS[unit - 1][0]}", f"{UNITS[unit - 1][1]}und{zig}") if unit else (tens, zig)


def noun_phrase(rng: Random, kinds: str, taken: Sequence[str] = ()) -> Phrase:
    """A name, a pronoun, or determiner, adjective and noun, of one of these classes, and of a word not taken."""
    kind = kinds[int(rng.random() * len(kinds))]
    while (phrase := _phrase(rng, kind)).word in taken:
        pass
    return phrase


def _phrase(rng: Random, kind: str) -> Phrase:
    roll = rng.random()
    if kind == "Y" or (kind == "P" and roll < NAME):
        name = pick(rng, NAMES[kind])
        english = node("NP", node("NNP", name))
        return Phrase(english, english, (name,) * 3, False, name, kind)
    if kind == "P" and roll < NAME + PRONOUN:
        subject, other, number, *german = pick(rng, PRONOUNS)
        nominative, accusative = (node("NP", node("PRP", pronoun)) for pronoun in (subject, other))
        return Phrase(nominative, accusative, tuple(german), number == "p", subject, kind, pronoun=True)

    singular, plural, gender, einzahl, mehrzahl = pick(rng, NOUNS[kind])
    is_plural = rng.random() < PLURAL
    words, noun = ([plural], mehrzahl) if is_plural else ([singular], einzahl)
    tags = ["NNS" if is_plural else "NN"]
    if kind not in "PA" and rng.random() < COMPOUND:
        modifier, first = pick(rng, [row for row in MODIFIERS if row[0] != singular])
        words, tags, noun = [modifier, *words], ["NN", *tags], first + noun.lower()
    nouns = [noun, noun, noun + "n" if is_plural and noun[-1] not in "ns" else noun]
    declension = "p" if is_plural else gender

    if is_plural and rng.random() < NUMERAL:
        determiner, number = numeral(rng)
        articles, endings, tag = [number] * 3, STRONG, "CD"
    else:
        one, many, stem, article, endings = pick(rng, [row for row in DETERMINERS if row[is_plural] != "-"])
        determiner = many if is_plural else one
        tag = DETERMINER_TAGS.get(determiner, "DT")
        articles = decline(stem, article[declension]) if determiner else [""] * 3
        endings = endings if determiner else STRONG
    declined = [""] * 3
    if rng.random() < ADJECTIVE:
        adjective, _, stem = pick(rng, adjectives(kind))
        words, tags, declined = [adjective, *words], ["JJ", *tags], decline(stem, endings[declension])
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    if determiner:
        words, tags = [determiner, *words], [tag, *tags]
    english = node("NP", *map(node, tags, words))
    german = tuple(map(join, articles, declined, nouns))
    return Phrase(english, english, german, is_plural, singular, kind, "" if is_plural or kind == "P" else gender)


def clause(rng: Random, tense: str, verbs: list = VERBS) -> Clause:
    """A clause in a tense (present, past or modal), with one of these verbs or, for the general ones, the copula."""
    time = ("", "")
    if rng.random() < TIME:
        english, german = pick(rng, TIMES[tense])
        time = TIME_TREES[english], german
    if verbs is VERBS and tense != "modal" and rng.random() < COPULA:
        return predicate(rng, tense, noun_phrase(rng, "PAFCDMTL"))._replace(time=time)
    english, rest, german, government, kinds = pick(rng, verbs)
    phrases, pronouns, complements = [noun_phrase(rng, kinds)], "", ""
    rest = complement_trees(rest)

    def add(preposition: str, case: str, classes: str) -> str:
        nonlocal pronouns, complements
        phrase = noun_phrase(rng, classes, [other.word for other in phrases])
        phrases.append(phrase)
        words = join(preposition, phrase.german[CASES.index(case)])
        if phrase.pronoun and not preposition:
            pronouns = join(pronouns, words)
        else:
            complements = join(complements, words)
        return phrase.object

    governed = GOVERNED.findall(government)
    for number, complement in enumerate(governed, 1):
        rest = rest.replace(str(number), add(*complement))
    if len(governed) < 2 and not any(preposition for preposition, *_ in governed) and rng.random() < ADJUNCT:
        preposition, adjunct = pick(rng, ADJUNCTS)
        rest = join(rest, prepositional(preposition, add(*GOVERNED.findall(adjunct)[0])))

    verbs_and_rest: Any = conjugate(rng, tense, english, rest, german, phrases[0].plural)
    antecedents = [phrase for phrase in phrases if phrase.gender]
    return Clause(phrases[0], *verbs_and_rest, pronouns, complements, time, antecedents)  # type: ignore[call-arg]


def conjugate(rng: Random, tense: str, english: str, rest: str, german: str, plural: bool) -> tuple:
    """The fields of a clause from `verb` to `separable`. The German past is the perfect."""
    base, third, past = english.split()
    infinitive, singular, *sein, participle = german.split()
    prefix, _, infinitive = infinitive.rpartition("-")
    present, do = ("VBP", "(VBP do)") if plural else ("VBZ", "(VBZ does)")
    asked = verb_phrase("VB", base)
    if tense == "past":
        finite = ("sind" if plural else "ist") if sein else ("haben" if plural else "hat")
        return verb_phrase("VBD", past), "(VBD did)", asked, rest, finite, prefix + participle, False
    if tense == "modal":
        modal, finite = pick(rng, MODALS)[2 * plural :][:2]
        if modal.startswith("want"):
            to = node("S", node("VP", node("TO", "to"), asked))
            english_verbs = verb_phrase(present, modal.split()[0], to), do, verb_phrase("VB", "want", to)
        else:
            english_verbs = verb_phrase("MD", modal, asked), node("MD", modal), asked
        return *english_verbs, rest, finite, prefix + infinitive, False
    verb = verb_phrase(present, base if plural else third)
    return verb, do, asked, rest, infinitive if plural else singular, prefix, True


def predicate(rng: Random, tense: str, subject: Phrase) -> Clause:
    """The copula and an adjective: `is old`, `alt ist`."""
    english, german, _ = pick(rng, adjectives(subject.kind))
    forms = {"present": ("VBZ is ist", "VBP are sind"), "past": ("VBD was war", "VBD were waren")}
    tag, be, sein = forms[tense][subject.plural].split()
    verb, rest = verb_phrase(tag, be), node("ADJP", node("JJ", english))
    return Clause(subject, verb, node(tag, be), "{}", rest, sein, german, False, "", "", ("", ""), [])


def question(rng: Random, tense: str) -> tuple[str, str]:
    """A yes-no question, or one for the circumstances."""
    asked, word, wort = clause(rng, tense), "", ""
    if rng.random() < 0.5:
        asked, (word, wort) = asked._replace(time=("", "")), pick(rng, QUESTION_WORDS)
    return ended(asked.english_question(word), "?"), asked.german_inverted(wort) + "?"


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
        english, german = statement(rng, clause(rng, tense, MATRIX_VERBS), "{}")
        said = clause(rng, draw_tense(rng))
        english = english.format(subordinate("that", said.english()))
        return ended(english, "."), f"{german}, dass {said.german_subordinate()}."
    main = clause(rng, tense)
    tense = "present" if tense == "modal" else tense  # no `will` after `when`
    conjunction, wort = pick(rng, CONJUNCTIONS)
    wort = "als" if wort == "wenn" and tense == "past" else wort
    if len(main.antecedents) == 1 and rng.random() < IT:
        (antecedent,) = main.antecedents
        pronoun = {"m": "er", "f": "sie", "n": "es"}[antecedent.gender]
        english = node("NP", node("PRP", "it"))
        it = Phrase(english, english, (pronoun,) * 3, False, "it", antecedent.kind)
        reason, behind = predicate(rng, tense, it), True
    else:
        reason, behind = clause(rng, tense), rng.random() >= FRONTED_CLAUSE
    english, german = subordinate(conjunction, reason.english()), join(wort, reason.german_subordinate())
    if behind:
        before, davor = statement(rng, main, english)
        return ended(before, "."), f"{davor}, {german}."
    return ended(main.english(f"{english} (, ,)"), "."), main.german_inverted(german + ",") + "."


def capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def draw_tense(rng: Random) -> str:
    """Present, past or modal."""
    roll = rng.random()
    return "past" if roll < PAST else "modal" if roll < PAST + MODAL else "present"


def tree_and_german(rng: Random) -> tuple[str, str]:
    """One pair: the tree of an English sentence, German. Pairs recur."""
    roll, tense = rng.random(), draw_tense(rng)
    if roll < QUESTION:
        english, german = question(rng, tense)
    elif roll < QUESTION + SUBORDINATE:
        english, german = complex_sentence(rng, tense)
    else:
        english, german = statement(rng, clause(rng, tense))
        english, german = ended(english, "."), german + "."
    for words, contracted in CONTRACTIONS.items():
        german = german.replace(f" {words} ", f" {contracted} ")
    english = WORD.sub(lambda first: capitalised(first[0]), english, count=1)
    return english.replace(" )", ")"), capitalised(german)


@cache
def _splits() -> dict[str, list[tuple[str, str, str]]]:
    rng, drawn = Random(SEED), list[tuple[str, str, str]]()
    sources, targets = set[str](), set[str]()
    while len(drawn) < sum(SIZES.values()):
        tree, german = tree_and_german(rng)
        english = plain(tree)
        if english not in sources and german not in targets:
            sources.add(english)
            targets.add(german)
            drawn.append((english, german, tree))
    # The frequent sentences are drawn first; shuffled, the splits share one distribution.
    drawn.sort(key=lambda _: rng.random())
    left = iter(drawn)
    return {split: list(islice(left, size)) for split, size in SIZES.items()}


def pairs(split: str) -> list[tuple[str, str]]:
    """The (English, German) pairs of `train`, `val` or `test`: the same at every call and on every platform.

    No sentence occurs twice, on either side, within a split or in two.
    """
    return [(english, german) for english, german, _ in _splits()[split]]


def trees(split: str) -> list[str]:
    """The trees of the English sentences of a split, in their order."""
    return [tree for _, _, tree in _splits()[split]]
