"""The slot of the tokenizer: what ships beside the paper's, tokenizers of one's own, and what a mistake in one does."""

import sys
from pathlib import Path

import pytest
import tiny_trials
from forked import command
from helpers import little_text

from ablations.byte_tokenizer import Bytes
from ablations.separate_vocabularies import SeparateBPE
from transformer_pl.config import UNK, Component, Data
from transformer_pl.config.levels import Level
from transformer_pl.data.prepare import fingerprint_id, prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import check_adds_nothing
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import open_corpus
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_config import trial_config
from transformer_pl.trials.trial_folder import TrialFolder
from transformer_pl.trials.trial_of import trial_of

CHARACTERS, BYTES = "ablations.character_tokenizer.Characters", "ablations.byte_tokenizer.Bytes"
SEPARATE = "ablations.separate_vocabularies.SeparateBPE"
HUGGING_FACE = "ablations.hugging_face_tokenizer.HuggingFaceTokenizer"
SIZES = {CHARACTERS: 23, BYTES: 260, SEPARATE: 600}  # of the little text, which has 18 letters, a blank and no comma

OWN = """
from ablations.byte_tokenizer import Bytes

class Own(Bytes):
    def __init__(self, lower: bool = False):
        self.lower = lower

    def to_ids(self, sentences, side):
        return super().to_ids([one.lower() if self.lower else one for one in sentences], side)

class Other:
    pass

class Half(Own):
    def vocabulary(self):
        return super().vocabulary()[:40]

class Failing(Own):
    def __init__(self):
        raise ValueError("no")
"""


@pytest.fixture
def text(tmp_path) -> Path:
    return little_text(tmp_path / "text")


def data(text, tokenizer, vocab_size=260, **options) -> Data:
    component = Component(path=tokenizer, options=options)
    return Data(path=str(text), tokenizer=component, vocab_size=vocab_size, max_length=400)


def config(text, tokenizer, **keys):
    keys = {"data.path": text, "data.tokenizer": tokenizer, "data.vocab_size": 260} | keys
    return trial_config([Level("test", {key: str(value) for key, value in keys.items()})])


def ids(text, tokenizer, **options) -> tuple[str, str]:
    """The names of the prepared folder and of the trial."""
    options = {f"data.tokenizer.{name}": value for name, value in options.items()}
    found = config(text, tokenizer, **options)
    corpus = open_corpus(found.data)
    return fingerprint_id(found.data, corpus), trial_of(found, corpus, RunsFolder(Path("runs"))).id


# What ships


@pytest.mark.parametrize("tokenizer", SIZES)
def test_a_prepared_text_comes_back(text, tmp_path, tokenizer):
    prepared = prepare(data(text, tokenizer, SIZES[tokenizer]), tmp_path / "runs")
    for name in ("val", "test"):
        for tokens, sentences in zip(prepared.split(name), prepared.text(name), strict=True):
            assert prepared.tokenizer.decode(list(tokens)) == sentences
            assert tokens.flat.min() > UNK and tokens.flat.max() < SIZES[tokenizer]
    assert len(prepared.tokenizer) == len(prepared.tokenizer.vocabulary()) == SIZES[tokenizer]
    assert prepared.tokenizer.decode([[0, 1, 2], []]) == ["", ""]


@pytest.mark.parametrize("tokenizer", [BYTES, SEPARATE])
def test_characters_that_training_lacks_come_back(text, tmp_path, tokenizer):
    prepared = prepare(data(text, tokenizer, SIZES[tokenizer]), tmp_path / "runs")
    for side in ("source", "target"):
        assert prepared.tokenizer.decode(prepared.tokenizer.encode(["é 😀", ""], side)) == ["é 😀", ""]


def test_a_model_cannot_write_a_second_line_in_bytes(text, tmp_path):
    tokenizer = prepare(data(text, BYTES), tmp_path / "runs").tokenizer
    assert tokenizer.decode(tokenizer.encode(["a\nb"], "source")) == ["a b"]
    assert tokenizer.decode([[UNK, 4 + 0xFF, 4 + ord("a")]]) == ["\ufffda"]


def test_rare_characters_are_unknown(text, tmp_path):
    tokenizer = prepare(data(text, CHARACTERS, 10), tmp_path / "runs").tokenizer
    counts = {letter: sum(path.read_text().count(letter) for path in text.glob("train.*")) for letter in "bdfgk aeiou"}
    frequent, rare = max(counts, key=counts.__getitem__), "😀"
    assert tokenizer.decode(tokenizer.encode([rare + frequent], "source")) == ["\ufffd" + frequent]
    assert tokenizer.encode([rare], "source").flat.tolist() == [UNK]


def test_separate_vocabularies_share_no_token():
    tokenizer, pairs = SeparateBPE(), [("low lower lowest", "tief tiefer")] * 9
    tokenizer.load(tokenizer.train(lambda: iter(pairs), 545))
    source, target = (set(tokenizer.encode(["low tief"], side).flat.tolist()) for side in ("source", "target"))
    assert max(source) < min(target) and len(tokenizer) == 545
    words = ("low", "source"), ("tief tiefer", "target"), ("lower", "source")
    mixed = [number for text, side in words for number in tokenizer.encode([text], side).flat]
    assert tokenizer.decode([mixed, [UNK, *mixed]]) == ["low tief tiefer lower", "\u2047 low tief tiefer lower"]


def test_a_file_of_hugging_face_is_read(text, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer, own.decoder = tokenizers.pre_tokenizers.ByteLevel(False), tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    own.train([str(text / "train.en")], trainer)
    own.save(str(tmp_path / "own.json"))
    prepared = prepare(data(text, HUGGING_FACE, 294, file=str(tmp_path / "own.json")), tmp_path / "runs")
    before = ids(text, HUGGING_FACE, file=tmp_path / "own.json")
    own.train([str(text / "train.de")], trainer)
    own.save(str(tmp_path / "own.json"))
    assert not set(before) & set(ids(text, HUGGING_FACE, file=tmp_path / "own.json"))
    (tmp_path / "own.json").unlink()  # the prepared dataset keeps what it needs
    tokenizer = Prepared(prepared.folder).tokenizer
    assert [tokenizer.decode(list(tokens)) for tokens in prepared.split("val")] == [*prepared.text("val")]


class Adds(Bytes):
    """Adds to each sentence what a tokenizer.json may add: to a fixed length, to a multiple, or a mark at its end."""

    def __init__(self, kind: str, mark: int):
        self.kind, self.mark = kind, mark

    def to_ids(self, sentences, side):
        added = {
            "none": lambda n: 0,
            "fixed": lambda n: max(0, 64 - n),
            "multiple": lambda n: -n % 8,
            "one": lambda n: 1,
        }
        return [row + [self.mark] * added[self.kind](len(row)) for row in super().to_ids(sentences, side)]


@pytest.mark.parametrize("mark", [Bytes().to_ids(["!"], "source")[0][0], UNK], ids=["shown", "left out of the text"])
@pytest.mark.parametrize("kind", ["fixed", "multiple", "one"])
def test_a_tokenizer_that_adds_to_a_sentence_is_refused(kind, mark):
    sentences = ["ein Hund", "Zwei Hunde!", "der Hund schl\u00e4ft", "unknown \u2581"]
    check_adds_nothing(Adds("none", mark), sentences, "source")
    with pytest.raises(InputError, match="Adds: to_ids must add nothing"):
        check_adds_nothing(Adds(kind, mark), sentences, "source")


class Cuts(Bytes):
    """Cuts long sentences off, which is another mistake."""

    def to_ids(self, sentences, side):
        return [row[:20] for row in super().to_ids(sentences, side)]


def test_a_tokenizer_that_cuts_off_adds_nothing():
    check_adds_nothing(Cuts(), ["ein Hund", "Zwei Hunde!", "der Hund schl\u00e4ft"], "source")


def test_a_missing_package_or_file_is_told_before_anything_starts(text, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match="pip install tokenizers"):
        config(text, HUGGING_FACE, **{"data.tokenizer.file": text / "none.json"})
    monkeypatch.setattr("ablations.hugging_face_tokenizer.find_spec", lambda name: name)
    with pytest.raises(InputError, match=r"data\.tokenizer\.file = .*none\.json"):
        config(text, HUGGING_FACE, **{"data.tokenizer.file": text / "none.json"})


# Tokenizers of one's own


def test_code_and_options_make_another_dataset_and_another_trial(text, module):
    path = module(OWN)
    first = ids(text, "stranger.Own")
    path.write_text(f"{OWN}# a comment")
    assert ids(text, "stranger.Own") == first
    others = [ids(text, "stranger.Own", lower=True), ids(text, BYTES)]
    path.write_text(OWN.replace("one.lower()", "one.upper()"))
    others.append(ids(text, "stranger.Own"))
    assert len({name for names in (first, *others) for name in names}) == 2 * 4


def test_an_option_is_read_by_its_type_and_comes_back_from_the_prepared_dataset(text, tmp_path, module):
    module(OWN)
    prepared = prepare(data(text, "stranger.Own", lower="True"), tmp_path / "runs")
    tokenizer = Prepared(prepared.folder).tokenizer
    assert tokenizer.decode(tokenizer.encode(["Ab"], "source")) == ["ab"]


def test_a_dataset_is_not_read_by_other_code(text, tmp_path, module):
    path = module(OWN)
    prepared = prepare(data(text, "stranger.Own"), tmp_path / "runs")
    path.write_text(OWN.replace("one.lower()", "one.upper()"))
    with pytest.raises(InputError, match=r"data\.tokenizer = stranger\.Own: "):
        _ = Prepared(prepared.folder).tokenizer


def test_ids_outside_of_the_vocabulary_are_refused(text, tmp_path, module):
    module(OWN)
    with pytest.raises(InputError, match=r"data\.tokenizer = stranger\.Half: "):
        prepare(data(text, "stranger.Half", 40), tmp_path / "runs")
    assert not list((tmp_path / "runs" / "data").iterdir())


@pytest.mark.parametrize(("tokenizer", "size"), SIZES.items())
def test_a_vocabulary_of_another_size_is_refused_with_the_right_one(text, tmp_path, tokenizer, size):
    wrong = 90 if tokenizer == SEPARATE else 300
    with pytest.raises(InputError, match=rf"^data\.vocab_size = {wrong}: ") as caught:
        prepare(data(text, tokenizer, wrong), tmp_path / "runs")
    assert tokenizer == SEPARATE or f"must be {size}" in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "begins"),
    [
        ({"data.tokenizer": "stranger.Other"}, "data.tokenizer = stranger.Other: "),
        ({"data.tokenizer": "stranger.Failing"}, "data.tokenizer = stranger.Failing: "),
        ({"data.tokenizer": "transformer_pl.data.tokenizer.Tokenizer"}, "data.tokenizer = transformer_pl.data."),
        ({"data.tokenizer": "stranger.Own", "data.tokenizer.lower": 7}, "data.tokenizer = stranger.Own: option lower"),
        ({"data.tokenizer": HUGGING_FACE}, f"data.tokenizer = {HUGGING_FACE}: option file"),
    ],
)
def test_a_mistake_is_one_message_that_names_its_key(module, keys, begins):
    module(OWN)
    with pytest.raises(InputError) as caught:
        trial_config([Level("test", keys)])
    (message,) = caught.value.messages
    assert message.startswith(begins)


# Through the commands


@pytest.mark.usefixtures("unrehearsed")
def test_a_trial_is_trained_scored_and_translates_as_text(text, tmp_path):
    keys = {"data.tokenizer": BYTES, "data.vocab_size": 260, "data.batch_tokens": 512}
    code, trial = tiny_trials.train(tmp_path / "runs", keys)
    assert code == 0 and " tokenizer=Bytes " in f" {trial.result().name} "
    prepared = Prepared(tmp_path / "runs" / "data" / trial.data())
    (tmp_path / "lines.txt").write_text("\n".join(prepared.text("val")[0]))
    said = command("translate", trial.path, tmp_path / "lines.txt", "--runs", tmp_path / "runs")
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == TrialFolder(trial.path).hypotheses("val")
    assert list((trial.path / "sources").rglob("byte_tokenizer.py"))
