"""The modifications that Narang et al. 2021 compared, each against the equation of its source, by loops and by hand."""

import math

import pytest
import small_models
import torch
import torch.nn.functional as F
from helpers import ROOT
from torch import nn

from ablations.adaptive_input import AdaptiveInput
from ablations.adaptive_softmax import AdaptiveSoftmax
from ablations.dense_synthesizer import DenseSynthesizer
from ablations.dynamic_convolution import DynamicConvolution, LightweightConvolution
from ablations.dynamic_tanh import DynamicTanhResidual
from ablations.factorised_embedding import FactorisedEmbedding
from ablations.factorised_random_synthesizer import FactorisedRandomSynthesizer
from ablations.mixture_of_softmaxes import MixtureOfSoftmaxes
from ablations.product_key_memory import ProductKeyMemory
from ablations.random_synthesizer import RandomSynthesizer
from ablations.top_two_experts import TopTwoExperts
from ablations.untied_embedding import UntiedEmbedding
from ablations.untied_output import UntiedOutput
from ablations.untied_source import UntiedSource
from transformer_pl.config import sizes
from transformer_pl.config.components import build
from transformer_pl.model import FeedForward, Mask, Transformer
from transformer_pl.plan.sweep_file import read_sweep

CONFIG = small_models.small({"model.h": 2, "model.d_k": 7, "model.d_v": 5})
D = CONFIG.d_model


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def moved(part):
    """The part with all weights of one axis moved: norms and biases begin as ones and zeros, which hide a mistake."""
    for weight in part.parameters():
        if weight.dim() < 2:
            nn.init.normal_(weight, 0.5)
    return part


def model_of(name, **keys):
    sizes = {"model.N_encoder": 4, "model.N_decoder": 3, "model.architecture": f"ablations.{name}"}
    return moved(small_models.built(small_models.small(sizes | keys)))


def parameters(model):
    return sum(weight.numel() for weight in model.parameters())


def test_dynamic_tanh_is_its_equation():
    part, x = moved(DynamicTanhResidual(CONFIG, "encoder", alpha=0.3)).eval(), torch.randn(2, 3, D)
    norm = part.norm
    squashed = norm.gain * torch.tanh(norm.alpha * x) + norm.bias
    torch.testing.assert_close(part(x, lambda y: 2 * y), x + 2 * squashed)
    final = part.final_norm()
    assert final.alpha.item() == pytest.approx(0.3) and final.gain.shape == (D,)


def test_fixup_begins_as_the_identity_and_scales_the_other_projections():
    model = small_models.built(small_models.small({"model.architecture": "ablations.fixup.Fixup"}))
    papers = small_models.built(small_models.small())
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    x = torch.randn(2, 5, D)
    assert torch.equal(model.encoder_stack(x, Mask()), x)
    for stack, L in (("encoder", 4), ("decoder", 6)):  # sub-layers of two layers
        ours, theirs = getattr(model, stack)[1], getattr(papers, stack)[1]
        for name in ("ffn.W_1", "self_attention.W_V"):
            norms = [layer.get_submodule(name).weight.norm().item() for layer in (ours, theirs)]
            assert norms[0] == pytest.approx(norms[1] * L**-0.5, rel=0.1)
        assert not ours.ffn.W_2.weight.any() and not ours.self_attention.W_O.weight.any()
    residual = moved(model.encoder[0].residual[0]).eval()
    expected = x + residual.scale * (x + residual.bias) ** 2
    torch.testing.assert_close(residual(x, torch.square), expected)


@pytest.mark.parametrize(("name", "encoders", "decoders"), [("SharedEncoder", 1, 3), ("SharedDecoder", 4, 1)])
def test_one_stack_is_one_layer(name, encoders, decoders):
    model = model_of(f"shared_stacks.{name}")
    different = {"model.N_encoder": encoders, "model.N_decoder": decoders}
    assert (len(model.encoder), len(model.decoder)) == (4, 3)
    assert parameters(model) == parameters(Transformer(small_models.small(different)))


def test_a_factorised_embedding_begins_as_one_matrix_would():
    assert FactorisedEmbedding(CONFIG, None, divisor=4).A.shape == (CONFIG.vocab_size, D // 4)
    large = FactorisedEmbedding(small_models.small({"model.d_model": 240}, 3000), None)
    assert (large.A @ large.B).std().item() == pytest.approx(240**-0.5, rel=0.1)


EMBEDDINGS = {  # the matrices that embed source and target, and that which projects
    "output": (UntiedOutput, {}, lambda part: (part.input, part.input, part.output)),
    "all": (UntiedEmbedding, {}, lambda part: tuple(part.weight[name] for name in ("encoder", "decoder", "output"))),
    "source": (UntiedSource, {}, lambda part: (part.source, part.weight, part.weight)),
    "product": (FactorisedEmbedding, {"divisor": 4, "shared": True}, lambda part: (part.A @ part.B,) * 3),
    "product and output": (FactorisedEmbedding, {"divisor": 4, "shared": False},
                           lambda part: (part.A @ part.B, part.A @ part.B, part.output)),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "matrices"), EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_embeddings_are_their_matrices(kind, options, matrices):
    part, ids, x = kind(CONFIG, None, **options), torch.tensor([[4, 7], [30, 5]]), torch.randn(2, 3, D)
    source, target, output = matrices(part)
    for site, matrix in (("encoder", source), ("decoder", target)):
        torch.testing.assert_close(part.embed(ids, site), matrix[ids] * math.sqrt(D))
        assert matrix is target or matrix.std().item() == pytest.approx(D**-0.5, rel=0.1)
    torch.testing.assert_close(part.logits(x), x @ output.T)
    own = {id(weight) for weight in part.parameters()} & {id(matrix) for matrix in (source, target, output)}
    assert len(list(part.parameters())) == len(own) or kind is FactorisedEmbedding


def test_a_mixture_of_softmaxes_is_a_mean_of_probabilities():
    part, x = moved(MixtureOfSoftmaxes(CONFIG, None, components=3)), torch.randn(2, 4, D)
    pi = (x @ part.W_pi.weight.T).softmax(-1)
    expected = 0.0
    for k in range(3):
        rows = slice(k * D, (k + 1) * D)
        context = torch.tanh(x @ part.W_k.weight[rows].T + part.W_k.bias[rows])
        expected = expected + pi[..., k, None] * (context @ part.weight.T).softmax(-1)
    torch.testing.assert_close(part.logits(x).softmax(-1), expected)


def test_adaptive_input_has_shorter_vectors_for_rarer_subwords():
    config = small_models.small({"model.d_model": 96}, 1000)
    part, x = AdaptiveInput(config, None), torch.randn(2, 3, 96)
    assert [tuple(A.shape) for A in part.A] == [(78, 96), (187, 24), (735, 6)]
    rows = [A[i] @ B for A, B in zip(part.A, part.B, strict=True) for i in range(len(A))]
    ids = torch.tensor([[0, 77, 78, 264], [265, 999, 4, 500]])
    for of_ids, vectors in zip(ids.tolist(), part.embed(ids, "decoder"), strict=True):
        for number, vector in zip(of_ids, vectors, strict=True):
            torch.testing.assert_close(vector, rows[number] * math.sqrt(96))
    torch.testing.assert_close(part.logits(x), torch.stack([x @ row for row in rows], -1))
    for A, B in zip(part.A, part.B, strict=True):
        assert (A @ B).std().item() == pytest.approx(96**-0.5, rel=0.2)


@pytest.mark.parametrize("projection", [True, False])
def test_the_adaptive_softmax_is_torch_s(projection):
    """Torch has a projection for the tail alone, and cannot leave it out."""
    part, x = moved(AdaptiveSoftmax(CONFIG, None, projection)), torch.randn(2, 3, D)
    first, second, _ = part.counts
    cutoffs = [first, first + second]
    torchs = nn.AdaptiveLogSoftmaxWithLoss(D, CONFIG.vocab_size, cutoffs, div_value=4.0 if projection else 1.0)
    with torch.no_grad():
        torchs.head.weight.copy_(torch.cat([part.vectors[0], part.clusters.weight]))
        for i, (down, up) in enumerate(torchs.tail):
            down.weight.copy_(part.projections[i] if projection else torch.eye(D))
            up.weight.copy_(part.vectors[i + 1])
    torch.testing.assert_close(part.logits(x).flatten(0, 1), torchs.log_prob(x.flatten(0, 1)))
    ids = torch.arange(CONFIG.vocab_size)[None]
    vectors = [part.vectors[0], *(v @ part.projections[i] if projection else v for i, v in enumerate(part.vectors[1:]))]
    torch.testing.assert_close(part.embed(ids, "encoder")[0], torch.cat(vectors) * math.sqrt(D))


def test_each_decoder_layer_reads_a_weighted_sum_of_all_encoder_layers():
    model, (source, target) = model_of("transparent_attention.TransparentAttention").eval(), small_models.batch()
    keys = source != 0
    x = model.position["encoder"](model.embedding.embed(source, "encoder"))
    outputs = [x]
    for layer in model.encoder:
        outputs.append(layer(outputs[-1], Mask(keys)))
    for layer, (K, V) in zip(model.decoder, model.encode(source, keys), strict=True):
        weights = layer.cross_attention.mix.exp() / layer.cross_attention.mix.exp().sum()
        mixed = sum(weight * output for weight, output in zip(weights, outputs, strict=True))
        expected = (mixed @ getattr(layer.cross_attention, name).weight.T for name in ("W_K", "W_V"))
        for found, by_hand in zip((K, V), expected, strict=True):
            torch.testing.assert_close(found.transpose(1, 2).flatten(2), by_hand)
    assert model(source, target).isfinite().all()
    assert (
        parameters(model)
        == parameters(Transformer(small_models.small({"model.N_encoder": 4, "model.N_decoder": 3}))) + 15
    )


@pytest.mark.parametrize(("site", "before"), [("encoder", 2), ("decoder", 4)])
@pytest.mark.parametrize("kind", [LightweightConvolution, DynamicConvolution])
def test_a_convolution_has_a_normalised_kernel_for_each_head(kind, site, before):
    part, x = kind(CONFIG, site, kernel=5), torch.randn(1, 7, D)
    found = part(x, Mask(causal=site == "decoder"))
    a, b = (x[0] @ part.W_I.weight.T).chunk(2, -1)
    gated = a * b.sigmoid()
    for t in range(7):
        raw = part.weight if kind is LightweightConvolution else (part.W_kernel.weight @ gated[t]).view(2, 5)
        kernels = raw.exp() / raw.exp().sum(-1, keepdim=True)
        mixed = torch.zeros(D)
        for j in range(5):
            if 0 <= t - before + j < 7:
                weights = kernels[:, j].repeat_interleave(D // 2)
                mixed = mixed + weights * gated[t - before + j]
        torch.testing.assert_close(found[0, t], part.W_O.weight @ mixed)


SYNTHESIZERS = {
    "random": (RandomSynthesizer, {}),
    "random, plus": (RandomSynthesizer, {"plus": True}),
    "random, alpha": (RandomSynthesizer, {"alpha": True}),
    "random, factorised": (FactorisedRandomSynthesizer, {"rank": 3}),
    "dense": (DenseSynthesizer, {}),
    "dense, plus": (DenseSynthesizer, {"plus": True}),
    "dense, alpha": (DenseSynthesizer, {"alpha": True}),
    "dense, factorised": (DenseSynthesizer, {"factorised": True}),
}


@pytest.mark.parametrize("length", [6, 12], ids=["short", "long"])
@pytest.mark.parametrize(("kind", "options"), SYNTHESIZERS.values(), ids=SYNTHESIZERS)
def test_synthesized_scores_are_their_equations(kind, options, length):
    """With 8 positions, the last two of which a synthesizer of length 6 does not distinguish."""
    part, x = moved(kind(CONFIG, "decoder", **options, length=length)), torch.randn(1, 8, D)
    heads = []
    for head in range(2):
        keys, values = slice(7 * head, 7 * head + 7), slice(5 * head, 5 * head + 5)
        rows = []
        for i in range(8):
            scores = torch.zeros(i + 1)
            for j in range(i + 1):
                own = torch.tensor(0.0)
                if j < length and kind is RandomSynthesizer:
                    own = part.R[head, i, j] if i < length else own
                elif j < length and kind is FactorisedRandomSynthesizer:
                    own = part.R_1[head, i] @ part.R_2[head, j] if i < length else own
                elif j < length:
                    hidden = (part.W_Q.weight[keys] @ x[0, i]).relu()
                    numbers = [hidden @ W[head] for W in part.W_2]
                    own = (
                        numbers[0][j]
                        if len(numbers) == 1
                        else numbers[0][j // len(numbers[1])] * numbers[1][j % len(numbers[1])]
                    )
                weights = torch.ones(2) if part.alpha is None else part.alpha.softmax(0)
                scores[j] = weights[0] * own
                if part.plus:
                    usual = (part.W_Q.weight[keys] @ x[0, i]) @ (part.W_K.weight[keys] @ x[0, j]) / math.sqrt(7)
                    scores[j] = scores[j] + weights[1] * usual
                elif part.alpha is None:
                    scores[j] = own
            rows.append(scores.softmax(0) @ (x[0, : i + 1] @ part.W_V.weight[values].T))
        heads.append(torch.stack(rows))
    torch.testing.assert_close(part(x, Mask(causal=True))[0], torch.cat(heads, -1) @ part.W_O.weight.T)


def test_a_memory_reads_the_slots_with_the_best_pairs_of_keys():
    """By all pairs of keys, of which the best must be among the best of each half."""
    part, x = ProductKeyMemory(CONFIG, "encoder", keys=6, chosen=3, heads=2), torch.randn(2, 3, D)
    found = part(x)
    for b in range(2):
        for t in range(3):
            expected = torch.zeros(D)
            query = (part.W_Q.weight @ x[b, t] + part.W_Q.bias).view(2, 2, -1)
            for head in range(2):
                halves = [part.half_keys[head, half] @ query[head, half] for half in range(2)]
                scores = {(i, j): (halves[0][i] + halves[1][j]) for i in range(6) for j in range(6)}
                best = sorted(scores, key=lambda pair: -scores[pair].item())[:3]
                weights = torch.stack([scores[pair] for pair in best]).softmax(0)
                for weight, (i, j) in zip(weights, best, strict=True):
                    expected = expected + weight * part.values.weight[6 * i + j]
            torch.testing.assert_close(found[b, t], expected)


def test_the_universal_transformer_adds_position_and_step_before_each_step():
    model, x = model_of("universal_transformer.UniversalTransformer").eval(), torch.randn(2, 5, D)
    expected = x
    for step in range(1, 5):
        added = torch.zeros(5, D)
        for t in range(5):
            for i in range(0, D, 2):
                for number in (t, step):
                    angle = number / 10000 ** (i / D)
                    added[t, i] += math.sin(angle)
                    added[t, i + 1] += math.cos(angle)
        expected = model.encoder[0](expected + added, Mask())
    torch.testing.assert_close(model.encoder_stack(x, Mask()), expected, atol=1e-4, rtol=1e-4)
    assert len({id(layer) for layer in (*model.encoder, *model.decoder)}) == 2


def test_two_experts_share_a_token_by_their_probabilities():
    part, x = TopTwoExperts(CONFIG, "encoder", experts=4, weight=0.1), torch.randn(2, 5, D)
    found, tokens = part(x).flatten(0, 1), x.flatten(0, 1)
    p = (tokens @ part.router.weight.T).softmax(-1)
    first = torch.zeros(4)
    for token, probabilities, output in zip(tokens, p, found, strict=True):
        i, j = probabilities.argsort(descending=True)[:2].tolist()
        first[i] += 1 / 10
        both = probabilities[i] * part.experts[i](token) + probabilities[j] * part.experts[j](token)
        torch.testing.assert_close(output, both / (probabilities[i] + probabilities[j]))
    torch.testing.assert_close(part.auxiliary["balance"], 0.1 * 4 * (first * p.mean(0)).sum())


def pooled_by_hand(x, lengths):
    """Means of pairs of the first `lengths` positions of each sentence; zeros where both are padding."""
    rows = []
    for sentence, length in zip(x, lengths, strict=True):
        pairs = [sentence[t : min(t + 2, length)] for t in range(0, len(sentence), 2)]
        rows.append(torch.stack([pair.mean(0) if len(pair) else torch.zeros(D) for pair in pairs]))
    return torch.stack(rows), [math.ceil(length / 2) for length in lengths]


def test_the_funnel_pools_after_the_self_attention_of_a_block_s_first_layer():
    """Four layers in three blocks: the third and the fourth begin one."""
    model, x, lengths = model_of("funnel_encoder.FunnelEncoder").eval(), torch.randn(2, 7, D), [7, 3]

    def mask():
        return Mask(torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None])

    found = model.encoder_stack(x, mask())
    for number, layer in enumerate(model.encoder):
        x = layer.residual[0](x, lambda x, layer=layer: layer.self_attention(x, mask()))
        if number >= 2:
            x, lengths = pooled_by_hand(x, lengths)
        x = layer.residual[1](x, layer.ffn)
    assert found.shape == (2, 2, D) and lengths == [2, 1]
    for sentence, by_hand, length in zip(found, x, lengths, strict=True):
        torch.testing.assert_close(sentence[:length], by_hand[:length])


def test_the_decoder_of_the_funnel_reads_what_is_left():
    """What a padded sentence gets does not depend on its padding, and the decoder sees both halves of it."""
    model = model_of("funnel_encoder.FunnelEncoder").eval()
    source, target = torch.tensor([[5, 6, 7, 8, 9, 3]]), torch.tensor([[2, 5, 6]])
    assert [K.shape[2] for K, V in model.encode(source, source != 0)] == [2] * 3
    padded = F.pad(source, (0, 5))
    torch.testing.assert_close(model(padded, target), model(source, target))
    for place in (0, 4):
        changed = source.clone()
        changed[0, place] = 10
        assert not torch.allclose(model(changed, target), model(source, target))


def test_one_layer_of_the_decoder_has_a_memory():
    model = small_models.built(
        small_models.small({"model.N": 4, "model.ffn": "ablations.product_key_memory.MemoryLayer"})
    )
    ffns = [layer.ffn.part for layer in (*model.encoder, *model.decoder)]
    assert [isinstance(ffn, FeedForward) for ffn in ffns] == [True] * 6 + [False, True]
    memory, x = ffns[6], torch.randn(2, 3, D)
    assert (memory.keys, memory.chosen, memory.heads) == (64, 32, 4)
    torch.testing.assert_close(model.decoder[2].ffn(x), memory(x))


PRINTED = [*[223] * 17, 224, 223, 65, 45, 20, 170, 144, 227, 202, 248, 248, 273, 204, None, 223, 232, 223]
PRINTED += [*[None] * 12, 223, 421]  # None: the parts of the row differ from theirs


def test_rows_have_as_many_weights_as_the_table_prints():
    """In millions, at its sizes, in the order of the file.

    No number stands for a row whose parts differ: the vectors of the adaptive softmax are shorter here; there,
    convolutions have a kernel for each feature, the Universal Transformer has gates, and experts are in every fourth
    layer; and the lengths of Synthesizers are not printed.
    """
    options = {"MixtureOfSoftmaxes": {"components": 15}, "MemoryLayer": {"keys": 512}}
    sweep = read_sweep(ROOT / "sweeps" / "narang2021.yaml", None, None, {})
    for row, printed in zip(sweep.rows, PRINTED, strict=True):
        if printed is None:
            continue
        model = row.configs[0].model
        parts = {
            slot: part.model_copy(update={"options": options[name]})
            for slot in ("embedding", "ffn")
            if (name := (part := getattr(model, slot)).path.rpartition(".")[2]) in options
        }
        of_stack = {"N": 2 * model.N, "d_ff": model.d_ff * 3 // 2, "h": model.h * 3 // 2, "d_k": 64, "d_v": 64}
        theirs = model.model_copy(update={"width": 1, "depth": 1, "d_model": 768} | of_stack | parts)
        with torch.device("meta"):
            built = build(theirs.architecture, sizes(theirs, 32_128))
        assert parameters(built) / 1e6 == pytest.approx(printed, abs=1), row.name
