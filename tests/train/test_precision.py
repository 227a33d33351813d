"""`bf16-master`: steps in bfloat16, weights in float32."""

import pytest
import small_models
import tiny_trials
import torch
from torch import nn
from torch.func import functional_call

from transformer_pl.api import load_trial
from transformer_pl.complexity import measure
from transformer_pl.config.levels import resolve
from transformer_pl.model.loss import smoothed_loss
from transformer_pl.train.precision import bfloat16_copies


class Loss(nn.Module):
    """The training loss of a small model, in nats per token."""

    def __init__(self):
        super().__init__()
        self.model = small_models.built(small_models.small()).train()
        self.source, self.target = small_models.batch()

    def forward(self):
        states = self.model.states(self.source, self.target)
        self.dtype = states.dtype
        return smoothed_loss(self.model.embedding, states, self.target, 0.1) / self.target.count_nonzero()


def gradients(loss: Loss, value: torch.Tensor) -> dict[str, torch.Tensor]:
    loss.zero_grad()
    value.backward()
    return {name: weight.grad.clone() for name, weight in loss.named_parameters() if weight.grad is not None}


def stepped(loss: Loss) -> torch.Tensor:
    with bfloat16_copies(loss):
        return loss()


def test_a_step_computes_with_copies_in_bfloat16():
    """The reference is torch's functional_call with such copies."""
    loss = Loss()
    weights = {name: weight.detach().clone() for name, weight in loss.named_parameters()}
    value = stepped(loss)
    assert loss.dtype == torch.bfloat16
    copies = {name: one.bfloat16() for name, one in (*loss.named_parameters(), *loss.named_buffers())}
    expected = functional_call(loss, copies, ())
    assert torch.equal(value, expected)
    ours, theirs = gradients(loss, value), gradients(loss, expected)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name, weight in loss.named_parameters():  # the masters are back, as they were
        assert isinstance(weight, nn.Parameter) and torch.equal(weight, weights[name])
        assert weight.dtype == weight.grad.dtype == torch.float32


def test_the_masters_are_back_after_an_error():
    loss = Loss()
    loss.forward = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        stepped(loss)
    assert all(isinstance(weight, nn.Parameter) for weight in loss.parameters())
    assert {tensor.dtype for tensor in (*loss.parameters(), *loss.buffers())} == {torch.float32}


class Counting(Loss):
    """Counts its steps in buffers, by each way to change one."""

    def __init__(self):
        super().__init__()
        for name, dtype in (("added", torch.float32), ("assigned", torch.float32), ("whole", torch.int64)):
            self.register_buffer(name, torch.zeros((), dtype=dtype))

    def forward(self):
        self.added += 1
        self.assigned = self.assigned + 1
        self.whole = self.whole + 1
        return super().forward()


def test_what_a_step_changes_in_a_buffer_stays():
    loss = Counting()
    for _ in range(3):
        stepped(loss)
    assert [loss.added.item(), loss.assigned.item(), loss.whole.item()] == [3, 3, 3]
    assert [loss.added.dtype, loss.assigned.dtype, loss.whole.dtype] == [torch.float32, torch.float32, torch.int64]


def test_what_is_saved_has_the_digits_of_float32(tmp_path):
    """Steps that are too small for bfloat16 add up, so the weights are not what bfloat16 could hold."""
    code, trial = tiny_trials.train(tmp_path / "master", {"trainer.precision": "bf16-master"})
    assert code == 0
    _, full = tiny_trials.train(tmp_path / "full", {})
    weights, others = (one.weights() for one in (trial, full))
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    assert all((weight != weight.bfloat16()).any() for weight in weights.values() if weight.dim() > 1)
    assert any(not torch.equal(weight, others[name]) for name, weight in weights.items())
    assert trial.result().metrics["val/loss"] == pytest.approx(full.result().metrics["val/loss"], rel=0.02)


def test_every_command_that_computes_keeps_float32_in_float32(tmp_path):
    """Also where something else has let a GPU round it to TF32, so that a trial is translated as it was evaluated."""

    def computes(run):
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        try:
            run()
            return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        finally:
            torch.set_float32_matmul_precision("highest")

    assert computes(lambda: tiny_trials.train(tmp_path / "runs", {})) == ("highest", False)
    (folder,) = (tmp_path / "runs/trials").iterdir()
    assert computes(lambda: load_trial(folder).translate(["ba bo"])) == ("highest", False)
    assert computes(lambda: measure(resolve([]), [8], "cpu")) == ("highest", False)
