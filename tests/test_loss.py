"""The loss: Section 5.4 by hand, and in chunks what it is of all logits at once."""

import multiprocessing
import resource
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from transformer_pl import kernels, loss
from transformer_pl.data.batches import EOS, PAD
from transformer_pl.loss import negative_log_likelihood, smoothed_loss

GIB = 2**30


def test_smoothing_is_that_of_section_5_4():
    torch.manual_seed(1)
    logits, target = torch.randn(2, 3, 7), torch.tensor([[5, 4, EOS], [6, EOS, PAD]])
    expected = 0.0
    for b, t in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]:
        wanted = torch.full((7,), 0.1 / 7)
        wanted[target[b, t]] += 0.9
        expected -= (wanted * logits[b, t].log_softmax(-1)).sum().item()
    assert smoothed_loss(logits, target, 0.1).item() == pytest.approx(expected, rel=1e-5)
    plain = negative_log_likelihood(logits, target)
    assert plain[1, 2] == 0 and plain.sum().item() == pytest.approx(smoothed_loss(logits, target, 0.0).item(), rel=1e-6)


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
    at_once = min(5, max(1, chunk // 4))
    assert [shape[:2] for shape in embedding.asked[:-1]] == [(at_once, 4)] * (-(-5 // at_once) - 1)
    theirs = loss.smoothed_loss(embedding.logits(x), target, eps_ls) / 7
    torch.testing.assert_close(ours, theirs)
    found, expected = (torch.autograd.grad(x_, [x, embedding.weight]) for x_ in (ours, theirs))
    torch.testing.assert_close(found, expected)
    loss.projected_loss(embedding, x, target, eps_ls).backward()
    assert embedding.unused.grad is None


class SumOfTwo(Embedding):
    def logits(self, x):
        return F.linear(x, self.weight + self.unused)


@pytest.mark.parametrize("chunk", [4, 2048])
def test_two_weights_whose_gradients_are_one_tensor_get_each_their_own(chunk, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK", chunk)
    torch.manual_seed(1)
    embedding, x, target = SumOfTwo(), torch.randn(5, 4, 8), torch.randint(1, 50, (5, 4))
    ours = torch.autograd.grad(loss.projected_loss(embedding, x, target, 0.1), embedding.parameters())
    theirs = torch.autograd.grad(loss.smoothed_loss(embedding.logits(x), target, 0.1), embedding.parameters())
    torch.testing.assert_close(ours, theirs)


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
    assert embedding.asked[0] == (min(5, max(1, chunk // 4)), 4, 8)
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


@pytest.mark.parametrize(("part", "at_once"), [(1, 1), (49, 1), (149, 2), (2**22, 12)])
def test_the_likelihood_is_the_same_in_parts_of_any_size(part, at_once, monkeypatch):
    """Of as many tokens as fit into a part, and of at least one."""
    torch.manual_seed(1)
    logits, target, asked = torch.randn(3, 4, 50), torch.randint(1, 50, (3, 4)), []
    expected = -logits.log_softmax(-1).gather(-1, target[..., None])[..., 0]
    cross_entropy = F.cross_entropy
    monkeypatch.setattr(loss, "PART", part)
    monkeypatch.setattr(
        F, "cross_entropy", lambda x, *y, **named: asked.append(len(x)) or cross_entropy(x, *y, **named)
    )
    torch.testing.assert_close(negative_log_likelihood(logits, target), expected)
    assert sum(asked) == 12 and asked[0] == at_once
