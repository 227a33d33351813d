"""Optimizers, a loss, and components that know their layer or the step, against what their sources say."""

import math

import pytest
import small_models
import torch
import torch.nn.functional as F
from torch import nn

from ablations.annealed_attention import AnnealedAttention
from ablations.differential_attention import DifferentialAttention
from ablations.focal_loss import FocalLoss
from ablations.lion import Lion
from ablations.mixture_of_experts import MixtureOfExperts
from ablations.muon import Muon, orthogonal
from transformer_pl.config import PAD, Config, Site
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
