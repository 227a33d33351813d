"""What a component may know and add: its layer, the training step, auxiliary losses; and stacks of different depth."""

import pytest
import small_models
import tiny_trials
import torch

from transformer_pl.config import Site, sizes
from transformer_pl.config.levels import Level, resolve
from transformer_pl.model import Transformer

SMALL = small_models.SMALL | {"model.N": 3}


def built(**keys):
    config = resolve([Level("test", SMALL | {f"model.{key}": value for key, value in keys.items()})])
    return Transformer(sizes(config.model, 40))


NOTES = """
from torch import nn
from transformer_pl.model import FeedForward

class Noting(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.site = site
        self.steps = []
    def at_step(self, step, steps):
        self.steps.append((step, steps))
"""


def test_a_component_knows_its_layer(module):
    """A site is still a text, as in a component that knows nothing of layers."""
    module(NOTES)
    model = built(ffn="stranger.Noting")
    found = [(layer.ffn.site, layer.ffn.site.layer) for layer in (*model.encoder, *model.decoder)]
    assert found == [(site, layer) for site in ("encoder", "decoder") for layer in range(3)]
    assert Site("cross") == "cross" and Site("cross").layer is None


TWICE = """
import torch
class Twice(torch.optim.SGD):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        return super().step(closure)
"""


@pytest.mark.usefixtures("unrehearsed")
@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, (1, 2, 3, 3)),
        ({"trainer.accumulate": 2}, (1, 2, 3, 3)),
        ({"optim.optimizer": "strange.Twice"}, (1, 2, 3, 3)),
        ({"trainer.callbacks": "{stopping_callback.StopAt: {step: 2}}"}, (1, 2, 2)),
    ],
    ids=str,
)
def test_a_component_is_told_each_step_once_and_its_own_last_one_for_evaluation(module, tmp_path, keys, steps):
    """Whatever the parts of a batch are, and how many gradients an optimizer asks for; also of what ended early."""
    log = tmp_path / "steps"
    module(TWICE, "strange")
    module(f"{NOTES}        with open({str(log)!r}, 'a') as file:\n            print(step, steps, file=file)\n")
    keys = keys | {"model.ffn": "stranger.Noting", "optim.max_steps": 3, "model.N": 1, "model.depth": 1}
    tiny_trials.train(tmp_path / "runs", keys)
    told = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    assert told == [(step, 3) for step in steps for _ in ("encoder", "decoder")]


AUXILIARY = """
import torch
from transformer_pl.model import FeedForward

class Pulling(FeedForward):
    def __init__(self, config, site, weight: float = 0.5):
        super().__init__(config, site)
        self.weight, self.auxiliary = weight, {"pull": torch.zeros(())}
    def forward(self, x):
        self.auxiliary = {"pull": self.weight * self.W_1.bias.square().mean()}
        return super().forward(x)
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
def test_an_auxiliary_loss_is_added_to_the_loss_of_a_token(module, tmp_path):
    """Whatever the number of tokens, or of parts of the batch: a step of SGD follows its gradient alone, so great it is
    beside the other."""
    module(AUXILIARY.replace("square().mean()", "mean()"))
    keys = {"model.ffn": "stranger.Pulling", "model.ffn.weight": 1e5, "optim.optimizer": "torch.optim.SGD"}
    for accumulate in (1, 3):
        more = {"optim.max_steps": 1, "trainer.val_every": 1, "trainer.accumulate": accumulate}
        _, trial = tiny_trials.train(tmp_path / f"runs{accumulate}", keys | more)
        rate, weights = trial.metrics()[0]["lr"], trial.weights()
        biases = [value for name, value in weights.items() if name.endswith("ffn.W_1.bias")]
        expected = torch.full_like(biases[0], -rate * 1e5 / len(biases[0]))
        assert len(biases) == 4 and all(torch.allclose(bias, expected, rtol=1e-2) for bias in biases)


def test_auxiliary_losses_are_summed_over_the_components(module):
    module(AUXILIARY)
    model = built(ffn="stranger.Pulling")
    assert model.auxiliary() == {"pull": 0}
    with torch.no_grad():
        for layer in (*model.encoder, *model.decoder):
            layer.ffn.W_1.bias.fill_(2.0)
    model(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))
    assert model.auxiliary()["pull"].item() == pytest.approx(6 * 0.5 * 4)


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
