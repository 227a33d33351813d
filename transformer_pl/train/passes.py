"""A training pass that is tried: what it keeps in Python, how it is undone, and how far two of them lie apart."""

import io
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_pl.data.batches import Batch, padded_batch

OF_TORCH = {*vars(nn.Module), *vars(nn.Module())}  # what every module has: weights, buffers, modules, hooks
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
NEVER_OURS = ("torch", "builtins", "typing", "abc")  # where classes are defined that keep no state of a model


class Losses(NamedTuple):
    """What a forward pass gives."""

    loss: Tensor  # what is minimised
    sums: Tensor  # over the batch, detached: the loss in nats, the target tokens, each auxiliary loss times the tokens


class Passes(L.Callback):
    """How a training computes the passes of its steps: as they come, the backward one where Lightning asks for it."""

    replays = False

    def __init__(self, module: Any):
        """module: what is trained, with a `model`, a `loss`, and the `losses` of a batch."""
        self.module = module

    def __call__(self, batch: Batch, begins: bool) -> Losses:
        """The losses of a micro-batch. begins: whether it is the first of a global batch."""
        return self.module.losses(batch)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()


def passed(compute: Callable[[Batch], Losses], batch: Batch) -> Losses:
    """A forward and a backward pass: the losses, detached. Gradients are added to those of the weights."""
    torch.clear_autocast_cache()  # a graph must cast the weights itself
    loss, sums = compute(batch)
    with torch.autocast(batch.source.device.type, enabled=False):  # a backward pass of Lightning's has no autocast
        loss.backward()
    torch.clear_autocast_cache()
    return Losses(loss.detach(), sums)


class Kept:
    """What a model and a loss keep in Python at this moment, of whatever type, and the state of the host's generators.

    Tensors, modules, classes and weak references count by identity, tensors also by their version, which grows with
    changes in place.
    This object holds them, so that no other can get their identity or their memory.
    """

    def __init__(self, model: nn.Module, loss: Any):
        self._owners = _owners(model, loss)
        self._held: dict[int, Any] = {}
        self._digests: dict[tuple[str, str], Any] = {}
        for place, owner in self._owners.items():
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                is_code = name.startswith(("__", "_abc_")) or hasattr(type(value), "__get__")
                if name not in OF_TORCH and not (isinstance(owner, type) and is_code):
                    self._digests[place, name] = _digest(value, self._held)
            if isinstance(owner, nn.Module):
                for name, buffer in owner._buffers.items():
                    self._held[id(buffer)] = buffer
                    self._digests[place, f"{name}, assigned anew,"] = id(buffer)
                if any(vars(owner)[hooks] for hooks in HOOKS):
                    self._digests[place, "hook"] = object()  # equals nothing: a replay would not call it
        generators = random.getstate(), np.random.get_state()[1], torch.default_generator.get_state()  # type: ignore[index]
        self._digests["the host's", "generator of random numbers"] = [str(list(one)) for one in generators]

    def changed_in(self, later: "Kept") -> list[str]:
        """The places of what differs later."""
        return sorted(".".join(place) for place in self._differing(later))

    def _differing(self, later: "Kept") -> list[tuple[str, str]]:
        places = self._digests.keys() | later._digests.keys()
        return [place for place in places if self._digests.get(place) != later._digests.get(place)]

    def restore(self, now: "Kept") -> None:
        """Put back what differs now, as far as it can be copied."""
        for place, name in self._differing(now):
            owner, before = self._owners.get(place), self._digests.get((place, name))
            if owner is not None and isinstance(before, bytes):
                unpickler = pickle.Unpickler(io.BytesIO(before))
                unpickler.persistent_load = lambda key: self._held[key[0]]  # type: ignore[method-assign]
                setattr(owner, name, unpickler.load())
            elif owner is not None and before is None and name in vars(owner):
                delattr(owner, name)


def _owners(model: nn.Module, loss: Any) -> dict[str, Any]:
    """What may keep something, by its place: all modules, the loss, and their classes."""
    owners: dict[str, Any] = dict(model.named_modules(prefix="model"))
    owners |= dict(loss.named_modules(prefix="loss")) if isinstance(loss, nn.Module) else {"loss": loss}
    classes = {part for owner in owners.values() for part in type(owner).__mro__}
    strange = [one for one in classes if one.__module__.partition(".")[0] not in NEVER_OURS]
    return owners | {f"{one.__module__}.{one.__qualname__}": one for one in strange}


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, held: dict[int, Any]):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.held = held

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Tensor | nn.Module | type | FunctionType | ModuleType | ref):
            return None
        is_known, self.held[id(value)] = id(value) in self.held, value
        if isinstance(value, Tensor):
            return id(value), value._version
        closure = getattr(value, "__closure__", None) or ()
        is_strange = not value.__module__.startswith("transformer_pl.") if closure else False
        if is_known or not is_strange:
            return id(value), None
        return id(value), _digest([cell.cell_contents for cell in closure], self.held)


def _digest(value: Any, held: dict[int, Any]) -> Any:
    """The bytes of a value; what no bytes can be made of, such as a lock, equals nothing."""
    file = io.BytesIO()
    try:
        _Pickler(file, held).dump(value)
    except Exception:
        return object()
    return file.getvalue()


@contextmanager
def undone(module: Any) -> Iterator[None]:
    """Undo what passes change in a LightningModule's `model` and `loss`, its gradients, and random numbers."""
    gradients = {weight: weight.grad.clone() for weight in module.parameters() if weight.grad is not None}
    buffers = [
        (part._buffers, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    kept = Kept(module.model, module.loss)
    generators = isolate_rng()
    generators.__enter__()
    try:
        yield
    finally:
        generators.__exit__(None, None, None)  # as a context it would leave them after an error
        for weight in module.parameters():
            if weight.grad is not None:
                weight.grad.copy_(gradients[weight]) if weight in gradients else weight.grad.zero_()
        for places, name, buffer, value in buffers:
            places[name] = buffer.copy_(value)
        kept.restore(Kept(module.model, module.loss))


def gradients_of_two(compute: Callable[[], Losses], module: Any) -> list[Tensor]:
    """The summed gradients of two passes in a row: a random number that a graph repeats would show in the second.

    Raises an error if the second changes anything in Python, because a graph would not.
    """
    compute()
    before = Kept(module.model, module.loss)
    compute()
    if changed := before.changed_in(Kept(module.model, module.loss)):
        raise RuntimeError(f"a pass changes {', '.join(changed[:3])}, which a graph would not")
    return [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]


def apart(gradients: list[Tensor], others: list[Tensor]) -> float:
    """The norm of the difference of two gradients, as a share of the second's norm."""
    if len(gradients) != len(others):
        return float("inf")
    differences = torch._foreach_sub(gradients, others)
    distance, whole = (torch.stack(torch._foreach_norm(one)).norm() for one in (differences, others))
    return float(distance / whole) if whole else float(distance)


def padding_counts(compute: Callable[[Batch], Losses], module: Any, batch: Batch) -> float:
    """How much a row of padding changes the loss of a batch without dropout, in float32, as a share of the loss."""
    B, L = len(batch.source), max(batch.source.shape[1], batch.target_in.shape[1])
    losses = []
    with torch.autocast(batch.source.device.type, enabled=False), torch.compiler.set_stance("force_eager"):
        for one in (batch, padded_batch(batch, rows=B + 1, length=L)):
            with undone(module), _WithoutDropout():
                losses.append(compute(one).sums[0])
    return float((losses[0] - losses[1]).abs() / losses[0].abs())


class _WithoutDropout(TorchFunctionMode):
    """Within this context torch's functions of dropout return their input, whichever module calls them."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "dropout" in getattr(function, "__name__", ""):
            return args[0] if args else kwargs["input"]
        if "dropout_p" in kwargs:
            kwargs = kwargs | {"dropout_p": 0.0}
        return function(*args, **kwargs)


class NormalNoise(TorchDispatchMode):
    """Notes whether normally distributed numbers are drawn in this context."""

    is_drawn = False

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.is_drawn |= operation._schema.name.startswith(("aten::randn", "aten::normal"))
        return operation(*args, **kwargs or {})
