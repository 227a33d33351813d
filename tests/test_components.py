"""Components by import path: which errors are reported and how, their sources, and the properties that all have."""

import importlib
import os
import signal
import subprocess
import sys
import time

import invariants
import pytest
import tiny_trials
import torch
from helpers import GRIDS, ROOT, command, wait_for

from transformer_pl import components, train
from transformer_pl.config import KEYS, SLOTS, Component, Model, is_papers
from transformer_pl.experiments.cost import Cost, forward_cost
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import component_code
from transformer_pl.trials.trial import Trial

MODULE = """
class Base:
    def __init__(self, config, site, window: int, rate: float = 0.5, mode=None, flag: bool = False):
        self.given = config, site, window, rate, mode, flag


class Loose(Base):
    def __init__(self, config, site, *rest, bound: "int | None" = 3, **others):
        self.given = bound


class Plain:
    def __init__(self, config, site):
        pass


number = 4
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of the user's own, importable from a folder of its own; returns its file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(text, name="stranger"):
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("stranger", "strange", "kernels", "constants"):
            del sys.modules[name]


def model(keys) -> Model:
    return resolve([Level("test", keys)]).model


def completed(path):
    with pytest.raises(InputError) as caught:
        components.import_component(path)
    (message,) = caught.value.messages
    return message


def given(**options):
    return components.build(Component(path="stranger.Base", options=options), "the config", "cross").given


# ---------------------------------------------------------------------------------------------------------------------
# Loading


def test_a_class_is_found_where_it_lives(module):
    module(MODULE)
    module(MODULE, "strange.nested.rooms")
    assert components.import_component("stranger.Plain").__module__ == "stranger"
    assert components.import_component("strange.nested.rooms.Plain").__module__ == "strange.nested.rooms"


def test_a_module_that_is_not_there():
    assert completed("nowhere.at.all.Part") == "nowhere.at.all.Part: no module nowhere; it must be importable from here"
    assert completed("ablations.nowhere.Part").startswith("ablations.nowhere.Part: no module ablations.nowhere;")


def test_a_class_that_is_not_there_is_reported_the_nearest(module):
    module(MODULE)
    assert completed("stranger.Plane") == "stranger.Plane: stranger holds no class Plane; did you mean Plain?"
    assert completed("stranger.zzz") == "stranger.zzz: stranger holds no class zzz; known: Base, Loose, Plain"
    assert completed("stranger.number").startswith("stranger.number: stranger holds no class number")
    module("number = 4\n", "strange")
    assert completed("strange.number") == "strange.number: strange holds no class number"


@pytest.mark.parametrize(
    ("text", "line", "law"),
    [
        ("import json\n\nimport no_such_package_at_all\n", 3, "No module named 'no_such_package_at_all'"),
        ("\nfrom json import no_such_name\n", 2, "ImportError: cannot import name 'no_such_name'"),
        ("import strang\n", 1, "No module named 'strang'"),  # a beginning of this module's own name
        ("def made():\n    return 1 / 0\n\n\nmade()\n", 2, "ZeroDivisionError: division by zero"),
        ("class Part:\n    def __init__(self, config, site)\n", 2, "SyntaxError: expected ':'"),
    ],
    ids=["package", "name", "beginning of a name", "exception", "syntax"],
)
def test_a_module_that_cannot_be_imported_is_reported_with_file_and_line(module, text, line, law):
    path = module(text)
    message = completed("stranger.Part")
    assert message.startswith(f"stranger.Part: {path}, line {line}: ") and law in message


# ---------------------------------------------------------------------------------------------------------------------
# Options


def test_a_part_is_built_with_the_config_the_site_and_its_options(module):
    module(MODULE)
    assert given(window=16) == ("the config", "cross", 16, 0.5, None, False)
    assert given(window="16", rate="1e-05", mode="near", flag="True") == (
        "the config",
        "cross",
        16,
        1e-05,
        "near",
        True,
    )
    assert type(given(window="16")[2]) is int
    module("class Named:\n    def __init__(self, config, site, name: str):\n        self.name = name\n", "strange")
    named = Component(path="strange.Named", options={"name": 16})  # wherever it is said, it has been read as a number
    assert components.build(named, "the config", "cross").name == "16"


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({}, ["option window must be given"]),
        ({"window": 1, "rat": 2}, ["option rat = 2: no such option; did you mean rate?"]),
        ({"window": "wide"}, ["option window = wide: must be a valid integer, unable to parse string as an integer"]),
        ({"window": 1.5}, ["option window = 1.5: must be a valid integer, got a number with a fractional part"]),
        ({"window": 1, "xyz": 2}, ["option xyz = 2: no such option; known: window, rate, mode, flag"]),
        (
            {"windw": 4, "rate": "fast"},
            [
                "option windw = 4: no such option; did you mean window?",
                "option rate = fast: must be a valid number, unable to parse string as a number",
                "option window must be given",
            ],
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_signature_are_reported_at_once(module, options, messages):
    module(MODULE)
    with pytest.raises(InputError) as caught:
        given(**options)
    assert list(caught.value.messages) == [f"stranger.Base: {message}" for message in messages]


def test_a_type_in_quotes_is_a_type_and_what_has_no_name_is_no_option(module):
    module("from __future__ import annotations\n" + MODULE)
    part = Component(path="stranger.Loose", options={"bound": "7"})
    assert components.build(part, None, None).given == 7
    assert components.build(Component(path="stranger.Loose"), None, None).given == 3
    for name in ("rest", "others", "anything"):
        with pytest.raises(InputError, match=f"option {name} = 1: no such option; known: bound"):
            components.build(Component(path="stranger.Loose", options={name: 1}), None, None)


@pytest.mark.parametrize("declared", ["'Unknown'", "list['Unknown']", "type(len)"])
def test_a_type_that_values_cannot_be_read_by_is_not_checked(module, declared):
    module(f"class Part:\n    def __init__(self, config, site, like: {declared} = None):\n        self.given = like\n")
    assert components.build(Component(path="stranger.Part", options={"like": "x"}), None, None).given == "x"


# ---------------------------------------------------------------------------------------------------------------------
# Checking a model's parts


def test_the_paper_s_components_have_no_mistakes():
    assert components.check_components(Model()) == []
    assert all(is_papers(slot, getattr(Model(), slot)) for slot in SLOTS)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_mistake_names_its_key(module, slot):
    module(MODULE)
    key = f"model.{slot}"
    assert components.check_components(model({key: "stranger.Plain"})) == []
    assert components.check_components(model({key: "stranger.Plane"})) == [
        f"{key} = stranger.Plane: stranger holds no class Plane; did you mean Plain?"
    ]
    assert components.check_components(model({key: "stranger.Plain", f"{key}.window": 4})) == [
        f"{key} = stranger.Plain: option window = 4: no such option; it takes none"
    ]
    (message,) = components.check_components(model({f"{key}.window": 4}))  # the paper's own take no options
    assert message == f"{key} = {KEYS[key]}: option window = 4: no such option; it takes none"
    (message,) = components.check_components(model({key: KEYS[key] + "s"}))  # the core, but misspelled
    assert message.endswith(f"did you mean {KEYS[key].rpartition('.')[2]}?")


def test_the_mistakes_of_all_components_are_reported():
    found = components.check_components(model({"model.ffn": "nowhere.A", "model.position": "nowhere.B"}))
    assert [message.partition(" = ")[0] for message in found] == ["model.ffn", "model.position"]


def test_sources_change_when_the_file_of_a_part_is_edited(module):
    path = module(MODULE)
    keys = {"model.ffn": "stranger.Plain", "model.position": "ablations.no_position.NoPosition"}
    before = components.source_digests(model(keys))
    assert before.keys() == {"ffn", "position"}
    assert components.source_digests(model(keys)) == before
    path.write_text(MODULE + "# edited\n")
    after = components.source_digests(model(keys))
    assert after["ffn"] != before["ffn"] and after["position"] == before["position"]
    path.write_text(MODULE)
    assert components.source_digests(model(keys)) == before


def test_sources_change_when_a_file_that_a_part_imports_is_edited(module):
    """By whatever way of importing; what is installed has a version."""
    helpers = [module("rate = 1\n", name) for name in ("kernels.fast", "kernels.slow", "constants")]
    deeper = module("rate = 2\n", "kernels.deeper")
    helpers[1].write_text("from . import deeper\nimport numpy\n")
    module("import constants\nfrom kernels import fast\nimport kernels.slow as s\n" + MODULE)
    keys = {"model.ffn": "stranger.Plain"}
    before = components.source_digests(model(keys))
    for path in (*helpers, deeper):
        text = path.read_text()
        path.write_text(text + "rate = 3\n")
        assert components.source_digests(model(keys)) != before, path
        path.write_text(text)
    assert components.source_digests(model(keys)) == before


@pytest.mark.parametrize(
    "lines",
    [
        ("from stranger import Base as Mine", "from stranger import Plain as Mine"),
        ("from stranger import made\nMine = made(2)", "from stranger import made\nMine = made(3)"),
    ],
    ids=["renamed", "made"],
)
def test_sources_of_a_part_are_those_of_its_path_wherever_its_class_is_written(module, lines):
    helper = module(MODULE + "def made(n):\n    return type('Made', (Plain,), {'n': n})\n")
    keys, digests = {"model.ffn": "strange.Mine"}, []
    for line in lines:
        module(line, "strange")
        digests.append(components.source_digests(model(keys)))
    helper.write_text(helper.read_text() + "# edited\n")
    assert digests[0] != digests[1] != components.source_digests(model(keys))


def test_sources_are_what_is_written_and_not_what_is_loaded(module):
    """Every process is to find the same, whatever other rows have brought along."""
    lazy = module("rate = 1\n", "constants")
    optional = "try:\n    from . import constants\nexcept ImportError:\n    constants = None\nimport no_such_package\n"
    module(f"def late():\n    import constants\n    {optional.splitlines()[4]}\n{MODULE}")
    keys = {"model.ffn": "stranger.Plain"}
    before = components.source_digests(model(keys))
    assert "constants" not in sys.modules
    importlib.import_module("constants")
    assert components.source_digests(model(keys)) == before
    lazy.write_text("rate = 2\n")
    assert components.source_digests(model(keys)) != before
    module("\n".join(optional.splitlines()[:4]) + MODULE, "strange")
    assert components.source_digests(model({"model.ffn": "strange.Plain"})).keys() == {"ffn"}  # relative, in no package


def test_the_core_has_no_sources_of_its_own():
    assert components.source_digests(Model()) == {}  # its revision stands for it


# ---------------------------------------------------------------------------------------------------------------------
# The properties, for every component that a shipped sweep names


def named_components() -> dict[str, dict]:
    """By a readable name, the keys of every component in a shipped sweep that is not the paper's."""
    found = {}
    for path in GRIDS:
        for row in read_sweep(path).rows:
            for slot in SLOTS:
                part = getattr(row.configs[0].model, slot)
                if not is_papers(slot, part):
                    key = f"model.{slot}"
                    keys = {key: part.path} | {f"{key}.{name}": value for name, value in part.options.items()}
                    found[" ".join(f"{name}={value}" for name, value in keys.items())] = keys
    return found


LOCAL, RELATIVE = "ablations.local_attention.LocalAttention", "ablations.relative_attention.RelativeAttention"
NAMED = named_components() | {  # so small that they matter in sentences of six tokens
    "window=3": {"model.attention": LOCAL, "model.attention.window": 3},
    "most=2": {"model.attention": RELATIVE, "model.attention.most": 2},
}
every_component = pytest.mark.parametrize("keys", NAMED.values(), ids=NAMED)


def test_a_shipped_sweep_names_a_component():
    assert "model.position=ablations.no_position.NoPosition" in NAMED


@every_component
@pytest.mark.parametrize("invariant", invariants.INVARIANTS, ids=lambda invariant: invariant.__name__)
def test_every_component_has_the_property(invariant, keys):
    invariant(invariants.small(keys))


@every_component
@torch.no_grad()
def test_every_component_changes_the_logits(keys):
    """The model computes something else than the paper's with the same weights."""
    source, target = invariants.batch()
    with_part, without = invariants.built(invariants.small(keys)).eval(), invariants.built(invariants.small()).eval()
    theirs = with_part.state_dict()
    shared = {k: v for k, v in without.state_dict().items() if k in theirs and v.shape == theirs[k].shape}
    with_part.load_state_dict(shared, strict=False)
    assert not torch.allclose(with_part(source, target), without(source, target), atol=1e-3)


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


class AllInOneRow(FeedForward):
    def forward(self, x):
        return super().forward(x).reshape(1, -1, x.shape[2])


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
    ("name", "law"),
    [
        ("ffn.WrongShape", "must run, but {path}, line 8: RuntimeError: "),
        ("ffn.TakesTooLittle", "takes 2 positional arguments but 3 were given"),
        ("attention.RightForQueriesAsManyAsKeys", "must run, but {path}, line 18: RuntimeError: "),
        ("self_attention.Remembers", "must run, but {path}, line 27: RuntimeError: "),
        (
            "ffn.LosesAPosition",
            "must return (2, 7, 64) of torch.float32 where it is given (2, 7, 64), but returns (2, 6",
        ),
        ("ffn.AllInOneRow", "must return (2, 7, 64) of torch.float32 where it is given (2, 7, 64), but returns (1, 14"),
        ("ffn.Double", "but returns (2, 7, 64) of torch.float64"),
        ("ffn.Two", "but returns tuple"),
        ("attention.GivesTheCoreTooFewKeys", "must run, but {path}, line 55: RuntimeError: "),
        (
            "attention.WeightsWithoutStart",
            "WeightsWithoutStart.weights() takes 4 positional arguments but 5 were given",
        ),
        (
            "attention.WeightsOfAllHeads",
            "must return (2, 4, 7, 7) of torch.float32 from weights at encoder, but returns (2, 7",
        ),
        ("embedding.NoLogits", "must return (2, 6, 31) of torch.float32 from logits, but returns (2, 6, 64)"),
        ("embedding.Flat", "must return (2, 7, 64) of torch.float32 from embed, but returns (2, 448)"),
    ],
)
def test_a_component_that_does_not_run_is_reported_with_its_place(module, name, law):
    """Also one that runs for one sentence, for as many queries as keys, or until beams are put in another order."""
    path, (slot, name) = module(BROKEN), name.split(".")
    line = 1 + BROKEN[: BROKEN.index(f"class {name}(")].count("\n")
    with pytest.raises(InputError) as caught:
        forward_cost(invariants.small({f"model.{slot}": f"stranger.{name}", "model.d_model": 64}), 1, 7, 7)
    (message,) = caught.value.messages
    assert message.startswith(f"model.{slot} = stranger.{name} ({path}, line {line}): must ")
    assert law.format(path=path) in message


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
    assert forward_cost(invariants.small(keys), 1, 9, 9).params > 0
    with pytest.raises(InputError, match="must run, but") as caught:
        forward_cost(invariants.small(keys), 1, 11, 11)
    assert f"{path}, line 9: RuntimeError" in str(caught.value)


def test_the_dry_run_has_the_vocabulary_size_of_the_config(module):
    module(FUSSY)
    assert forward_cost(invariants.small({"model.embedding": "stranger.OfALargeVocabulary"}), 1, 9, 9).params > 0


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
    assert forward_cost(invariants.small({"model.attention": f"stranger.{name}"}), 3, 7, 6) == forward_cost(
        invariants.small(), 3, 7, 6
    )


BREAKS_AN_INVARIANT = """
import torch
from torch import nn
from transformer_pl.model import FeedForward, PostNormResidual, ScaledDotProductAttention


class LooksAhead(FeedForward):
    def forward(self, x):
        return super().forward(x + x.roll(-1, 1))


class SeesPadding(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return super().forward(Q, K, V, mask, start) + (V.mean(2, keepdim=True) if not mask.causal else 0)


class Deaf(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.unused = nn.Parameter(torch.ones(3))


class ForgetsTheStart(nn.Module):
    def __init__(self, config, site):
        super().__init__()

    def forward(self, x, start=0):
        return x + torch.arange(x.shape[1])[:, None]


class ForgetsWhoseItIs(nn.Module):
    def __init__(self, config, site):
        super().__init__()
        self.lstm = nn.LSTM(config.d_model, config.d_model, batch_first=True)

    def forward(self, x, mask, start=0, cache=None):
        if start and cache is not None:
            self.state = tuple(kept[:, : len(x)] for kept in self.state)
        x, state = self.lstm(x, self.state if start and cache is not None else None)
        if cache is not None:
            self.state = state
        return x
"""


@pytest.mark.parametrize(
    ("slot", "name", "invariant"),
    [
        ("ffn", "LooksAhead", invariants.the_future_is_hidden),
        ("attention", "SeesPadding", invariants.padding_changes_nothing),
        ("ffn", "Deaf", invariants.every_weight_gets_a_gradient),
        ("position", "ForgetsTheStart", invariants.decoding_step_by_step_equals_decoding_at_once),
        ("self_attention", "ForgetsWhoseItIs", invariants.decoding_step_by_step_equals_decoding_at_once),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_component_without_the_property_fails_its_test(module, slot, name, invariant):
    module(BREAKS_AN_INVARIANT)
    with pytest.raises(AssertionError):
        invariant(invariants.small({f"model.{slot}": f"stranger.{name}"}))


NO_CACHE = """
from transformer_pl.model import MultiHeadSelfAttention


class Caches(MultiHeadSelfAttention):
    def forward(self, x, mask, start=0, cache=None):
        return super().forward(x, mask)


class Recomputes(Caches):
    incremental = False
"""


def test_a_component_without_a_cache_may_say_so(module):
    """Then the prefix is recomputed; otherwise the component would see only the last token."""
    module(NO_CACHE)
    invariants.decoding_step_by_step_equals_decoding_at_once(
        invariants.small({"model.self_attention": "stranger.Recomputes"})
    )
    with pytest.raises(AssertionError):
        invariants.decoding_step_by_step_equals_decoding_at_once(
            invariants.small({"model.self_attention": "stranger.Caches"})
        )


# ---------------------------------------------------------------------------------------------------------------------
# Components that end the process, or a loop: their failure, and not an end

ENDS = """
import builtins
from transformer_pl.model import FeedForward


class Ends(FeedForward):
    def __init__(self, config, site, when: str, how: str):
        super().__init__(config, site)
        self.when, self.how = when, how
        self.reached("constructor")

    def forward(self, x):
        self.reached("training" if self.training else "evaluation")
        if self.training and self.when == "backward":
            x.register_hook(lambda gradient: self.reached("backward"))
        if x.shape[1] == 1 and not self.training:  # one position, and what came before from a cache
            self.reached("decoding")
        return super().forward(x)

    def reached(self, now):
        if now == self.when:
            raise getattr(builtins, self.how)(0)
"""
ENDS_LINE = 1 + ENDS[: ENDS.index("raise")].count("\n")
NO_ERRORS = ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "BaseException")
no_error = pytest.mark.parametrize("how", NO_ERRORS)


def ends(when, how):
    return {"model.ffn": "stranger.Ends", "model.ffn.when": when, "model.ffn.how": how}


@no_error
def test_a_module_that_ends_the_process_cannot_be_imported(module, how):
    path = module(f"import os\n\nraise {how}(0)\n")
    message = f"{path}, line 3: RuntimeError: a component must raise errors only, but raised {how}(0)"
    with tiny_trials.in_a_command():
        assert completed("stranger.Part") == f"stranger.Part: {message}"
        assert components.check_components(model({"model.ffn": "stranger.Part"})) == [
            f"model.ffn = stranger.Part: {message}"
        ]


@no_error
def test_a_signature_that_ends_the_process_is_reported(module, how):
    line = f"        raise {how}(0)\n"
    path = module(
        f"class Meta(type):\n    @property\n    def __signature__(self):\n{line}\n\nclass Part(metaclass=Meta): 0\n"
    )
    with tiny_trials.in_a_command():
        (message,) = components.check_components(model({"model.ffn": "stranger.Part"}))
    assert message.startswith(f"model.ffn = stranger.Part: {path}, line 4: RuntimeError: ") and f"{how}(0)" in message


@no_error
@pytest.mark.parametrize("when", ["constructor", "training", "backward", "evaluation"])
def test_a_component_that_ends_the_process_is_reported_before_anything_starts(module, when, how):
    path = module(ENDS)
    with tiny_trials.in_a_command(), pytest.raises(InputError) as caught:
        forward_cost(invariants.small(ends(when, how)), 1, 7, 7)
    (message,) = caught.value.messages
    assert message.startswith(f"model.ffn = stranger.Ends ({path}, line 6): must run, but {path}, line {ENDS_LINE}: ")
    assert message.endswith(f"a component must raise errors only, but raised {how}(0)")


@no_error
@pytest.mark.parametrize(
    ("when", "keys"),
    [
        ("constructor", {}),
        ("training", {}),
        ("backward", {}),
        ("evaluation", {}),
        ("decoding", {"trainer.bleu_sample": 3}),
        ("evaluation", {"trainer.val_every": 9}),
    ],
    ids=["constructor", "training", "backward", "validation", "BLEU of a sample", "final evaluation"],
)
def test_a_component_that_ends_the_process_in_training_fails_its_trial(module, tmp_path, monkeypatch, when, keys, how):
    """Also where the dry run before the training has not found it."""
    path = module(ENDS)
    monkeypatch.setattr(train, "_cost", lambda run, prepared: Cost(1, 1.0))
    code, trial = tiny_trials.train(tmp_path / "runs", ends(when, how) | keys)
    assert code == 1 and trial.result() is None
    status = trial.status()
    assert status["state"] == "failed"
    assert status["why"].startswith(f"{path}, line {ENDS_LINE}: RuntimeError: ") and f"{how}(0)" in status["why"]
    assert f"error: {status['why']}" in trial.log.read_text()


@pytest.mark.parametrize("when", ["constructor", "training", "backward", "evaluation", "decoding"])
def test_train_tries_out_a_component_before_the_training(module, tmp_path, when):
    path = module(ENDS)
    with pytest.raises(InputError, match=f"stranger.Ends .*: must run, but {path}, line {ENDS_LINE}: "):
        tiny_trials.train(tmp_path / "runs", ends(when, "SystemExit"))
    (folder,) = (tmp_path / "runs" / "trials").iterdir()
    assert Trial(folder).status()["state"] == "failed" and not (folder / "metrics.jsonl").exists()


def test_ctrl_c_is_no_failure_of_a_component(module, tmp_path):
    """It stops a command, whatever code of a component it comes upon; and in a program without one, as ever."""
    module("import time\nfrom pathlib import Path\n\nPath(__file__).with_name('reached').touch()\ntime.sleep(60)\n")
    words = [sys.executable, "-m", "transformer_pl.train", f"--runs={tmp_path / 'runs'}", "--model.ffn=stranger.Part"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for((tmp_path / "reached").exists)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=30)
    assert process.returncode == 130 and printed == "stopped by SIGINT; the same command continues\n"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), component_code():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_that_a_component_ends_is_not_done(module):
    """Wherever it runs one: such as where it translates, or draws a picture of attention."""
    program = (
        "import sys; from transformer_pl.runtime.command_line import run_command; run_command(lambda argv: sys.exit(0))"
    )
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 1 and "a component must raise errors only, but raised SystemExit(0)" in process.stderr
    asked = command("translate", "--help")
    assert asked.returncode == 0 and asked.stdout.startswith("usage: ") and asked.stderr == ""


def test_a_component_made_by_a_function_is_reported_by_its_module(module):
    module("from transformer_pl.model import FeedForward\n\nMade = type('Made', (FeedForward,), {'forward': None})\n")
    with pytest.raises(InputError, match=r"model.ffn = stranger.Made \(module stranger\): must run, but"):
        forward_cost(invariants.small({"model.ffn": "stranger.Made"}), 1, 7, 7)
