"""Compiled layers: the same numbers."""

import pytest
import tiny_trials
import torch
from torch import nn
from torch._dynamo.utils import counters

from transformer_pl.config.levels import Level, resolve
from transformer_pl.train import fit

KEYS = {"data.batch_tokens": 48, "optim.max_steps": 30, "trainer.val_every": 10, "trainer.val_sample": 3}


def config(**keys):
    return resolve([Level("test", {f"trainer.{key}": value for key, value in keys.items()})])


@pytest.mark.filterwarnings("ignore")  # torch's compiler ignores what it warns of itself, unless that is an error
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])  # 5 s; 3 minutes
def test_layers_are_compiled_and_change_no_numbers(tmp_path, monkeypatch, backend):
    compile_module = nn.Module.compile
    options = {} if backend == "inductor" else {"options": None, "backend": backend}
    monkeypatch.setattr(nn.Module, "compile", lambda self, **words: compile_module(self, **words | options))
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


def test_layers_are_compiled_on_a_gpu_unless_the_config_says_otherwise(monkeypatch):
    found = {}
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(fit, "accelerator", lambda config, device=device: device)
        found[device] = [fit.compiles(config(compile=choice)) for choice in ("auto", "on", "off")]
    assert found == {"cpu": [False, True, False], "cuda": [True, True, False]}
    assert not fit.compiles(config(strategy="fsdp2"))
