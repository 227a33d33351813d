"""The faster forms of small products, softmax and dropout, against torch's own."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transformer_pl.model.kernels import SAFE, VECTOR, Dropout, product, softmax

pytestmark = pytest.mark.core
LENGTHS = [1, 2, VECTOR - 1, VECTOR, VECTOR + 1, 40]
SPREADS = [1, 100]  # of scores: as usual, and so wide that some exponentials would overflow
SHAPES = [(11, 2, 11), (11, 11, 2), (7, 8, 7), (4, 8, 11), (1, 8, 11), (12, 16, 5), (3, 3, 3), (11, 64, 11)]  # n, k, m


@pytest.mark.parametrize("n, k, m", SHAPES)
def test_a_product_and_its_gradients_are_torch_s(n, k, m):
    torch.manual_seed(1)
    A = torch.randn(3, n, 2, k).transpose(1, 2).requires_grad_()  # as heads lie in memory
    B = torch.randn(3, m, 2, k).transpose(1, 2).mT.requires_grad_()
    ours, theirs = product(A, B), (A.double() @ B.double()).float()
    assert ours.shape == (3, 2, n, m)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    wanted = torch.randn_like(ours)
    found, expected = (torch.autograd.grad(x, (A, B), wanted) for x in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_zeros_of_a_product_are_no_flops_of_the_model():
    for n, k, m in SHAPES:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            product(torch.empty(6, n, k), torch.empty(6, k, m))
        assert counter.get_total_flops() == 6 * 2 * n * k * m, (n, k, m)


def masked(queries=5, keys=9, spread=SPREADS[1]):
    """Scores, and a mask; one query may see nothing."""
    torch.manual_seed(1)
    scores = (spread * torch.randn(2, 3, queries, keys)).requires_grad_()
    assert (scores.abs().max() > SAFE) == (spread > 1)
    seen = torch.rand(2, 1, queries, keys) < 0.6
    seen[0, 0, 1], seen[:, :, 2:, 0] = False, True
    return scores, seen


def torchs_softmax(scores, seen):
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("keys", LENGTHS)
def test_softmax_and_its_gradient_are_torch_s(keys, spread):
    scores, seen = masked(keys=keys, spread=spread)
    ours, theirs = softmax(scores, seen), torchs_softmax(scores, seen)
    torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-5)
    assert (ours[~seen.expand_as(ours)] == 0).all() and (ours[0, :, 1] == 0).all()
    wanted = torch.randn_like(ours)
    found, expected = (torch.autograd.grad(x, scores, wanted)[0] for x in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("spread, hidden", [(SPREADS[0], SAFE - 1), (SPREADS[0], 1 - SAFE), (SPREADS[1], 1e30)])
def test_a_hidden_score_changes_nothing_whatever_it_is(spread, hidden):
    for keys in LENGTHS:
        scores, seen = masked(keys=keys, spread=spread)
        with torch.no_grad():
            expected = softmax(scores, seen)
            assert torch.equal(softmax(scores.masked_fill(~seen, hidden), seen), expected), keys


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_softmax_of_half_precision_is_computed_in_float32(dtype):
    for keys in LENGTHS:
        scores, seen = masked(keys=keys)
        half = scores.detach().to(dtype)
        found = softmax(half, seen)
        assert found.dtype == dtype and torch.equal(found, softmax(half.float(), seen).to(dtype)), keys


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
