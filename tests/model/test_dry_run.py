"""The dry run: components that do not run, or return something else than their slot asks for."""

import pytest
import small_models

from transformer_pl.runtime.errors import InputError


def mistake(keys):
    with pytest.raises(InputError) as caught:
        small_models.forward_cost(small_models.small(keys), 1, 7, 7)
    (message,) = caught.value.messages
    return message


BROKEN = """
from torch import nn
from transformer_pl.model import FeedForward, ScaledDotProductAttention, SharedEmbedding

class WrongShape(FeedForward):
    def forward(self, x):
        return x @ x

class TakesTooLittle(FeedForward):
    def __init__(self, config):
        super().__init__(config, "encoder")

class LosesAPosition(FeedForward):
    def forward(self, x):
        return super().forward(x)[:, :-1]

class Two(FeedForward):
    def forward(self, x):
        return super().forward(x), x

class GivesTheCoreTooFewKeys(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return super().forward(Q, K[:, :, 1:], V, mask, start)

class NoLogits(SharedEmbedding):
    def logits(self, x):
        return x

class Flat(SharedEmbedding):
    def embed(self, ids, site):
        return super().embed(ids, site).flatten(1)

class AuxiliaryOfLogits(SharedEmbedding):
    auxiliary = {"spread": 0.0}

    def embed(self, ids, site):
        self.auxiliary = {"spread": self.weight.std()}
        return super().embed(ids, site)

    def logits(self, x):
        logits = super().logits(x)
        self.auxiliary = {"spread": logits.std()}
        return logits

class AuxiliaryFromNowhere(FeedForward):
    def forward(self, x):
        self.auxiliary = {"spread": x.std()}
        return super().forward(x)

class NoFinalNorm(FeedForward):
    def forward(self, x, sublayer):
        return x + sublayer(x)

class NoForward(nn.Module):
    def __init__(self, config, site):
        super().__init__()
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [  # of what a component itself raises; where it is called or returns something wrong, that of its class
        ("ffn.WrongShape", 7),
        ("ffn.TakesTooLittle", None),
        ("ffn.LosesAPosition", None),
        ("ffn.Two", None),
        ("attention.GivesTheCoreTooFewKeys", 23),
        ("embedding.NoLogits", None),
        ("embedding.Flat", None),
        ("embedding.AuxiliaryOfLogits", None),
        ("residual.NoFinalNorm", None),
        ("ffn.AuxiliaryFromNowhere", None),
        ("ffn.NoForward", None),
    ],
)
def test_a_component_that_does_not_run_is_reported_with_its_place(module, name, line):
    path, (slot, name) = module(BROKEN), name.split(".")
    definition = 1 + BROKEN[: BROKEN.index(f"class {name}(")].count("\n")
    message = mistake({f"model.{slot}": f"stranger.{name}", "model.d_model": 64})
    assert message.startswith(f"model.{slot} = stranger.{name} ({path}, line {definition}): ")
    assert f"{path}, line {line}: RuntimeError: " in message if line else message.count(str(path)) == 1


STRANGE = """
import torch
from torch import nn
from transformer_pl.model import ScaledDotProductAttention, SharedEmbedding

class OfALargeVocabulary(SharedEmbedding):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(config.d_model, config.vocab_size, [20, 25])

    def logits(self, x):
        return self.softmax.log_prob(x.flatten(0, -2)).unflatten(0, x.shape[:-1])

class AuxiliaryOfEmbed(SharedEmbedding):
    auxiliary = {"spread": torch.zeros(())}

    def embed(self, ids, site):
        self.auxiliary = {"spread": self.weight.std()}
        return super().embed(ids, site)

class OtherNames(ScaledDotProductAttention):
    def forward(self, queries, *others):
        return super().forward(queries, *others)

class Asks(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return super().forward(Q, K, V, mask, start) if mask.dense(Q, K, start).any() else Q
"""


STRANGE_ONES = ["embedding.OfALargeVocabulary", "embedding.AuxiliaryOfEmbed", "attention.OtherNames", "attention.Asks"]


@pytest.mark.parametrize("name", STRANGE_ONES)
def test_a_strange_component_that_runs_is_counted(module, name):
    """One that needs the vocabulary's real size, one whose arguments have other names, one that reads values."""
    module(STRANGE)
    slot, _, name = name.partition(".")
    found = small_models.forward_cost(small_models.small({f"model.{slot}": f"stranger.{name}"}), 3, 7, 6)
    assert (
        found == small_models.forward_cost(small_models.small(), 3, 7, 6) if slot == "attention" else found.params > 0
    )


def test_a_component_made_by_a_function_is_reported_by_its_module(module):
    module("from transformer_pl.model import FeedForward\n\nMade = type('Made', (FeedForward,), {'forward': None})\n")
    assert mistake({"model.ffn": "stranger.Made"}).startswith("model.ffn = stranger.Made (module stranger): ")
