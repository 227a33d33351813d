"""Every departure against the equation of its source, written out once more: with loops, or by torch's own layers."""

import cmath
import math

import numpy as np
import pytest
import small_models
import torch
import torch.nn.functional as F
from torch import nn

from ablations.activation_ffn import ActivationFeedForward
from ablations.additive_attention import AdditiveAttention
from ablations.alibi import Alibi
from ablations.attention_biases import AttentionBiases
from ablations.attention_dropout import AttentionDropout
from ablations.convolutional_layer import ConvolutionalLayer
from ablations.gated_ffn import GatedFeedForward
from ablations.grouped_query_attention import GroupedQueryCrossAttention
from ablations.int8_weights import Int8Weights
from ablations.joint_initialisation import JointInitialisation
from ablations.learned_position import LearnedPosition
from ablations.linear_attention import LinearAttention
from ablations.local_attention import LocalAttention
from ablations.norm_epsilon import NormEpsilon
from ablations.pre_norm import PreNormResidual
from ablations.qk_norm_attention import QKNormAttention
from ablations.recurrent_layer import RecurrentLayer
from ablations.relative_attention import RelativeAttention
from ablations.removed_heads import RemovedHeads
from ablations.rms_norm import RMSNormResidual
from ablations.rotary_attention import RotaryAttention
from ablations.sandwich_norm import SandwichNormResidual
from ablations.sigmoid_attention import SigmoidAttention
from ablations.sines_then_cosines import SinesThenCosines
from ablations.task_vector import TaskVector
from ablations.unscaled_attention import UnscaledAttention
from ablations.untied_embedding import UntiedEmbedding
from ablations.zero_first_input import ZeroFirstInput
from transformer_pl.data.tokenizer import BOS
from transformer_pl.model import CrossAttention, Mask, ScaledDotProductAttention, SharedEmbedding
from transformer_pl.runtime.errors import InputError

CONFIG = small_models.small({"model.h": 2, "model.d_k": 7, "model.d_v": 5})
H, D_K, D_V = CONFIG.h, CONFIG.d_k, CONFIG.d_v


def dot(q, k, i, j, part, head):
    return q @ k / math.sqrt(D_K)


def unscaled(q, k, i, j, part, head):
    return q @ k


def biased(q, k, i, j, part, head):
    return (q + part.b_Q[head, 0].detach().numpy()) @ k / math.sqrt(D_K)


def additive(q, k, i, j, part, head):
    """Bahdanau et al. 2015, appendix A.1.2."""
    return sum(v * math.tanh(a + b) for v, a, b in zip(part.v[head].tolist(), q, k, strict=True))


def rotary(q, k, i, j, part, head):
    """Su et al. 2021, equation (12): pairs of numbers as complex ones, turned by the distance."""
    total = sum(
        (complex(*q[2 * m : 2 * m + 2]) * complex(*k[2 * m : 2 * m + 2]).conjugate()
         * cmath.exp(1j * (i - j) * 10000 ** (-2 * m / D_K))).real
        for m in range(D_K // 2)
    )  # fmt: skip
    return (total + q[-1] * k[-1]) / math.sqrt(D_K)  # of an odd d_k the last is alone


def relative(q, k, i, j, part, head):
    """Shaw et al. 2018, equation (4)."""
    return q @ (k + part.a_K[np.clip(j - i, -2, 2) + 2].detach().numpy()) / math.sqrt(D_K)


def alibi(q, k, i, j, part, head):
    """Press et al. 2022, Section 3: with 2 heads the slopes are 1/16 and 1/256."""
    return q @ k / math.sqrt(D_K) - abs(i - j) / (16, 256)[head]


def normalised(q, k, i, j, part, head):
    """Henry et al. 2020, equation (5): the cosine of the angle between query and key, times g."""
    return part.g.item() * (q @ k) / math.sqrt((q @ q) * (k @ k))


def value(V, i, j, part, head):
    """Shaw et al. 2018, equation (3), or with a bias; elsewhere the value alone."""
    if isinstance(part, RelativeAttention):
        return V[j] + part.a_V[np.clip(j - i, -2, 2) + 2].detach().numpy()
    return V[j] + (part.b_V[head, 0].detach().numpy() if isinstance(part, AttentionBiases) else 0)


def kernel(q, k, i, j, part, head):
    """Katharopoulos et al. 2020, equation (7): the logarithm of phi(q) . phi(k)."""
    phi = [np.where(x > 0, x + 1, np.exp(x)) for x in (q, k)]
    return math.log(phi[0] @ phi[1])


def in_window(i, j, site):
    return -1 <= j - i <= 1 if site == "encoder" else i - 3 < j <= i


ATTENTIONS = {
    AdditiveAttention: (additive, {}),
    UnscaledAttention: (unscaled, {}),
    AttentionBiases: (biased, {}),
    RotaryAttention: (rotary, {}),
    RelativeAttention: (relative, {"most": 2}),
    LinearAttention: (kernel, {}),
    LocalAttention: (dot, {"window": 3}),
    Alibi: (alibi, {}),
    QKNormAttention: (normalised, {}),
}


@pytest.mark.parametrize(("site", "start"), [("encoder", 0), ("decoder", 0), ("decoder", 4)])
@pytest.mark.parametrize("kind", ATTENTIONS, ids=lambda kind: kind.__name__)
def test_attention_is_its_equation(kind, site, start):
    score, options = ATTENTIONS[kind]
    torch.manual_seed(1)
    part = kind(CONFIG, site, **options)
    for parameter in part.parameters():
        nn.init.normal_(parameter)
    Q, K, V = torch.randn(2, H, 6 - start, D_K), torch.randn(2, H, 6, D_K), torch.randn(2, H, 6, D_V)
    keys = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    found = part(Q, K, V, Mask(keys, causal=site == "decoder"), start).detach().double().numpy()
    q, k, v = Q.double().numpy(), K.double().numpy(), V.double().numpy()
    for b, head, row in np.ndindex(2, H, 6 - start):
        i = start + row
        seen = [j for j in range(6) if keys[b, j] and (site == "encoder" or j <= i)]
        if kind is LocalAttention:
            seen = [j for j in seen if in_window(i, j, site)]
        taken = np.exp([score(q[b, head, row], k[b, head, j], i, j, part, head) for j in seen])
        expected = sum(
            (t / taken.sum() * value(v[b, head], i, j, part, head) for t, j in zip(taken, seen, strict=True)),
            np.zeros(D_V),
        )
        np.testing.assert_allclose(found[b, head, row], expected, atol=1e-5)


@pytest.mark.parametrize(("length", "g"), [(2, 1.0), (4, math.log2(12))])
def test_the_scale_of_normalised_queries_begins_at_log2_of_all_pairs(length, g):
    assert QKNormAttention(CONFIG, "encoder", length=length).g.item() == pytest.approx(g)


@pytest.mark.parametrize("causal", [False, True])
def test_sigmoid_attention_is_its_equation(causal):
    """Ramapuram et al. 2024, equation (3) with b = -log n; a query that sees nothing takes nothing."""
    torch.manual_seed(1)
    part, mask = SigmoidAttention(CONFIG, "encoder"), Mask(torch.tensor([[True] * 4, [False] * 4]), causal)
    Q, K, V = torch.randn(2, H, 4, D_K), torch.randn(2, H, 4, D_K), torch.randn(2, H, 4, D_V)
    found = part(Q, K, V, mask)
    assert not found[1].any()
    for head, i in np.ndindex(H, 4):
        keys = range(i + 1 if causal else 4)
        scores = [(Q[0, head, i] @ K[0, head, j]).item() / math.sqrt(D_K) - math.log(len(keys)) for j in keys]
        expected = sum(V[0, head, j] / (1 + math.exp(-score)) for j, score in zip(keys, scores, strict=True))
        assert torch.allclose(found[0, head, i], expected, atol=1e-6)


def test_attention_dropout_drops_weights_in_training_alone():
    torch.manual_seed(1)
    part, base = AttentionDropout(CONFIG._replace(p_drop=0.25), "decoder"), ScaledDotProductAttention(CONFIG, "decoder")
    Q, K, V = torch.randn(2, H, 40, D_K), torch.randn(2, H, 40, D_K), torch.eye(40).expand(2, H, 40, 40)
    weights = base.weights(Q, K, Mask(causal=True))
    found = part(Q, K, V, Mask(causal=True))  # the weights themselves
    kept = found != 0
    assert torch.allclose(found[kept], weights[kept] / 0.75, atol=1e-5)
    assert kept.sum() / weights.count_nonzero() == pytest.approx(0.75, abs=0.05)
    assert torch.allclose(part.eval()(Q, K, V, Mask(causal=True)), weights, atol=1e-5)


@pytest.mark.parametrize("gate", ["relu", "silu", "gelu"])
def test_the_gated_network_is_its_equation(gate):
    """Shazeer 2020, equation (6), with biases as in equation (2)."""
    torch.manual_seed(1)
    part, x = GatedFeedForward(CONFIG, "encoder", gate), torch.randn(2, 3, CONFIG.d_model)
    inner = (x @ part.W_1.weight.T + part.W_1.bias, x @ part.W_3.weight.T + part.W_3.bias)
    by_hand = {"relu": lambda z: z * (z > 0), "silu": lambda z: z / (1 + (-z).exp())}
    by_hand["gelu"] = lambda z: z * (1 + torch.erf(z / math.sqrt(2))) / 2
    expected = (by_hand[gate](inner[0]) * inner[1]) @ part.W_2.weight.T + part.W_2.bias
    assert torch.allclose(part(x), expected, atol=1e-5)


@pytest.mark.parametrize(("activation", "by_hand"), [("gelu", lambda z: z * (1 + torch.erf(z / math.sqrt(2))) / 2),
                                                     ("silu", lambda z: z / (1 + (-z).exp()))])  # fmt: skip
def test_another_activation_is_its_equation(activation, by_hand):
    torch.manual_seed(1)
    part, x = ActivationFeedForward(CONFIG, "encoder", activation), torch.randn(2, 3, CONFIG.d_model)
    expected = by_hand(x @ part.W_1.weight.T + part.W_1.bias) @ part.W_2.weight.T + part.W_2.bias
    assert torch.allclose(part(x), expected, atol=1e-5)


@pytest.mark.parametrize(("site", "before"), [("encoder", 1), ("decoder", 2)])
def test_a_convolution_sees_its_neighbours(site, before):
    """Gehring et al. 2017, Section 3.2, with the gate of Dauphin et al. 2017; beyond the ends there are zeros."""
    torch.manual_seed(1)
    part, x = ConvolutionalLayer(CONFIG, site, kernel=3), torch.randn(1, 6, CONFIG.d_model)
    weight, bias = part.convolution.weight, part.convolution.bias  # (2 d_model, d_model, 3)
    found = part(x, Mask(causal=site == "decoder"))
    for t in range(6):
        near = [(j, t - before + j) for j in range(3) if 0 <= t - before + j < 6]
        a, b = (bias + sum(weight[:, :, j] @ x[0, at] for j, at in near)).chunk(2)
        assert torch.allclose(found[0, t], a * b.sigmoid(), atol=1e-5)


def test_the_recurrent_encoder_is_a_bidirectional_lstm():
    torch.manual_seed(1)
    part, x = RecurrentLayer(CONFIG, "encoder"), torch.randn(3, 6, CONFIG.d_model)
    lengths = torch.tensor([6, 2, 5])
    reference = nn.LSTM(CONFIG.d_model, CONFIG.d_model // 2, batch_first=True, bidirectional=True)
    onward, back = part.onward.state_dict(), part.back.state_dict()
    reference.load_state_dict(onward | {f"{name}_reverse": weight for name, weight in back.items()})
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
    found = part(x, Mask(torch.arange(6) < lengths[:, None]))
    for sentence, length in enumerate(lengths):
        assert torch.allclose(found[sentence, :length], expected[sentence, :length], atol=1e-6)


def test_pre_norm_is_its_equation():
    """Wang et al. 2019, equation (2); and one norm after the last layer."""
    torch.manual_seed(1)
    part, x = PreNormResidual(CONFIG, "encoder"), torch.randn(2, 3, CONFIG.d_model)
    normed = F.layer_norm(x, x.shape[-1:], eps=1e-6)
    assert torch.allclose(part(x, lambda x: 3 * x), x + 3 * normed, atol=1e-6)
    assert torch.allclose(part.final_norm()(x), normed, atol=1e-6)


def test_a_sandwich_has_a_norm_on_both_sides_of_a_sublayer():
    """Ding et al. 2021, Section 2.4."""
    torch.manual_seed(1)
    part, x = SandwichNormResidual(CONFIG, "encoder"), torch.randn(2, 3, CONFIG.d_model)
    inner = F.layer_norm(x, x.shape[-1:], eps=1e-6).square()
    assert torch.allclose(part(x, torch.square), x + F.layer_norm(inner, x.shape[-1:], eps=1e-6), atol=1e-5)


def test_rms_norm_is_its_equation():
    """Zhang and Sennrich 2019, equation (4): the mean stays."""
    torch.manual_seed(1)
    part, x = RMSNormResidual(CONFIG, "encoder"), torch.randn(2, 3, CONFIG.d_model)
    total = x + x + 1
    expected = total / (total.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.allclose(part(x, lambda x: x + 1), expected, atol=1e-6)


def test_a_learned_position_is_a_vector_added():
    part, x = LearnedPosition(CONFIG, "encoder", most=4), torch.zeros(1, 3, CONFIG.d_model)
    assert torch.equal(part(x)[0], part.vectors[:3])
    assert torch.equal(part(x, start=2)[0], part.vectors[[2, 3, 3]])  # the last serves again


def test_untied_embeddings_are_three_matrices():
    part, ids = UntiedEmbedding(CONFIG, None), torch.tensor([[4, 7]])
    scale = math.sqrt(CONFIG.d_model)
    for site in ("encoder", "decoder"):
        assert torch.allclose(part.embed(ids, site)[0], part.weight[site][[4, 7]] * scale)
    x = torch.randn(1, 2, CONFIG.d_model)
    assert torch.allclose(part.logits(x), x @ part.weight["output"].T, atol=1e-5)
    assert len({weight.data_ptr() for weight in part.parameters()}) == 3


@pytest.mark.parametrize("d_model", [6, 7])
@pytest.mark.parametrize("pos", [0, 1, 511, 700])  # 700 is beyond the table
def test_sines_come_before_cosines(d_model, pos):
    """The wavelengths are a geometric series from 2π to 2π · 10000."""
    part = SinesThenCosines(CONFIG._replace(d_model=d_model), "encoder")
    angles = [pos / wavelength for wavelength in (1, 100, 10000)]
    expected = [*map(math.sin, angles), *map(math.cos, angles), 0.0][:d_model]
    np.testing.assert_allclose(part(torch.zeros(1, 1, d_model), start=pos)[0, 0], expected, atol=1e-4)


@pytest.mark.parametrize("site", ["encoder", "decoder"])
def test_three_projections_are_drawn_as_one_matrix(site):
    """Uniform up to sqrt(6 / (d_in + d_out)) of all three together. W_O stays by itself."""
    torch.manual_seed(1)
    part = JointInitialisation(small_models.small({"model.d_model": 96, "model.d_k": 20, "model.d_v": 28}), site)
    for W, outputs in [(part.W_Q, 272), (part.W_K, 272), (part.W_V, 272), (part.W_O, None)]:
        bound = math.sqrt(6 / (96 + (outputs or 112)))
        assert 0.97 * bound < W.weight.abs().max() <= bound
        assert W.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert not torch.equal(part.W_Q.weight, part.W_K.weight)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_heads_of_a_group_share_their_keys_and_values(groups):
    """As torch's own attention with grouped queries. With one head a group it is the paper's."""
    torch.manual_seed(1)
    config = small_models.small({"model.h": 4, "model.d_k": 6, "model.d_v": 5})
    part = GroupedQueryCrossAttention(config, "cross", groups)
    x, memory = torch.randn(2, 3, config.d_model), torch.randn(2, 7, config.d_model)
    K, V = part.keys_values(memory)
    Q = part.W_Q(x).view(2, 3, 4, 6).transpose(1, 2)
    assert K.shape == (2, groups, 7, 6) and V.shape == (2, groups, 7, 5)
    heads = F.scaled_dot_product_attention(Q, K, V, enable_gqa=True)
    expected = heads.transpose(1, 2).flatten(2) @ part.W_O.weight.T
    torch.testing.assert_close(part(x, (K, V), Mask(torch.ones(2, 7, dtype=torch.bool))), expected)
    shapes = {name: weight.shape for name, weight in CrossAttention(config, "cross").named_parameters()}
    assert ({name: weight.shape for name, weight in part.named_parameters()} == shapes) == (groups == 4)
    with pytest.raises(InputError, match="groups = 3"):
        GroupedQueryCrossAttention(config, "cross", 3)


@pytest.mark.parametrize(("options", "eps"), [({}, 1e-5), ({"eps": 0.3}, 0.3)])
def test_epsilon_is_added_to_the_variance(options, eps):
    torch.manual_seed(1)
    part, x = NormEpsilon(CONFIG, "encoder", **options), torch.randn(2, 3, CONFIG.d_model) * math.sqrt(eps)
    centred = 3 * (x - x.mean(-1, keepdim=True))
    expected = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    assert torch.allclose(part(x, lambda x: 2 * x), expected, atol=1e-5)


def test_the_decoder_begins_with_zeros():
    model = small_models.built(small_models.small({"model.embedding": "ablations.zero_first_input.ZeroFirstInput"}))
    part, (source, target) = model.embedding, small_models.batch()
    target[:, 0] = BOS
    found = part.embed(target, "decoder")
    assert isinstance(part, ZeroFirstInput) and not found[:, 0].any()
    assert torch.equal(found[:, 1:], SharedEmbedding.embed(part, target, "decoder")[:, 1:])
    before = model.states(source, target)
    with torch.no_grad():
        part.weight[BOS] += 1  # no state has seen it
    assert torch.equal(model.states(source, target), before)


def test_a_task_s_vector_is_added_to_the_source():
    part, ids = TaskVector(CONFIG, None), torch.tensor([[4, 7]])
    for site, added in (("encoder", part.task), ("decoder", torch.zeros(CONFIG.d_model))):
        assert torch.allclose(part.embed(ids, site), SharedEmbedding.embed(part, ids, site) + added, atol=1e-6)
    assert 0.5 * math.sqrt(6 / (32 + CONFIG.d_model)) < part.task.abs().max() <= math.sqrt(6 / (32 + CONFIG.d_model))


@pytest.mark.parametrize("head", [0, 2])
@pytest.mark.parametrize("where", ["encoder", "decoder", "cross"])
def test_a_removed_head_adds_nothing_to_the_others(where, head):
    """Michel et al. 2019, equation 1 of section 2.3: the sum over heads of each head's own part, times 1 or 0."""
    config = small_models.small({"model.h": 3, "model.d_k": 7, "model.d_v": 5})
    model, (source, target) = small_models.built(config), small_models.batch()
    stack, name = ("encoder" if where == "encoder" else "decoder"), "cross" if where == "cross" else "self"
    attention, before = model.get_submodule(f"{stack}.1.{name}_attention"), model(source, target)
    project, W_O = attention.W_O, attention.W_O.weight.detach().clone()

    def without(heads):
        return sum(heads[..., 5 * i : 5 * (i + 1)] @ W_O[:, 5 * i : 5 * (i + 1)].T for i in range(3) if i != head)

    project.forward = without
    expected = model(source, target)
    del project.forward
    with torch.no_grad():
        RemovedHeads(1, head, where)(model)
    assert torch.allclose(model(source, target), expected, atol=1e-5) and not torch.allclose(before, expected)


def test_weights_of_8_bits_are_pytorch_s():
    """Its own rounding with a scale for each channel. A row of zeros stays; vectors stay."""
    model = small_models.built(small_models.small())
    with torch.no_grad():
        model.encoder[0].ffn.W_1.weight[3] = 0
        before = {name: weight.clone() for name, weight in model.named_parameters()}
        Int8Weights()(model)
    for name, weight in model.named_parameters():
        expected = before[name]
        if expected.dim() == 2:
            scales, zeros = expected.abs().amax(1) / 127, torch.zeros(len(expected), dtype=torch.int32)
            scales[scales == 0] = 1
            expected = torch.fake_quantize_per_channel_affine(expected, scales, zeros, 0, -127, 127)
            assert (before[name] - expected).abs().max() > 0 and len(weight[0].unique()) <= 255
        assert torch.allclose(weight, expected, rtol=1e-5, atol=1e-6), name
