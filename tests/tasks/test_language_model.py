"""A language model from its text to its table: what is read, how a loss is counted, how a text is continued."""

import csv
import json
import math

import numpy as np
import pytest
import tiny_trials
import torch
import torch.nn.functional as F
from corpora import PAIRS, mistake, opened, read
from helpers import ROOT, write_sweep
from torch import nn

from transformer_pl.api import load_trial
from transformer_pl.config import BOS, EOS, PAD, Data
from transformer_pl.config.levels import Level
from transformer_pl.data import synthetic
from transformer_pl.data.batches import TrainStream, collate, eval_batches
from transformer_pl.data.prepare import fingerprint_id, prepare
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.laws.checks import check_all
from transformer_pl.model import SinusoidalPosition
from transformer_pl.model.beam_search import CachedSteps
from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.space import read_search
from transformer_pl.task import SPLITS, open_corpus
from transformer_pl.tasks.language_model import LanguageModel
from transformer_pl.train.evaluate import shown_text
from transformer_pl.translate import main as translate
from transformer_pl.trials.trial_config import trial_config

TASK = "transformer_pl.tasks.language_model.LanguageModel"
GROUPED = "ablations.grouped_query_attention.GroupedQueryCrossAttention"
KEYS = tiny_trials.TINY | {"data.task": TASK, "model.N_encoder": 0, "optim.eps_ls": 0.0, "data.vocab_size": 275}
TEXTS = {"train": ["der Hund", "", "eine Katze schläft."], "val": ["zwei Katzen"], "test": ["zwei Hunde", " ", "drei"]}
READ = {split: [("", text) for text in texts] for split, texts in TEXTS.items()}


def trained(folder, **keys):
    """A tiny trial with these keys, on documents of one to forty words."""
    write_documents(folder / "text")
    written = {key.replace("__", "."): value for key, value in keys.items()}
    code, trial = tiny_trials.train(folder / "runs", KEYS | {"data.path": folder / "text"} | written)
    assert code == 0
    return load_trial(trial.path, folder / "runs")


def write_documents(folder, count=40):
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(4)
    words = ["ab", "ba", "abba", "baab", "ö", "aab"]
    for split in SPLITS:
        texts = [" ".join(rng.choice(words, rng.integers(1, 40))) for _ in range(count)]
        (folder / f"{split}.txt").write_text("".join(f"{text}\n" for text in texts))


# Text


def write(folder, ending):
    for split, texts in TEXTS.items():
        lines = "".join(f"{text}\n" for text in texts)
        rows = [f"{json.dumps({'text': text})}\n" for text in texts]
        (folder / f"{split}.{ending}").write_text("".join(rows) if ending == "jsonl" else lines)
    return folder


@pytest.mark.parametrize("ending", ["txt", "de", "jsonl"])
def test_every_form_of_text_says_the_same(tmp_path, ending):
    assert read(opened(write(tmp_path, ending), task=TASK)) == READ


@pytest.mark.parametrize("form", ["files", "table", "column"])
def test_of_pairs_the_target_is_read(tmp_path, form):
    for split, pairs in PAIRS.items():
        if form == "files":
            (tmp_path / f"{split}.en").write_text("".join(f"{en}\n" for en, _ in pairs))
            (tmp_path / f"{split}.de").write_text("".join(f"{de}\n" for _, de in pairs))
        else:
            rows = [{"en": en, "de": de, "text": "no"} for en, de in pairs]
            rows = [{"translation": row} for row in rows] if form == "column" else rows
            (tmp_path / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    corpus, pairs = opened(tmp_path, task=TASK), opened(tmp_path)
    assert read(corpus) == {split: [("", de) for _, de in pairs] for split, pairs in PAIRS.items()}
    assert corpus.fingerprint != pairs.fingerprint
    english = opened(tmp_path, task=TASK, source="de", target="en")
    assert read(english)["test"] == [("", en) for en, _ in PAIRS["test"]]


def test_without_a_place_the_text_is_one_side_of_the_synthetic_corpus():
    for side, language in enumerate(("en", "de")):
        corpus = open_corpus(Data(task=TASK, target=language))
        texts = [text for _, text in corpus.pairs("train")]
        assert texts == [pair[side] for pair in synthetic.pairs("train", large=True)]
        assert len(texts) > len(synthetic.pairs("train"))
    assert "data.target = fr" in mistake(None, task=TASK, target="fr")


def test_empty_lines_are_counted_and_left_out_of_every_split(tmp_path):
    prepared = prepare(Data(task=TASK, path=str(write(tmp_path, "txt")), vocab_size=280), tmp_path / "runs")
    assert prepared.text("test") == (["", ""], ["zwei Hunde", "drei"])
    assert [prepared.meta["splits"][split].get("blank", 0) for split in SPLITS] == [1, 0, 1]
    assert [len(prepared.split(split).target) for split in SPLITS] == [2, 1, 2]


@pytest.mark.parametrize(
    ("texts", "keys", "named"),
    [
        (["", " "], {}, "train must hold a line with text"),
        (["ab"], {"vocab_size": 5000}, "data.vocab_size = 5000"),
        (["a" * 9], {"vocab_size": 3}, "data.vocab_size = 3"),
    ],
)
def test_texts_that_cannot_be_used(tmp_path, texts, keys, named):
    write_documents(tmp_path, 3)
    (tmp_path / "train.txt").write_text("\n".join(texts))
    with pytest.raises(InputError) as error:
        prepare(Data(task=TASK, path=str(tmp_path), **keys), tmp_path / "runs")
    assert named in str(error.value) and "\n" not in str(error.value)


def test_a_row_without_text_is_named(tmp_path):
    write(tmp_path, "jsonl")
    (tmp_path / "val.jsonl").write_text('{"text": "fine"}\n{"body": "no"}\n')
    message = mistake(tmp_path, task=TASK)
    assert "val.jsonl line 2" in message and "data.target" in message


# Pieces


@pytest.mark.parametrize("longest", [1, 2, 7, 30])
def test_a_long_document_is_cut_into_pieces_that_are_the_document(longest):
    """Each begins with BOS, the last alone ends with EOS, and every token is predicted once."""
    rng = np.random.default_rng(longest)
    documents = [rng.integers(4, 50, rng.integers(0, 25)).tolist() for _ in range(60)]
    flat = np.array([token for document in documents for token in document], np.uint16)
    target = Tokens.of(flat, [len(document) for document in documents]).in_pieces(longest)
    split = Split(Tokens.of(flat[:0], [0] * len(target)), target)
    predicted, seen = {}, {}
    for indexes in eval_batches(split.source.lengths_with_special, target.lengths_with_special, 64):
        batch = collate(split, indexes)
        assert batch.target_out.shape[1] <= longest and (batch.source == EOS).all()
        for index, given, out in zip(indexes, batch.target_in.tolist(), batch.target_out.tolist(), strict=True):
            predicted[index], seen[index] = ([token for token in ids if token != PAD] for ids in (out, given))
            assert seen[index] == [BOS, *predicted[index][:-1]]
    whole = [[] for _ in documents]
    for index in range(len(target)):
        whole[target.sentence[index]] += predicted[index]
    assert whole == [[*document, EOS] for document in documents]


# The loss


@pytest.mark.parametrize("max_length", [256, 9])
def test_bits_per_byte_are_those_of_a_plain_loop_over_the_weights(tmp_path, max_length):
    """Also where documents are cut: a piece does not see those before it."""
    trial = trained(tmp_path, data__max_length=max_length)
    nats = size = 0
    documents = (tmp_path / "text" / "val.txt").read_text().splitlines()
    for number, document in enumerate(documents):
        ids, of_document = [*map(int, trial.tokenizer.encode([document], "target")[0]), EOS], 0.0
        for start in range(0, len(ids), max_length):
            piece = ids[start : start + max_length]
            with torch.no_grad():
                logits = trial.model(torch.zeros(1, 0, dtype=torch.long), torch.tensor([[BOS, *piece[:-1]]]))
            of_document += F.cross_entropy(logits[0].double(), torch.tensor(piece), reduction="sum").item()
        nats, size = nats + of_document, size + len(document.encode()) + 1
        line = json.loads((trial.folder / "scores.val.jsonl").read_text().splitlines()[number])
        assert line["nll"] == pytest.approx(of_document, rel=1e-4) and line["pieces"] == len(ids)
    metrics = trial.result.metrics
    assert metrics["val/bpb"] == pytest.approx(nats / math.log(2) / size, rel=1e-4)
    assert trial.score().metrics["bpb"] == pytest.approx(metrics["val/bpb"], rel=1e-5)
    assert not {"val/bleu", "val/chrf"} & metrics.keys() and trial.result.score == "bpb"


PARAGRAPHS = [["abba ab", "ö"], ["ba"], ["aab baab abba ba ö ab", "ab", "baab baab ö"], ["abba"] * 5, ["ö ab"]]


@pytest.mark.parametrize("form", ["txt", "jsonl"])
@pytest.mark.parametrize(
    ("pieces", "stride"), [("apart", 9), ("apart", 4), ("apart", 1), ("joined", None), ("joined", 9), ("joined", 2)]
)
def test_a_token_is_predicted_once_from_what_stands_before_it(tmp_path, pieces, stride, form):
    """As lm-evaluation-harness rolls its windows over a text: the last of each has as many tokens before it as fit."""
    most, text = 9, tmp_path / "text"
    write_documents(text)
    documents = [[line] for lines in PARAGRAPHS for line in lines] if pieces == "apart" else PARAGRAPHS
    numbered = [{"text": line, "document": n} for n, lines in enumerate(PARAGRAPHS) for line in lines]
    lines = "\n\n".join("\n".join(lines) for lines in PARAGRAPHS)
    (text / "val.txt").unlink()
    (text / f"val.{form}").write_text(lines if form == "txt" else "".join(f"{json.dumps(row)}\n" for row in numbered))
    keys = KEYS | {"data.path": text, "data.max_length": most, "data.pieces": pieces, "decode.stride": stride}
    code, files = tiny_trials.train(tmp_path / "runs", keys)
    trial = load_trial(files.path, tmp_path / "runs")
    nats = []
    for document in documents:
        lines = [[*map(int, ids), EOS] for ids in trial.tokenizer.encode(document, "target").rows()]
        ids = [BOS, *(token for line in lines for token in line)]
        loss, done = [], 0
        while done < len(ids) - 1:
            end = min(done + (stride if stride and done else most), len(ids) - 1)
            start = max(0, end - most) if stride else done
            with torch.no_grad():
                logits = trial.model(torch.zeros(1, 0, dtype=torch.long), torch.tensor([ids[start:end]]))[0].double()
            targets = torch.tensor(ids[start + 1 : end + 1])
            loss += F.cross_entropy(logits, targets, reduction="none")[done - start :].tolist()
            done = end
        nats += [sum(loss.pop(0) for _ in line) for line in lines]
    scores = [json.loads(line) for line in (trial.folder / "scores.val.jsonl").read_text().splitlines()]
    assert code == 0 and [line["nll"] for line in scores] == pytest.approx(nats, rel=1e-4)
    assert [line["document"] for line in scores] == [row["document"] for row in numbered]
    if not stride:  # the validations of the training, of the last of which the weights are
        assert trial.result.metrics["val/loss"] == pytest.approx(trial.result.losses[4], rel=1e-5)


def test_pieces_of_joined_lines_are_trained_on(tmp_path):
    """Each line ends with EOS. The first piece of a document begins with BOS, and the others with the token before."""
    write_documents(tmp_path)
    (tmp_path / "train.txt").write_text("\n\n".join("\n".join(lines) for lines in PARAGRAPHS * 3))
    data = Data(task=TASK, path=str(tmp_path), vocab_size=270, max_length=6, pieces="joined")
    prepared = prepare(data, tmp_path / "runs")
    split, seen, predicted = prepared.split("train"), [], []
    for index in range(len(split.target)):
        batch = collate(split, np.array([index, 0]))
        seen.append([token for token in batch.target_in[0].tolist() if token != PAD])
        predicted.append([token for token in batch.target_out[0].tolist() if token != PAD])
    text, stream = [], [token for piece in predicted for token in piece]
    for lines in PARAGRAPHS * 3:
        text += [[*map(int, ids), EOS] for ids in prepared.tokenizer.encode(lines, "target").rows()]
    assert stream == [token for line in text for token in line] and max(map(len, predicted)) == 6
    before = [None, *stream]
    for given, out in zip(seen, predicted, strict=True):
        assert given[1:] == out[:-1] and given[0] in (BOS, before[0])
        before = before[len(out) :]
    assert sum(given[0] == BOS for given in seen) == len(PARAGRAPHS) * 3


def test_a_plain_loop_of_torch_trains_the_same_model(tmp_path):
    """torch's own layers and Adam, on the same batches, have the same losses step after step."""
    trial = trained(tmp_path, model__p_drop=0.0, optim__max_steps=6)
    config, options = trial.config, {"batch_first": True, "layer_norm_eps": 1e-6, "dropout": 0.0}
    c = trial.sizes
    torch.manual_seed(config.seed)
    from transformer_pl.model import Transformer

    start = Transformer(c)
    layers = [nn.TransformerEncoderLayer(c.d_model, c.h, c.d_ff, **options) for _ in range(c.N_decoder)]
    theirs = nn.ModuleDict({"layers": nn.ModuleList(layers)})
    theirs.register_parameter("E", nn.Parameter(start.embedding.weight.detach().clone()))
    with torch.no_grad():
        for layer, ours in zip(layers, start.decoder, strict=True):
            attention = ours.self_attention
            layer.self_attn.in_proj_weight.copy_(
                torch.cat([attention.W_Q.weight, attention.W_K.weight, attention.W_V.weight])
            )
            layer.self_attn.out_proj.weight.copy_(attention.W_O.weight)
            layer.linear1.weight.copy_(ours.ffn.W_1.weight)
            layer.linear2.weight.copy_(ours.ffn.W_2.weight)
            for bias in (layer.linear1.bias, layer.linear2.bias):
                bias.zero_()
            for bias in (layer.self_attn.in_proj_bias, layer.self_attn.out_proj.bias):
                bias.zero_().requires_grad_(False)  # ours has none
    optimizer = torch.optim.Adam([p for p in theirs.parameters() if p.requires_grad], 1.0, (0.9, 0.98), 1e-9)
    rate = [config.optim.lr_scale * c.d_model**-0.5 * min(s**-0.5, s * config.optim.warmup**-1.5) for s in range(1, 7)]
    prepared = prepare(config.data, tmp_path / "runs")
    expected = []
    for step, batch in enumerate(TrainStream(prepared.split("train"), trial.tokenizer, config)):
        x = F.embedding(batch.target_in, theirs.E) * math.sqrt(c.d_model)
        x = x + SinusoidalPosition.encoding(0, x.shape[1], c.d_model)
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in layers:
            x = layer(x, causal, is_causal=True)
        loss = F.cross_entropy((x @ theirs.E.T).flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate[step]
        optimizer.step()
        expected.append(loss.item())
    found = [line["train/loss"] for line in trial.metrics() if "train/loss" in line]
    assert found == pytest.approx(expected, rel=2e-4) and found[-1] < found[0]


# Continuations


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("continued"), optim__max_steps=30, decode__extra=12)


def test_a_text_is_continued_by_the_most_probable_tokens(trial):
    """As by a loop that computes all positions anew at each step."""
    text, ids = "ab ba", [BOS, *map(int, trial.tokenizer.encode(["ab ba"], "target")[0])]
    given = len(ids)
    for _ in range(12):
        with torch.no_grad():
            ids.append(int(trial.model(torch.zeros(1, 0, dtype=torch.long), torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == EOS:
            break
    (whole,) = trial.tokenizer.decode([ids])
    assert trial.translate(text) == whole and len(ids) > given
    assert trial.translate([text, "ö", ""])[0] == whole


def test_of_a_long_document_no_more_is_shown_than_one_piece(tmp_path, monkeypatch):
    """After the training the model computes as much as for a document of `data.max_length` tokens."""
    steps, computed = [], CachedSteps.__call__

    def counted(step, prefixes, origin):
        steps.append(prefixes.shape[2])
        return computed(step, prefixes, origin)

    monkeypatch.setattr(CachedSteps, "__call__", counted)
    write_documents(tmp_path / "text")
    document = "ab ba " * 4000
    (tmp_path / "text" / "val.txt").write_text(f"{document}\nab ba ö\n")
    code, trial = tiny_trials.train(tmp_path / "runs", KEYS | {"data.path": tmp_path / "text", "decode.extra": 5})
    assert code == 0 and len(steps) <= 2 * 5 and max(steps) <= 5 + load_trial(trial.path).config.data.max_length
    (beginnings, documents), (long, short) = shown_text(load_trial(trial.path)._prepared), trial.hypotheses("val")
    assert documents[1] == "ab ba ö" and document.startswith(documents[0]) and documents[0].startswith(beginnings[0])
    assert long.startswith(beginnings[0]) and short.startswith(beginnings[1]) and 0 < len(beginnings[0]) < 1000


def test_draws_are_those_of_their_seed_and_colder_ones_the_most_probable(trial):
    texts = ["ab", "ba aab"]
    drawn = [trial.translate(texts, temperature=1.0, seed=seed) for seed in range(8)]
    assert drawn[3] == trial.translate(texts, temperature=1.0, seed=3)
    assert len({text for text, _ in drawn}) > 1
    assert drawn[3][1] == trial.translate(texts[1], temperature=1.0, seed=3)
    assert trial.translate(texts, temperature=1e-4) == trial.translate(texts)


def test_the_command_continues_lines(trial, tmp_path):
    (tmp_path / "in.txt").write_text("ab ba\nö\n")
    words = [trial.folder, tmp_path / "in.txt", f"--runs={trial.folder.parents[1]}"]
    code, out, _ = tiny_trials.ended(translate, *words)
    assert code == 0 and out.splitlines() == trial.translate(["ab ba", "ö"])
    code, out, _ = tiny_trials.ended(translate, *words, "--temperature=0.9", "--seed=5")
    assert out.splitlines() == trial.translate(["ab ba", "ö"], temperature=0.9, seed=5)
    for wrong in ("--beam=4", "--temperature=-1", "--temperature=nan"):
        code, out, err = tiny_trials.ended(translate, *words, wrong)
        assert (code, out) == (2, "") and wrong[2:].partition("=")[0] in err


def test_a_translation_has_no_temperature(tmp_path):
    _, trial = tiny_trials.train(tmp_path / "runs", {})
    with pytest.raises(InputError, match="temperature"):
        load_trial(trial.path, tmp_path / "runs").translate("ba", temperature=1.0)


# What knows that less is better


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A sweep of two rows with two seeds each, one of which is hardly trained."""
    folder = tmp_path_factory.mktemp("table")
    write_documents(folder / "text")
    keys = KEYS | {"data.path": folder / "text", "optim.max_steps": 40}
    write_sweep(folder / "lm.yaml", keys | {"variant": ["base", "optim.lr_scale=0.001"], "seed": [1, 2]})
    from transformer_pl.sweep import __main__ as command

    with tiny_trials.in_a_command():
        assert command.main([str(folder / "lm.yaml"), f"--runs={folder / 'runs'}", "--parallel=1"]) == 0
    return folder


def test_further_sets_of_documents_are_scored_by_their_loss(tmp_path):
    write_documents(tmp_path / "text")
    (tmp_path / "text" / "more.txt").write_text("abba ba\n" * 5)
    one = trained(tmp_path, data__sets=f"[same={tmp_path / 'text'},more={tmp_path / 'text'}:more]")
    metrics = one.result.metrics
    assert metrics["same/bpb"] == metrics["test/bpb"] != metrics["more/bpb"] == one.score("more").metrics["bpb"]


def test_the_table_has_intervals_of_the_loss(sweep, capsys):
    words = [str(sweep / "lm.yaml"), f"--runs={sweep / 'runs'}", "--format"]
    printed = {}
    for form in ("csv", "md", "tex", "json", "html"):
        assert report.main([*words, form]) == 0
        printed[form] = capsys.readouterr().out
    base, slow = csv.DictReader(printed["csv"].splitlines())
    for line in (base, slow):
        assert 0 < float(line["val/bpb.low"]) < float(line["val/bpb.mean"]) < float(line["val/bpb.high"])
    assert float(slow["val/bpb.difference"]) > float(slow["val/bpb.difference.low"]) > 0
    assert float(slow["val/bpb.difference.p"]) < 0.05
    assert "bits/byte" in printed["md"] and "paper" not in printed["md"].partition("\n\n")[0]
    assert "lines, which count as independent" in printed["md"]
    page = next((sweep / "runs" / "sweeps").glob("lm*/report.html")).read_text()
    assert "Continuations" in page and "BLEU" not in page


@pytest.mark.usefixtures("unrehearsed")
def test_rows_with_other_tokenizers_share_the_measure(tmp_path):
    """The same bytes are counted, whatever their tokens are."""
    other = {"data.tokenizer": "ablations.byte_tokenizer.Bytes", "data.vocab_size": 260}
    sizes = []
    for name, keys in (("bpe", {}), ("bytes", other)):
        (tmp_path / name).mkdir()
        trial = trained(tmp_path / name, **{key.replace(".", "__"): value for key, value in keys.items()})
        sizes.append([json.loads(line)["bpb"] for line in (trial.folder / "scores.val.jsonl").read_text().splitlines()])
    assert sizes[0] == sizes[1]


LOWER = """
from transformer_pl.data.tokenizer import JointBPE

class Lower(JointBPE):
    def to_ids(self, sentences, side):
        return super().to_ids([sentence.lower() for sentence in sentences], side)
"""


@pytest.mark.parametrize(("kind", "noted"), [("Lower", True), ("Same", False)])
def test_a_tokenizer_that_loses_text_has_a_note(tmp_path, module, kind, noted):
    module(f"{LOWER}\nclass Same(JointBPE):\n    pass\n", "lowering")
    write_documents(tmp_path / "text")
    (tmp_path / "text" / "val.txt").write_text("AB ba\n" * 30)
    keys = KEYS | {"data.path": str(tmp_path / "text"), "data.tokenizer": f"lowering.{kind}"}
    (found,) = check_all([trial_config([Level("here", keys)])], tmp_path / "runs")
    assert any("whole text" in note for note in found.notes) == noted


def test_few_documents_have_no_interval(tmp_path, capsys):
    write_documents(tmp_path / "text", 19)
    keys = KEYS | {"data.path": tmp_path / "text"}
    words = [str(write_sweep(tmp_path / "few.yaml", keys)), f"--runs={tmp_path / 'runs'}"]
    assert tiny_trials.train(tmp_path / "runs", keys)[0] == 0
    capsys.readouterr()
    assert report.main([*words, "--format=csv"]) == 0
    (line,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert line["val/bpb.mean"] and not line["val/bpb.low"]
    assert report.main([*words, "--format=md"]) == 0 and "19 lines" in capsys.readouterr().out


def test_searches_and_retuning_minimise_it(tmp_path):
    """As they do a loss; a goal to maximise it is refused."""
    sweep = read_sweep(ROOT / "sweeps/language_model.yaml", seeds=[1])
    retuning = plan_retuning(sweep, ["model.p_drop"], 2, None)
    assert retuning.metric == "val/bpb"
    with pytest.raises(InputError, match="minimize"):
        plan_retuning(sweep, ["model.p_drop"], 2, {"name": "val/bpb", "goal": "maximize"})
    content = {
        "program": "p.py",
        "name": "s",
        "method": "bayes",
        "run_cap": 3,
        "metric": {"name": "val/bpb", "goal": "minimize"},
        "parameters": {"scale": {"value": "demo-lm"}, "model.p_drop": {"values": [0.0, 0.1]}},
    }
    read_search(tmp_path / "s.yaml", content, None, None, {})
    with pytest.raises(InputError, match="minimize"):
        read_search(tmp_path / "s.yaml", content | {"metric": {"name": "val/bpb", "goal": "maximize"}}, None, None, {})


# Models that do not fit

LM, JOINED = {"data.task": TASK, "model.N_encoder": 0}, {"data.pieces": "joined"}
MEMORY = {"model.self_attention": "ablations.segment_memory.SegmentMemory"}
CONSECUTIVE = {"data.batches": "ablations.segment_memory.ConsecutiveBatches"}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"model.N_encoder": 0, "model.cross_attention": GROUPED}, "model.cross_attention"),
        ({"data.task": TASK}, "model.N_encoder = unset"),
        ({"data.task": TASK, "model.N_encoder": 2}, "model.N_encoder = 2"),
        ({"data.task": TASK, "model.N_encoder": 0, "trainer.val_sample": 5}, "trainer.val_sample = 5"),
        ({"data.task": TASK, "model.N_encoder": 0, "model.N_decoder": 0}, "model.N_decoder = 0"),
        ({"data.task": TASK, "model.N_encoder": 0, "decode.beam": 8}, "decode.beam = 8"),
        ({"data.task": TASK, "model.N_encoder": 0, "decode.stride": 257}, "decode.stride = 257"),
        ({"decode.stride": 2}, "decode.stride = 2"),
        ({"data.pieces": "joined"}, "data.pieces = joined"),
        (MEMORY, "model.self_attention = ablations.segment_memory.SegmentMemory"),
        (CONSECUTIVE, "data.batches = ablations.segment_memory.ConsecutiveBatches"),
        (LM | CONSECUTIVE, "data.pieces=joined"),
        (LM | JOINED | MEMORY, "data.batches = transformer_pl.data.batches.TrainStream"),
        (LM | JOINED | MEMORY | CONSECUTIVE | {"decode.stride": 2}, "decode.stride = 2"),
        (LM | JOINED | CONSECUTIVE | {"decode.memory": 2}, "decode.memory = 2"),
        (LM | JOINED | MEMORY | CONSECUTIVE | {"decode.memory": -1}, "decode.memory = -1"),
        ({"model.self_attention": "ablations.segment_memory.Nothing"}, "holds no class Nothing"),
    ],
)
def test_a_model_that_does_not_fit_its_task_is_refused(keys, named):
    with pytest.raises(InputError) as error:
        trial_config([Level("here", keys)])
    assert named in str(error.value) and "\n" not in str(error.value)


def test_a_document_of_one_token_is_a_document(tmp_path):
    write_documents(tmp_path)
    (tmp_path / "val.txt").write_text("a\n" * 20)
    data = Data(task=TASK, path=str(tmp_path), vocab_size=275)
    target = prepare(data, tmp_path / "runs").split("val").target
    assert len(target) == 20 and (target.lengths_with_special >= 2).all()
    assert fingerprint_id(data, LanguageModel().corpus(data)) in {path.name for path in tmp_path.glob("runs/data/*")}
