"""The properties of every model, whatever its components. Each function builds a model and asserts one property."""

import torch
from torch import nn

from transformer_pl.components import build
from transformer_pl.config import Sizes, sizes
from transformer_pl.data.batches import PAD
from transformer_pl.evaluation.evaluate import CachedSteps
from transformer_pl.levels import Level, resolve
from transformer_pl.model import Mask, Transformer

SMALL = {"model.N": 2, "model.d_model": 24, "model.d_ff": 40, "model.h": 4, "model.p_drop": 0.0}
VOCABULARY = 31


def small(keys=None, vocab_size=VOCABULARY) -> Sizes:
    """Small sizes, all different from each other, with `keys` on top of them."""
    return sizes(resolve([Level("small", SMALL), Level("test", keys or {})]).model, vocab_size)


def batch(vocab_size=VOCABULARY):
    """Source (3, 7) and target (3, 6), one sentence of each padded."""
    torch.manual_seed(5)
    source, target = torch.randint(4, vocab_size, (3, 7)), torch.randint(4, vocab_size, (3, 6))
    source[1, 5:] = target[2, 3:] = PAD
    return source, target


def built(config: Sizes) -> Transformer:
    torch.manual_seed(6)
    return Transformer(config)


@torch.no_grad()
def logits_have_their_shape(config):
    model, (source, target) = built(config).eval(), batch()
    assert model(source, target).shape == (3, 6, VOCABULARY)
    assert model(source[:1, :1], target[:1, :1]).shape == (1, 1, VOCABULARY)


@torch.no_grad()
def the_future_is_hidden(config):
    """A later target token changes no earlier logits, but it changes its own."""
    model, (source, target) = built(config).eval(), batch()
    before = model(source, target)
    changed = target.clone()
    changed[:2, 4] = 30  # the third sentence ends before position 4
    after = model(source, changed)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert not torch.allclose(before[:2, 4:], after[:2, 4:], atol=1e-3)


@torch.no_grad()
def padding_changes_nothing(config):
    """More padding, or none, leaves the logits at tokens as they are."""
    model, (source, target) = built(config).eval(), batch()
    real = target != PAD
    padded = model(nn.functional.pad(source, (0, 4), value=PAD), nn.functional.pad(target, (0, 3), value=PAD))
    assert torch.allclose(model(source, target)[real], padded[:, :6][real], atol=1e-5)
    alone = model(source[1:2, :5], target[1:2])
    assert torch.allclose(model(source, target)[1], alone[0], atol=1e-5)


def every_weight_gets_a_gradient(config):
    """The gradient of every parameter is finite, and not zero everywhere."""
    model, (source, target) = built(config), batch()
    model(source, target).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@torch.no_grad()
def decoding_step_by_step_equals_decoding_at_once(config):
    """Decoding step by step gives the log-probabilities of decoding at once.

    With a cache, and with the prefix recomputed. Each sentence has two hypotheses, which change places at every step.
    At step 3 one sentence is done; at step 5 both hypotheses of a sentence continue the same one.
    """
    model, (source, target) = built(config).eval(), batch()
    target = target.clamp(min=4)
    target = torch.stack([target, target.flip(1)], 1).flatten(0, 1)
    expected = model(source.repeat_interleave(2, 0), target).log_softmax(-1)
    for incremental in (model.incremental, False):
        model.embedding.incremental = incremental
        step, hypotheses = CachedSteps(model, source, beam=2), torch.arange(6)
        for t in range(target.shape[1]):
            pairs = torch.arange(len(hypotheses)).view(-1, 2)[int(t == 3) :].flip(1)
            origin = (pairs[:, :1].expand(-1, 2) if t == 5 else pairs).flatten()
            hypotheses = hypotheses[origin]
            log_probabilities = step(target[hypotheses, : t + 1], origin)
            assert torch.allclose(log_probabilities, expected[hypotheses, t], atol=1e-5)


@torch.no_grad()
def bfloat16_is_close(config):
    """In bfloat16 a component may take another path through its code, but the result must be close."""
    model, (source, target) = built(config).eval(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(source, target).float()
    assert (rounded - model(source, target)).abs().max() < 0.15  # of logits with a standard deviation of 1


@torch.no_grad()
def weights_are_what_attention_computes(config):
    """The output is the sum of the values by `weights`. Weights sum to 1, or to 0 where a query may see nothing."""
    torch.manual_seed(7)
    Q, K = torch.randn(2, config.h, 6, config.d_k), torch.randn(2, config.h, 6, config.d_k)
    V, other = torch.randn(2, 2, config.h, 6, config.d_v)
    keys = torch.tensor([[True] * 6, [False] * 2 + [True] * 2 + [False] * 2])
    for site, causal in (("encoder", False), ("decoder", True), ("cross", False)):
        attention, mask = build(config.attention, config, site), Mask(keys, causal)
        if hasattr(attention, "weights"):
            weights = attention.weights(Q, K, mask)
            difference = attention(Q, K, V, mask) - attention(Q, K, other, mask)
            assert torch.allclose(difference, weights @ (V - other), atol=1e-5)
            blind = mask.dense(Q, K).any(-1, keepdim=True) == 0
            total = weights.sum(-1)
            assert torch.allclose(total[0], torch.tensor(1.0), atol=1e-5)
            assert (total[1].isclose(torch.tensor(1.0), atol=1e-5) | (total[1] == 0)).all()
            assert not weights.masked_select(blind).any()


INVARIANTS = (
    weights_are_what_attention_computes,
    bfloat16_is_close,
    logits_have_their_shape,
    the_future_is_hidden,
    padding_changes_nothing,
    every_weight_gets_a_gradient,
    decoding_step_by_step_equals_decoding_at_once,
)
