"""The loss: Section 5.4 by hand, and in chunks what it is of all logits at once."""

import multiprocessing
import resource
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rounds import torch_loss
from torch import nn

from transformer_pl.data.batches import PAD
from transformer_pl.model import kernels, loss
from transformer_pl.model.loss import negative_log_likelihood, smoothed_loss

pytestmark = pytest.mark.core
GIB = 2**30


class Embedding(nn.Module):
    """Logits by one weight; the other one is not used."""

    def __init__(self, vocabulary=50, d_model=8):
        super().__init__()
        self.weight, self.unused = (nn.Parameter(torch.randn(vocabulary, d_model)) for _ in range(2))

    def logits(self, x):
        return F.linear(x, self.weight)


def batch(vocabulary=50):
    """States (5, 4, 8) and their targets, some of them padding."""
    torch.manual_seed(1)
    embedding, x, target = Embedding(vocabulary), torch.randn(5, 4, 8, requires_grad=True), torch.randint(1, 50, (5, 4))
    target[1, 2:] = target[4] = PAD
    return embedding, x, target


def test_smoothing_is_that_of_section_5_4():
    embedding, x, target = batch()
    expected = 0.0
    for b, t in target.nonzero().tolist():
        wanted = torch.full((50,), 0.1 / 50)
        wanted[target[b, t]] += 0.9
        expected -= (wanted * embedding.logits(x[b, t]).log_softmax(-1)).sum().item()
    assert smoothed_loss(embedding, x, target, 0.1).item() == pytest.approx(expected, rel=1e-5)
    plain = negative_log_likelihood(embedding, x, target)
    assert not plain[4].any() and not plain[1, 2:].any()
    assert plain.sum().item() == pytest.approx(smoothed_loss(embedding, x, target, 0.0).item(), rel=1e-6)


@pytest.mark.parametrize("eps_ls", [0.0, 0.1])
@pytest.mark.parametrize(("chunk", "block"), [(1, 1), (8, 200), (2048, 2**18)])
def test_the_loss_and_its_gradients_are_torch_s_in_chunks_of_any_size(eps_ls, chunk, block, monkeypatch):
    monkeypatch.setattr(loss, "TOKENS_AT_ONCE", chunk)
    monkeypatch.setattr(kernels, "CACHED", block)
    embedding, x, target = batch()
    ours = smoothed_loss(embedding, x, target, eps_ls) / 7
    theirs = torch_loss(embedding.logits(x), target, eps_ls) / 7
    torch.testing.assert_close(ours, theirs)
    found, expected = (torch.autograd.grad(x_, [x, embedding.weight]) for x_ in (ours, theirs))
    torch.testing.assert_close(found, expected)
    smoothed_loss(embedding, x, target, eps_ls).backward()
    assert embedding.unused.grad is None


class SumOfTwo(Embedding):
    def logits(self, x):
        return F.linear(x, self.weight + self.unused)


@pytest.mark.parametrize("chunk", [4, 2048])
def test_two_weights_whose_gradients_are_one_tensor_get_each_their_own(chunk, monkeypatch):
    monkeypatch.setattr(loss, "TOKENS_AT_ONCE", chunk)
    _, x, target = batch()
    embedding = SumOfTwo()
    ours = torch.autograd.grad(smoothed_loss(embedding, x, target, 0.1), embedding.parameters())
    theirs = torch.autograd.grad(torch_loss(embedding.logits(x), target, 0.1), embedding.parameters())
    torch.testing.assert_close(ours, theirs)


def test_the_loss_of_bfloat16_is_close():
    embedding, x, target = batch()
    expected = torch.autograd.grad(smoothed_loss(embedding, x, target, 0.1), [x, embedding.weight])
    with torch.autocast("cpu", torch.bfloat16):
        low = smoothed_loss(embedding, x, target, 0.1)
    for found, exact in zip(torch.autograd.grad(low, [x, embedding.weight]), expected, strict=True):
        assert found.dtype == torch.float32 and torch.allclose(found, exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(("chunk", "part"), [(1, 1), (8, 149), (2048, 2**22)])
def test_the_likelihood_is_that_of_all_logits_in_chunks_of_any_size(chunk, part, monkeypatch):
    monkeypatch.setattr(loss, "TOKENS_AT_ONCE", chunk)
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", part)
    embedding, x, target = batch()
    found = negative_log_likelihood(embedding, x, target)
    expected = -embedding.logits(x).log_softmax(-1).gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(found, expected * (target != PAD))


def training(x, target):
    smoothed_loss(Embedding(37_000, 4), x, target, 0.1).backward()


def validation(x, target):
    with torch.no_grad():
        negative_log_likelihood(Embedding(37_000, 4), x, target)


@pytest.mark.parametrize("step", [training, validation])
def test_the_logits_of_a_large_batch_never_exist_at_once(step):
    """37,000 subwords and 6,000 tokens: logits and their gradient would take 1.7 GiB, and the process may take 1.5."""

    def train():
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 3 * GIB // 2,) * 2)
        step(torch.zeros(150, 40, 4, requires_grad=True), torch.ones(150, 40, dtype=torch.int64))

    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
    assert process.exitcode == 0
