"""Compiled layers: the same numbers, compiled once, in training alone."""

import pytest
import tiny_trials
import torch
from torch import nn
from torch._dynamo.utils import counters

from transformer_pl.levels import Level, resolve
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
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    compiled, epochs = [], []

    def noted(self, batch, batch_idx):
        before = counters["stats"]["unique_graphs"]
        loss = training_step(self, batch, batch_idx)
        compiled.append(counters["stats"]["unique_graphs"] - before)
        epochs.append(self.trainer.train_dataloader.state_dict()["epoch"])  # of the next batch
        return loss

    monkeypatch.setattr(TransformerModule, "training_step", noted)
    made = {}
    for choice in ("off", "on"):
        torch._dynamo.reset()
        counters.clear()
        compiled.clear(), epochs.clear()
        code, made[choice] = tiny_trials.train(tmp_path / choice, KEYS | {"trainer.compile": choice})
        assert code == 0 and bool(sum(compiled)) == (choice == "on")
    late = [count for count, epoch in zip(compiled[1:], epochs, strict=False) if epoch]
    assert len(late) > len(compiled) / 2 and not sum(late), f"compiled after the first epoch: {late}"
    assert counters["stats"]["unique_graphs"] == sum(compiled), "validation and decoding compile nothing"
    assert not counters["graph_break"]
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
