"""The page of decisions, transformer_pl/FIDELITY.md: its tests and settings exist; and the tests that it alone has."""

import ast
import re

import pytest
import small_models
import torch
from helpers import ROOT
from torch import nn

from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.tokenizer import PAD
from transformer_pl.model import SharedEmbedding, Transformer
from transformer_pl.model.loss import smoothed_loss
from transformer_pl.train.fit import build_trainer
from transformer_pl.train.module import TransformerModule

CONFIG = resolve([Level("test", small_models.SMALL | {"data.vocab_size": 100, "trainer.accelerator": "cpu"})])
PAGE = ROOT / "transformer_pl" / "FIDELITY.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| ?\w", line) and not line.startswith("|decision|")
]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_decision_has_tests_that_exist():
    assert ROWS and all(len(row) == 6 and code(row[-1]) for row in ROWS)
    for name in {name for row in ROWS for name in code(row[-1])}:
        path, _, test = name.partition("::")
        body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        assert test in {node.name for node in body if isinstance(node, ast.FunctionDef)}, name


def test_every_setting_of_the_page_is_one():
    settings = [setting.partition("=")[::2] for row in ROWS for setting in code(row[-2])]
    assert len(settings) > 5
    for key, value in settings:
        resolve([Level(PAGE.name, {key: value})])


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Wide enough that a deviation can be told, with d_k and d_v of their own."""
    return small_models.built(small_models.small({"model.d_model": 96, "model.d_k": 20, "model.d_v": 28}, 1000))


def test_only_the_feed_forward_network_and_the_norms_have_biases(model):
    """And there are no weights but those of Figure 1."""
    names = {re.sub(r"\d+", "*", name) for name, _ in model.named_parameters()}
    attention = {f"{W}.weight" for W in ("W_Q", "W_K", "W_V", "W_O")}
    ffn = {f"ffn.{W}.{kind}" for W in ("W_*",) for kind in ("weight", "bias")}
    norm = {f"residual.*.norm.{kind}" for kind in ("weight", "bias")}
    encoder = {f"encoder.*.{name}" for name in ffn | norm | {f"self_attention.{name}" for name in attention}}
    decoder = {name.replace("encoder", "decoder") for name in encoder}
    decoder |= {f"decoder.*.cross_attention.{name}" for name in attention}
    assert names == encoder | decoder | {"embedding.weight"}


def test_the_epsilon_of_every_norm(model):
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * (2 + 3) and {norm.eps for norm in norms} == {1e-6}


def test_matrices_are_drawn_from_glorot_s_distribution(model):
    """Uniform up to sqrt(6 / (d_in + d_out)) on both sides, each W by itself. Biases and norms change nothing yet."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = (6 / sum(module.weight.shape)) ** 0.5
            assert 0.97 * bound < module.weight.abs().max() <= bound
            assert module.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
            assert module.bias is None or not module.bias.any()
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all() and not module.bias.any()


def test_the_embedding_is_drawn_with_deviation_d_model_to_the_minus_half(model):
    weight = model.embedding.weight
    assert weight.std().item() == pytest.approx(96**-0.5, rel=0.02)
    assert weight.abs().max() > 3.5 * 96**-0.5  # which no uniform distribution of this deviation has


def test_smoothing_over_the_others_is_smoothing_over_all_with_another_eps():
    torch.manual_seed(1)
    V, eps = 7, 0.1
    embedding = SharedEmbedding(small_models.small(vocab_size=V), None)
    x, target = torch.randn(2, 3, 24), torch.tensor([[5, 4, 3], [6, 2, PAD]])
    others = torch.full((2, 3, V), eps / (V - 1)).scatter(-1, target[..., None], 1 - eps)
    expected = -(others * embedding.logits(x).log_softmax(-1)).sum(-1)[target != PAD].sum()
    assert smoothed_loss(embedding, x, target, eps * V / (V - 1)).item() == pytest.approx(expected.item(), rel=1e-5)
    assert smoothed_loss(embedding, x, target, eps).item() != pytest.approx(expected.item(), rel=1e-4)


def test_adam_s_epsilon_is_added_to_the_corrected_moment():
    """A first gradient as small as epsilon moves a weight by half of the rate; with TensorFlow's, by an eighth."""
    adam = TransformerModule(CONFIG, 100).configure_optimizers()["optimizer"]
    (group,) = adam.param_groups
    weight, group["lr"] = group["params"][0], 1.0
    before, weight.grad = weight.detach().clone(), torch.full_like(weight, 1e-9)
    adam.step()
    assert torch.allclose(before - weight, torch.tensor(0.5), atol=1e-4)


def test_gradients_are_not_clipped_and_weights_do_not_decay():
    assert not build_trainer(CONFIG, False, []).gradient_clip_val
    adam = TransformerModule(CONFIG, 100).configure_optimizers()["optimizer"]
    assert [group["weight_decay"] for group in adam.param_groups] == [0]
