"""What is changed of a trained model before it is scored: it changes every score, and nothing that was trained."""

import random

import numpy as np
import pytest
import small_models
import tiny_trials
import torch
from helpers import little_text

from transformer_pl.api import load_trial
from transformer_pl.config.levels import Level
from transformer_pl.laws.checks import check_all
from transformer_pl.runtime.errors import InputError
from transformer_pl.train.intervention import intervene
from transformer_pl.trials.trial_config import trial_config

OWN = """
import random

import numpy as np
import torch
from torch import nn

from transformer_pl.train.intervention import Intervention

class Scaled(Intervention):
    def __init__(self, factor: float = 0.5):
        self.factor = factor

    def __call__(self, model):
        assert not model.training
        for layer in model.encoder:
            layer.ffn.W_2.weight *= self.factor

class Noisy(Intervention):
    def __call__(self, model):
        shape = model.embedding.weight.shape
        model.embedding.weight += 0.1 * torch.randn(shape) + 0.1 * torch.from_numpy(np.random.randn(*shape))
        model.embedding.weight *= random.random() + 1

class Fails(Intervention):
    def __call__(self, model):
        model.encoder[1].attention

class Exits(Intervention):
    def __call__(self, model):
        raise SystemExit(0)

class Copies(Intervention):
    def __call__(self, model):
        return nn.Identity()

class NoNumber(Intervention):
    def __call__(self, model):
        model.embedding.weight[:] = torch.nan

class Underived:
    def __call__(self, model):
        pass
"""


@pytest.fixture
def train(module, tmp_path):
    """Train a trial with an intervention of OWN in a runs folder of its own, or in that of another trial."""
    module(OWN)
    little_text(tmp_path / "text")

    def train(name=None, seed=1, **options):
        keys = tiny_trials.TINY | {"data.path": tmp_path / "text", "seed": seed}
        if name:
            keys |= {"decode.intervention": f"stranger.{name}"}
            keys |= {f"decode.intervention.{option}": value for option, value in options.items()}
        before = set(tmp_path.glob("runs/trials/*"))
        with tiny_trials.in_a_command():
            words = [f"--{key}={value}" for key, value in keys.items()]
            assert tiny_trials.main([f"--runs={tmp_path / 'runs'}", *words]) == 0
        (folder,) = set(tmp_path.glob("runs/trials/*")) - before
        return load_trial(folder)

    return train


def test_a_row_with_an_intervention_trains_nothing_and_scores_the_changed_model(train):
    """As if the trained model were changed by hand: its loss and its translations, on both sets."""
    base, changed = train(), train("Scaled", factor=-3.0)
    assert changed.result.weights_of == base.result.id and changed.result.weights_id == base.result.weights_id
    for layer in base.model.encoder:
        layer.ffn.W_2.weight.data *= -3.0
    for split in ("val", "test"):
        by_hand, lines = base.score(split), (changed.folder / f"hyp.{split}.txt").read_text().splitlines()
        assert lines == by_hand.hypotheses != (base.folder / f"hyp.{split}.txt").read_text().splitlines()
        for metric in ("loss", "ppl", "bleu"):
            found, before = (trial.result.metrics[f"{split}/{metric}"] for trial in (changed, base))
            assert found == pytest.approx(by_hand.metrics[metric], rel=1e-5) and (metric == "bleu" or found != before)


def test_a_trial_that_is_loaded_is_the_model_that_was_scored(train):
    """It is translated with as it was scored. The weights on disk are those that were trained."""
    base, changed = train(), train("Noisy")
    assert all(torch.equal(value, changed._files.weights()[name]) for name, value in base._files.weights().items())
    assert not torch.equal(changed.model.embedding.weight, base.model.embedding.weight)
    assert changed.score("val").metrics["loss"] == pytest.approx(changed.result.metrics["val/loss"], rel=1e-5)
    again, text = load_trial(changed.folder), "ba be bi"
    assert torch.equal(again.model.embedding.weight, changed.model.embedding.weight)  # also what was drawn
    base.model.embedding.weight.data[:] = changed.model.embedding.weight
    assert changed.translate(text) == base.translate(text)


def test_what_an_intervention_draws_is_of_the_seed_and_disturbs_nothing(module):
    """Equal models of two seeds get other numbers. Numbers that are drawn afterwards are those without it."""
    module(OWN)

    def changed(seed, before):
        torch.manual_seed(0)
        model = small_models.built(small_models.small())
        for begin in (torch.manual_seed, np.random.seed, random.seed):
            begin(before)
        intervene(model, rows({"decode.intervention": "stranger.Noisy", "seed": seed})[0])
        return model.embedding.weight, torch.rand(()), np.random.random(), random.random()

    (first, *after), (again, *_), (other, *others) = changed(1, 0), changed(1, 5), changed(2, 0)
    assert torch.equal(first, again) and not torch.equal(first, other) and after == others


def test_other_code_of_an_intervention_is_another_trial_with_the_same_weights(train, module):
    first = train("Scaled")
    module(OWN.replace("*= self.factor", "*= self.factor + 1"))
    second = train("Scaled")
    assert second.result.id != first.result.id and second.result.weights_id == first.result.weights_id
    with pytest.raises(InputError, match=r"decode\.intervention = stranger\.Scaled: must be the code"):
        _ = first.model


PLACE = r"^decode\.intervention = stranger\."
WRONG = {
    "Fails": "Fails: must change the model, but fails at .*stranger.py, line 27: AttributeError",
    "Exits": "Exits: must change the model, but fails at .*SystemExit",
    "Copies": "Copies: must change the model in place and return nothing, but returns Identity",
    "NoNumber": "NoNumber: must keep the law it_leaves_a_model_that_runs .* it fails at .*FloatingPointError",
    "Underived": r"Underived: must be derived from transformer_pl\.train\.intervention\.Intervention",
}


@pytest.mark.parametrize("name", WRONG)
def test_an_intervention_that_cannot_be_is_refused_before_anything_is_trained(train, tmp_path, name):
    with pytest.raises(InputError, match=PLACE + WRONG[name]) as caught:
        train(name)
    assert len(caught.value.messages) == 1 and not list(tmp_path.glob("runs/trials/*"))


def rows(*values):
    """Configs with two layers in the encoder and three in the decoder."""
    sizes = tiny_trials.TINY | {"model.N_encoder": 6, "model.N_decoder": 9}
    return [trial_config([Level("test", sizes | value)]) for value in values]


def removed(layer, head, where):
    options = {"layer": layer, "head": head, "where": where}
    return {"decode.intervention": "ablations.removed_heads.RemovedHeads"} | {
        f"decode.intervention.{name}": value for name, value in options.items()
    }


def test_an_intervention_is_tried_on_the_layers_of_its_row(tmp_path):
    """The rehearsal of other parts has one layer a stack. What is wrong in several rows is said at once, of each."""
    own_loss = {"optim.loss": "ablations.focal_loss.FocalLoss"}
    right = rows(removed(1, 7, "encoder") | own_loss, removed(2, 0, "decoder"), removed(2, 0, "cross"))
    assert check_all(right, tmp_path)
    with pytest.raises(InputError) as caught:
        check_all(rows(removed(2, 0, "encoder"), removed(1, 0, "decoder"), removed(0, 8, "cross")), tmp_path)
    found = [
        message.removeprefix("decode.intervention = ablations.removed_heads.") for message in caught.value.messages
    ]
    assert [message[:32] for message in found] == [
        "RemovedHeads: layer = 2: must be",
        "RemovedHeads: head = 8: must be ",
    ]
    other = {"model.self_attention": "ablations.convolutional_layer.ConvolutionalLayer"}
    with pytest.raises(InputError, match=r"RemovedHeads: where = encoder: must be .* ConvolutionalLayer"):
        check_all(rows(removed(0, 0, "encoder") | other), tmp_path)
