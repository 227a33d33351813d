"""The model against torch's own layers with copied weights, and against the equations of Section 3."""

import math

import pytest
import small_models
import torch
from torch import nn

from transformer_pl.data.batches import PAD
from transformer_pl.model import (
    Mask,
    MultiHeadSelfAttention,
    ScaledDotProductAttention,
    SinusoidalPosition,
    Transformer,
)
from transformer_pl.model.kernels import VECTOR
from transformer_pl.train.evaluate import attention_maps

pytestmark = pytest.mark.core
POST_NORM, PRE_NORM = "transformer_pl.model.PostNormResidual", "ablations.pre_norm.PreNormResidual"
KEYS = [VECTOR - 9, VECTOR + 5]  # fewer and more than a CPU's fused kernel takes
every_residual = pytest.mark.parametrize("residual", [POST_NORM, PRE_NORM], ids=["post-norm", "pre-norm"])


def small(**keys):
    return small_models.small({key.replace("__", "."): value for key, value in keys.items()})


def copy_attention(ours, theirs):
    theirs.in_proj_weight.copy_(torch.cat([ours.W_Q.weight, ours.W_K.weight, ours.W_V.weight]))
    theirs.out_proj.weight.copy_(ours.W_O.weight)
    theirs.in_proj_bias.zero_()
    theirs.out_proj.bias.zero_()


def copy_rest(ours, theirs):
    for name, linear in (("W_1", theirs.linear1), ("W_2", theirs.linear2)):
        linear.weight.copy_(getattr(ours.ffn, name).weight)
        linear.bias.copy_(getattr(ours.ffn, name).bias)
    for i, residual in enumerate(ours.residual):
        getattr(theirs, f"norm{i + 1}").weight.copy_(residual.norm.weight)
        getattr(theirs, f"norm{i + 1}").bias.copy_(residual.norm.bias)


def randomize(module):
    """Norms and biases too: with their ones and zeros, a forgotten one would not show."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.1)


@every_residual
@torch.no_grad()
def test_the_model_equals_torch(residual):
    """Also with the norm before each sub-layer, and one after the last layer of either stack."""
    ours = small_models.built(small(model__residual=residual)).eval()
    randomize(ours)
    options = {"batch_first": True, "layer_norm_eps": 1e-6, "norm_first": residual == PRE_NORM}
    layer = nn.TransformerEncoderLayer(24, 4, 40, 0.0, **options)
    encoder = nn.TransformerEncoder(layer, 2, ours.encoder_norm, enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(24, 4, 40, 0.0, **options), 2, ours.decoder_norm)
    for stack, copy in ((ours.encoder, encoder), (ours.decoder, decoder)):
        for layer, theirs in zip(stack, copy.layers, strict=True):
            copy_attention(layer.self_attention, theirs.self_attn)
            copy_rest(layer, theirs)
            if stack is ours.decoder:
                copy_attention(layer.cross_attention, theirs.multihead_attn)
    for norm in (ours.encoder_norm, ours.decoder_norm):
        assert isinstance(norm, nn.LayerNorm) == options["norm_first"]

    source, target = small_models.batch()
    position = SinusoidalPosition.encoding(0, 7, 24)
    x, y = (ours.embedding.weight[ids] * math.sqrt(24) + position[: ids.shape[1]] for ids in (source, target))
    causal = ~torch.ones(6, 6, dtype=torch.bool).tril()
    memory = encoder(x, src_key_padding_mask=source == PAD)
    out = decoder(y, memory, causal, None, target == PAD, source == PAD)
    expected = out @ ours.embedding.weight.T
    assert torch.allclose(ours(source, target)[target != PAD], expected[target != PAD], atol=1e-3, rtol=1e-4)


@every_residual
@torch.no_grad()
def test_a_decoder_alone_equals_torch(residual):
    """Without an encoder a layer has two sub-layers, as torch's encoder layers; the future is hidden.

    It reads a source, up to its last token, before the target. The source of a language model has one token or none.
    """
    ours = small_models.built(small(model__residual=residual, model__N_encoder=0)).eval()
    randomize(ours)
    options = {"batch_first": True, "layer_norm_eps": 1e-6, "norm_first": residual == PRE_NORM}
    layer = nn.TransformerEncoderLayer(24, 4, 40, 0.0, **options)
    theirs = nn.TransformerEncoder(layer, 2, ours.decoder_norm, enable_nested_tensor=False)
    for layer, copy in zip(ours.decoder, theirs.layers, strict=True):
        copy_attention(layer.self_attention, copy.self_attn)
        copy_rest(layer, copy)
    source, target = small_models.batch()
    for sources in (source, target[:, :1], target[:, :0]):
        found = ours(sources, target)
        for row, of_source, of_target in zip(found, sources, target, strict=True):
            ids = torch.cat([of_source[of_source != PAD][:-1], of_target[of_target != PAD]])[None]
            L, Lt = ids.shape[1], int((of_target != PAD).sum())
            x = ours.embedding.weight[ids] * math.sqrt(24) + SinusoidalPosition.encoding(0, L, 24)
            expected = theirs(x, ~torch.ones(L, L, dtype=torch.bool).tril()) @ ours.embedding.weight.T
            assert torch.allclose(row[:Lt], expected[0, -Lt:], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("N", "depth", "layers"), [(6, 0.5, 3), (4, 1, 4)])
def test_no_encoder_stays_none_at_every_depth(N, depth, layers):
    config = small(model__N=N, model__N_encoder=0, model__depth=depth)
    model = small_models.built(config)
    assert (config.N_encoder, config.N_decoder) == (0, layers)
    assert len(model.encoder) == 0 and len(model.decoder) == layers
    names = {name for name, _ in model.named_parameters()}
    assert not any("cross" in name or "encoder" in name for name in names)
    cost = small_models.forward_cost(config, 1, 1, 9)
    assert cost.params == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("Lk", KEYS)
@torch.no_grad()
def test_attention_is_equation_1_by_either_kernel(Lk):
    torch.manual_seed(3)
    attention = ScaledDotProductAttention(small(), "encoder")
    Q, K, V = torch.randn(2, 4, 5, 6), torch.randn(2, 4, Lk, 6), torch.randn(2, 4, Lk, 3)
    keys = torch.arange(Lk) < torch.tensor([[Lk], [4]])
    seen = keys[:, None, None, :].expand(2, 4, 5, Lk)
    scores = torch.einsum("bhqd,bhkd->bhqk", Q, K) / math.sqrt(6)
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ V
    assert torch.allclose(attention(Q, K, V, Mask(keys)), expected, atol=1e-6)
    written_out = attention.weights(Q, K, Mask(keys)) @ V  # what a CPU runs in bfloat16
    assert torch.allclose(written_out, expected, atol=1e-6)
    low = attention(Q.bfloat16(), K.bfloat16(), V.bfloat16(), Mask(keys))
    assert low.dtype == torch.bfloat16 and torch.allclose(low.float(), expected, atol=0.03)


@pytest.mark.parametrize(("queries", "causal"), [(150, True), (1, True), (150, False), (2, True)])
def test_attention_is_equation_1_in_every_place_of_a_sequence(queries, causal):
    """The last queries of 150 positions. At these lengths a CPU has a fused kernel, which needs no mask for some."""
    torch.manual_seed(3)
    attention, mask = ScaledDotProductAttention(small(), "decoder"), Mask(causal=causal)
    Q, K, V = torch.randn(2, 4, queries, 6), torch.randn(2, 4, 150, 6), torch.randn(2, 4, 150, 6)
    expected = attention.weights(Q, K, Mask(causal=causal), 150 - queries) @ V
    assert torch.allclose(attention(Q, K, V, mask, 150 - queries), expected, atol=1e-6)


@pytest.mark.parametrize("L", KEYS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_query_that_may_see_nothing_yields_zeros_and_clean_gradients(L, causal, dtype):
    torch.manual_seed(4)
    Q, K, V = (torch.randn(2, 4, L, 6, dtype=dtype, requires_grad=True) for _ in range(3))
    keys = torch.tensor([[True] * L, [False] * L])
    out = ScaledDotProductAttention(small(), "encoder")(Q, K, V, Mask(keys, causal))
    assert out[1].eq(0).all() and out[0].ne(0).all()
    out.sum().backward()
    assert all(x.grad.isfinite().all() and x.grad[1].eq(0).all() for x in (Q, K, V))


def test_sinusoids_are_those_of_section_3_5():
    table = SinusoidalPosition.encoding(0, 40, 24)
    for pos, i in [(0, 0), (1, 0), (7, 3), (39, 11)]:
        angle = pos / 10000 ** (2 * i / 24)
        assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)
    position = SinusoidalPosition(small(), "encoder")
    x = torch.zeros(1, 3, 24)
    assert torch.equal(position(x, 600)[0], SinusoidalPosition.encoding(600, 603, 24))  # beyond the table it began with


@torch.no_grad()
def test_a_sequence_begins_at_position_0_where_nothing_else_is_said():
    """With each function that takes a start: the first position then sees itself alone."""
    torch.manual_seed(7)
    attention, x, mask = MultiHeadSelfAttention(small(), "decoder"), torch.randn(1, 3, 24), Mask(causal=True)
    K, V = attention.keys_values(x)
    assert torch.equal(Mask(causal=True).dense(K, K)[0, 0], torch.ones(3, 3, dtype=torch.bool).tril())
    assert not attention.attention.weights(K, K, mask).triu(1).any()
    expected = attention.attend(x, K, V, mask, 0)
    assert torch.equal(attention.attend(x, K, V, mask), expected) and torch.equal(attention(x, mask), expected)
    scores = attention.attention.weights(K, K, mask, 0)
    assert torch.allclose(attention.attention(K, K, V, mask), scores @ V, atol=1e-6)
    position = SinusoidalPosition(small(), "encoder")
    assert torch.equal(position(x), position(x, 0))


def test_one_matrix_embeds_both_sides_and_projects():
    model = Transformer(small())
    assert [name for name, p in model.named_parameters() if 31 in p.shape] == ["embedding.weight"]
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()  # positions are no weights
    ids = torch.tensor([[5, 9]])
    assert torch.allclose(model.embedding.embed(ids, "encoder"), model.embedding.weight[ids] * math.sqrt(24))
    x = torch.randn(1, 2, 24)
    assert torch.allclose(model.embedding.logits(x), x @ model.embedding.weight.T)


def test_dropout_stands_where_section_5_4_puts_it():
    """On the output of every sub-layer and on the sums of embeddings and positions, and nowhere else."""
    model = Transformer(small(model__p_drop=0.3))
    found = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    layers = {f"encoder.{n}.residual.{i}.dropout" for n in range(2) for i in range(2)}
    layers |= {f"decoder.{n}.residual.{i}.dropout" for n in range(2) for i in range(3)}
    assert found == dict.fromkeys(layers | {"dropout"}, 0.3)


@every_residual
@torch.no_grad()
def test_every_dropout_is_used_and_there_is_no_other(residual):
    """In training, with all of them off, the model is as in evaluation; with any one of them on, it is not."""
    model, batch = small_models.built(small(model__residual=residual)), small_models.batch()
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    expected = model.eval()(*batch)
    model.train()
    assert torch.allclose(model(*batch), expected, atol=1e-6)
    for dropout in dropouts:
        dropout.p = 0.3
        assert not torch.allclose(model(*batch), expected, atol=1e-2)
        dropout.p = 0.0


def test_attention_maps_are_distributions_over_visible_keys():
    """One map per layer and site, of all heads: its rows sum to 1, and padding and the future get nothing."""
    model, (source, target) = small_models.built(small_models.small()), small_models.batch()
    maps = attention_maps(model, source, target)
    assert {site: [tuple(one.shape) for one in layers] for site, layers in maps.items()} == {
        "encoder": [(3, 4, 7, 7)] * 2,
        "decoder": [(3, 4, 6, 6)] * 2,
        "cross": [(3, 4, 6, 7)] * 2,
    }
    for layers in maps.values():
        for layer in layers:
            assert torch.allclose(layer.sum(-1), torch.tensor(1.0))
    assert not maps["decoder"][0].triu(1).any()
    assert not maps["cross"][1][1, :, :, 5:].any() and not maps["encoder"][1][1, :, :, 5:].any()
