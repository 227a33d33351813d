"""The slots as types: the core's components are of them, and SLOTS.md says of them what they are."""

import inspect
import re

import pytest
from helpers import ROOT

from transformer_pl.config import COMPONENTS
from transformer_pl.config.components import import_component
from transformer_pl.model.slots import HOOKS, SLOTS, call_signatures

pytestmark = pytest.mark.core
TEXT = (ROOT / "ablations" / "SLOTS.md").read_text(encoding="utf-8")
LINES = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("|`")]
OF_TORCH = {"optim.optimizer"}  # whose type is torch's own
CLASSES = {"data.tokenizer", "decode.intervention"}  # whose type is a class to derive from


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


def test_the_document_names_every_slot_with_its_calls_and_every_hook():
    named = {re.match(r"`([\w.]+)", first)[1]: rest for first, *rest in LINES}
    for slot in SLOTS:
        told = " ".join(named[slot])
        for name, arguments in call_signatures(slot).items():
            assert (arguments if name == "__call__" else f".{name}{arguments}") in told, (slot, name)
    assert HOOKS.keys() <= named.keys()
