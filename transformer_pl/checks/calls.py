"""How the model calls the component of each slot. It passes every argument by its place, so that names are free."""

import inspect

from transformer_pl.runtime.errors import InputError

CALLS = {
    "attention": "component(Q, K, V, mask, start=0)",
    "ffn": "component(x)",
    "position": "component(x, start=0)",
    "residual": "component(x, sublayer) and component.final_norm()",
    "self_attention": "component(x, mask, start=0, cache=None)",
    "embedding": "component.embed(ids, site) and component.logits(x)",
}
BY_METHOD = {"embed": "embedding", "logits": "embedding", "final_norm": "residual"}
BY_ARGUMENTS = {1: "ffn", 2: "position", 4: "self_attention", 5: "attention"}  # by how many `forward` takes


def slot_of(path: str, component: type) -> str:
    """The slot that a component fits, by its methods and by how many arguments its `forward` takes.

    Raises an InputError where no slot takes as many.
    """
    for method, slot in BY_METHOD.items():
        if hasattr(component, method):
            return slot
    forward = getattr(component, "forward", component.__call__)
    arguments = len(inspect.signature(forward).parameters) - 1  # without self
    if arguments not in BY_ARGUMENTS:
        known = "; ".join(f"{slot}: {called}" for slot, called in CALLS.items())
        raise InputError(
            f"{path}: its slot is not clear from its methods; name it with --slot; they are called {known}"
        )
    return BY_ARGUMENTS[arguments]
