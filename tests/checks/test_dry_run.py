"""The dry run: components that do not run, or return something else than their slot asks for."""

import pytest
import small_models

from transformer_pl.checks.calls import call_mistakes
from transformer_pl.components import import_component
from transformer_pl.config import SLOTS, Model
from transformer_pl.experiments.cost import forward_cost
from transformer_pl.runtime.errors import InputError


def mistakes(keys):
    with pytest.raises(InputError) as caught:
        forward_cost(small_models.small(keys), 1, 7, 7)
    return caught.value.messages


BROKEN = """
from torch import nn
from transformer_pl.model import FeedForward, ScaledDotProductAttention, SharedEmbedding, softmax


class WrongShape(FeedForward):
    def forward(self, x):
        return x @ x


class TakesTooLittle(FeedForward):
    def __init__(self, config):
        super().__init__(config, "encoder")


class RightForQueriesAsManyAsKeys(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return softmax(Q @ K.mT, mask.dense(Q, K, start)).mT @ V


class Remembers(nn.Module):
    def __init__(self, config, site):
        super().__init__()
        self.lstm = nn.LSTM(config.d_model, config.d_model, batch_first=True)

    def forward(self, x, mask, start=0, cache=None):
        x, state = self.lstm(x, self.state if start else None)
        if cache is not None:
            self.state = state
        return x


class LosesAPosition(FeedForward):
    def forward(self, x):
        return super().forward(x)[:, :-1]


class Double(FeedForward):
    def forward(self, x):
        return super().forward(x).double()


class Two(FeedForward):
    def forward(self, x):
        return super().forward(x), x


class GivesTheCoreTooFewKeys(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return super().forward(Q, K[:, :, 1:], V, mask, start)


class WeightsWithoutStart(ScaledDotProductAttention):
    def weights(self, Q, K, mask):
        return super().weights(Q, K, mask)


class WeightsOfAllHeads(ScaledDotProductAttention):
    def weights(self, Q, K, mask, start=0):
        return super().weights(Q, K, mask, start).mean(1)


class NoLogits(SharedEmbedding):
    def logits(self, x):
        return x


class Flat(SharedEmbedding):
    def embed(self, ids, site):
        return super().embed(ids, site).flatten(1)
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [  # of what a component itself raises; where it returns something wrong, that of its class
        ("ffn.WrongShape", 8),
        ("ffn.TakesTooLittle", None),
        ("attention.RightForQueriesAsManyAsKeys", 18),
        ("self_attention.Remembers", 27),  # where beams change places
        ("ffn.LosesAPosition", None),
        ("ffn.Double", None),
        ("ffn.Two", None),
        ("attention.GivesTheCoreTooFewKeys", 50),
        ("attention.WeightsWithoutStart", None),
        ("attention.WeightsOfAllHeads", None),
        ("embedding.NoLogits", None),
        ("embedding.Flat", None),
    ],
)
def test_a_component_that_does_not_run_is_reported_with_its_place(module, name, line):
    path, (slot, name) = module(BROKEN), name.split(".")
    definition = 1 + BROKEN[: BROKEN.index(f"class {name}(")].count("\n")
    (message,) = mistakes({f"model.{slot}": f"stranger.{name}", "model.d_model": 64})
    assert message.startswith(f"model.{slot} = stranger.{name} ({path}, line {definition}): must ")
    assert f"{path}, line {line}: RuntimeError: " in message if line else message.count(str(path)) == 1


FUSSY = """
import torch
from torch import nn
from transformer_pl.model import SharedEmbedding, SinusoidalPosition


class OfTenPositions(SinusoidalPosition):
    def forward(self, x, start=0):
        return x + self.table[:10][start : start + x.shape[1]]


class OfALargeVocabulary(SharedEmbedding):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(config.d_model, config.vocab_size, [20, 25])

    def logits(self, x):
        return self.softmax.log_prob(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
"""


def test_a_component_that_fails_only_at_its_real_size_is_reported(module):
    path = module(FUSSY)
    keys = {"model.position": "stranger.OfTenPositions"}
    assert forward_cost(small_models.small(keys), 1, 9, 9).params > 0
    with pytest.raises(InputError, match=f"{path}, line 9: RuntimeError"):
        forward_cost(small_models.small(keys), 1, 11, 11)


def test_the_dry_run_has_the_vocabulary_size_of_the_config(module):
    module(FUSSY)
    assert forward_cost(small_models.small({"model.embedding": "stranger.OfALargeVocabulary"}), 1, 9, 9).params > 0


SIGNATURES = """
from torch import nn
from transformer_pl.model import FeedForward, PostNormResidual, ScaledDotProductAttention


class NoConstructor(nn.Module):
    def forward(self, x):
        return x


class NoStart(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask):
        return V


class NoCache(FeedForward):
    def forward(self, x, mask, start: int = 0):
        return x


class OneMore(FeedForward):
    def forward(self, x, scale):
        return scale * x


class NoFinalNorm(FeedForward):
    def forward(self, x, sublayer):
        return x + sublayer(x)


class OtherNames(ScaledDotProductAttention):
    def forward(self, queries, *others):
        return super().forward(queries, *others)
"""


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("ffn.NoConstructor", "__init__(self, config, site)"),
        ("attention.NoStart", "forward(self, Q, K, V, mask, start=0)"),
        ("self_attention.NoCache", "forward(self, x, mask, start=0, cache=None)"),
        ("position.NoConstructor", "forward(self, x, start=0)"),
        ("residual.NoFinalNorm", "final_norm(self)"),
        ("embedding.NoFinalNorm", "embed(self, ids, site)"),
        ("ffn.OneMore", "forward(self, x)"),
    ],
)
def test_a_component_that_the_model_cannot_call_is_told_what_it_must_take(module, name, method):
    module(SIGNATURES)
    slot, _, name = name.partition(".")
    found = mistakes({f"model.{slot}": f"stranger.{name}"})
    assert any(one.startswith(f"model.{slot} = stranger.{name} (") and method in one for one in found)


def test_the_names_of_arguments_are_free(module):
    module(SIGNATURES)
    assert forward_cost(small_models.small({"model.attention": "stranger.OtherNames"}), 1, 7, 7).params > 0


@pytest.mark.parametrize("slot", SLOTS)
def test_the_papers_components_can_be_called(slot):
    assert not list(call_mistakes(slot, import_component(getattr(Model(), slot).path)))


READS_VALUES = """
import numpy as np
import torch
from torch import nn
from transformer_pl.model import ScaledDotProductAttention


class Asks(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return super().forward(Q, K, V, mask, start) if mask.dense(Q, K, start).any() else Q


class Holds(ScaledDotProductAttention):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.register_buffer("two", torch.from_numpy(np.full(1, 2, dtype=np.float32)))

    def forward(self, Q, K, V, mask, start=0):
        return super().forward(self.two * Q, K, V, mask, start)
"""


@pytest.mark.parametrize("name", ["Asks", "Holds"])
def test_a_component_that_reads_values_is_counted(module, name):
    """The meta device has none to read."""
    module(READS_VALUES)
    assert forward_cost(small_models.small({"model.attention": f"stranger.{name}"}), 3, 7, 6) == forward_cost(
        small_models.small(), 3, 7, 6
    )


def test_a_component_made_by_a_function_is_reported_by_its_module(module):
    module("from transformer_pl.model import FeedForward\n\nMade = type('Made', (FeedForward,), {'forward': None})\n")
    (message,) = mistakes({"model.ffn": "stranger.Made"})
    assert message.startswith("model.ffn = stranger.Made (module stranger): ")
