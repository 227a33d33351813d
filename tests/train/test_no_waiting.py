"""A training step never waits: it reads no value of a tensor, and asks no other process."""

import os
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from forked import command
from helpers import little_text
from shipped_components import components, each
from tiny_trials import TINY
from torch._subclasses.fake_tensor import FakeTensorMode

from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.batches import Batch
from transformer_pl.data.datamodule import DataModule
from transformer_pl.train.module import TransformerModule


def step(keys):
    """A training step, its backward pass and Adam's step on tensors that have a shape, but no values.

    They say that they are on a GPU, so the code takes the path of a GPU. Reading a value is an error. Only this one
    initialisation, before the training, reads what it has drawn.
    """
    config = resolve([Level("test", TINY | keys)])
    untruncated = mock.patch.object(torch.nn.init, "trunc_normal_", lambda tensor, **_: tensor)
    with FakeTensorMode(), mock.patch.object(torch.Tensor, "is_cuda", True), untruncated:
        module = TransformerModule(config, 300)
        module.trainer = SimpleNamespace(global_step=0, accumulate_grad_batches=1, world_size=1)
        adam = module.configure_optimizers()["optimizer"]
        source, target = torch.randint(4, 300, (3, 7)), torch.randint(4, 300, (3, 6))
        with torch.autocast("cpu", torch.bfloat16):
            loss = module.training_step(Batch(source, target, target, 18), 0)
        module.backward(loss)
        adam.step()


@each(components())
def test_a_training_step_waits_for_nothing(keys):
    step(keys)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_batch_for_a_gpu_is_in_pinned_memory(prepared, device, monkeypatch):
    """Without which a copy is waited for."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    data = DataModule(resolve([]), prepared)
    batch = next(iter(data.val_dataloader()))
    data.trainer = SimpleNamespace(training=False, strategy=SimpleNamespace(root_device=torch.device(device)))
    for moved, tensor in zip(data.on_before_batch_transfer(batch, 0), batch, strict=True):
        assert moved is tensor
    assert len(pinned) == (3 if device == "cuda" else 0)


COUNTING = """
import os

import lightning
import torch

from transformer_pl.model import kernels

kernels.VECTOR = 0  # as on a GPU: no form of attention depends on what the scores are
READS = ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy")
ASKS = ("all_reduce", "broadcast", "all_gather", "all_gather_object", "broadcast_object_list", "barrier")

class Counting(lightning.Callback):
    def on_train_start(self, trainer, module):
        def noted(name, call):
            def wrapper(*args, **words):
                with open(os.environ["COUNTS"], "a") as file:
                    file.write(f"{trainer.fit_loop.epoch_loop.batch_progress.current.ready} {name}\\n")
                return call(*args, **words)
            return wrapper

        for owner, names in ((torch.Tensor, READS), (torch.distributed, ASKS)):
            for name in names:
                setattr(owner, name, noted(name, getattr(owner, name)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_ask_each_other_nothing_between_log_lines(strategy, tmp_path, monkeypatch):
    """Steps 5 and 10 of 12 have a log line and, as one is due at any time, a checkpoint; step 12 has a validation."""
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    keys = TINY | {"optim.max_steps": 12, "trainer.val_every": 12, "trainer.log_every": 5, "decode.beam": 1}
    keys |= {"trainer.checkpoint_minutes": 0, "data.path": little_text(tmp_path)}
    keys |= {"trainer.devices": 2, "trainer.accelerator": "cpu", "trainer.strategy": strategy}
    keys |= {"trainer.callbacks": '["counting.Counting"]'}
    words = [f"--runs={tmp_path / 'runs'}", *(f"--{key}={value}" for key, value in keys.items())]
    counts = {"COUNTS": str(tmp_path / "counts"), "WANDB_MODE": "disabled"}
    completed = command("train", *words, **counts)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    noted = [line.split() for line in (tmp_path / "counts").read_text().splitlines()]
    assert {int(step) for step, _ in noted} == {5, 10, 12}, noted
