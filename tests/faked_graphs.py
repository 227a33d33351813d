"""CUDA graphs faked on a CPU: a capture is a tape of operations and their tensors, and a replay does them again.

What waits for the device raises CUDA's errors, as a CPU's tensors claim to be on a GPU. The fake has no memory to be
full of, and no kernels: what it cannot show are CUDA's allocator, streams, and generators that count in a graph.
"""

import contextlib
import weakref
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "bincount", "lift_fresh", "lift"}
WAITING |= {"_unique", "_unique2", "unique_dim", "unique_consecutive"}


def waits(operation, args):
    """Whether an operation lets the host wait for a GPU."""
    name, overload = operation._schema.name.removeprefix("aten::"), operation._overloadname
    if name in ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"):
        return any(isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return name in WAITING or (name == "repeat_interleave" and overload in ("Tensor", "self_Tensor"))


class Watched(TorchDispatchMode):
    """Raises an error where a GPU would wait."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if waits(operation, args):
            raise RuntimeError("called a synchronizing CUDA operation")
        return operation(*args, **kwargs or {})


def storages(tree):
    return [one.untyped_storage().data_ptr() for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


class Tape(TorchDispatchMode):
    """Notes operations that make or change tensors, with these tensors."""

    def __init__(self):
        super().__init__()
        self.operations, self.error = [], None

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.error or waits(operation, args):
            self.error = RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({operation})")
            raise self.error
        result, given = operation(*args, **kwargs), storages((args, kwargs))
        tensors = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        is_new = [storage not in given for storage in storages(result)]
        if operation._schema.is_mutable or any(is_new):
            self.operations.append((operation, args, kwargs, tensors, is_new, torch.is_grad_enabled()))
        return result


class Graph:
    """In place of torch.cuda.CUDAGraph."""

    replays, made = 0, weakref.WeakSet()

    def __init__(self):
        Graph.made.add(self)

    def replay(self):
        """Below autograd, where the tape was made. What an LSTM keeps depends on whether gradients are asked for."""
        Graph.replays += 1
        for operation, args, kwargs, tensors, is_new, is_training in () if self.is_wrong else self.tape.operations:
            with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(is_training):
                again = [one for one in tree_leaves(operation(*args, **kwargs)) if isinstance(one, torch.Tensor)]
                for tensor, other, new in zip(tensors, again, is_new, strict=True):
                    if new:
                        tensor.detach().copy_(other)


class Card:
    """A GPU with so much free memory, of which a pass takes so much. At the nth capture something fails.

    is_wrong: whether a replay computes nothing.
    captures: for each, its pool, and how many numbers its tensors have. tries: how many were begun.
    """

    def __init__(self, free=10**12, taken=0, failing=None, is_wrong=False):
        self.free, self.taken, self.failing, self.is_wrong = free, taken, failing, is_wrong
        self.captures, self.tries, self.watched = [], 0, contextlib.ExitStack()

    def watch(self, mode):
        """In place of torch.cuda.set_sync_debug_mode."""
        self.watched.close()
        if mode == "error":
            self.watched.enter_context(Watched())

    @contextlib.contextmanager
    def capture(self, graph, pool=None, stream=None):
        """In place of torch.cuda.graph."""
        graph.tape, graph.is_wrong = Tape(), self.is_wrong
        self.tries += 1
        try:
            with graph.tape:
                yield
                if len(self.captures) == self.failing:
                    graph.tape.error = RuntimeError("CUDA error")
        finally:
            if graph.tape.error:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        sizes = [tensor.numel() for *_, tensors, _, _ in graph.tape.operations for tensor in tensors]
        self.captures.append((pool, sum(sizes)))


def install(monkeypatch, card):
    """Let tensors claim to be on a GPU whose graphs are tapes."""
    generator = SimpleNamespace(clone_state=lambda: None, graphsafe_set_state=lambda state: None)
    Graph.replays = 0
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    # On a GPU dropout draws from the device's generator, so that the host's stays as it is.
    monkeypatch.setattr(torch, "default_generator", SimpleNamespace(get_state=lambda: torch.zeros(1)))
    fakes = {
        "CUDAGraph": Graph,
        "graph": card.capture,
        "graph_pool_handle": object,
        "Stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
        "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
        "stream": lambda stream: contextlib.nullcontext(),
        "current_device": lambda: 0,
        "default_generators": [generator],
        "set_sync_debug_mode": card.watch,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "memory_reserved": lambda: 0,
        "max_memory_reserved": lambda: card.taken,
        "mem_get_info": lambda: (card.free, 10**12),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
