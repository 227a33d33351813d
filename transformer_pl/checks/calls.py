"""How the model calls the component of each slot. What cannot be called so is told before it runs.

The model passes every argument by its place, so that their names are free.
"""

import inspect
from collections.abc import Callable, Iterator

from transformer_pl.components import definition_place
from transformer_pl.runtime.errors import InputError

CALLS = {  # by slot: the methods that a component must have, each with its arguments
    "attention": {"forward": "Q, K, V, mask, start=0"},
    "ffn": {"forward": "x"},
    "position": {"forward": "x, start=0"},
    "residual": {"forward": "x, sublayer", "final_norm": ""},
    "self_attention": {"forward": "x, mask, start=0, cache=None"},
    "embedding": {"embed": "ids, site", "logits": "x"},
}
OPTIONAL = {"attention": {"weights": "Q, K, mask, start=0"}}  # methods that it may have
CONSTRUCTOR = "config, site"  # and its options, by their names


def call_mistakes(slot: str, component: type) -> Iterator[str]:
    """What the component of this slot lacks for being built and called as the model does it."""
    constructor: Callable = component.__init__  # type: ignore[misc]
    wanted = f"must have a constructor __init__(self, {CONSTRUCTOR})"
    if constructor.__module__ == "torch.nn.modules.module":  # that of torch.nn.Module
        yield f"{wanted}, but has none; add it"
    elif not _takes(constructor, CONSTRUCTOR, and_options=True):
        yield f"{wanted}, but it takes ({_written(constructor)})"
    for method, arguments in (CALLS[slot] | OPTIONAL.get(slot, {})).items():
        wanted = f"must have a method {method}({', '.join(filter(None, ('self', arguments)))})"
        function = getattr(component, method, None)
        if callable(function):
            if not _takes(function, arguments):
                yield f"{wanted}, but it takes ({_written(function)})"
        elif method in CALLS[slot]:
            yield f"{wanted}, but has not; add it"


def slot_of(path: str, component: type) -> str:
    """The slot that a component fits, by its methods and their arguments. Raises an InputError where none is clear."""
    if any(callable(getattr(component, method, None)) for method in CALLS["embedding"]):
        return "embedding"
    if all(callable(getattr(component, method, None)) for method in CALLS["residual"]):
        return "residual"
    forward = getattr(component, "forward", component.__call__)
    is_own = forward.__qualname__ != "_forward_unimplemented"  # that of torch.nn.Module
    written = _names(forward)[1:] if is_own else []
    names = [name.lower() for name in written]
    for slot, methods in CALLS.items():
        called = [word.partition("=")[0].lower() for word in methods.get("forward", "").split(", ")]
        if len(names) == len(called) and (names[1:] == called[1:] or slot == "attention"):
            return slot
    forward_as_written, place = f"forward({', '.join(written)})", definition_place(component)
    known = "; ".join(f"{slot} takes ({methods['forward']})" for slot, methods in CALLS.items() if "forward" in methods)
    raise InputError(f"{path}: its slot is not clear from {forward_as_written} ({place}); name it with --slot: {known}")


def _takes(function: Callable, arguments: str, and_options: bool = False) -> bool:
    """Whether a function can be called with self and these arguments by place. and_options: and with others by name."""
    try:
        signature = inspect.signature(function)
    except Exception:  # it is of C, or says nothing of itself: running it will show
        return True
    places = ["self", *filter(None, arguments.split(", "))]
    try:
        (signature.bind_partial if and_options else signature.bind)(*places)
    except TypeError:
        return False
    return True


def _names(function: Callable) -> list[str]:
    return list(inspect.signature(function).parameters)


def _written(function: Callable) -> str:
    """The arguments as they stand in the code, without their types."""
    return ", ".join(str(p.replace(annotation=p.empty)) for p in inspect.signature(function).parameters.values())
