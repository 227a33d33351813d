"""The faster forms of softmax, dropout and loss, against torch's own."""

import multiprocessing
import resource
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from transformer_pl import kernels, loss
from transformer_pl.data.tokenizer import PAD
from transformer_pl.kernels import VECTOR, Dropout, softmax

LENGTHS = [1, 2, VECTOR - 1, VECTOR, VECTOR + 1, 40]
GIB = 2**30


def masked(queries=5, keys=9):
    """Scores with a wide spread, and a mask; one query may see nothing."""
    torch.manual_seed(1)
    scores = (30 * torch.randn(2, 3, queries, keys)).requires_grad_()
    seen = torch.rand(2, 1, queries, keys) < 0.6
    seen[0, 0, 1], seen[:, :, 2:, 0] = False, True
    return scores, seen


def torchs_softmax(scores, seen):
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)


@pytest.mark.parametrize("keys", LENGTHS)
def test_softmax_and_its_gradient_are_torch_s(keys):
    scores, seen = masked(keys=keys)
    ours, theirs = softmax(scores, seen), torchs_softmax(scores, seen)
    torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-5)
    assert (ours[~seen.expand_as(ours)] == 0).all() and (ours[0, :, 1] == 0).all()
    wanted = torch.randn_like(ours)
    found, expected = (torch.autograd.grad(x, scores, wanted)[0] for x in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("keys", LENGTHS)
def test_a_hidden_score_changes_nothing_whatever_it_is(keys):
    scores, seen = masked(keys=keys)
    with torch.no_grad():
        expected = softmax(scores, seen)
        assert torch.equal(softmax(scores.masked_fill(~seen, 1e30), seen), expected)


@pytest.mark.parametrize("keys", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_softmax_of_half_precision_is_computed_in_float32(keys, dtype):
    scores, seen = masked(keys=keys)
    half = scores.detach().to(dtype)
    found = softmax(half, seen)
    assert found.dtype == dtype and torch.equal(found, softmax(half.float(), seen).to(dtype))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.3])
def test_dropout_drops_at_its_rate_and_scales_what_it_keeps(p):
    torch.manual_seed(1)
    x = torch.ones(1001, 999, requires_grad=True)  # no multiple of four
    y = Dropout(p)(x)
    dropped = (y == 0).double().mean().item()
    assert dropped == pytest.approx(p, abs=5 * (p * (1 - p) / x.numel()) ** 0.5 + 2**-17)
    assert y[y != 0].unique().item() == pytest.approx(1 / (1 - p), rel=1e-4)
    assert y.double().mean().item() == pytest.approx(1, abs=5 * (p / (1 - p) / x.numel()) ** 0.5)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()), "the backward pass has the same mask"


def test_dropout_s_masks_are_independent_in_place_and_in_time():
    """Neighbours come from one draw of 64 bits. No two places, and no two calls, agree more often than by chance."""
    torch.manual_seed(2)
    dropout = Dropout(0.5)
    first, second = ((dropout(torch.ones(1000, 1000)) > 0).double() - 0.5 for _ in range(2))
    flat = first.flatten()
    for distance in (1, 2, 3, 4, 8):
        assert abs((flat[distance:] * flat[:-distance]).mean().item()) < 0.25 * 5 / 1000
    assert abs((first * second).mean().item()) < 0.25 * 5 / 1000


def test_dropout_comes_from_torch_s_generator():
    torch.manual_seed(3)
    x, dropout = torch.randn(7, 5), Dropout(0.5)
    state = torch.get_rng_state()
    first, second = dropout(x), dropout(x)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_without_effect(dtype):
    x = torch.randn(3, 5).to(dtype)
    assert torch.equal(Dropout(0.5).eval()(x), x) and torch.equal(Dropout(0.0)(x), x)
    assert (Dropout(1.0)(x) == 0).all() and Dropout(0.5)(x).dtype == dtype


class Embedding(nn.Module):
    """Logits by one weight; the other one is not used."""

    def __init__(self, vocabulary=50, d_model=8):
        super().__init__()
        self.weight, self.unused = (nn.Parameter(torch.randn(vocabulary, d_model)) for _ in range(2))
        self.asked = []

    def logits(self, x):
        self.asked.append(tuple(x.shape))
        return F.linear(x, self.weight)


@pytest.mark.parametrize("eps_ls", [0.0, 0.1])
@pytest.mark.parametrize(("chunk", "block"), [(1, 1), (8, 200), (2048, 2**18)])
def test_the_projected_loss_is_the_smoothed_loss(eps_ls, chunk, block, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", chunk)
    monkeypatch.setattr(kernels, "CACHED", block)
    torch.manual_seed(1)
    embedding, x, target = Embedding(), torch.randn(5, 4, 8, requires_grad=True), torch.randint(1, 50, (5, 4))
    target[1, 2:] = target[4] = PAD
    ours = loss.projected_loss(embedding, x, target, eps_ls) / 7
    assert all(sentences * length <= max(chunk, 4) and length == 4 for sentences, length, _ in embedding.asked)
    theirs = loss.smoothed_loss(embedding.logits(x), target, eps_ls) / 7
    torch.testing.assert_close(ours, theirs)
    found, expected = (torch.autograd.grad(x_, [x, embedding.weight]) for x_ in (ours, theirs))
    torch.testing.assert_close(found, expected)
    loss.projected_loss(embedding, x, target, eps_ls).backward()
    assert embedding.unused.grad is None


def test_the_projected_loss_of_bfloat16_is_close():
    torch.manual_seed(1)
    embedding, x, target = Embedding(), torch.randn(5, 4, 8, requires_grad=True), torch.randint(1, 50, (5, 4))
    expected = torch.autograd.grad(loss.projected_loss(embedding, x, target, 0.1), [x, embedding.weight])
    with torch.autocast("cpu", torch.bfloat16):
        low = loss.projected_loss(embedding, x, target, 0.1)
    for found, exact in zip(torch.autograd.grad(low, [x, embedding.weight]), expected, strict=True):
        assert found.dtype == torch.float32 and torch.allclose(found, exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("chunk", [1, 8, 2048])
def test_the_projected_likelihood_is_that_of_all_logits(chunk, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", chunk)
    torch.manual_seed(1)
    embedding, x, target = Embedding(), torch.randn(5, 4, 8), torch.randint(1, 50, (5, 4))
    target[1, 2:] = target[4] = PAD
    found = loss.projected_likelihood(embedding, x, target)
    assert all(sentences * length <= max(chunk, 4) and length == 4 for sentences, length, _ in embedding.asked)
    torch.testing.assert_close(found, loss.negative_log_likelihood(embedding.logits(x), target))


def training(x, target):
    loss.projected_loss(Embedding(37_000, 4), x, target, 0.1).backward()


def validation(x, target):
    with torch.no_grad():
        loss.projected_likelihood(Embedding(37_000, 4), x, target)


@pytest.mark.parametrize("step", [training, validation])
def test_the_logits_of_a_large_batch_never_exist_at_once(step):
    """37,000 subwords and 12,000 tokens: logits and their gradient would take 3.3 GiB, and the process may take 1.5."""

    def train():
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 3 * GIB // 2,) * 2)
        step(torch.zeros(300, 40, 4, requires_grad=True), torch.ones(300, 40, dtype=torch.int64))

    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
    assert process.exitcode == 0
