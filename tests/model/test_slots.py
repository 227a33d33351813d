"""The slots as types: the core's components are of them, and SLOTS.md says of them what they are."""

import inspect
import re

import numpy as np
import pytest
import torch
from helpers import ROOT
from small_models import built, small

from transformer_pl import model
from transformer_pl.config import COMPONENTS, KEYS, PAD, Optim, Site
from transformer_pl.config.components import import_component
from transformer_pl.data.batches import Batch, collate
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.model import slots
from transformer_pl.model.slots import SLOTS, call_signatures

pytestmark = pytest.mark.core
TEXT = (ROOT / "ablations" / "SLOTS.md").read_text(encoding="utf-8")
LINES = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("|`")]
OF_TORCH = {"optim.optimizer"}  # whose type is torch's own
NOTHING_TO_USE = OF_TORCH | {"decode.intervention"}  # of the default, by a derived class
CLASSES = {"data.tokenizer", "data.batches", "decode.intervention"}  # whose type is a class to derive from


def signature(method):
    _, *parameters = inspect.signature(method).parameters.values()
    return str(inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in parameters]))


@pytest.mark.parametrize("slot", SLOTS)
def test_the_core_s_component_is_of_its_slot(slot):
    component = import_component(COMPONENTS[slot].path)
    if hasattr(component, "of_states"):  # in place of a call
        return
    for name, arguments in call_signatures(slot).items():
        is_call = name == "__call__"
        method = getattr(component, "forward" if is_call and hasattr(component, "forward") else name)
        assert signature(method) == arguments


def test_every_slot_has_a_type():
    assert SLOTS.keys() | OF_TORCH | CLASSES == COMPONENTS.keys()


def test_the_document_names_every_slot_and_every_hook():
    """How a slot is called it has from the type itself (tests/test_benchmarks.py)."""
    protocols = [one for one in vars(slots).values() if getattr(one, "_is_runtime_protocol", False)]
    hooks = {name for one in protocols for name in {*vars(one), *inspect.get_annotations(one)} if name[0] != "_"}
    assert {"at_step", "auxiliary", "of_batch"} < hooks
    assert SLOTS.keys() | hooks <= {re.match(r"`([\w.]+)", first)[1] for first, *_ in LINES}


# What a subclass, a loss and a callback may use


def table(heading):
    """The cells of the lines of the table below a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line[1:-1].split("|") for line in section.splitlines() if line.startswith("|`")]


def names_in(cell):
    """Each name of a cell, and its arguments where it is a method."""
    return [(name, arguments) for name, arguments in re.findall(r"`([A-Za-z]\w*)(\([^`]*\))?`", cell)]


MAY_USE = {
    path if "." in path else f"{model.__name__}.{path}": names_in(f"{attributes} {methods}")
    for classes, attributes, methods in table("What a subclass may use")
    for path in re.findall(r"`([\w.]+)`", classes)
}


@pytest.mark.parametrize("path", MAY_USE)
def test_a_subclass_may_use_what_the_document_names(path):
    """Of an instance that is built as training builds it, with the arguments that stand there."""
    component = import_component(path)
    given = {"config": small(), "site": Site("decoder"), "layer": 0, "optim": Optim()}
    given |= {"split": Split(*[Tokens.of(np.empty(0, np.uint16), [])] * 2), "tokenizer": None, "rank": 0, "world": 1}
    instance = component(*(given[name] for name in inspect.signature(component).parameters))
    assert MAY_USE[path]
    for name, arguments in MAY_USE[path]:
        if arguments:
            parameters = inspect.signature(getattr(instance, name)).parameters.values()
            untyped = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
            assert str(inspect.Signature(untyped)) == arguments, name
        else:
            assert hasattr(instance, name) and not inspect.ismethod(getattr(instance, name)), name


def test_the_document_names_every_class_of_the_paper():
    """Those that fill the slots, those that are built of them, and all attributes in which they keep their parts."""
    of_core = {component.path for component in COMPONENTS.values()} - {COMPONENTS[slot].path for slot in NOTHING_TO_USE}
    assert of_core | {KEYS["data.task"]} <= MAY_USE.keys()
    for module in built(small()).modules():
        path = f"{model.__name__}.{type(module).__name__}"
        if hasattr(model, type(module).__name__) and type(module).__module__ == f"{model.__name__}.transformer":
            parts = {name for named in (module._modules, module._parameters, module._buffers) for name in named}
            assert parts <= {name for name, _ in MAY_USE[path]}


def test_a_batch_is_what_the_document_says():
    """By its own words of the end, the beginning, padding and what follows what."""
    assert tuple(re.findall(r"`(\w+)`", first)[0] for first, _ in table("Batches, for a loss and for a callback")) == (
        Batch._fields
    )
    sides = [Tokens.of(np.arange(4, 4 + sum(lengths), dtype=np.uint32), lengths) for lengths in ([0, 3], [4, 1])]
    batch = collate(Split(*sides), np.array([1, 0]))
    assert {tensor.dtype for tensor in batch[:3]} == {torch.int64} and batch.tokens == 7
    assert batch.source.tolist() == [[4, 5, 6, 2], [2, 0, 0, 0]]
    assert batch.target_in.tolist() == [[1, 8, 0, 0, 0], [1, 4, 5, 6, 7]]
    assert batch.target_out.tolist() == [[8, 2, 0, 0, 0], [4, 5, 6, 7, 2]]
    inside = batch.target_in[:, 1:] != PAD
    assert (batch.target_in[:, 1:][inside] == batch.target_out[:, :-1][inside]).all()
