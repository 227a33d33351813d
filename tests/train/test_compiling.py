"""Compiled layers: the same gradients, with the same masks of dropout, and one graph for all lengths."""

from types import SimpleNamespace

import pytest
import tiny_trials
import torch
from shipped_components import components

from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.batches import Batch
from transformer_pl.train.compiling import compile_layers
from transformer_pl.train.module import TransformerModule

# torch's compiler ignores what it warns of itself, unless that is an error
pytestmark = pytest.mark.filterwarnings("ignore")

LENGTHS = [(3, 17, 16), (5, 19, 21), (4, 38, 27), (7, 25, 22), (2, 61, 60), (6, 22, 39), (9, 24, 23)]  # B, Ls, Lt
IN_PARTS = "RecurrentLayer"  # torch compiles no LSTM
TORCHS_OWN = pytest.param("inductor", marks=pytest.mark.slow)  # 40 s


def some_batch(B, Ls, Lt):
    source, target = torch.randint(4, 300, (B, Ls)), torch.randint(4, 300, (B, Lt))
    source[1, 9:] = target[1, 8:] = 0
    return Batch(source, target, target, B * Lt)


def let_torch_compile_by(backend, monkeypatch):
    compiled = torch.compile
    torch._dynamo.reset()
    if backend != "inductor":
        monkeypatch.setattr(torch, "compile", lambda one, **words: compiled(one, dynamic=True, backend=backend))


def gradients(batches, is_compiled, keys=None):
    """Their sums over some batches, in training."""
    torch.manual_seed(1)
    module = TransformerModule(resolve([Level("test", tiny_trials.TINY | {"model.p_drop": 0.3} | (keys or {}))]), 300)
    if is_compiled:
        compile_layers(module.model)
    module.trainer = SimpleNamespace(global_step=0, accumulate_grad_batches=1, world_size=1)
    for batch in batches:
        module.training_step(batch, 0).backward()
    return {name: weight.grad for name, weight in module.named_parameters()}


@pytest.mark.parametrize("backend", ["aot_eager", TORCHS_OWN])
def test_the_gradients_of_a_batch_are_those_without_compiling(backend, monkeypatch):
    """With the same masks of dropout, which are drawn from the same random numbers."""
    let_torch_compile_by(backend, monkeypatch)
    batch = some_batch(*LENGTHS[0])
    expected, found = (gradients([batch], is_compiled) for is_compiled in (False, True))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("base", {}),
        pytest.param("base", {"trainer.precision": "bf16-master"}, marks=pytest.mark.slow),
        *(pytest.param(*one, id=one[0], marks=pytest.mark.slow) for one in components().items() if one[0] != "base"),
    ],
)
def test_seven_lengths_need_one_graph_of_each_kind_of_layer(name, keys, monkeypatch, capsys):
    """With 16 tokens or more a CPU has one form of attention, as a GPU has."""
    compiled, made = torch.compile, []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    def whole(function, dynamic, options):
        return compiled(function, dynamic=dynamic, backend=backend, fullgraph=True)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", whole)
    gradients([some_batch(*lengths) for lengths in LENGTHS], True, {"model.N": 3} | keys)
    assert (len(made) == 2) != ("not compiled" in capsys.readouterr().out and IN_PARTS in name)


def test_what_does_not_compile_is_trained_without_and_one_line_says_so(monkeypatch, capsys):
    def fails(graph, inputs):
        raise RuntimeError("no compiler")

    let_torch_compile_by(fails, monkeypatch)
    batches = [some_batch(*lengths) for lengths in LENGTHS[:2]]
    expected, found = (gradients(batches, is_compiled) for is_compiled in (False, True))
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    assert capsys.readouterr().out.count("not compiled") == 1


KEYS = {"data.batch_tokens": 48, "optim.max_steps": 6, "trainer.val_every": 3, "trainer.val_sample": 3}


@pytest.mark.parametrize("choice", ["auto", "on"])
def test_a_training_is_compiled_if_the_config_says_on_and_its_trial_is_the_same(tmp_path, monkeypatch, choice):
    """A graph is made for training alone: validations and translations run as they are."""
    in_training = []

    def backend(graph, inputs):
        in_training.append(torch.is_grad_enabled())
        return graph.forward

    let_torch_compile_by(backend, monkeypatch)
    trials = [
        tiny_trials.train(tmp_path / compile, KEYS | {"trainer.compile": compile})[1] for compile in ("off", choice)
    ]
    assert all(in_training) and bool(in_training) == (choice == "on")
    expected, found = (trial.weights() for trial in trials)
    assert trials[0].name == trials[1].name, "it is no part of the identity"
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-4, rtol=1e-3)
