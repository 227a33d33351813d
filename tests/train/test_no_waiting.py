"""A training step never waits for the device: it reads no value of a tensor."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from shipped_components import components
from tiny_trials import TINY
from torch._subclasses.fake_tensor import FakeTensorMode

from transformer_pl.config.levels import Level, resolve
from transformer_pl.data.batches import Batch
from transformer_pl.train.module import TransformerModule


def step(keys):
    """A training step, its backward pass and Adam's step on tensors that have a shape, but no values.

    They say that they are on a GPU, so the code takes the path of a GPU. Reading a value is an error.
    """
    config = resolve([Level("test", TINY | keys)])
    with FakeTensorMode(), mock.patch.object(torch.Tensor, "is_cuda", True):
        module = TransformerModule(config, 300)
        module.trainer = SimpleNamespace(global_step=0, accumulate_grad_batches=1, world_size=1)
        adam = module.configure_optimizers()["optimizer"]
        source, target = torch.randint(4, 300, (3, 7)), torch.randint(4, 300, (3, 6))
        with torch.autocast("cpu", torch.bfloat16):
            loss = module.training_step(Batch(source, target, target, 18), 0)
        module.backward(loss)
        adam.step()


@pytest.mark.parametrize("keys", components().values(), ids=components())
def test_a_training_step_waits_for_nothing(keys):
    step(keys)
