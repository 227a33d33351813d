"""The laws of components: every shipped one keeps them, and broken ones are found."""

import pytest
import small_models
from helpers import check_names
from shipped_components import components, each, marks_of

from transformer_pl.config import Sizes, custom_components
from transformer_pl.laws import components as of_components
from transformer_pl.laws.components import exempt
from transformer_pl.laws.law import laws_of
from transformer_pl.model.dry_run import small_model

LAWS = laws_of(of_components)
SHIPPED = components() | {  # so small that they matter in short sentences
    "window=3": {"model.attention": "ablations.local_attention.LocalAttention", "model.attention.window": 3},
    "grouped": {
        "model.self_attention": "ablations.grouped_query_attention.GroupedQuerySelfAttention",
        "model.cross_attention": "ablations.grouped_query_attention.GroupedQueryCrossAttention",
    },
    "memory=7": {
        "model.self_attention": "ablations.segment_memory.SegmentMemory",
        "model.self_attention.memory": 7,
        "model.attention": "ablations.segment_memory.TransformerXLAttention",
    },
    "most=2": {"model.attention": "ablations.relative_attention.RelativeAttention", "model.attention.most": 2},
}


@each(SHIPPED)
def test_every_shipped_component_keeps_every_law(keys):
    """Or is exempt from it, with a reason, and really breaks it."""
    config = small_models.small(keys)
    exempted = {one for component in custom_components(config).values() for one in exempt(component)}
    assert {name for name in LAWS if LAWS[name](small_model(config)).state == "BROKEN"} == exempted


OF_LAWS = marks_of("transformer_pl/laws/components.py", "transformer_pl/model/")
OF_A_SOURCE = ("TaskVector", "UntiedEmbedding", "UntiedSource")  # with weights that a decoder alone does not read


@pytest.mark.parametrize(
    "keys", [pytest.param(keys, id=name, marks=OF_LAWS if keys else []) for name, keys in SHIPPED.items()]
)
def test_every_shipped_component_keeps_the_laws_in_a_decoder_alone(keys):
    """Or is refused by the weight that is never used."""
    config = small_models.small(keys | {"model.N_encoder": 0})
    exempted = {one for component in custom_components(config).values() for one in exempt(component)}
    others = LAWS.keys() - {"it_runs_on_the_device_of_its_input"}  # which is slow, and of the same code
    broken = {name for name in others if LAWS[name](small_model(config)).state == "BROKEN"}
    if config.embedding.path.endswith(OF_A_SOURCE):
        exempted.add("every_weight_gets_a_gradient")
    assert broken == exempted


OWN = """
import torch
from small_models import NormOverTheBatch
from torch import nn
from transformer_pl.model import (
    CrossAttention,
    FeedForward,
    Mask,
    MultiHeadSelfAttention,
    PostNormResidual,
    ScaledDotProductAttention,
    SinusoidalPosition,
)

class NoMask(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return (Q @ K.mT).softmax(-1) @ V

class MixedWithoutPadding(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        heads = super().forward(Q, K, V, mask, start)
        if self.training and mask.keys is not None and mask.keys.all():
            return heads.mean(2, keepdim=True).expand_as(heads)
        return heads

class NoMaskBeyond32(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        if K.shape[2] > 32:
            return (Q @ K.mT).softmax(-1) @ V
        return super().forward(Q, K, V, mask, start)

class NotANumber(FeedForward):
    def forward(self, x):
        return super().forward(x) / (0 * x)

class LooksAheadFromZero(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return super().forward(x + self.gate * x.roll(-1, 1))

class LooksAheadInTime(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return super().forward(x + (self.steps > 1) * x.roll(-1, 1))

class NormOfTheLatestStatistic(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().square().mean()
        return super().forward(x / self.scale)

class CountsEvaluations(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x * self.calls)

class CountsInAnAttribute(FeedForward):
    calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x * (1 + self.calls))

class SeesPadding(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return super().forward(Q, K, V, mask, start) + (V.mean(2, keepdim=True) if not mask.causal else 0)

class CarriesTheLast(MultiHeadSelfAttention):
    carries, before, after = True, {}, {}

    def carry(self, state):
        self.before = state

    def carried(self):
        return self.after

    def forward(self, x, mask, start=0, cache=None):
        self.after = {"x": x[:, -1].detach()}
        out = super().forward(x, mask, start, cache)
        return out + self.before["x"][:, None] if self.before else out

class CarriesTheFirstRow(CarriesTheLast):
    def carry(self, state):
        super().carry({"x": state["x"][:2].sum(0).expand_as(state["x"])} if state else {})

class NeverForgets(CarriesTheLast):
    def carry(self, state):
        super().carry({"x": state["x"] + torch.linspace(-1, 1, state["x"].shape[1])} if state else {})

class CarriesFromPassToPass(CarriesTheLast):
    def forward(self, x, mask, start=0, cache=None):
        out = super().forward(x, mask, start, cache)
        self.before = self.before and self.after
        return out

class Deaf(PostNormResidual):
    def forward(self, x, sublayer):
        return self.norm(0 * x + sublayer(x))

class Unused(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.unused = nn.Parameter(torch.ones(3))

class InfiniteGradient(FeedForward):
    def forward(self, x):
        return super().forward(x) + (0 * x).sqrt()

class ForgetsTheStart(SinusoidalPosition):
    def forward(self, x, start=0):
        return super().forward(x)

class ForgetsTheCache(MultiHeadSelfAttention):
    def forward(self, x, mask, start=0, cache=None):
        return super().forward(x, mask)

class ForgetsWhoseItIs(MultiHeadSelfAttention):
    def forward(self, x, mask, start=0, cache=None):
        if cache is None:
            return super().forward(x, mask)
        cache |= {name: kept[: len(x)] for name, kept in self.kept.items()} if start else {}
        x, self.kept = super().forward(x, mask, start, cache), dict(cache)
        return x

class IgnoresTheMask(CrossAttention):
    def forward(self, x, memory, mask):
        return super().forward(x, memory, Mask(torch.ones_like(mask.keys)))

class Mean(nn.Module):  # of the source, which every position reads: a memory of one tensor

    def __init__(self, config, site):
        super().__init__()
        self.W = nn.Linear(config.d_model, config.d_model)

    def keys_values(self, x):
        return (self.W(x),)

    def forward(self, x, memory, mask):
        keys = mask.keys[..., None]
        mean = (memory[0] * keys).sum(1) / keys.sum(1)
        return mean.repeat_interleave(len(x) // len(mean), 0)[:, None].expand_as(x)

class MeanOverTheBatch(FeedForward):
    def forward(self, x):
        return super().forward(x + x[:, :1].mean(0, keepdim=True))

class FromTheEnd(SinusoidalPosition):
    def forward(self, x, start=0):
        return super().forward(x, 100 - x.shape[1])

class WeightsForgetTheStart(ScaledDotProductAttention):
    def weights(self, Q, K, mask, start=0):
        return super().weights(Q, K, mask)

class CacheOnTheCpu(MultiHeadSelfAttention):
    def forward(self, x, mask, start=0, cache=None):
        return super().forward(x, mask, start, cache) + (torch.zeros(x.shape, device="cpu") if start else 0)

class AlwaysDropsOut(FeedForward):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.1)

class Unsaved(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.scale = torch.rand(config.d_model)

    def forward(self, x):
        return super().forward(x * self.scale)

class SavesAText(FeedForward):
    def get_extra_state(self):
        return "a text"

    def set_extra_state(self, state):
        assert state == "a text"

class StaysOnTheCpu(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.scale = torch.linspace(1, 2, config.d_model)

    def forward(self, x):
        return super().forward(x * self.scale)

class PositionsInBfloat16(SinusoidalPosition):
    def forward(self, x, start=0):
        if torch.is_autocast_enabled(x.device.type):
            return x + self.table[: x.shape[1]].fmod(0.05)
        return super().forward(x, start)

# These keep every one.

class StochasticDepth(PostNormResidual):
    def forward(self, x, sublayer):
        keep = torch.rand(len(x), 1, 1) < 0.8 if self.training else 1
        return self.norm(x + keep * sublayer(x))

class MixtureOfExperts(nn.Module):
    def __init__(self, config, site):
        super().__init__()
        self.gate = nn.Linear(config.d_model, 8)
        self.experts = nn.ModuleList(FeedForward(config, site) for _ in range(8))

    def forward(self, x):
        probability, choice = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            chosen = choice == i
            if chosen.any():
                out[chosen] = (probability[chosen, None] * expert(x[chosen])).type_as(x)
        return out

class CountsSteps(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.register_buffer("steps", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return super().forward(x) * self.steps

class NormOfARunningStatistic(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        scale = self.scale
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().square().mean()
        return super().forward(x / scale)

class NoCache(ForgetsTheCache):
    incremental = False
"""

WRONGLY = ("CarriesTheFirstRow", "NeverForgets", "CarriesFromPassToPass")
BROKEN = [
    ("ffn.NotANumber", "the_logits_are_finite"),
    ("attention.NoMask", "the_future_is_hidden"),
    ("ffn.LooksAheadFromZero", "the_future_is_hidden"),
    ("residual.NormOverTheBatch", "the_future_is_hidden"),  # in training alone
    ("attention.MixedWithoutPadding", "the_future_is_hidden"),
    ("attention.NoMaskBeyond32", "the_future_is_hidden"),
    ("ffn.LooksAheadInTime", "the_future_is_hidden"),  # after some steps
    ("ffn.NormOfTheLatestStatistic", "the_future_is_hidden"),
    ("ffn.NormOfTheLatestStatistic", "padding_changes_nothing"),
    ("attention.SeesPadding", "padding_changes_nothing"),
    ("cross_attention.IgnoresTheMask", "padding_changes_nothing"),
    ("ffn.MeanOverTheBatch", "padding_changes_nothing"),
    ("position.FromTheEnd", "padding_changes_nothing"),
    ("residual.Deaf", "every_token_is_read"),
    ("ffn.Unused", "every_weight_gets_a_gradient"),
    ("ffn.InfiniteGradient", "every_weight_gets_a_gradient"),
    ("position.ForgetsTheStart", "decoding_step_by_step_equals_decoding_at_once"),
    ("self_attention.ForgetsTheCache", "decoding_step_by_step_equals_decoding_at_once"),
    ("self_attention.ForgetsWhoseItIs", "decoding_step_by_step_equals_decoding_at_once"),
    ("attention.WeightsForgetTheStart", "weights_are_what_attention_computes"),
    ("ffn.AlwaysDropsOut", "evaluation_repeats"),
    ("ffn.CountsEvaluations", "evaluation_repeats"),
    *((f"self_attention.{one}", "what_is_carried_reaches_rows_that_go_on") for one in WRONGLY),
    ("ffn.CountsInAnAttribute", "saved_weights_are_all"),
    ("ffn.Unsaved", "saved_weights_are_all"),
    ("ffn.SavesAText", "saved_weights_are_all"),
    ("ffn.StaysOnTheCpu", "it_runs_on_the_device_of_its_input"),
    ("self_attention.CacheOnTheCpu", "it_runs_on_the_device_of_its_input"),  # in decoding alone
    ("position.PositionsInBfloat16", "bfloat16_is_close"),
]
SOUND = ["cross_attention.Mean", "residual.StochasticDepth", "ffn.MixtureOfExperts", "self_attention.NoCache"]
SOUND += ["ffn.CountsSteps", "ffn.NormOfARunningStatistic", "self_attention.CarriesTheLast"]


def own(name: str) -> Sizes:
    slot, _, component = name.partition(".")
    return small_models.small({f"model.{slot}": f"stranger.{component}"})


@pytest.mark.parametrize(("name", "broken"), BROKEN)
def test_a_broken_law_is_found(module, name, broken):
    module(OWN)
    assert LAWS[broken](small_model(own(name))).state == "BROKEN"


def test_every_law_can_be_broken():
    remedy = "write a component that breaks the law into OWN of this file, and name both in BROKEN"
    check_names([broken for _, broken in BROKEN], LAWS, remedy)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_component_keeps_every_law(module, name):
    module(OWN)
    found = {law: LAWS[law](small_model(own(name))) for law in LAWS}
    assert {finding.state for finding in found.values()} <= {"holds", "untested"}, found
