"""Training steps that are replayed. Without a GPU, each is computed as it is, with all that surrounds a replay."""

import lightning as L
import pytest
import torch
from helpers import little_text
from shipped_components import components
from small_models import batch, built, small
from small_trainings import config, fit

from transformer_pl.config import PAD, Optim, sizes
from transformer_pl.data.batches import Batch, padded_batch
from transformer_pl.data.prepare import prepare
from transformer_pl.model.loss import SmoothedCrossEntropy, training_loss
from transformer_pl.model.transformer import PostNormResidual
from transformer_pl.train.cuda_graphs import why_no_graphs


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replayed")
    return prepare(config(data__path=str(little_text(folder, 400, 30, 20))).data, folder / "runs")


@pytest.mark.parametrize("keys", components().values(), ids=components())
def test_a_batch_that_is_padded_has_the_same_loss_and_gradients(keys):
    model, (source, target) = built(small(keys)).eval(), batch()
    alone = Batch(source, target, target, int((target != PAD).sum()))
    losses, gradients = [], []
    for one in (alone, padded_batch(alone, rows=len(source) + 3, length=max(source.shape[1], target.shape[1]) + 2)):
        torch.manual_seed(1)
        loss = training_loss(SmoothedCrossEntropy(small(keys), Optim()), model, one)
        model.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=2e-5)


class Shapes(L.Callback):
    """Notes the shapes of batches."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.seen.append((*batch.source.shape, *batch.target_in.shape))


KEYS = {"model__p_drop": 0.0, "data__batch_tokens": 300, "trainer__val_every": 6}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"trainer__accumulate": 3, "optim__clip": 0.5, "trainer__precision": "bf16-mixed"},
        {"trainer__accumulate": 2, "trainer__precision": "bf16-master"},
        {"model__ffn": "small_models.Counting"},
    ],
    ids=["one part", "three parts, clipped", "master weights", "a number in Python"],
)
def test_a_replayed_training_is_the_training_in_few_shapes(prepared, keys):
    shapes, one = [Shapes(), Shapes()], config(**KEYS, **keys)
    (module, lines), (ours, our_lines) = (
        fit(prepared, one, seen, replayed=replayed) for seen, replayed in zip(shapes, (False, True), strict=True)
    )
    parts = one.trainer.accumulate
    for B, source_length, rows, length in shapes[1].seen:
        assert source_length == length and (B, length) == (rows, source_length)
        assert B in (-(-(300 // length) // parts), *(shape[0] for shape in shapes[0].seen))
    assert len(set(shapes[1].seen)) < len(set(shapes[0].seen))
    rel = 1e-4 if one.trainer.precision == "32-true" else 1e-2
    for (step, line), (our_step, our_line) in zip(lines, our_lines, strict=True):
        assert our_step == step and line.keys() == our_line.keys()
        for name in line.keys() - {"tokens_per_s"}:
            assert our_line[name] == pytest.approx(line[name], rel=rel)
    for name, weight in module.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], weight, atol=20 * rel, rtol=0)


def test_a_component_that_depends_on_the_other_sentences_trains_without(prepared, capsys):
    one = config(**KEYS | {"model__p_drop": 0.1, "model__residual": "small_models.NormOverTheBatch"})
    (module, _), (ours, _) = (fit(prepared, one, replayed=replayed) for replayed in (False, True))
    assert not ours.replays and "other sentences" in capsys.readouterr().out
    for name, value in module.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


class Freezes(L.Callback):
    """Ends the training of the embedding after step 5, and puts another weight in the place of one after step 8."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == 5:
            module.model.embedding.weight.requires_grad_(False)
        if trainer.global_step == 8:
            weight = module.model.encoder[0].ffn.W_1.weight
            weight.data = weight.detach().clone()
        if trainer.global_step in (5, 12):
            self.weights = [*getattr(self, "weights", []), module.model.embedding.weight.detach().clone()]


def test_weights_that_a_callback_freezes_stay(prepared):
    freezes = Freezes()
    module, _ = fit(prepared, config(**KEYS), freezes, replayed=True)
    assert torch.equal(*freezes.weights)
    other, _ = fit(prepared, config(**KEYS), Freezes())
    for name, value in other.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, atol=1e-3, rtol=0)


class AtStep(PostNormResidual):
    def at_step(self, step, steps):
        self.step = step


@pytest.mark.parametrize(
    ("keys", "is_replayed"),
    [
        ({}, True),
        ({"trainer__precision": "bf16-mixed"}, True),
        ({"trainer__callbacks": "lightning.pytorch.callbacks.EarlyStopping"}, True),
        ({"trainer__callbacks": '[{"stopping_callback.StopAt": {"step": 5, "in_identity": false}}]'}, True),
        ({"trainer__callbacks": '[{"stopping_callback.StopAt": {"step": 5}}]'}, False),
        ({"trainer__precision": "bf16-master"}, True),
        ({"trainer__devices": 2, "trainer__strategy": "ddp"}, False),
        ({"model__residual": f"{__name__}.AtStep"}, False),
        ({"model__ffn": "ablations.mixture_of_experts.MixtureOfExperts"}, False),
    ],
)
def test_what_cannot_be_replayed_is_known_before(keys, is_replayed):
    one = config(**keys)
    assert (why_no_graphs(one, built(sizes(one.model, 400))) is None) == is_replayed
