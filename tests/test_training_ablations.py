"""Optimizers, a loss, and components that know their layer or the step, against what their sources say."""

import itertools
import math

import numpy as np
import pytest
import small_models
import torch
import torch.nn.functional as F
from helpers import little_text
from torch import nn

from ablations.annealed_attention import AnnealedAttention
from ablations.bpe_dropout import BPEDropout
from ablations.differential_attention import DifferentialAttention
from ablations.distillation import WordDistillation
from ablations.focal_loss import FocalLoss
from ablations.length_curriculum import LengthCurriculum
from ablations.lion import Lion
from ablations.mixture_of_experts import MixtureOfExperts
from ablations.muon import Muon, orthogonal
from ablations.r_drop import RDrop
from ablations.segment_memory import ConsecutiveBatches
from ablations.word_dropout import TargetWordDropout
from transformer_pl.config import BOS, EOS, PAD, UNK, Config, Data, Optim, Site, Trainer
from transformer_pl.data.batches import Batch, TrainStream, collate
from transformer_pl.data.prepare import prepare
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.model import Mask, ScaledDotProductAttention

CONFIG = small_models.small({"model.h": 2, "model.d_k": 8, "model.d_v": 5})
OPTIM = Config().optim


def test_lion_is_algorithm_2():
    torch.manual_seed(1)
    weight, m, w = nn.Parameter(torch.randn(3, 4)), torch.zeros(3, 4), None
    w = weight.detach().clone()
    lion = Lion([weight], lr=0.1, betas=(0.8, 0.6), weight_decay=0.5)
    for _ in range(4):
        g = torch.randn(3, 4)
        weight.grad = g
        lion.step()
        w = w - 0.1 * ((0.8 * m + 0.2 * g).sign() + 0.5 * w)
        m = 0.6 * m + 0.4 * g
        assert torch.allclose(weight, w, atol=1e-6)


def test_muon_moves_hidden_matrices_by_orthogonal_updates_and_the_others_as_adam():
    torch.manual_seed(1)
    named = [("layer.W", nn.Parameter(torch.randn(6, 10))), ("layer.b", nn.Parameter(torch.randn(7)))]
    named.append(("embedding.weight", nn.Parameter(torch.randn(9, 4))))
    groups = Muon.groups(named)
    assert [[one.shape for one in group["params"]] for group in groups] == [[(6, 10)], [(7,), (9, 4)]]
    muon = Muon(groups, lr=0.01)
    twins = [nn.Parameter(one.detach().clone()) for _, one in named[1:]]
    adam = torch.optim.Adam(twins, lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    for _ in range(3):
        before = named[0][1].detach().clone()
        for _, one in named:
            one.grad = torch.randn_like(one)
        for twin, (_, one) in zip(twins, named[1:], strict=True):
            twin.grad = one.grad.clone()
        muon.step()
        adam.step()
        assert all(torch.allclose(twin, one, atol=1e-6) for twin, (_, one) in zip(twins, named[1:], strict=True))
        update = (before - named[0][1].detach()) / 0.01
        assert update.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.25)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (8, 8)])
def test_newton_schulz_keeps_the_singular_vectors(shape):
    torch.manual_seed(1)
    matrix = torch.randn(shape)
    U, _, Vh = torch.linalg.svd(matrix, full_matrices=False)
    inside = U.mT @ orthogonal(matrix) @ Vh.mT
    assert ((inside.diagonal() - 1).abs() < 0.35).all()
    assert (inside - inside.diagonal().diag()).abs().max() < 1e-3


def test_focal_loss_with_gamma_0_is_cross_entropy_and_counts_sure_tokens_less():
    torch.manual_seed(1)
    logits, target = torch.randn(2, 5, 9), torch.randint(1, 9, (2, 5))
    target[1, 3:] = PAD
    plain = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")
    assert FocalLoss(CONFIG, OPTIM, gamma=0.0)(logits, target).item() == pytest.approx(plain.item(), rel=1e-5)
    p = logits.softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)[target != PAD]
    expected = (-((1 - p) ** 2) * p.log()).sum()
    assert FocalLoss(CONFIG, OPTIM)(logits, target).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("layer", [0, 3])
def test_differential_attention_subtracts_a_second_softmax(layer):
    torch.manual_seed(1)
    attention = DifferentialAttention(CONFIG, Site("encoder", layer))
    Q, K, V = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 5)
    initial = 0.8 - 0.6 * math.exp(-0.3 * layer)
    rate = math.exp((attention.q1 @ attention.k1).item()) - math.exp((attention.q2 @ attention.k2).item()) + initial
    for head in range(2):
        q, k = Q[0, head], K[0, head]
        first = (q[:, :4] @ k[:, :4].T / 2).softmax(-1)
        second = (q[:, 4:] @ k[:, 4:].T / 2).softmax(-1)
        mixed = (first - rate * second) @ V[0, head]
        expected = (1 - initial) * mixed / mixed.square().mean(-1, keepdim=True).sqrt()
        assert torch.allclose(attention(Q, K, V, Mask())[0, head], expected, atol=1e-4)


def test_one_expert_answers_each_token_and_the_balance_is_least_where_all_get_equally_many():
    torch.manual_seed(1)
    layer, x = MixtureOfExperts(CONFIG, "encoder", experts=3, weight=0.1), torch.randn(2, 7, CONFIG.d_model)
    p = layer.router(x).softmax(-1)
    for i in range(2):
        for j in range(7):
            best = int(p[i, j].argmax())
            assert torch.allclose(layer(x)[i, j], p[i, j, best] * layer.experts[best](x[i, j]), atol=1e-5)
    shares = torch.stack([(p.argmax(-1) == e).float().mean() for e in range(3)])
    assert layer.auxiliary["balance"].item() == pytest.approx(0.1 * 3 * (shares @ p.mean((0, 1))).item())
    nn.init.zeros_(layer.router.weight)
    layer(x)
    assert layer.auxiliary["balance"].item() == pytest.approx(0.1)


def test_the_temperature_falls_to_1():
    torch.manual_seed(1)
    attention, plain = AnnealedAttention(CONFIG, "encoder", begin=4.0), ScaledDotProductAttention(CONFIG, "encoder")
    Q, K, V = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 5)
    for step, temperature in ((0, 4.0), (50, 2.0), (100, 1.0)):
        attention.at_step(step, 100)
        assert torch.allclose(attention(Q, K, V, Mask()), plain(Q / temperature, K, V, Mask()), atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Losses that call the model, and what is drawn anew in every epoch


class Says:
    """A model that says what it is told, one answer after another: logits (B, L, V)."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self, source, target):
        return self.answers.pop(0)


def three_answers():
    torch.manual_seed(2)
    target = torch.randint(4, 9, (2, 4))
    target[1, 2:] = PAD
    source = torch.randint(4, 9, (2, 5))
    return Batch(source, source[:, :4], target, 6), [torch.randn(2, 4, 9) for _ in range(3)]


def smoothed(logits, batch):
    """Section 5.4, summed over the tokens one by one."""
    total = 0.0
    for b, t in batch.target_out.nonzero().tolist():
        logprobs = logits[b, t].log_softmax(-1)
        total -= (0.9 * logprobs[batch.target_out[b, t]] + 0.1 * logprobs.mean()).item()
    return total


def test_r_drop_is_equation_4_at_the_scale_of_one_pass():
    batch, (first, second, _) = three_answers()
    divergence = 0.0
    for b, t in batch.target_out.nonzero().tolist():
        p, q = (x[b, t].softmax(-1).tolist() for x in (first, second))
        divergence += sum(a * math.log(a / c) + c * math.log(c / a) for a, c in zip(p, q, strict=True)) / 2
    expected = (smoothed(first, batch) + smoothed(second, batch)) / 2 + 3 / 2 * divergence
    found = RDrop(small_models.small(), OPTIM, alpha=3).of_batch(Says(first, second), batch)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_distillation_learns_the_distribution_of_its_teacher():
    batch, (student, teacher, _) = three_answers()
    taught = 0.0
    for b, t in batch.target_out.nonzero().tolist():
        q, logprobs = teacher[b, t].softmax(-1).tolist(), student[b, t].log_softmax(-1).tolist()
        taught -= sum(a * b for a, b in zip(q, logprobs, strict=True))
    loss = WordDistillation(small_models.small(), OPTIM, teacher=Says(teacher), weight=0.3)
    found = loss.of_batch(Says(student), batch)
    assert found.item() == pytest.approx(0.7 * smoothed(student, batch) + 0.3 * taught, rel=1e-5)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = little_text(tmp_path_factory.mktemp("words"))
    return prepare(Data(path=str(folder), vocab_size=300, batch_tokens=64), folder / "runs")


def stream(of, prepared, **options):
    config = Config(data=Data(batch_tokens=64), optim=Optim(max_steps=40), seed=4)
    return of(prepared.split("train"), prepared.tokenizer, config, 0, 1, **options)


def test_word_dropout_hides_tokens_of_the_decoder_s_input_alone(prepared):
    """About a share p of the words becomes the unknown token; BOS, padding, source and output stay."""
    words = hidden = 0
    for plain, changed in zip(stream(TrainStream, prepared), stream(TargetWordDropout, prepared, p=0.3), strict=True):
        assert torch.equal(plain.source, changed.source) and torch.equal(plain.target_out, changed.target_out)
        assert torch.equal(plain.target_in[:, 0], changed.target_in[:, 0])
        different = plain.target_in != changed.target_in
        assert set(changed.target_in[different].tolist()) == {UNK} and PAD not in plain.target_in[different]
        words += int((plain.target_in[:, 1:] != PAD).sum())
        hidden += int(different.sum())
    assert hidden / words == pytest.approx(0.3, abs=0.03)


def test_without_dropout_byte_pairs_are_merged_as_sentencepiece_merges_them(prepared):
    drawn = stream(BPEDropout, prepared, p=0.0).epoch_split(3)
    for side, expected in zip(drawn, prepared.split("train"), strict=True):
        assert side.flat.tolist() == expected.flat.tolist() and side.offsets.tolist() == expected.offsets.tolist()


def test_bpe_dropout_splits_the_same_sentences_in_other_ways_each_epoch(prepared):
    one, plain = stream(BPEDropout, prepared, p=0.3), prepared.split("train")
    epochs = [one.epoch_split(epoch) for epoch in (0, 1, 0)]
    for drawn in epochs:
        for side, expected in zip(drawn, plain, strict=True):
            texts = [prepared.tokenizer.decode(tokens[i] for i in range(len(tokens))) for tokens in (side, expected)]
            assert texts[0] == texts[1] and len(side.flat) > len(expected.flat)
    flats = [drawn.source.flat.tolist() for drawn in epochs]
    assert flats[0] == flats[2] != flats[1]
    most = stream(BPEDropout, prepared, p=0.999999).epoch_split(0).target
    assert len(most.flat) == sum(len(text) + 1 for text in prepared.tokenizer.decode(most[i] for i in range(len(most))))


@pytest.mark.parametrize("pieces", ["apart", "joined"])
def test_lines_that_are_split_anew_are_cut_anew(tmp_path, pieces):
    """The documents of an epoch are the same lines, each with one EOS. A piece is full unless a document ends in it,
    and one that goes on begins with the token before it where pieces are joined."""
    lines = (little_text(tmp_path) / "train.de").read_text().splitlines()
    documents = [lines[start : start + 4] for start in range(0, len(lines), 4)]
    (tmp_path / "train.de").write_text("\n\n".join("\n".join(document) for document in documents))
    task = "transformer_pl.tasks.language_model.LanguageModel"
    data = Data(task=task, path=str(tmp_path), vocab_size=300, max_length=7, batch_tokens=64, pieces=pieces)
    config, known = Config(data=data, optim=Optim(max_steps=40), seed=4), prepare(data, tmp_path / "runs")
    (split, batches), (plain, _) = (
        of(known.split("train"), known.tokenizer, config)._planned() for of in (BPEDropout, TrainStream)
    )
    assert sorted(np.concatenate(batches)) == list(range(len(split.target))) and len(split.target) > len(plain.target)
    units = documents if pieces == "joined" else [[line] for line in lines]
    place, before = 0, BOS
    for unit in units:
        stream = []
        while stream.count(EOS) < len(unit):
            batch = collate(split, np.array([place]))
            given, out = batch.target_in[0].tolist(), batch.target_out[0].tolist()
            assert given == [before if pieces == "joined" else BOS, *out[:-1]]
            stream, before, place = stream + out, out[-1], place + 1
            assert len(out) == 7 or stream.count(EOS) == len(unit)
        before, ends = BOS, np.flatnonzero(np.array(stream) == EOS)
        assert known.tokenizer.decode([line.tolist()[:-1] for line in np.split(stream, ends[:-1] + 1)]) == unit
        assert ends[-1] == len(stream) - 1
    assert place == len(split.target)


def test_a_curriculum_begins_with_short_sentences(prepared):
    plain, ordered = stream(TrainStream, prepared), stream(LengthCurriculum, prepared, epochs=2)
    split = prepared.split("train")
    for epoch in range(4):
        batches = ordered.epoch_batches(split, epoch)
        longest = [int(split.longer[batch].max()) for batch in batches]
        assert (longest == sorted(longest)) == (epoch < 2)
        assert sorted(map(tuple, batches)) == sorted(map(tuple, plain.epoch_batches(split, epoch)))


def test_rows_of_consecutive_batches_go_on_with_their_documents():
    """Each document comes once before any comes again. Rows stay in their part of a batch, on their rank."""
    rng = np.random.default_rng(2)
    documents = rng.integers(1, 40, 11)
    target = Tokens.of(rng.integers(4, 99, documents.sum()), documents - 1).windows(documents, 6).pieces
    split = Split.of_targets(target)
    begins = target.before == BOS

    def shares(accumulate, world):
        data, trainer = Data(batch_tokens=32, max_length=6), Trainer(accumulate=accumulate)
        config = Config(data=data, trainer=trainer, optim=Optim(max_steps=200), seed=4)
        return [list(ConsecutiveBatches(split, None, config, rank, world)) for rank in range(world)]

    [whole] = shares(1, 1)
    plan = ConsecutiveBatches(split, None, Config(data=Data(batch_tokens=32, max_length=6)), 0, 1)
    plan = np.stack(plan.epoch_batches(split, 0)[:200])
    assert plan.shape == (200, 32 // 6) and len(whole) == 200
    for before, batch in itertools.pairwise(plan):
        assert (begins[batch] | (batch == before + 1)).all() and (
            begins[batch] == begins.take(before + 1, mode="wrap")
        ).all()
    begun = plan[begins[plan]]
    counts = np.unique(begun, return_counts=True)[1]
    assert len(counts) == len(documents) and counts.max() - counts.min() <= 1
    for accumulate, world in ((2, 1), (1, 2), (3, 2)):
        ranks = shares(accumulate, world)
        for step, batch in enumerate(whole):
            parts = [ranks[rank][step * accumulate + part] for part in range(accumulate) for rank in range(world)]
            for number, part in enumerate(parts):
                own = batch.target_in[number :: accumulate * world]
                if len(own):
                    assert part.begins.tolist() == (own[:, 0] == BOS).tolist() and part.tokens == batch.tokens
                    assert torch.equal(part.target_in, own[:, : part.target_in.shape[1]])
