"""The check command: what it prints of each property, and how it finds the slot."""

import re
import shlex

import pytest
import tiny_trials
from torch import nn

from transformer_pl.check.__main__ import main, slot_of
from transformer_pl.check.run import CAUSES, check_model
from transformer_pl.config import SLOTS, Model
from transformer_pl.config.components import import_component
from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime.errors import InputError

OWN = """
import torch
from torch import nn
from transformer_pl.model import FeedForward, ScaledDotProductAttention


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


class Frozen(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.W_1.weight.requires_grad = False


class NotANumber(FeedForward):
    def forward(self, x):
        return super().forward(x) * float("nan")


class FailsBeyond32(FeedForward):
    def forward(self, x):
        return super().forward(x) * (1 // (x.shape[1] <= 32))


class Odd(nn.Module):
    def forward(self, a, b, c):
        return a
"""


@pytest.fixture
def check(module):
    module(OWN)

    def run(*words):
        with tiny_trials.in_a_command():
            return main([*words])

    return run


def states(printed):
    """What is said of each property, by its name."""
    lines = (re.match(r"(\S+) +(\w+)", line) for line in printed.splitlines())
    return {line[2]: line[1] for line in lines if line and line[2] in CAUSES}


def test_the_command_that_a_message_names_finds_the_broken_property(check, tmp_path):
    """With the options of the component, without which nothing is broken, and the other components."""
    keys = {"model.attention": "stranger.Temperature", "model.attention.forgets": True, "model.ffn": "stranger.Excused"}
    keys |= {"model.d_model": 64, "model.d_ff": 64}
    with pytest.raises(InputError) as caught:
        check_model(resolve([Level("test", keys)]).model, 40, tmp_path)
    command = re.search(r"run `python -m transformer_pl\.check (.*?)`", str(caught.value))[1]
    assert check(*shlex.split(command)) == 2


def test_each_property_that_does_not_hold_has_a_line(check, capsys):
    assert check("stranger.Temperature", "forgets=true", "model.h=2") == 2
    first, *lines = capsys.readouterr().out.splitlines()
    found = states("\n".join(lines))
    assert found["decoding_step_by_step_equals_decoding_at_once"] == "BROKEN" and set(found.values()) == {"BROKEN"}
    assert f"{len(CAUSES) - len(lines)} of {len(CAUSES)}" in first


def test_a_property_in_which_the_component_fails_hides_no_other(check, capsys):
    assert check("stranger.FailsBeyond32") == 2
    printed = capsys.readouterr().out
    found = states(printed)
    assert found == {"the_future_is_hidden": "BROKEN"}
    assert "ZeroDivisionError" in printed and "stranger.py" in printed


def test_an_exception_is_shown_with_its_reason(check, capsys):
    assert check("stranger.Temperature", "model.ffn=stranger.Excused") == 0
    printed = capsys.readouterr().out
    assert states(printed)["bfloat16_is_close"] == "exempt" and "it needs more digits" in printed


def test_frozen_weights_are_counted_and_break_nothing(check, capsys):
    assert check("stranger.Frozen", "model.d_model=64", "model.d_ff=128") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("frozen")]
    assert [("encoder.0.ffn.W_1.weight" in line, "decoder.0.ffn.W_1.weight" in line) for line in lines] == [
        (True, False),
        (False, True),
    ]


def test_what_is_not_measured_is_not_said_to_hold(check, capsys):
    """After logits that are not finite."""
    assert check("stranger.NotANumber") == 2
    assert f"0 of {len(CAUSES)}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "slot"),
    [
        *((getattr(Model(), slot).path, slot) for slot in SLOTS),
        ("ablations.learned_position.LearnedPosition", "position"),
        ("ablations.recurrent_layer.RecurrentLayer", "self_attention"),
        ("ablations.untied_embedding.UntiedEmbedding", "embedding"),
    ],
)
def test_the_slot_is_found_by_the_methods(path, slot):
    assert slot_of(path, import_component(path)) == slot


def test_an_attention_that_lacks_an_argument_is_one():
    class WithoutStart(nn.Module):
        def forward(self, Q, K, V, mask):
            return V

    assert slot_of("mine.WithoutStart", WithoutStart) == "attention"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "COMPONENT"),
        (["stranger.Odd"], "--slot"),
        (["torch.optim.SGD"], "optimizer"),
        (["stranger.Odd", "--slot", "fnn"], "fnn"),
        (["stranger.Odd", "--slot", "ffn"], "model.ffn = stranger.Odd"),
        (["stranger.Temperature", "2"], "2"),
        (["stranger.Temperature", "begin=2"], "begin = 2"),
        (["stranger.Excused", "model.h=3"], r"model\.h = 3"),
        (["nowhere.Odd"], "nowhere"),
    ],
)
def test_a_wrong_word_is_reported(check, words, named):
    with pytest.raises(InputError, match=named):
        check(*words)
