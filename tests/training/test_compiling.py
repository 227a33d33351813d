"""Compiled layers: the same numbers, compiled once, in training alone."""

import shutil
from itertools import pairwise

import pytest
import tiny_trials
import torch
from torch import nn
from torch._dynamo.utils import counters

from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.training import fit
from transformer_pl.training.module import TransformerModule

COMPILER = pytest.param("inductor", marks=pytest.mark.slow)  # it takes minutes; tracing is what "eager" has of it
KEYS = {"data.batch_tokens": 48, "optim.max_steps": 30, "trainer.val_every": 10, "trainer.bleu_sample": 3}


def config(**keys):
    return resolve([Level("test", {f"trainer.{key}": value for key, value in keys.items()})])


@pytest.mark.filterwarnings("ignore")  # torch's compiler ignores what it warns of itself, unless that is an error
@pytest.mark.parametrize("backend", ["eager", COMPILER])
def test_layers_are_compiled_in_the_first_epoch_and_change_no_numbers(tmp_path, monkeypatch, backend):
    compile_module, training_step = nn.Module.compile, TransformerModule.training_step
    options = {} if backend == "inductor" else {"options": None, "backend": backend}
    monkeypatch.setattr(nn.Module, "compile", lambda self, **words: compile_module(self, **words | options))
    graphs, epochs = [], []

    def noted(self, batch, batch_idx):
        loss = training_step(self, batch, batch_idx)
        graphs.append(counters["stats"]["unique_graphs"])
        epochs.append(self.trainer.train_dataloader.state_dict()["epoch"])  # of the next batch
        return loss

    monkeypatch.setattr(TransformerModule, "training_step", noted)
    made = {}
    for choice in ("off", "on"):
        torch._dynamo.reset()
        counters.clear()
        graphs.clear(), epochs.clear()
        code, made[choice] = tiny_trials.train(tmp_path / choice, KEYS | {"trainer.compile": choice})
        assert code == 0 and bool(graphs[-1]) == (choice == "on")
    assert epochs[-1] >= 2 and not counters["graph_break"]
    late = [after - before for (before, after), epoch in zip(pairwise(graphs), epochs[:-1], strict=True) if epoch]
    assert sum(late) == 0, f"compiled after the first epoch: {late}"
    assert counters["stats"]["unique_graphs"] == graphs[-1], "validation and decoding compile nothing"
    weights = [torch.load(trial.folder / "weights.pt") for trial in made.values()]
    assert made["off"].folder.name == made["on"].folder.name, "it is no part of the identity"
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-4, rtol=1e-3)


def test_layers_are_compiled_on_a_gpu_unless_the_config_says_otherwise(monkeypatch):
    found = {}
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(fit, "accelerator", lambda config, device=device: device)
        found[device] = [fit.compiles(config(compile=choice)) for choice in ("auto", "on", "off")]
    assert found == {"cpu": [False, True, False], "cuda": [True, True, False]}
    assert not fit.compiles(config(strategy="fsdp2"))


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(fit, "accelerator", lambda config: "cuda")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not fit.compiles(config())
    with pytest.raises(InputError, match=r"trainer\.compile = on: needs a C\+\+ compiler, .* choose auto or off"):
        fit.compiles(config(compile="on"))
