"""Which corpus the keys name; scores are sacreBLEU's own."""

import math
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from corpora import mistake
from helpers import little_text

from transformer_pl.config import Config, Data
from transformer_pl.config.levels import Level, resolve
from transformer_pl.data import synthetic
from transformer_pl.data.prepare import prepare
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import open_corpus
from transformer_pl.tasks import translation
from transformer_pl.tasks.translation import PaperTranslation, Translation, paper_tokens, tokenised_bleu
from transformer_pl.trials.trial_config import trial_config

pytestmark = pytest.mark.core


def test_without_a_place_the_corpus_is_the_synthetic_one_in_both_directions():
    corpus, turned = open_corpus(Data()), open_corpus(Data(source="de", target="en"))
    assert corpus.fingerprint == {"corpus": "synthetic", "version": synthetic.VERSION}
    assert list(corpus.pairs("val")) == [tuple(pair) for pair in synthetic.pairs("val")]
    assert list(turned.pairs("val")) == [(de, en) for en, de in synthetic.pairs("val")]


@pytest.mark.parametrize(("keys", "named"), [({"target": "fr"}, "data.target = fr"), ({"target": "en"}, "data.source")])
def test_languages_that_cannot_be(keys, named):
    assert named in mistake(None, **keys)


@pytest.mark.parametrize("length", [1, 3, 12])
def test_the_score_of_a_set_equals_sacrebleu_s_bit_for_bit(length):
    rng = np.random.default_rng(length)
    words = np.array(["a", "cat", "sat", "on", "the", "mat", ",", "it's", "3.5"])
    references = [" ".join(rng.choice(words, length)) for _ in range(40)]
    hypotheses = [" ".join(word for word in text.split() if rng.random() > 0.2) for text in references]
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    found = Translation().score(hypotheses, references, Config())
    assert found.metrics["bleu"] == bleu.corpus_score(hypotheses, [references]).score
    assert found.metrics["chrf"] == chrf.corpus_score(hypotheses, [references]).score
    assert found.signature == str(bleu.get_signature()) and len(found.statistics) == 40


@pytest.mark.parametrize("code", ["zh", "zh-CN", "zh_Hans", "ZH-tw", "zho", "cmn_Hant", "chi"])
def test_a_language_without_blanks_between_words_has_its_tokeniser(code):
    """Split at blanks, a Chinese sentence is one word."""
    references, hypotheses = ["一只黑狗在草地上跑。", "两个人在街上走路。"], ["一只黑狗在草地上跑。", "两个人在街上。"]
    config = resolve([Level("test", {"data.target": code})])
    scores = Translation().score(hypotheses, references, config)
    chinese = sacrebleu.BLEU(trg_lang="zh")
    assert scores.metrics["bleu"] == chinese.corpus_score(hypotheses, [references]).score > 50
    assert scores.signature == str(chinese.get_signature())
    assert Translation().score(hypotheses, references, Config()).metrics["bleu"] == 0
    assert Translation().scoring(config.data).endswith(" zh") and Translation().scoring(Data()).endswith(" 13a")


@pytest.mark.parametrize(("code", "extra"), [("ja-JP", "ja"), ("jpn", "ja"), ("ko_KR", "ko"), ("kor", "ko")])
def test_japanese_and_korean_need_their_tokenisers(code, extra):
    try:
        sacrebleu.BLEU(trg_lang=extra)
    except RuntimeError:
        assert f"sacrebleu[{extra}]" in mistake(None, target=code)
    else:
        assert extra in Translation().scoring(Data(target=code))


UNSPACED = {  # references without blanks between words
    "Han": "这鸟看见一只狗。",
    "kana": "いぬがねこをみる。",
    "Thai": "สุนัขเห็นแมว",
    "Lao": "ໝາເຫັນແມວ",
    "Tibetan": "ཁྱིས་ཞི་མི་མཐོང་།",
    "Burmese": "ခွေးကကြောင်ကိုမြင်သည်။",
    "Khmer": "ឆ្កែឃើញឆ្មា",
}


@pytest.mark.parametrize("script", UNSPACED)
@pytest.mark.parametrize("bleu", [None, "13a", "intl"])
def test_text_without_blanks_is_refused_with_a_tokeniser_that_splits_at_them(script, bleu):
    """Whatever the languages are called. Other tokenisers take it, and these take text with blanks."""
    text, data = UNSPACED[script], Data(target="tgt", bleu=bleu)
    with pytest.raises(InputError, match=r"data\.bleu"):
        Translation().check_references(data, [text, text, "BLEU is one"])
    Translation().check_references(data, [" ".join(text), " ".join(text), text])
    Translation().check_references(data, [text, text, "the dog and the cat" * len(text)])
    Translation().check_references(data.model_copy(update={"bleu": "char"}), [text])


def test_a_dataset_whose_references_have_no_words_is_refused_before_it_is_prepared_and_afterwards(tmp_path):
    """It may be prepared for another score."""
    folder = little_text(tmp_path / "text")
    for split in ("val", "test"):
        lines = (folder / f"{split}.de").read_text().splitlines()
        (folder / f"{split}.de").write_text("".join(f"{'一只黑狗'[: len(line) % 3 + 2]}\n" for line in lines))
    data = Data(path=str(folder), vocab_size=300)
    for _ in range(2):
        with pytest.raises(InputError, match=r"data\.bleu"):
            prepare(data, tmp_path / "runs")
        prepare(data.model_copy(update={"bleu": "zh"}), tmp_path / "runs")


@pytest.mark.parametrize("task", ["language_model.LanguageModel", "parsing.Parsing"])
def test_a_task_without_bleu_takes_no_tokeniser_of_it(task):
    model = {"model.N_encoder": 0} if "Language" in task else {}
    keys = {"data.task": f"transformer_pl.tasks.{task}", "data.bleu": "char"} | model
    with pytest.raises(InputError, match=r"data\.bleu = char"):
        open_corpus(trial_config([Level("test", keys)]).data)


# The paper's BLEU


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("de", "Die E-Mail-Adresse.", "Die E ##AT##-##AT## Mail ##AT##-##AT## Adresse ."),
        ("de", "ein rich-text-Format", "ein rich ##AT##-##AT## text ##AT##-##AT## Format"),
        ("de", "Ein- und Ausgang - so", "Ein- und Ausgang - so"),  # no compound
        ("de", "a-b-c-d", "a ##AT##-##AT## b-c ##AT##-##AT## d"),  # as Perl: matches do not overlap
        ("de", "z.B. 3,5 % am 3. Mai.", "z.B. 3,5 % am 3. Mai ."),
        ("de", "Er sagt: „ja“, sie „nein“", "Er sagt : &quot; ja &quot; , sie &quot; nein &quot;"),
        ("de", 'Er sagt: "ja", sie "nein"', "Er sagt : &quot; ja &quot; , sie &quot; nein &quot;"),
        ("fr", "l’homme d'État", "l&apos; homme d&apos; État"),
        ("fr", "l'homme d’État", "l&apos; homme d&apos; État"),
        ("en", "it’s O'Neill's", "it &apos;s O &apos;Neill &apos;s"),
        ("de", "", ""),
    ],
)
def test_the_tokens_of_the_paper_s_bleu(language, text, tokens):
    assert paper_tokens([text], language) == [tokens]


def multi_bleu(hypotheses, references):
    """Papineni et al. 2002, on what stands between blanks."""
    logs, lengths = [], [sum(len(text.split()) for text in texts) for texts in (hypotheses, references)]
    for n in range(1, 5):
        matches = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            counts = [Counter(zip(*(text.split()[i:] for i in range(n)))) for text in (hypothesis, reference)]  # noqa: B905
            matches, total = matches + sum((counts[0] & counts[1]).values()), total + sum(counts[0].values())
        logs.append(math.log(matches / total) if matches else -math.inf)
    return 100 * math.exp(min(0, 1 - lengths[1] / lengths[0]) + sum(logs) / 4)


def test_the_paper_s_bleu_is_that_of_multi_bleu_on_its_tokens():
    rng = np.random.default_rng(2)
    words = np.array(["die", "E-Mail", "„neu“", "Test-Fall,", "geht's", "3,5", "und", "so"])
    references = [" ".join(rng.choice(words, 9)) for _ in range(30)]
    hypotheses = [" ".join(word for word in text.split() if rng.random() > 0.1) for text in references]
    expected = multi_bleu(paper_tokens(hypotheses, "de"), paper_tokens(references, "de"))
    assert tokenised_bleu(hypotheses, references, "de") == pytest.approx(expected) and 20 < expected < 95
    assert tokenised_bleu(["das ist ein Haus"], ["ein Haus ist das"], "de") == 0  # no four in a row; not smoothed


def test_a_task_scores_as_the_paper_did_beside_what_others_do():
    hypotheses, references = ["ein E-Mail-Haus ist das ."], ["das ist ein E-Mail-Haus ."]
    theirs, ours = (task.score(hypotheses, references, Config()) for task in (PaperTranslation(), Translation()))
    tokenised = {"bleu_tokenised": tokenised_bleu(hypotheses, references, "de")}
    assert theirs.metrics == ours.metrics | tokenised and theirs[1:] == ours[1:]
    assert "val/bleu_tokenised" in PaperTranslation().metrics


def test_the_paper_s_bleu_needs_its_package(monkeypatch):
    monkeypatch.setattr(translation, "find_spec", lambda name: None)  # as where it is not installed
    with pytest.raises(InputError, match="sacremoses"):
        PaperTranslation().corpus(Data())
