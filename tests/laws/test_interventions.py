"""The laws of interventions: what breaks them, what is noted, and what they must not refuse."""

import pytest
import small_models
from helpers import check_names

from transformer_pl.config.levels import Level, resolve
from transformer_pl.laws import interventions
from transformer_pl.laws.law import laws_of

OWN = """
import random

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune

from transformer_pl.train.intervention import Intervention

SHARED = np.random.default_rng(0)

class Noise(Intervention):
    def __call__(self, model):
        for weight in model.parameters():
            weight += 0.1 * torch.from_numpy(self.draw(weight.shape)).to(weight)

    def draw(self, shape):
        return np.random.standard_normal(shape)

class OfPython(Noise):
    def draw(self, shape):
        return np.full(shape, random.random())

class OwnGenerator(Noise):
    def __init__(self):
        self.generator = np.random.default_rng(3)

    def draw(self, shape):
        return self.generator.standard_normal(shape)

class Unseeded(Noise):
    def draw(self, shape):
        return np.random.default_rng().standard_normal(shape)

class Goes(Noise):
    # on where the call before has stopped
    def draw(self, shape):
        return SHARED.standard_normal(shape)

class Pruned(Intervention):
    def __call__(self, model):
        for module in model.modules():
            if isinstance(module, nn.Linear):
                prune.l1_unstructured(module, "weight", amount=0.5)

class Hooked(Intervention):
    def __call__(self, model):
        model.encoder[0].self_attention.register_forward_hook(lambda module, given, out: out * 0)

class Rounded(Intervention):
    def __call__(self, model):
        for weight in model.parameters():
            weight[:] = weight.bfloat16()

class Narrower(Intervention):
    def __call__(self, model):
        model.encoder[0].ffn = nn.Linear(3, 3)

class WithoutCache(Intervention):
    # computes all positions at once, and fails in decoding
    def __call__(self, model):
        model.decoder[0].self_attention.forward = lambda x, mask: x

class ChangesACopy(Intervention):
    def __call__(self, model):
        weight = model.encoder[0].ffn.W_2.weight.clone()
        weight *= 0

class Dropout(Intervention):
    def __call__(self, model):
        model.dropout.p = 0.9
"""
RIGHT = ["Noise", "OfPython", "OwnGenerator", "Pruned", "Hooked", "Rounded"]
BROKEN = [
    ("Narrower", "it_leaves_a_model_that_runs"),
    ("WithoutCache", "it_leaves_a_model_that_runs"),
    ("Unseeded", "two_calls_give_the_same_model"),
    ("Goes", "two_calls_give_the_same_model"),
]
NOTED = [(name, "it_changes_what_the_model_computes") for name in ("ChangesACopy", "Dropout")]


@pytest.fixture
def found(module):
    """What each law has seen of an intervention, by its name."""
    module(OWN)

    def findings(name):
        keys = small_models.SMALL | {"data.vocab_size": 300, "decode.intervention": f"stranger.{name}"}
        return {one.law: one for one in interventions.findings(resolve([Level("test", keys)]))}

    return findings


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_intervention_keeps_every_law(found, name):
    assert {(one.state, one.how) for one in found(name).values()} == {("holds", "")}


@pytest.mark.parametrize(("name", "law"), BROKEN)
def test_a_broken_law_is_found(found, name, law):
    assert {one.law for one in found(name).values() if one.is_broken} == {law}


@pytest.mark.parametrize(("name", "law"), NOTED)
def test_what_changes_nothing_has_a_note(found, name, law):
    assert {one.law: one.state for one in found(name).values() if one.how} == {law: "holds"}


def test_every_law_can_be_broken_or_ends_in_a_note():
    laws = [law for _, law in BROKEN + NOTED]
    check_names(laws, laws_of(interventions), "add an intervention that breaks the law to BROKEN or NOTED of this file")
