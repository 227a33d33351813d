"""A compiled model: the same numbers, and one graph for all lengths."""

from types import SimpleNamespace

import pytest
import tiny_trials
import torch
from shipped_components import components
from torch._dynamo.utils import counters

from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.batches import Batch
from transformer_pl.model import PostNormResidual, loss
from transformer_pl.train import fit
from transformer_pl.train.compiling import CompiledLayers
from transformer_pl.train.module import TransformerModule
from transformer_pl.train.passes import Passes

KEYS = {"data.batch_tokens": 48, "optim.max_steps": 30, "trainer.val_every": 10, "trainer.val_sample": 3}


@pytest.mark.filterwarnings("ignore")  # torch's compiler ignores what it warns of itself, unless that is an error
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])  # 5 s; 3 minutes
def test_a_compiled_training_gives_the_same_numbers(tmp_path, monkeypatch, backend):
    compiled = torch.compile
    options = {} if backend == "inductor" else {"options": None, "backend": backend}
    monkeypatch.setattr(torch, "compile", lambda function, **words: compiled(function, **words | options))
    made = {}
    for choice in ("off", "on"):
        torch._dynamo.reset()
        counters.clear()
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            code, made[choice] = tiny_trials.train(tmp_path / choice, KEYS | {"trainer.compile": choice})
        assert code == 0 and bool(counters["stats"]["unique_graphs"]) == (choice == "on")
    assert not counters["graph_break"]
    weights = [trial.weights() for trial in made.values()]
    assert made["off"].folder.name == made["on"].folder.name, "it is no part of the identity"
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-4, rtol=1e-3)


LENGTHS = [(3, 17, 16), (5, 19, 21), (4, 38, 27), (7, 25, 22), (2, 61, 60), (6, 22, 39), (9, 24, 23)]  # B, Ls, Lt
IN_PARTS = "RecurrentLayer"  # torch compiles no LSTM


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("base", {}),
        pytest.param("base", {"trainer.precision": "bf16-master"}, marks=pytest.mark.slow),
        *(pytest.param(*one, id=one[0], marks=pytest.mark.slow) for one in components().items() if one[0] != "base"),
    ],
)
def test_seven_lengths_need_one_graph_of_each_kind_of_layer_and_one_of_the_loss(name, keys, monkeypatch, capsys):
    """With 16 tokens or more a CPU has one form of attention, as a GPU has. Chunks of the loss may be one sentence."""
    compiled, made = torch.compile, []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    def whole(function, dynamic, options=None):
        return compiled(function, dynamic=dynamic, backend=backend, fullgraph=True)

    torch._dynamo.reset()
    monkeypatch.setattr(loss, "TOKENS_AT_ONCE", 50)
    monkeypatch.setattr(torch, "compile", whole)
    module = TransformerModule(resolve([Level("test", tiny_trials.TINY | {"model.N": 3} | keys)]), 300)
    module.compiled = CompiledLayers(module)
    for step, (B, Ls, Lt) in enumerate(LENGTHS):
        module.trainer = SimpleNamespace(global_step=step, accumulate_grad_batches=1, world_size=1)
        module.training_step(some_batch(B, Ls, Lt), 0).backward()
    assert (len(made) == 3) != ("not compiled" in capsys.readouterr().out and IN_PARTS in name)


def some_batch(B, Ls, Lt):
    source, target = torch.randint(4, 300, (B, Ls)), torch.randint(4, 300, (B, Lt))
    source[1, 9:] = target[1, 8:] = 0
    return Batch(source, target, target, B * Lt)


class Noisy(PostNormResidual):
    def forward(self, x, sublayer):
        return super().forward(x + 0.1 * torch.randn_like(x), sublayer)


def backend_that(makes, ran):
    def wrong(one):
        ran.append(one)
        return one * 1.5 if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    def backend(graph, inputs):
        if makes == "an error":
            raise RuntimeError("no compiler")
        return lambda *values: [wrong(one) for one in graph.forward(*values)]

    return backend


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize("makes", ["an error", "other numbers"])
def test_what_a_compiler_spoils_is_trained_without_it(makes, monkeypatch, capsys):
    compiled, losses, ran = torch.compile, [], []
    backend = backend_that(makes, ran)
    monkeypatch.setattr(torch, "compile", lambda one, dynamic, options=None: compiled(one, backend=backend))
    for is_compiled in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(1)
        module = TransformerModule(resolve([Level("test", tiny_trials.TINY | {"model.p_drop": 0.1})]), 300)
        module.trainer = SimpleNamespace(global_step=0, accumulate_grad_batches=1, world_size=1)
        if is_compiled:
            module.compiled = CompiledLayers(module)
        losses.append([module.training_step(some_batch(*lengths), 0).item() for lengths in LENGTHS[:2]])
    assert losses[1] == losses[0] and capsys.readouterr().out.count("not compiled") == 1
    assert bool(ran) == (makes == "other numbers")


@pytest.mark.parametrize("residual", [PostNormResidual, Noisy])
def test_normal_noise_is_drawn_as_without_a_compiler(residual, monkeypatch):
    """Torch 2.13's `align_random_eager` would draw uniform numbers in its place."""
    chosen = []
    monkeypatch.setattr(torch, "compile", lambda one, dynamic, options=None: chosen.append(options) or one)
    path = "transformer_pl.model.PostNormResidual" if residual is PostNormResidual else f"{__name__}.Noisy"
    module = TransformerModule(resolve([Level("test", tiny_trials.TINY | {"model.residual": path})]), 300)
    module.trainer = SimpleNamespace(global_step=0, accumulate_grad_batches=1, world_size=1)
    module.compiled = CompiledLayers(module, on_gpu=True)
    module.training_step(some_batch(3, 17, 16), 0)
    assert {option for one in chosen if one for option in one} == {
        "fallback_random" if residual is Noisy else "align_random_eager"
    }


@pytest.mark.parametrize(("choice", "device"), [("auto", "cuda"), ("on", "cpu"), ("on", "cuda")])
def test_layers_are_compiled_and_steps_replayed_only_if_the_config_says_on(tmp_path, monkeypatch, device, choice):
    found = []
    monkeypatch.setattr(fit, "on_gpu", lambda config: device == "cuda")
    monkeypatch.setattr(fit, "CompiledLayers", lambda module, on_gpu: found.append("compiled"))
    monkeypatch.setattr(fit, "StepGraphs", lambda module: found.append("replayed") or Passes(module))
    monkeypatch.setattr(fit, "gpu_names", lambda config: [])
    keys = KEYS | {"optim.max_steps": 2, "trainer.accelerator": "cpu", "trainer.compile": choice}
    assert tiny_trials.train(tmp_path, keys)[0] == 0
    assert found == ["compiled", "replayed"][: (choice == "on") * (1 + (device == "cuda"))]
