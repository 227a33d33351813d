"""The check command: what it prints of each property, and how it finds the slot."""

import re
import shlex

import pytest
import tiny_trials

from transformer_pl.check import main
from transformer_pl.checks.calls import slot_of
from transformer_pl.checks.properties import PROPERTIES
from transformer_pl.checks.run import check_model
from transformer_pl.command_line import HelpShown
from transformer_pl.components import import_component
from transformer_pl.config import SLOTS, Model
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError

OWN = """
import torch
from torch import nn
from transformer_pl.model import FeedForward, ScaledDotProductAttention, softmax


class Temperature(ScaledDotProductAttention):
    def __init__(self, config, site, start: float = 1.0, forgets: bool = False):
        super().__init__(config, site)
        self.temperature = nn.Parameter(torch.full((config.h, 1, 1), start))
        self.forgets = forgets

    def forward(self, Q, K, V, mask, start=0):
        return self.weights(Q, K, mask, 0 if self.forgets else start) @ V

    def weights(self, Q, K, mask, start=0):
        return super().weights(Q * self.temperature, K, mask, start)


class Excused(FeedForward):
    exempt = {"bfloat16_is_close": "it needs more digits"}


class NotANumber(FeedForward):
    def forward(self, x):
        return super().forward(x) * float("nan")


class Odd(nn.Module):
    def forward(self, a, b, c):
        return a


class WithoutLogits(nn.Module):
    def embed(self, ids, site):
        return ids


class WithoutForward(nn.Module):
    pass


class WithoutFinalNorm(nn.Module):
    def forward(self, x, sublayer):
        return x + sublayer(x)
"""


@pytest.fixture
def check(module):
    module(OWN)

    def run(*words):
        with tiny_trials.in_a_command():
            return main([*words])

    return run


def test_the_command_that_a_message_names_finds_the_broken_property(check, tmp_path):
    """With the component's options: without them nothing is broken."""
    keys = {"model.attention": "stranger.Temperature", "model.attention.forgets": True}
    with pytest.raises(InputError) as caught:
        check_model(resolve([Level("test", keys)]).model, 40, tmp_path)
    command = re.search(r"run `python -m transformer_pl\.check (.*?)`", str(caught.value))[1]
    assert check(*shlex.split(command)) == 2 and check("stranger.Temperature") == 0


def states(printed):
    """What is said of each property, by its name."""
    lines = (line.split() for line in printed.splitlines() if not line.startswith(" "))
    return {words[1]: words[0] for words in lines if len(words) == 2 and words[1] in PROPERTIES}


def test_each_property_is_stated(check, capsys):
    assert check("stranger.Temperature", "start=2") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("model.attention = stranger.Temperature, at scale demo ")
    assert states(printed) == dict.fromkeys(PROPERTIES, "holds")


def test_a_broken_property_is_told(check, capsys):
    assert check("stranger.Temperature", "forgets=true", "model.h=2") == 2
    found = states(capsys.readouterr().out)
    assert found["decoding_step_by_step_equals_decoding_at_once"] == "BROKEN" and len(found) == len(PROPERTIES)


def test_an_exception_is_shown_with_its_reason(check, capsys):
    for words in (["stranger.Excused"], ["stranger.Temperature", "model.ffn=stranger.Excused"]):
        assert check(*words) == 0
        printed = capsys.readouterr().out
        assert states(printed)["bfloat16_is_close"] == "exempt" and "it needs more digits" in printed


def test_what_is_not_measured_is_not_said_to_hold(check, capsys):
    """After logits that are not finite."""
    assert check("stranger.NotANumber") == 2
    assert set(states(capsys.readouterr().out).values()) == {"BROKEN", "?"}


def test_the_command_that_a_message_names_has_the_slot_and_the_model(check, tmp_path):
    keys = {"model.attention": "stranger.Temperature", "model.attention.forgets": True, "model.h": 2}
    keys |= {"model.ffn": "stranger.Excused", "model.p_drop": 0.3}
    with pytest.raises(InputError) as caught:
        check_model(resolve([Level("test", keys)]).model, 40, tmp_path)
    words = re.search(r"run `python -m transformer_pl\.check (.*?)`", str(caught.value))[1]
    for word in ("--slot attention", "model.h=2", "model.p_drop=0.3", "forgets=True"):
        assert word in words
    assert "Excused" not in words  # it is broken without that, too
    assert check(*shlex.split(words)) == 2


def test_the_sizes_are_those_of_the_scale(check):
    with pytest.raises(InputError, match=r"model\.h = 3"):
        check("stranger.Excused", "model.h=3")
    with pytest.raises(InputError, match="demmo"):
        check("stranger.Excused", "--scale", "demmo")


def found(path):
    return slot_of(path, import_component(path))


@pytest.mark.parametrize("slot", SLOTS)
def test_the_slot_is_found_by_the_methods(slot):
    assert found(getattr(Model(), slot).path) == slot


def test_the_shipped_ablations_find_their_slots():
    assert found("ablations.learned_position.LearnedPosition") == "position"
    assert found("ablations.recurrent_layer.RecurrentLayer") == "self_attention"
    assert found("ablations.untied_embedding.UntiedEmbedding") == "embedding"


@pytest.mark.parametrize(
    ("arguments", "slot"),
    [
        ("query, key, value, mask, offset", "attention"),
        ("hidden, start", "position"),
        ("hidden, sublayer", "residual"),
        ("hidden, mask, start=0, cache=None", "self_attention"),
        ("hidden", "ffn"),
        ("x, offset", None),
    ],
)
def test_a_slot_is_not_guessed_where_an_argument_is_missing(arguments, slot):
    names: dict = {}
    exec(f"class Part:\n    def forward(self, {arguments}):\n        return 0", names)
    if slot:
        assert slot_of("own.Part", names["Part"]) == slot
    else:
        with pytest.raises(InputError, match="--slot"):
            slot_of("own.Part", names["Part"])


def test_only_the_component_is_required():
    with pytest.raises(InputError, match="COMPONENT"):
        main([])
    with pytest.raises(HelpShown):
        main(["--help"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["stranger.Odd"], r"stranger.py, line 29.*--slot"),
        (["stranger.Odd", "--slot", "fnn"], "fnn"),
        (["stranger.WithoutLogits"], r"model.embedding = stranger.WithoutLogits.*logits\(self, x\)"),
        (["stranger.WithoutForward"], "--slot"),
        (["stranger.WithoutFinalNorm"], "model.residual = stranger.WithoutFinalNorm"),
        (["stranger.Temperature", "2"], "2"),
        (["stranger.Temperature", "start=2", "start=3"], "model.attention.start"),
        (["stranger.Temperature", "begin=2"], "begin = 2"),
        (["stranger.Odd", "--slot", "model.ffn"], "__init__.self, config, site."),
        (["nowhere.Odd"], "nowhere"),
    ],
)
def test_a_wrong_word_is_reported(check, words, named):
    with pytest.raises(InputError, match=named):
        check(*words)
