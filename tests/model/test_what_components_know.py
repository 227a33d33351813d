"""What a component may know and add: its layer, the training step, auxiliary losses; and stacks of different depth."""

import pytest
import small_models
import tiny_trials
import torch

from transformer_pl.config import Site, sizes
from transformer_pl.config.levels import Level, resolve
from transformer_pl.model import Transformer
from transformer_pl.model.slots import auxiliary_losses

SMALL = small_models.SMALL | {"model.N": 3}


def built(**keys):
    config = resolve([Level("test", SMALL | {f"model.{key}": value for key, value in keys.items()})])
    return Transformer(sizes(config.model, 40))


NOTES = """
from transformer_pl.model import FeedForward

class Noting(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.site = site
"""


def test_a_component_knows_its_layer(module):
    """A site is still a text, as in a component that knows nothing of layers."""
    module(NOTES)
    model = built(ffn="stranger.Noting")
    found = [(layer.ffn.site, layer.ffn.site.layer) for layer in (*model.encoder, *model.decoder)]
    assert found == [(site, layer) for site in ("encoder", "decoder") for layer in range(3)]
    assert Site("cross") == "cross" and Site("cross").layer is None


PARTS = """
import torch
from transformer_pl.data.batches import TrainStream
from transformer_pl.model import FeedForward
from transformer_pl.model.loss import SmoothedCrossEntropy

class Told:
    def at_step(self, step, steps):
        with open(LOG, 'a') as file:
            print(step, steps, file=file)

class Layer(Told, FeedForward): pass
class Loss(Told, SmoothedCrossEntropy): pass
class Adam(Told, torch.optim.Adam): pass
class Batches(Told, TrainStream): pass
class Twice(torch.optim.SGD):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        return super().step(closure)
"""
LAYERS = {"model.ffn": "stranger.Layer", "model.N": 1, "model.depth": 1}  # one in the encoder, one in the decoder


@pytest.mark.usefixtures("unrehearsed")
@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        *((LAYERS | keys, [1, 1, 2, 2, 3, 3, 3, 3]) for keys in ({}, {"trainer.accumulate": 2})),
        (LAYERS | {"optim.optimizer": "stranger.Twice"}, [1, 1, 2, 2, 3, 3, 3, 3]),
        (LAYERS | {"trainer.callbacks": "{stopping_callback.StopAt: {step: 2}}"}, [1, 1, 2, 2, 2, 2]),
        ({"optim.loss": "stranger.Loss", "trainer.accumulate": 2}, [1, 2, 3]),
        ({"optim.optimizer": "stranger.Adam", "trainer.accumulate": 2}, [1, 2, 3]),
        ({"data.batches": "stranger.Batches", "trainer.accumulate": 2}, [1, 2, 3]),
    ],
    ids=str,
)
def test_a_part_is_told_each_step_once_and_a_component_its_own_last_one_for_evaluation(module, tmp_path, keys, steps):
    """Whatever the parts of a batch are, and how many gradients an optimizer asks for; also of what ended early."""
    log = tmp_path / "steps"
    module(PARTS.replace("LOG", repr(str(log))))
    tiny_trials.train(tmp_path / "runs", keys | {"optim.max_steps": 3})
    assert log.read_text().splitlines() == [f"{step} 3" for step in steps]


AUXILIARY = """
import torch
from transformer_pl.model import FeedForward
from transformer_pl.model.loss import SmoothedCrossEntropy

class Pulling(FeedForward):
    def __init__(self, config, site, weight: float = 0.5):
        super().__init__(config, site)
        self.weight, self.auxiliary = weight, {"pull": torch.zeros(())}
    def forward(self, x):
        self.auxiliary = {"pull": self.weight * self.W_1.bias.square().mean()}
        return super().forward(x)

class PullingLoss(SmoothedCrossEntropy):
    def __init__(self, config, optim, weight: float):
        super().__init__(config, optim)
        self.weight, self.auxiliary = weight, {"pull": torch.zeros(())}
    def of_batch(self, model, batch):
        self.auxiliary = {"pull": self.weight * model.embedding.weight.mean()}
        return self.of_states(model.embedding, model.states(batch.source, batch.target_in), batch.target_out)
"""


@pytest.mark.usefixtures("unrehearsed")
def test_auxiliary_losses_are_trained_on_and_logged_but_no_part_of_the_validation(module, tmp_path):
    """The pull of a bias to 0 is the only loss that a great weight leaves; it is the mean over micro-batches."""
    module(AUXILIARY)
    keys = {"model.ffn": "stranger.Pulling", "optim.max_steps": 6, "trainer.accumulate": 2}
    found = {}
    for weight in (0.5, 1e6):
        changed = keys | {"model.ffn.weight": weight, "trainer.log_every": 1}
        _, trial = tiny_trials.train(tmp_path / f"runs-{weight}", changed)
        lines = trial.metrics()
        assert [line["step"] for line in lines if "train/aux.pull" in line] == [1, 2, 3, 4, 5, 6]
        assert not any("aux" in name for line in lines if "val/loss" in line for name in line)
        weights = trial.weights()
        found[weight] = sum(w.abs().mean() for name, w in weights.items() if name.endswith("ffn.W_1.bias"))
    assert found[1e6] < found[0.5]


@pytest.mark.usefixtures("unrehearsed")
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    ("part", "pulled", "count"),
    [("model.ffn=Pulling", "ffn.W_1.bias", 4), ("optim.loss=PullingLoss", "embedding.weight", 1)],
)
def test_an_auxiliary_loss_is_added_to_the_loss_of_a_token(module, tmp_path, part, pulled, count, accumulate):
    """A step of SGD moves each weight by the gradient of a mean, whatever the tokens and the parts of the batch."""
    module(AUXILIARY.replace("square().mean()", "mean()"))
    key, _, name = part.partition("=")
    keys = {key: f"stranger.{name}", "optim.optimizer": "torch.optim.SGD", "trainer.accumulate": accumulate}
    keys |= {"optim.max_steps": 1, "trainer.val_every": 1}
    plain, trial = (
        tiny_trials.train(tmp_path / f"runs{weight}", keys | {f"{key}.weight": weight})[1] for weight in (0, 1e5)
    )
    (line, *_), before, after = trial.metrics(), plain.weights(), trial.weights()
    moved = {name: after[name] - value for name, value in before.items() if name.endswith(pulled)}
    assert len(moved) == count and "train/aux.pull" in line
    for change in moved.values():
        assert torch.allclose(change, torch.full_like(change, -line["lr"] * 1e5 / change.numel()), rtol=1e-2)


def test_auxiliary_losses_are_summed_over_the_components(module):
    module(AUXILIARY)
    model = built(ffn="stranger.Pulling")
    assert auxiliary_losses(model) == {"pull": 0}
    with torch.no_grad():
        for layer in (*model.encoder, *model.decoder):
            layer.ffn.W_1.bias.fill_(2.0)
    model(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))
    assert auxiliary_losses(model)["pull"].item() == pytest.approx(6 * 0.5 * 4)


FINAL = """
from torch import nn
from transformer_pl.model import PostNormResidual

class Named(PostNormResidual):
    def final_norm(self):
        norm = nn.Identity()
        norm.of = [self]
        return norm
"""


def test_what_follows_a_stack_is_of_its_last_residual(module):
    module(FINAL)
    model = built(residual="stranger.Named")
    assert model.encoder_norm.of == [model.encoder[-1].residual[-1]]
    assert model.decoder_norm.of == [model.decoder[-1].residual[-1]]


def test_each_stack_has_its_depth_and_costs_what_it_has():
    keys = SMALL | {"model.N_encoder": 4, "model.N_decoder": 1, "model.depth": 1}
    config = resolve([Level("test", keys)])
    model = Transformer(size := sizes(config.model, 40))
    assert (len(model.encoder), len(model.decoder)) == (4, 1)
    assert small_models.forward_cost(size, 2, 7, 5).params == sum(weight.numel() for weight in model.parameters())
    halved = sizes(resolve([Level("test", keys | {"model.N_decoder": 2, "model.depth": 0.5, "model.N": 6})]).model, 40)
    assert (halved.N, halved.N_encoder, halved.N_decoder) == (3, 2, 1)
