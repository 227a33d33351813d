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


def test_each_property_is_stated(check, capsys):
    assert check("stranger.Temperature", "start=2") == 0
    printed = capsys.readouterr().out
    told = "(the slot is inferred from its methods; --slot overrides it)"
    assert printed.startswith(f"model.attention = stranger.Temperature, at scale demo {told}\n")
    assert [line.split() for line in printed.splitlines() if "  " in line and not line.startswith(" ")] == [
        ["holds", name] for name in PROPERTIES
    ]
    assert printed.endswith("no property is broken\n")


def test_a_broken_property_is_explained(check, capsys):
    assert check("stranger.Temperature", "forgets=true", "model.h=2") == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert "BROKEN decoding_step_by_step_equals_decoding_at_once" in printed
    assert "with the cache, step 1 of decoding changes" in printed and "Usual causes: `start` is ignored" in printed
    assert printed.endswith(f"2 of {len(PROPERTIES)} properties are broken")


def test_an_exception_is_shown_with_its_reason(check, capsys):
    assert check("stranger.Excused") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "exempt bfloat16_is_close" in printed and "Not measured: stranger.Excused: it needs more digits" in printed


def test_what_is_not_measured_is_not_said_to_hold(check, capsys):
    """After logits that are not finite, and where another component is exempt."""
    assert check("stranger.NotANumber") == 2
    printed = capsys.readouterr().out
    assert "holds" not in printed and printed.count("Not measured, because the logits are not finite.") == 10
    assert check("stranger.Temperature", "model.ffn=stranger.Excused") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "exempt bfloat16_is_close" in printed and "stranger.Excused: it needs more digits" in printed


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
    with pytest.raises(InputError, match="h must divide d_model"):
        check("stranger.Excused", "model.h=3")
    with pytest.raises(InputError, match="no such scale"):
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
        with pytest.raises(InputError, match="name it with --slot: attention takes"):
            slot_of("own.Part", names["Part"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("Q, K, V, mask", "forward(Q, K, V, mask) looks like attention, but lacks start=0; add it"),
        ("query, key, value, mask", "forward(query, key, value, mask) looks like attention, but lacks start=0; add it"),
        ("x, mask, start=0", "forward(x, mask, start) looks like self_attention, but lacks cache=None; add it"),
    ],
)
def test_a_forward_that_lacks_its_last_argument_is_told_with_file_and_line(module, arguments, told):
    path = module(f"\nclass Part:\n    def forward(self, {arguments}):\n        return 0\n")
    with pytest.raises(InputError) as caught:
        found("stranger.Part")
    assert str(caught.value).startswith(f"stranger.Part: {path}, line 2: {told}")


def test_only_the_component_is_required_and_the_help_has_the_exit_codes(capsys):
    with pytest.raises(InputError, match=r"command line: the following arguments are required: COMPONENT; "):
        main([])
    with pytest.raises(HelpShown):
        main(["--help"])
    assert "\nexit codes: 0 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["stranger.Odd"],
            r"its slot is not clear from forward\(a, b, c\) \(.*stranger.py, line 29\); name it with --slot",
        ),
        (["stranger.Odd", "--slot", "fnn"], "invalid choice"),
        (
            ["stranger.WithoutLogits"],
            r"model.embedding = stranger.WithoutLogits.* must have a method logits\(self, x\)",
        ),
        (["stranger.WithoutForward"], r"its slot is not clear from forward\(\) \(.*\); name it with --slot"),
        (["stranger.WithoutFinalNorm"], "model.residual = stranger.WithoutFinalNorm"),
        (["stranger.Temperature", "2"], "must be key=value"),
        (["stranger.Temperature", "start=2", "start=3"], "is set twice"),
        (["stranger.Temperature", "begin=2"], "no such option; known: start, forgets"),
        (["stranger.Odd", "--slot", "model.ffn"], "must have a constructor __init__.self, config, site., but has none"),
        (["nowhere.Odd"], "no module nowhere"),
    ],
)
def test_a_wrong_word_is_reported(check, words, message):
    with pytest.raises(InputError, match=message):
        check(*words)
