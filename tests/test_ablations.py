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
from ablations.adapter import AdapterResidual
from ablations.additive_attention import AdditiveAttention
from ablations.alibi import Alibi
from ablations.attention_biases import AttentionBiases
from ablations.attention_dropout import AttentionDropout
from ablations.bilinear_ffn import BilinearFeedForward
from ablations.capped_logits import CappedLogits
from ablations.convolutional_layer import ConvolutionalLayer
from ablations.deep_norm import DeepNormResidual
from ablations.exclusive_attention import ExclusiveAttention
from ablations.gated_attention import GatedCrossAttention, GatedSelfAttention
from ablations.gated_ffn import GatedFeedForward
from ablations.gated_norm import GatedNormResidual
from ablations.grouped_query_attention import GroupedQueryCrossAttention, PooledHeads
from ablations.half_rotary_attention import HalfRotaryAttention
from ablations.hyper_connections import HyperConnections
from ablations.int8_weights import Int8Weights
from ablations.joint_initialisation import JointInitialisation
from ablations.latent_attention import LatentCrossAttention, LatentSelfAttention
from ablations.latent_experts import LatentExperts
from ablations.layer_scale import LayerScale
from ablations.learned_position import LearnedPosition, ScaledLearnedPosition
from ablations.linear_attention import LinearAttention
from ablations.local_attention import LocalAttention
from ablations.low_rank_adaptation import LowRankCrossAttention, LowRankSelfAttention
from ablations.marin import ConvolvedSelfAttention, ExclusiveHalfRotaryAttention, GatedGroupedSelfAttention
from ablations.norm_epsilon import NormEpsilon
from ablations.pre_norm import PreNormResidual
from ablations.pre_rms_norm import PreRMSNormResidual
from ablations.qk_norm_attention import QKNormAttention
from ablations.recurrent_layer import RecurrentLayer
from ablations.relative_attention import RelativeAttention
from ablations.removed_heads import RemovedHeads
from ablations.rezero import ReZero
from ablations.rms_norm import RMSNormResidual
from ablations.rms_rezero import RMSReZero
from ablations.rotary_attention import RotaryAttention
from ablations.sandwich_norm import SandwichNormResidual
from ablations.segment_memory import TransformerXLAttention
from ablations.short_convolution import ShortConvolutionSelfAttention
from ablations.sigmoid_attention import SigmoidAttention
from ablations.sines_then_cosines import SinesThenCosines
from ablations.sparse_attention import SparseAttention
from ablations.squared_relu import SquaredReLU
from ablations.stochastic_depth import StochasticDepth
from ablations.stochastic_depth_pre_norm import StochasticDepthPreNorm
from ablations.talking_heads import TalkingHeads
from ablations.task_vector import TaskVector
from ablations.unscaled_attention import UnscaledAttention
from ablations.zero_first_input import ZeroFirstInput
from transformer_pl.config import Site
from transformer_pl.config.components import build
from transformer_pl.data.tokenizer import BOS
from transformer_pl.model import (
    CrossAttention,
    Mask,
    MultiHeadSelfAttention,
    ScaledDotProductAttention,
    SharedEmbedding,
    Transformer,
)
from transformer_pl.runtime.errors import InputError
from transformer_pl.train.start import freeze

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


def half_rotary(q, k, i, j, part, head):
    """The first half alone is turned by the distance."""
    turned = sum(
        (complex(*q[2 * m : 2 * m + 2]) * complex(*k[2 * m : 2 * m + 2]).conjugate()
         * cmath.exp(1j * (i - j) * 10000 ** (-2 * m / (D_K // 2)))).real
        for m in range(D_K // 4)
    )  # fmt: skip
    return (turned + q[D_K // 4 * 2 :] @ k[D_K // 4 * 2 :]) / math.sqrt(D_K)


def relative(q, k, i, j, part, head):
    """Shaw et al. 2018, equation (4)."""
    return q @ (k + part.a_K[np.clip(j - i, -2, 2) + 2].detach().numpy()) / math.sqrt(D_K)


def transformer_xl(q, k, i, j, part, head):
    """Dai et al. 2019, Section 3.3: terms (a) to (d)."""
    angles = [(i - j) / 10000 ** (2 * (n // 2) / CONFIG.d_model) for n in range(CONFIG.d_model)]
    R = np.array([math.cos(angle) if n % 2 else math.sin(angle) for n, angle in enumerate(angles)])
    r = part.W_R.weight.detach().numpy()[head * D_K : (head + 1) * D_K] @ R
    u, v = (bias[head, 0].detach().numpy() for bias in (part.u, part.v))
    return (q @ k + q @ r + u @ k + v @ r) / math.sqrt(D_K)


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
    HalfRotaryAttention: (half_rotary, {}),
    RelativeAttention: (relative, {"most": 2}),
    LinearAttention: (kernel, {}),
    LocalAttention: (dot, {"window": 3}),
    Alibi: (alibi, {}),
    TransformerXLAttention: (transformer_xl, {}),
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


def test_half_rotary_attention_is_rotary_where_the_other_half_is_zero():
    torch.manual_seed(1)
    Q, K = torch.randn(2, H, 6, 8), torch.randn(2, H, 6, 8)
    half, whole = HalfRotaryAttention(CONFIG, "decoder"), RotaryAttention(CONFIG, "decoder")
    found = half.weights(F.pad(Q, (0, 8)), F.pad(K, (0, 8)), Mask(causal=True))
    torch.testing.assert_close(found, whole.weights(Q * 0.5**0.5, K, Mask(causal=True)), atol=1e-5, rtol=1e-4)


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


GELU, SILU = lambda z: z * (1 + torch.erf(z / math.sqrt(2))) / 2, lambda z: z / (1 + (-z).exp())
NETWORKS = {  # of one matrix or, gated, of two, before the last one
    **{f"GLU {gate}": (GatedFeedForward, [gate], by_hand)
       for gate, by_hand in (("relu", lambda z: z * (z > 0)), ("silu", SILU), ("gelu", GELU))},
    **{name: (ActivationFeedForward, [name], by_hand) for name, by_hand in (("gelu", GELU), ("silu", SILU))},
    "squared relu": (SquaredReLU, [], lambda z: torch.where(z > 0, z**2, 0)),
    "bilinear": (BilinearFeedForward, [], lambda z: z),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "by_hand"), NETWORKS.values(), ids=NETWORKS)
def test_a_feed_forward_network_is_its_equation(kind, options, by_hand):
    """Shazeer 2020, equation (6), with biases as in equation (2), where there is a gate."""
    torch.manual_seed(1)
    part, x = kind(CONFIG, "encoder", *options), torch.randn(2, 3, CONFIG.d_model)
    for parameter in part.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    inner = by_hand(x @ part.W_1.weight.T + part.W_1.bias)
    if hasattr(part, "W_3"):
        inner = inner * (x @ part.W_3.weight.T + part.W_3.bias)
    torch.testing.assert_close(part(x), inner @ part.W_2.weight.T + part.W_2.bias, atol=1e-5, rtol=1e-4)


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


def layer_norm(x, norm):
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-6)


def rms_norm(x, norm):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight


def adapter(y, part):
    return y + GELU(y @ part.W_down.T + part.b_down) @ part.W_up.T + part.b_up


def gated_norm(x, norm):
    n = rms_norm(x, norm.norm)
    return n / (1 + (-SILU(n @ norm.W_down.weight.T) @ norm.W_up.weight.T).exp())


RESIDUALS = {  # what each makes of x and a sub-layer f
    # Wang et al. 2019, equation (2)
    PreNormResidual: lambda part, x, f: x + f(layer_norm(x, part.norm)),
    # Ding et al. 2021, Section 2.4: a norm on both sides
    SandwichNormResidual: lambda part, x, f: x + layer_norm(f(layer_norm(x, part.norm)), part.after),
    # Zhang and Sennrich 2019, equation (4): the mean stays
    RMSNormResidual: lambda part, x, f: rms_norm(x + f(x), part.norm),
    PreRMSNormResidual: lambda part, x, f: x + f(rms_norm(x, part.norm)),
    # Qiu et al. 2026: a gate of low rank after the norm
    GatedNormResidual: lambda part, x, f: x + f(gated_norm(x, part.norm)),
    RMSReZero: lambda part, x, f: x + part.alpha * f(rms_norm(x, part.norm)),
    # Touvron et al. 2021, equation (4)
    LayerScale: lambda part, x, f: x + f(layer_norm(x, part.norm)) @ torch.diag(part.factors),
    # Houlsby et al. 2019, Section 2.1: before the output of the sub-layer is added
    AdapterResidual: lambda part, x, f: layer_norm(x + adapter(f(x), part), part.norm),
}
FINAL = {
    PreNormResidual: layer_norm,
    PreRMSNormResidual: rms_norm,
    RMSReZero: rms_norm,
    GatedNormResidual: gated_norm,
}


@pytest.mark.parametrize("kind", RESIDUALS, ids=lambda kind: kind.__name__)
def test_a_residual_connection_is_its_equation(kind):
    """And one norm after the last layer, where it has norms before the sub-layers."""
    torch.manual_seed(1)
    part, x = kind(CONFIG, "encoder").eval(), torch.randn(2, 3, CONFIG.d_model)
    for parameter in part.parameters():
        nn.init.normal_(parameter, 0.5)
    torch.testing.assert_close(part(x, lambda y: y.square() + 1), RESIDUALS[kind](part, x, lambda y: y.square() + 1))
    if kind in FINAL:
        norm = part.final_norm()
        torch.testing.assert_close(norm(x), FINAL[kind](x, norm))


def test_a_learned_position_is_a_vector_added():
    part, x = LearnedPosition(CONFIG, "encoder", most=4), torch.zeros(1, 3, CONFIG.d_model)
    assert torch.equal(part(x)[0], part.vectors[:3])
    assert torch.equal(part(x, start=2)[0], part.vectors[[2, 3, 3]])  # the last serves again
    scaled, x = ScaledLearnedPosition(CONFIG, "encoder", most=4), torch.randn(1, 3, CONFIG.d_model)
    torch.testing.assert_close(scaled(x, start=2) - x, math.sqrt(CONFIG.d_model) * scaled.vectors[[2, 3, 3]][None])


@pytest.mark.parametrize("site", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize(("pattern", "summary"), [("strided", 1), ("fixed", 1), ("fixed", 2)])
def test_a_sparse_pattern_is_the_source_s_sets_of_positions(pattern, summary, site):
    """Child et al. 2019, Section 4.3, in its words: A1 and A2 of every query, which stands at positions 5 to 8."""
    part = SparseAttention(CONFIG, site, pattern=pattern, stride=3, summary=summary)
    Q, K = torch.randn(1, H, 4, D_K), torch.randn(1, H, 9, D_K)
    weights = part.weights(Q, K, Mask(causal=site == "decoder"), 5 if site == "decoder" else 0)
    for query in range(4):
        i = query + (5 if site == "decoder" else 0)
        for j in range(9):
            if pattern == "strided":
                neighbour, distant = abs(i - j) <= 2, abs(i - j) in (0, 3, 6)
            else:
                neighbour, distant = i // 3 == j // 3, j in ((2, 5, 8) if summary == 1 else (1, 2, 4, 5, 7, 8))
            sees = (neighbour or distant or site == "cross") and (j <= i or site != "decoder")
            assert bool((weights[0, :, query, j] > 0).all()) == sees, (i, j)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, H, 4))


def test_capped_logits_are_within_the_cap():
    part, x = CappedLogits(CONFIG, None, cap=2.0), 9 * torch.randn(2, 3, CONFIG.d_model)
    plain = x @ part.weight.T
    assert plain.abs().max() > 2 >= part.logits(x).abs().max()
    expected = [2 * math.tanh(logit / 2) for logit in plain.flatten().tolist()]
    torch.testing.assert_close(part.logits(x).flatten(), torch.tensor(expected))


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


def of_both_sites(path):
    """The keys of an ablation that has an attention for self-attention and one for cross-attention."""
    return {f"model.{site.lower()}_attention": f"ablations.{path}{site}Attention" for site in ("Self", "Cross")}


@pytest.mark.parametrize("groups", [1, 2])
def test_pooled_heads_are_the_means_of_a_group(groups):
    """Ainslie et al. 2023, Figure 1, head by head. `PooledHeads` makes the same model of the trained one."""
    config = small_models.small({"model.h": 4, "model.d_k": 6, "model.d_v": 5})
    part, multi = GroupedQueryCrossAttention(config, "cross", groups, pooled=True), CrossAttention(config, "cross")
    part.load_state_dict(multi.state_dict())
    x, memory, mask = torch.randn(2, 3, 24), torch.randn(2, 7, 24), Mask(torch.ones(2, 7, dtype=torch.bool))
    Q, (K, V), expected = (x @ part.W_Q.weight.T).view(2, 3, 4, 6), multi.keys_values(memory), 0
    for i in range(4):
        group = [j for j in range(4) if j * groups // 4 == i * groups // 4]
        key, value = (sum(each[:, j] for j in group) / len(group) for each in (K, V))
        scores = (Q[:, :, i] @ key.mT / math.sqrt(6)).exp()
        head = scores / scores.sum(-1, keepdim=True) @ value
        expected = expected + head @ part.W_O.weight[:, 5 * i : 5 * (i + 1)].T
    torch.testing.assert_close(part(x, part.keys_values(memory), mask), expected, atol=1e-5, rtol=1e-4)

    keys = of_both_sites("grouped_query_attention.GroupedQuery")
    keys |= {f"{key}.groups": groups for key in keys} | {f"{key}.pooled": True for key in keys}
    pooled, model = small_models.built(small_models.small(keys)), small_models.built(small_models.small())
    pooled.load_state_dict(model.state_dict())
    before, after = model(*small_models.batch()), pooled(*small_models.batch())
    with torch.no_grad():
        PooledHeads(groups)(model)
    torch.testing.assert_close(model(*small_models.batch()), after, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(before, after, atol=1e-2)


@pytest.mark.parametrize("kind", [LowRankSelfAttention, LowRankCrossAttention])
def test_low_rank_changes_can_be_merged(kind):
    """Hu et al. 2021, Section 4.1: the paper's own attention with W + (alpha / r) B A gives the same; B begins as 0."""
    torch.manual_seed(1)
    is_cross = kind is LowRankCrossAttention
    part, paper = kind(CONFIG, "cross", rank=3, alpha=6.0), kind.__bases__[1](CONFIG, "cross")
    x, y = torch.randn(2, 3, 24), torch.randn(2, 4, 24)
    mask = Mask(torch.ones(2, 4 if is_cross else 3, dtype=torch.bool))

    def found(attention):
        return attention(x, attention.keys_values(y), mask) if is_cross else attention(x, mask)

    weights = {name: part.state_dict()[name].clone() for name in paper.state_dict()}
    added = {f"W_{W}.{factor}" for W in "QV" for factor in "AB"}
    assert part.state_dict().keys() == weights.keys() | added
    paper.load_state_dict(weights)
    before = found(part)
    assert torch.equal(before, found(paper))
    for name, W in (("W_Q.weight", part.W_Q), ("W_V.weight", part.W_V)):
        nn.init.normal_(W.B)
        weights[name] += 6 / 3 * W.B @ W.A
    paper.load_state_dict(weights)
    torch.testing.assert_close(found(part), found(paper), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found(part), before, atol=1e-2)


@pytest.mark.parametrize(
    ("keys", "frozen", "trained"),
    [
        (of_both_sites("low_rank_adaptation.LowRank"), "*.weight,*.bias", ("W_Q.A", "W_Q.B", "W_V.A", "W_V.B")),
        (
            {"model.residual": "ablations.adapter.AdapterResidual"},
            "*.W_?.weight,*.W_?.bias,embedding.*",
            ("W_down", "W_up", "b_down", "b_up", "norm.weight", "norm.bias"),
        ),
    ],
)
def test_what_adapts_a_model_begins_as_it_is_and_is_trained_alone(keys, frozen, trained):
    base, model = small_models.built(small_models.small()), small_models.built(small_models.small(keys))
    missing, unexpected = model.load_state_dict(base.state_dict(), strict=False)
    assert missing and not unexpected
    torch.testing.assert_close(model(*small_models.batch()), base(*small_models.batch()), atol=0.01, rtol=0)
    freeze(model, frozen)
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert {*missing} <= {*names} and all(name.endswith(trained) for name in names)
    assert all(any(name.endswith(ending) for name in names) for ending in trained)


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


# ---------------------------------------------------------------------------------------------------------------------
# Architectures: stacks of layers, written out with matrix products

SENTENCES, SOURCE, TARGET = 2, 7, 5
KEYS = torch.tensor([[True] * SOURCE, [True] * 4 + [False] * 3])
SEES_KEYS, SEES_EARLIER = KEYS[:, None, None], torch.ones(TARGET, TARGET, dtype=torch.bool).tril()


def architecture(name, **keys):
    """A model of sizes that all differ, and its layers."""
    keys = {f"model.{key.replace('__', '.')}": value for key, value in keys.items()}
    sizes = {"model.N_encoder": 4, "model.N_decoder": 3, "model.h": 2, "model.d_k": 7, "model.d_v": 5}
    config = small_models.small(sizes | {"model.architecture": f"ablations.{name}"} | keys)
    torch.manual_seed(6)
    model = build(config.architecture, config)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and biases begin as ones and zeros, which hide a mistake
            nn.init.normal_(parameter, 0.5)
    return model


def stacks(model):
    """What the stacks return for embeddings x and y, and the encoder's output z that the decoder is given."""
    torch.manual_seed(7)
    d_model = model.embedding.weight.shape[1]
    x, y, z = (torch.randn(SENTENCES, length, d_model) for length in (SOURCE, TARGET, SOURCE))
    memory = [layer.cross_attention.keys_values(z) for layer in model.decoder]
    encoded = model.encoder_stack(x, Mask(KEYS))
    decoded = model.decoder_stack(y, Mask(causal=True), memory, Mask(KEYS), 0, [None] * len(memory))
    return encoded, decoded, x, y, z


def check_stacks(model, by_hand):
    """That the stacks are by_hand(layer, x, seen, z) of their layers one after the other. z: None in the encoder."""
    encoded, decoded, x, y, z = stacks(model)
    for layer in model.encoder:
        x = by_hand(layer, x, SEES_KEYS, None)
    for layer in model.decoder:
        y = by_hand(layer, y, SEES_EARLIER, z)
    torch.testing.assert_close(encoded, x, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(decoded, y, atol=1e-5, rtol=1e-4)


def heads(x, W):
    return (x @ W.weight.T).unflatten(-1, (2, -1)).transpose(1, 2)  # (B, h, L, d_k or d_v)


def attended(part, x, y, seen, values=None, scores_below=0):
    """Multi-head attention from x to y, with other values and with scores added: its output, and its scores."""
    scores = heads(x, part.W_Q) @ heads(y, part.W_K).mT / math.sqrt(part.W_Q.out_features // 2) + scores_below
    values = heads(y, part.W_V) if values is None else values
    found = scores.masked_fill(~seen, -math.inf).softmax(-1) @ values
    return found.transpose(1, 2).flatten(2) @ part.W_O.weight.T, scores


def fed(part, x):
    return (x @ part.W_1.weight.T + part.W_1.bias).relu() @ part.W_2.weight.T + part.W_2.bias


def normed(x, residual):
    return F.layer_norm(x, x.shape[-1:], residual.norm.weight, residual.norm.bias, 1e-6)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


SHARING = {
    "one layer": ("SharedLayers", {}, [0, 0, 0, 0], [0, 0, 0]),
    "a cycle": ("SharedLayers", {"architecture__period": 2}, [0, 1, 0, 1], [0, 1, 0]),
    "a cycle that is longer than the stack": ("SharedLayers", {"architecture__period": 9}, [0, 1, 2, 3], [0, 1, 2]),
}


@pytest.mark.parametrize(("name", "options", "encoder", "decoder"), SHARING.values(), ids=SHARING)
def test_shared_layers_are_copies_with_one_set_of_weights(name, options, encoder, decoder):
    """The same logits as from layers that are copies; as many parameters as the different layers have."""
    model = architecture(f"shared_layers.{name}", **options)
    sizes = {"model.h": 2, "model.d_k": 7, "model.d_v": 5}
    copies = Transformer(small_models.small(sizes | {"model.N_encoder": 4, "model.N_decoder": 3}))
    copies.embedding.load_state_dict(model.embedding.state_dict())
    for stack, shared, order in ((copies.encoder, model.encoder, encoder), (copies.decoder, model.decoder, decoder)):
        for layer, i in zip(stack, order, strict=True):
            layer.load_state_dict(shared[i].state_dict())
    torch.testing.assert_close(model(*small_models.batch()), copies(*small_models.batch()))
    different = {"model.N_encoder": max(encoder) + 1, "model.N_decoder": max(decoder) + 1}
    assert parameters(model) == parameters(Transformer(small_models.small(sizes | different)))


def test_shared_attentions_leave_a_network_to_each_layer():
    model = architecture("shared_layers.SharedAttentions")
    base = architecture("shared_layers.SharedLayers", architecture__period=4)
    attention = parameters(model.encoder[0].self_attention)
    assert parameters(base) - parameters(model) == (3 + 2 + 2) * attention  # of 4 encoder and 3 decoder layers
    for layer in model.encoder:
        assert layer.self_attention is model.encoder[0].self_attention
    assert len({id(layer.ffn) for layer in [*model.encoder, *model.decoder]}) == 7
    attentions = {id(layer.self_attention) for layer in [*model.encoder, *model.decoder]}
    assert len(attentions | {id(layer.cross_attention) for layer in model.decoder}) == 3


@pytest.mark.parametrize("name", ["SharedLayers", "SharedAttentions"])
def test_shared_weights_stay_shared_when_they_are_loaded(name):
    model, loaded = architecture(f"shared_layers.{name}"), architecture(f"shared_layers.{name}")
    saved = {key: value.clone() + 1 for key, value in model.state_dict().items()}  # as a trial saves them
    loaded.load_state_dict(saved)
    assert parameters(loaded) == parameters(model) < sum(value.numel() for value in saved.values())
    with torch.no_grad():
        loaded.encoder[3].self_attention.W_Q.weight += 1
    assert torch.equal(loaded.encoder[0].self_attention.W_Q.weight, saved["encoder.0.self_attention.W_Q.weight"] + 1)


@pytest.mark.parametrize("is_pre", [False, True])
def test_parallel_sublayers_read_the_same(is_pre):
    """Chowdhery et al. 2022, Section 2, where the norm is before the sub-layers."""
    residual = "ablations.pre_norm.PreNormResidual" if is_pre else "transformer_pl.model.transformer.PostNormResidual"

    def parallel(layer, x, seen, z):
        (around,) = layer.residual
        read = normed(x, around) if is_pre else x
        total = x + attended(layer.self_attention, read, read, seen)[0] + fed(layer.ffn, read)
        if z is not None:
            total = total + attended(layer.cross_attention, read, z, SEES_KEYS)[0]
        return total if is_pre else normed(total, around)

    check_stacks(architecture("parallel_layer.ParallelLayers", residual=residual), parallel)


def test_macaron_layers_have_half_steps_around_the_attention():
    """Lu et al. 2019; with half of d_ff as many weights, one norm and the biases of one output aside."""
    model = architecture("macaron_layer.MacaronLayers")

    def macaron(layer, x, seen, z):
        x = normed(x + 0.5 * fed(layer.first_ffn, x), layer.residual[0])
        x = normed(x + attended(layer.self_attention, x, x, seen)[0], layer.residual[1])
        if z is not None:
            x = normed(x + attended(layer.cross_attention, x, z, SEES_KEYS)[0], layer.residual[2])
        return normed(x + 0.5 * fed(layer.ffn, x), layer.residual[-1])

    check_stacks(model, macaron)
    base = architecture("shared_layers.SharedLayers", architecture__period=4)
    assert parameters(model) - parameters(base) == 7 * 3 * CONFIG.d_model
    for layer, other in zip(model.encoder, model.decoder, strict=False):
        assert [around.norm.weight.shape for around in layer.residual] == 3 * [(CONFIG.d_model,)]
        assert layer.first_ffn is not layer.ffn and len(other.residual) == 4


def attending(layer, x, seen, memory, self_options, cross_options):
    """A layer of the paper's form whose attentions have other values, or scores below; and both scores."""
    found, scores = attended(layer.self_attention, x, x, seen, **self_options)
    x, of_cross = normed(x + found, layer.residual[0]), None
    if memory is not None:
        found, of_cross = attended(layer.cross_attention, x, memory, SEES_KEYS, **cross_options)
        x = normed(x + found, layer.residual[1])
    return normed(x + fed(layer.ffn, x), layer.residual[-1]), scores, of_cross


def test_the_values_of_the_first_layer_are_mixed_into_all_others():
    """Zhou et al. 2024: U_n = 1/2 A_n (V_n + V_1), in both stacks, each with its own V_1."""
    firsts = {}

    def mixing(layer, x, seen, z):
        values = heads(x, layer.self_attention.W_V)
        mixed = 0.5 * values + 0.5 * firsts.setdefault(z is None, values)
        return attending(layer, x, seen, z, {"values": mixed}, {})[0]

    check_stacks(architecture("value_residual.ValueResidual"), mixing)


def test_scores_add_up_from_layer_to_layer():
    """He et al. 2021: softmax(Q K^T / sqrt(d_k) + Prev) V, and the sum is the next layer's Prev."""
    below = {}

    def adding(layer, x, seen, z):
        options = [{"scores_below": below.get((z is None, is_cross), 0)} for is_cross in (False, True)]
        x, *scores = attending(layer, x, seen, z, *options)
        below.update({(z is None, is_cross): of for is_cross, of in zip((False, True), scores, strict=True)})
        return x

    check_stacks(architecture("residual_attention.ResidualAttention"), adding)


def test_registers_are_vectors_that_the_encoder_alone_reads():
    """Darcet et al. 2024: the layers of a model without registers, on longer sentences, of which the rest is kept."""
    model = architecture("register_tokens.RegisterTokens", architecture__registers=3)
    encoded, _, x, _, _ = stacks(model)
    longer = torch.cat([model.registers.expand(len(x), -1, -1), x], 1)
    sees = torch.cat([torch.ones(*SEES_KEYS.shape[:-1], 3, dtype=torch.bool), SEES_KEYS], -1)
    for layer in model.encoder:
        longer = normed(longer + attended(layer.self_attention, longer, longer, sees)[0], layer.residual[0])
        longer = normed(longer + fed(layer.ffn, longer), layer.residual[1])
    torch.testing.assert_close(encoded, longer[:, 3:], atol=1e-5, rtol=1e-4)
    assert model.registers.shape == (3, CONFIG.d_model) and model.registers.std().item() == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize(("name", "slot", "other"), [
    ("value_residual.ValueResidual", "self_attention", "ablations.recurrent_layer.RecurrentLayer"),
    ("residual_attention.ResidualAttention", "attention", "ablations.alibi.Alibi"),
    ("deep_norm.DeepNorm", "residual", "ablations.pre_norm.PreNormResidual"),
])  # fmt: skip
def test_an_architecture_replaces_no_component_of_the_user(name, slot, other):
    with pytest.raises(InputError, match=f"model.{slot} = {other}"):
        architecture(name, **{slot: other})


def test_deep_norm_has_the_constants_and_the_weights_of_its_source():
    """Wang et al. 2022, Figure 2, with 4 encoder and 3 decoder layers, from Glorot's normal distribution."""
    keys = {"d_model": 96, "d_ff": 400, "d_k": 40, "d_v": 50, "N_encoder": 4, "N_decoder": 3}
    config = small_models.small({"model.h": 2, "model.architecture": "ablations.deep_norm.DeepNorm"}
                                | {f"model.{key}": value for key, value in keys.items()})  # fmt: skip
    torch.manual_seed(1)
    model = build(config.architecture, config)
    sixteenth = math.exp((4 * math.log(4) + math.log(3)) / 16)
    alphas, betas = (0.81 * sixteenth, 9**0.25), (0.87 / sixteenth, 36**-0.25)
    for stack, alpha, beta in zip((model.encoder, model.decoder), alphas, betas, strict=True):
        for layer in stack:
            gains = {layer.ffn.W_1: beta, layer.ffn.W_2: beta}
            for part in (layer.self_attention, *([layer.cross_attention] if stack is model.decoder else [])):
                gains |= {part.W_Q: 1, part.W_K: 1, part.W_V: beta, part.W_O: beta}
            for W, gain in gains.items():
                deviation = gain * math.sqrt(2 / sum(W.weight.shape))
                assert W.weight.std().item() == pytest.approx(deviation, rel=0.05)
                assert W.weight.abs().max() > 2.5 * deviation  # a uniform distribution ends at the root of 3
            assert all(isinstance(part, DeepNormResidual) for part in layer.residual)
            x = torch.randn(2, 3, 96)
            expected = F.layer_norm(alpha * x + x.square(), (96,), eps=1e-6)
            torch.testing.assert_close(layer.residual[1](x, torch.square), expected)


@pytest.mark.parametrize(("kind", "site", "layer", "p"), [
    (StochasticDepth, "encoder", 0, 0.1),
    (StochasticDepth, "encoder", 3, 0.4),
    (StochasticDepth, "decoder", 1, 0.4 * 2 / 3),
    (StochasticDepthPreNorm, "decoder", 2, 0.4),
])  # fmt: skip
def test_a_sublayer_is_left_out_of_so_many_sentences(kind, site, layer, p):
    """Huang et al. 2016, Section 3, of 4 and 3 layers; scaled as Pham et al. 2019 do."""
    config = CONFIG._replace(N_encoder=4, N_decoder=3)
    part = kind(config, Site(site, layer, 0), rate=0.4)
    torch.manual_seed(1)
    x, d_model = torch.randn(4000, 2, CONFIG.d_model), (CONFIG.d_model,)

    def expected(factor):
        if kind is StochasticDepthPreNorm:
            return x + factor * F.layer_norm(x, d_model, eps=1e-6).square()
        return F.layer_norm(x + factor * x.square(), d_model, eps=1e-6)

    found = part(x, torch.square)
    left_out = (found - expected(0)).abs().amax((1, 2)) < 1e-5
    assert left_out.float().mean().item() == pytest.approx(p, abs=0.03)
    torch.testing.assert_close(found[~left_out], expected(1 / (1 - p))[~left_out], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(part.eval()(x, torch.square), expected(1), atol=1e-5, rtol=1e-4)


def test_rezero_begins_as_the_identity():
    """Bachlechner et al. 2020, equation (1), and with the norm of Table 1."""
    torch.manual_seed(1)
    x, d_model = torch.randn(2, 3, CONFIG.d_model), (CONFIG.d_model,)
    for norm in (False, True):
        part = ReZero(CONFIG, "encoder", norm)
        assert torch.equal(part(x, torch.square), x)
        with torch.no_grad():
            part.alpha += 0.7
        read = F.layer_norm(x, d_model, eps=1e-6) if norm else x
        torch.testing.assert_close(part(x, torch.square), x + 0.7 * read**2)
        torch.testing.assert_close(part.final_norm()(x), read)


def test_layer_scale_is_its_equation():
    """Touvron et al. 2021, equation (4)."""
    torch.manual_seed(1)
    part, x = LayerScale(CONFIG, "encoder", initial=0.3), torch.randn(2, 3, CONFIG.d_model)
    read = F.layer_norm(x, (CONFIG.d_model,), eps=1e-6)
    torch.testing.assert_close(part(x, torch.square), x + 0.3 * read.square())


@pytest.mark.parametrize("dynamic", [False, True])
def test_streams_are_connected_by_their_matrices(dynamic):
    """Zhu et al. 2024, equations (2) to (5) and (10) to (13), for each position, over a layer of the encoder."""
    torch.manual_seed(1)
    n, d_model = 3, CONFIG.d_model
    parts = [HyperConnections(CONFIG, Site("encoder", 0, sublayer), n, dynamic) for sublayer in range(2)]
    for part in parts:
        for parameter in part.parameters():
            nn.init.normal_(parameter)
    x = torch.randn(2, 4, d_model)
    state = x
    for part in parts:
        state = part(state, torch.square)
    found = parts[-1].final_norm()(state)
    for b, t in np.ndindex(2, 4):
        H = x[b, t].repeat(n, 1)  # (n, d_model)
        for part in parts:
            A_m, A_r, B = (
                part.connections[:, columns] for columns in (slice(0, 1), slice(1, n + 1), slice(n + 1, None))
            )
            if dynamic:
                normed_streams = F.layer_norm(
                    H, (d_model,), part.norm_of_streams.weight, part.norm_of_streams.bias, 1e-6
                )
                A_m = A_m + part.s[0] * torch.tanh(normed_streams @ part.W[:, :1])
                A_r = A_r + part.s[0] * torch.tanh(normed_streams @ part.W[:, 1 : n + 1])
                B = B + part.s[1] * torch.tanh(normed_streams @ part.W[:, n + 1 :])
            h = A_m.T @ H  # (1, d_model)
            H = B @ normed(h, part).square() + A_r.T @ H
        torch.testing.assert_close(state[b, t], H, atol=1e-3, rtol=1e-3)
        expected = F.layer_norm(H.sum(0), (d_model,), eps=1e-6)
        torch.testing.assert_close(found[b, t], expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("dynamic", [False, True])
def test_hyper_connections_begin_as_pre_norm(dynamic):
    """Equation (14): sub-layer k reads the stream k mod n, and adds to all of them."""
    options = {"model.residual.streams": 3, "model.residual.dynamic": dynamic}
    streams = small_models.small({"model.residual": "ablations.hyper_connections.HyperConnections"} | options)
    model = small_models.built(streams)
    pre_norm = small_models.built(small_models.small({"model.residual": "ablations.pre_norm.PreNormResidual"}))
    kept = pre_norm.state_dict().keys()
    pre_norm.load_state_dict({name: value for name, value in model.state_dict().items() if name in kept})
    torch.testing.assert_close(model(*small_models.batch()), pre_norm(*small_models.batch()), atol=1e-4, rtol=1e-4)
    for stack in (model.encoder, model.decoder):
        parts = [part for layer in stack for part in layer.residual]
        assert [int(part.connections[:, 0].argmax()) for part in parts] == [k % 3 for k in range(len(parts))]


@pytest.mark.parametrize("headwise", [False, True])
@pytest.mark.parametrize("kind", [GatedSelfAttention, GatedCrossAttention])
def test_gates_of_the_input_multiply_the_heads(kind, headwise):
    """Qiu et al. 2025, after the weighted sum: each head by itself."""
    torch.manual_seed(1)
    is_cross = kind is GatedCrossAttention
    part = kind(CONFIG, "cross" if is_cross else "encoder", headwise)
    x, y = torch.randn(2, 3, CONFIG.d_model), torch.randn(2, 4, CONFIG.d_model)
    keys = torch.tensor([[True] * 4, [True] * 2 + [False] * 2])
    if not is_cross:
        y, keys = x, keys[:, :3]
    found = part(x, part.keys_values(y), Mask(keys)) if is_cross else part(x, Mask(keys))
    outputs = F.scaled_dot_product_attention(*(heads(z, W) for z, W in ((x, part.W_Q), (y, part.W_K), (y, part.W_V))),
                                             keys[:, None, None])  # fmt: skip
    expected, width = 0, 1 if headwise else D_V
    for i in range(H):
        gate = 1 / (1 + (-x @ part.W_G.weight[i * width : (i + 1) * width].T).exp())
        expected = expected + (gate * outputs[:, i]) @ part.W_O.weight[:, i * D_V : (i + 1) * D_V].T
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("site", "start"), [("encoder", 0), ("decoder", 0), ("decoder", 4), ("cross", 0)])
@pytest.mark.parametrize(("kind", "base"), [
    (ExclusiveAttention, ScaledDotProductAttention),
    (ExclusiveHalfRotaryAttention, HalfRotaryAttention),
])  # fmt: skip
def test_exclusive_attention_is_orthogonal_to_its_own_value(kind, base, site, start):
    """Zhai 2026: what is left away is a multiple of that value. The attention to the encoder stays as it is."""
    torch.manual_seed(1)
    Q, K, V = torch.randn(2, H, 6 - start, D_K), torch.randn(2, H, 6, D_K), torch.randn(2, H, 6, D_V)
    keys = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    arguments = Q, K, V, Mask(keys, causal=site == "decoder"), start
    y, z, own = base(CONFIG, site)(*arguments), kind(CONFIG, site)(*arguments), V[:, :, start:]
    if site == "cross":
        assert torch.equal(z, y)
        return
    for b, head, row in np.ndindex(2, H, 6 - start):
        z_i, v_i, left = z[b, head, row], own[b, head, row], (y - z)[b, head, row]
        assert abs(z_i @ v_i) < 1e-5 < v_i.norm()
        torch.testing.assert_close(left, left @ v_i / (v_i @ v_i) * v_i, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "site", "base"), [
    (LatentSelfAttention, "encoder", MultiHeadSelfAttention),
    (LatentCrossAttention, "cross", CrossAttention),
])  # fmt: skip
def test_latent_attention_is_multi_head_attention_with_factored_projections(kind, site, base):
    """DeepSeek-AI 2024, equations (9) to (11). What is kept of each position are its latents alone."""
    torch.manual_seed(1)
    part, paper = kind(CONFIG, site, rank=3), base(CONFIG, site)
    x, memory = torch.randn(2, 4, CONFIG.d_model), torch.randn(2, 5, CONFIG.d_model)
    with torch.no_grad():
        for W in ("W_K", "W_V"):
            getattr(paper, W).weight.copy_(getattr(part, W).weight @ part.W_D.weight)
    for W in ("W_Q", "W_O"):
        setattr(paper, W, getattr(part, W))
    mask, cache = Mask(torch.tensor([[True] * 5, [True] * 3 + [False] * 2])), {}
    if site == "cross":
        (kept,) = part.keys_values(memory)
        found, expected = part(x, (kept,), mask), paper(x, paper.keys_values(memory), mask)
    else:
        found, expected = part(memory, mask, 0, cache), paper(memory, mask)
        (kept,) = cache.values()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert kept.shape == (2, 5, 3)


@pytest.mark.parametrize(("site", "before"), [("encoder", 2), ("decoder", 3)])
@pytest.mark.parametrize("kind", [ShortConvolutionSelfAttention, ConvolvedSelfAttention])
def test_keys_and_values_are_convolved_as_by_torch(kind, site, before):
    """So et al. 2021: each number by itself. At first they are the paper's, or those of the two groups."""
    torch.manual_seed(1)
    config = small_models.small({"model.h": 4, "model.d_k": 7, "model.d_v": 5})
    part, x = kind(config, site), torch.randn(2, 6, config.d_model)
    around = F.pad(x, (0, 0, before, 3 - before))
    for found, W in zip(part.keys_values(around), (part.W_K, part.W_V), strict=True):
        torch.testing.assert_close(found.transpose(1, 2).flatten(2), W(x))
    for weight in (part.C_K, part.C_V):
        nn.init.normal_(weight)
    for found, W, C in zip(part.keys_values(around), (part.W_K, part.W_V), (part.C_K, part.C_V), strict=True):
        channels = W.out_features
        expected = F.conv1d(W(around).mT, C.reshape(channels, 1, 4), groups=channels).mT
        torch.testing.assert_close(found.transpose(1, 2).flatten(2), expected, atol=1e-5, rtol=1e-4)
    K, V = part.keys_values(around)
    mask, outer = Mask(causal=site == "decoder"), super(ShortConvolutionSelfAttention, part)
    torch.testing.assert_close(part(x, mask), outer.attend(x, K, V, mask))


def test_the_attention_of_marin_has_gates_for_heads_of_two_groups():
    """Ainslie et al. 2023 and Qiu et al. 2025, with torch's own attention."""
    torch.manual_seed(1)
    config = small_models.small({"model.h": 4, "model.d_k": 6, "model.d_v": 5})
    part, x = GatedGroupedSelfAttention(config, "encoder"), torch.randn(2, 3, config.d_model)
    Q, K, V = (W(x).unflatten(-1, (n, -1)).transpose(1, 2)
               for W, n in ((part.W_Q, 4), (part.W_K, 2), (part.W_V, 2)))  # fmt: skip
    heads = F.scaled_dot_product_attention(Q, K, V, enable_gqa=True).transpose(1, 2)  # (2, 3, 4, 5)
    gates = 1 / (1 + (-x @ part.W_G.weight.T).exp())
    expected = (heads * gates[..., None]).flatten(2) @ part.W_O.weight.T
    torch.testing.assert_close(part(x, Mask(torch.ones(2, 3, dtype=torch.bool))), expected, atol=1e-5, rtol=1e-4)


def test_experts_work_in_a_latent_space():
    """Elango et al. 2026, token by token, with the two experts of the greatest probability; the router reads x."""
    torch.manual_seed(1)
    part, x = LatentExperts(CONFIG, "encoder", experts=5, divisor=3), torch.randn(2, 3, CONFIG.d_model)
    nn.init.normal_(part.norm.weight)
    found = part(x)
    for b, t in np.ndindex(2, 3):
        p = (part.router.weight @ x[b, t]).exp()
        z = rms_norm(x[b, t] @ part.W_down.weight.T, part.norm)
        assert len(z) == CONFIG.d_model // 3
        i, j = p.argsort(descending=True)[:2].tolist()
        expected = (p[i] * part.experts[i](z) + p[j] * part.experts[j](z)) / (p[i] + p[j])
        torch.testing.assert_close(found[b, t], part.W_up(expected), atol=1e-5, rtol=1e-4)
    assert part.auxiliary["balance"].requires_grad


@pytest.mark.parametrize(("site", "start"), [("encoder", 0), ("decoder", 0), ("decoder", 4)])
def test_heads_talk_before_and_after_the_softmax(site, start):
    """Shazeer et al. 2020, head by head and query by query, with the keys that are seen alone."""
    config = CONFIG._replace(h=3)
    torch.manual_seed(1)
    part = TalkingHeads(config, site)
    Q, K, V = torch.randn(2, 3, 6 - start, D_K), torch.randn(2, 3, 6, D_K), torch.randn(2, 3, 6, D_V)
    keys = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    found = part(Q, K, V, Mask(keys, causal=site == "decoder"), start)
    for b, row in np.ndindex(2, 6 - start):
        seen = [j for j in range(6) if keys[b, j] and (site == "encoder" or j <= start + row)]
        J = [K[b, head, seen] @ Q[b, head, row] / math.sqrt(D_K) for head in range(3)]
        L = [sum(part.P_l[g, head] * J[head] for head in range(3)) for g in range(3)]
        W = [scores.exp() / scores.exp().sum() for scores in L]
        for g in range(3):
            U = sum(part.P_w[g, head] * W[head] for head in range(3))
            torch.testing.assert_close(found[b, g, row], U @ V[b, g, seen], atol=1e-5, rtol=1e-4)


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
