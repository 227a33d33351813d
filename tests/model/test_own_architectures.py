"""Architectures of a user's, derived from the paper's, and residuals whose state has a shape of its own."""

import pytest
import torch
from small_models import SMALL, batch, built, small

from transformer_pl.config import Site
from transformer_pl.config.levels import Level, resolve
from transformer_pl.laws.components import findings
from transformer_pl.model import Mask, Transformer
from transformer_pl.model.dry_run import check_classes, dry_run
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.flops import forward_costs

pytestmark = pytest.mark.core
OWN = """
import torch
from torch import nn
from transformer_pl.model import EncoderLayer, PostNormResidual, Transformer

class Shared(Transformer):
    def __init__(self, config, times: int = 2):
        super().__init__(config)
        self.encoder = nn.ModuleList([self.encoder[0]] * times)

class Parallel(EncoderLayer):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        del self.residual[1]

    def forward(self, x, mask):
        return self.residual[0](x, lambda x: self.self_attention(x, mask) + self.ffn(x))

class ParallelEncoder(Transformer):
    encoder_layer = Parallel

class Channel(Transformer):
    '''Each layer of a stack also gets what the first one returned.'''
    def encoder_stack(self, x, mask):
        first = x = self.encoder[0](x, mask)
        for layer in self.encoder[1:]:
            x = layer(x + first, mask)
        return x

    def decoder_stack(self, x, mask, memory, memory_mask, start, caches):
        first = None
        for layer, keys_values, cache in zip(self.decoder, memory, caches):
            x = layer(x if first is None else x + first, mask, keys_values, memory_mask, start, cache)
            first = x if first is None else first
        return x

class Peeks(Channel):
    '''A fault: the mean over all positions passes from one layer to the next.'''
    def decoder_stack(self, x, *rest):
        return super().decoder_stack(x + x.mean(1, keepdim=True), *rest)

class Streams(nn.Module):
    '''Two streams: a sub-layer reads their sum, and each gets its output.'''
    def __init__(self, config, site):
        super().__init__()
        self.site, self.norm = site, nn.LayerNorm(config.d_model)
        self.into = nn.Parameter(torch.ones(2))

    def forward(self, x, sublayer):
        if self.site.layer == 0 and self.site.sublayer == 0:
            x = torch.stack([x, x])
        return x + self.into[:, None, None, None] * sublayer(self.norm(x.sum(0)))

    def final_norm(self):
        return Joined()

class Joined(nn.Module):
    def forward(self, x):
        return x.sum(0)

class Open(Streams):
    def final_norm(self):
        return nn.Identity()

class Wide(Streams):
    def forward(self, x, sublayer):
        return x + sublayer(torch.stack([x, x]).sum((0, 1)))

class Alone(nn.Module):
    def __init__(self, config):
        super().__init__()
"""


@pytest.fixture(autouse=True)
def own(module):
    module(OWN)


def broken(keys):
    found = findings(resolve([Level("small", SMALL), Level("test", keys)]))
    return {one.law for one in found if one.is_broken}


@pytest.mark.parametrize("name", ["Shared", "ParallelEncoder", "Channel"])
def test_an_architecture_keeps_all_laws(name):
    assert not broken({"model.architecture": f"stranger.{name}"})


def test_a_residual_may_have_a_state_of_its_own():
    assert not broken({"model.residual": "stranger.Streams"})


def test_a_fault_in_an_architecture_is_found():
    assert "the_future_is_hidden" in broken({"model.architecture": "stranger.Peeks"})


def test_a_shared_layer_counts_once_and_is_loaded_as_one():
    config = small({"model.architecture": "stranger.Shared", "model.architecture.times": 3})
    model, (source, target) = built(config), batch()
    layers = sum(weight.numel() for weight in model.encoder[0].parameters())
    rest = sum(w.numel() for name, w in model.named_parameters() if not name.startswith("encoder."))
    assert sum(weight.numel() for weight in model.parameters()) == layers + rest
    loaded = built(config)
    for weight in loaded.parameters():
        torch.nn.init.zeros_(weight)
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(source, target), model(source, target))
    deep, flat = forward_costs([(config, 1, 5, 5), (small({"model.N": 3, "model.N_decoder": 2}), 1, 5, 5)])
    assert deep.flops == flat.flops and deep.params == layers + rest


def test_what_an_encoder_is_built_of_can_be_replaced():
    model, (source, _) = built(small({"model.architecture": "stranger.ParallelEncoder"})), batch()
    x = model.embedding.embed(source, "encoder")
    x, mask = model.dropout(model.position["encoder"](x)), (source != 0)
    for layer in model.encoder:
        norm = layer.residual[0].norm
        x = norm(x + layer.self_attention(x, Mask(mask)) + layer.ffn(x))
    torch.testing.assert_close(model.encode(source, mask)[0], model.decoder[0].cross_attention.keys_values(x))


def test_a_residual_is_told_its_place():
    model = built(small({"model.residual": "stranger.Streams"}))
    for stack, layers, places in (("encoder", model.encoder, 2), ("decoder", model.decoder, 3)):
        sites = [residual.site for layer in layers for residual in layer.residual]
        assert [(str(site), site.layer, site.sublayer) for site in sites] == [
            (stack, layer, place) for layer in range(2) for place in range(places)
        ]
    assert Site("encoder", 1).sublayer is None


@pytest.mark.parametrize(
    ("key", "name", "told"),
    [
        ("residual", "Open", "final_norm"),
        ("residual", "Wide", "sublayer"),
        ("architecture", "Alone", "transformer_pl.model.Transformer"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(key, name, told):
    config = small({f"model.{key}": f"stranger.{name}"})
    with pytest.raises(InputError) as caught:
        check_classes(config)
        dry_run(config)
    (message,) = caught.value.messages
    assert message.startswith(f"model.{key} = stranger.{name} ") and told in message


def test_a_part_that_carries_a_state_is_not_shared():
    keys = {"model.N_encoder": 0, "model.self_attention": "ablations.segment_memory.SegmentMemory"}
    keys |= {"model.position": "ablations.no_position.NoPosition"}
    dry_run(small(keys))
    with pytest.raises(InputError, match="SegmentMemory"):
        dry_run(small(keys | {"model.architecture": "ablations.shared_layers.SharedLayers"}))


def test_the_paper_s_is_the_default():
    assert type(built(small())) is Transformer
