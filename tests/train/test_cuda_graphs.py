"""Training steps that are replayed: by faked graphs, or each computed as it is, with all that surrounds a replay."""

import gc

import lightning as L
import pytest
import strangers
import torch
from faked_graphs import Card, Graph, install
from helpers import little_text
from shipped_components import components, each, marks_of, seldom
from small_models import batch, built, small
from small_trainings import config, fit
from torch.torch_version import TorchVersion

from transformer_pl.config import PAD, Optim, sizes
from transformer_pl.data.batches import Batch, TrainStream, padded_batch
from transformer_pl.data.prepare import prepare
from transformer_pl.model.loss import SmoothedCrossEntropy, training_loss
from transformer_pl.model.transformer import PostNormResidual
from transformer_pl.train.cuda_graphs import StepGraphs, why_no_graphs
from transformer_pl.train.module import TransformerModule


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replayed")
    return prepare(config(data__path=str(little_text(folder, 400, 30, 20))).data, folder / "runs")


@each(components())
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


OTHER = (strangers.Scaled, strangers.Schedule, strangers.AnnealedLoss, strangers.Validated)
KEEPING = [one for one in vars(strangers).values() if getattr(one, "__module__", "") == strangers.__name__]
STRANGERS = {one.__name__: {"model__ffn": f"strangers.{one.__name__}"} for one in KEEPING if one not in OTHER}
STRANGERS |= {
    "a number": {"model__ffn": "small_models.Counting"},
    "the loss": {"optim__loss": "strangers.AnnealedLoss"},
    "other sentences": {"model__residual": "small_models.NormOverTheBatch"},
    "waits": {"optim__loss": "ablations.r_drop.RDrop"},
}


def weights_after(prepared, one, *callbacks, **how):
    strangers.AClass.calls = 0
    return {name: value.clone() for name, value in fit(prepared, one, *callbacks, **how)[0].state_dict().items()}


GRAPHS = ("transformer_pl/train/cuda_graphs.py", "transformer_pl/train/passes.py")
EVERY_DAY = ("a number", "the loss")


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(keys, id=name, marks=[] if name in EVERY_DAY else pytest.mark.slow)
        for name, keys in STRANGERS.items()
    ],
)
def test_what_a_graph_would_not_see_is_trained_as_if_graphs_had_not_been_asked_for(prepared, keys, monkeypatch, capsys):
    """Bit for bit, as what the trial of a graph has changed is undone, but in closures, generators and globals.

    Nothing is captured for it: passes without a graph show it, by what they change, or by their gradients.
    """
    one, card = config(data__batch_tokens=300, optim__max_steps=3, **keys), Card()
    is_undone = not {"strangers.AClosure", "strangers.AnIterator", "strangers.AGlobal"} & set(keys.values())
    with monkeypatch.context() as patch:
        install(patch, card)
        expected = weights_after(prepared, one)
        found = weights_after(prepared, one, replayed=True)
    assert not (card.tries or Graph.replays) and capsys.readouterr().out.count("no CUDA graphs") == 1
    for name, value in expected.items():
        assert torch.equal(found[name], value) or not is_undone, name


ROWS = {name: keys for name, keys in components(training=True).items() if "RDrop" not in name}  # which waits
ROWS = {name: {key.replace(".", "__"): value for key, value in keys.items()} for name, keys in ROWS.items()}
OTHERS = {
    "two parts, clipped, master weights": {
        "trainer__accumulate": 2,
        "optim__clip": 0.5,
        "trainer__precision": "bf16-master",
    },
    "a buffer of a validation, one shape": {
        "model__ffn": "strangers.Validated",
        "trainer__val_every": 5,
        "data__batch_tokens": 6000,
    },
    "stochastic depth": {"model__residual": "ablations.stochastic_depth.StochasticDepth"},
}


@pytest.mark.parametrize(
    "keys",
    [
        *(
            pytest.param(keys, id=name, marks=marks_of(*GRAPHS) if "two parts" not in name else [])
            for name, keys in OTHERS.items()
        ),
        *(pytest.param(keys, id=name, marks=pytest.mark.slow) for name, keys in ROWS.items()),
    ],
)
def test_a_training_with_graphs_is_the_one_without_bit_for_bit(prepared, keys, monkeypatch):
    """Of the same batches, so that dropout draws the same numbers. A graph here is a tape of the pass's operations."""
    one = config(**{"data__batch_tokens": 300, "model__p_drop": 0.1, "optim__max_steps": 14} | keys)
    model = built(sizes(one.model, 400))
    if why_no_graphs(one, model, None):
        pytest.skip("known before")
    found = []
    for failing in (0, None):
        with monkeypatch.context() as patch:
            install(patch, Card(failing=failing))
            if failing == 0:  # without graphs, but with padded batches
                patch.setattr(StepGraphs, "_tried", lambda graphs, batch: batch)
                patch.setattr(StepGraphs, "_capture_in_pool", lambda graphs, batch: None)
            module, _ = fit(prepared, one, replayed=True)
            found.append((module.state_dict(), Graph.replays, module.replays))
    (expected, none, _), (weights, replays, is_replayed) = found
    assert not none and replays > 4 and is_replayed
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


@seldom(*GRAPHS)
def test_the_largest_batch_is_captured_first_and_all_memory_is_given_back(prepared, monkeypatch, capsys):
    """The first capture, of two sentences, has a pool of its own. A shape that occurs twice has no graph."""
    card, shapes = Card(), Shapes()
    install(monkeypatch, card)
    monkeypatch.setattr(TrainStream, "largest_shape", lambda stream: (40, 12))  # of which there is none so far
    module, _ = fit(prepared, config(**KEYS | {"optim__max_steps": 20}), shapes, replayed=True)
    pools, sizes_ = zip(*card.captures, strict=True)
    frequent = {shape for shape in shapes.seen if shapes.seen.count(shape) > 2}
    assert len(set(pools)) == 2 and pools[0] not in pools[1:] and sizes_[1] > max(sizes_[2:])
    assert len(pools) - 2 == len(frequent) and frequent < set(shapes.seen)
    left_out = len(set(shapes.seen)) - len(frequent)
    assert f"{left_out} of {len(set(shapes.seen))} shapes" in capsys.readouterr().out
    gc.collect()
    assert not Graph.made and all(weight.grad is None for weight in module.parameters())


@pytest.mark.parametrize(
    ("card", "captures"),
    [
        (Card(is_wrong=True), 1),
        *(
            pytest.param(card, captures, marks=marks_of(*GRAPHS))
            for card, captures in ((Card(free=2 * 10**11, taken=10**11), 1), (Card(failing=0), 0), (Card(failing=1), 1))
        ),
    ],
)
def test_a_training_that_cannot_be_captured_goes_on(prepared, card, captures, monkeypatch, capsys):
    """For want of memory, at the first capture, at the next one, and where a replay is not the pass."""
    install(monkeypatch, card)
    one = config(**KEYS)
    found = weights_after(prepared, one, replayed=True)
    assert capsys.readouterr().out.count("no CUDA graphs") == 1 and len(card.captures) == captures
    for name, value in weights_after(prepared, one).items():
        torch.testing.assert_close(found[name], value, atol=2e-3, rtol=0)


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


class LossAtStep(SmoothedCrossEntropy):
    at_step = AtStep.at_step


@pytest.mark.parametrize(
    ("keys", "version", "is_replayed"),
    [
        ({}, "2.13.1", True),
        ({}, "2.11.0", False),
        ({"trainer__compile": "on"}, "2.11.0", True),
        ({"trainer__precision": "bf16-mixed"}, "2.13.0+cu130", True),
        ({"trainer__callbacks": "lightning.pytorch.callbacks.EarlyStopping"}, "2.14.0", True),
        ({"trainer__callbacks": '[{"stopping_callback.StopAt": {"step": 5, "in_identity": false}}]'}, "2.13.0", True),
        ({"trainer__callbacks": '[{"stopping_callback.StopAt": {"step": 5}}]'}, "2.13.0", False),
        ({"trainer__precision": "bf16-master"}, "2.13.0", True),
        ({"trainer__devices": 2, "trainer__strategy": "ddp"}, "2.13.0", False),
        ({"model__residual": f"{__name__}.AtStep"}, "2.13.0", False),
        ({"optim__loss": f"{__name__}.LossAtStep"}, "2.13.0", False),
        ({"model__ffn": "ablations.mixture_of_experts.MixtureOfExperts"}, "2.13.0", False),
    ],
)
def test_what_cannot_be_replayed_is_known_before(keys, version, is_replayed, monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    one = config(**keys)
    module = TransformerModule(one, 400)
    assert (why_no_graphs(one, module.model, module.loss) is None) == is_replayed
    assert ("warning" in capsys.readouterr().out) == (is_replayed and version < "2.13")
