"""Counts the operations of models and losses that are not the paper's, without values where possible.

`flops.py` calls it in child processes.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformer_pl.config import Optim, Sizes
from transformer_pl.config.components import build
from transformer_pl.data.batches import Batch
from transformer_pl.model import kernels
from transformer_pl.model.dry_run import dry_run
from transformer_pl.model.loss import training_loss
from transformer_pl.model.slots import Carrying, carried, carry, parts_with

PIECES = 100  # of a document, after which nothing more is carried


def counted_costs(passes: Sequence[tuple[Sizes, int, int, int]]) -> list[tuple[int, int]]:
    """The parameters and the operations of forward passes. passes: as `forward_costs` takes them."""
    return [_counted_cost(*forward_pass) for forward_pass in passes]


def _counted_cost(c: Sizes, B: int, Ls: int, Lt: int) -> tuple[int, int]:
    def count(device: str) -> tuple[int, int]:
        source, target = (torch.ones(B, L, dtype=torch.long, device=device) for L in (Ls, Lt))
        model = build(c.architecture, c).to(device)
        _carry_most(model, source, target)
        with FlopCounterMode(display=False) as counter:
            model(source, target)
        return sum(p.numel() for p in model.parameters()), counter.get_total_flops()

    return on_meta_tensors(count, dry_run(c))


def _carry_most(model: torch.nn.Module, source: Tensor, target: Tensor) -> None:
    """Let a model carry as much as it does in the middle of long documents, if it carries anything."""
    begins, before = torch.zeros(len(target), dtype=torch.bool, device=target.device), None
    for _ in range(PIECES if any(parts_with(Carrying, model)) else 0):
        carry(model, carried(model), begins)
        model(source, target)
        after = [value.shape for state in carried(model) for value in state.values()]
        if after == before:
            break
        before = after


def counted_loss(optim: Optim, c: Sizes, B: int, Ls: int, Lt: int) -> float:
    """See `loss_flops`. Nothing is counted of a loss that cannot be computed alone, such as one with a teacher."""

    @torch.no_grad()
    def count(device: str) -> float:
        model, loss = build(c.architecture, c).to(device), build(optim.loss, c, optim)
        if not isinstance(loss, torch.nn.Module) or not list(loss.parameters()):
            return 0.0
        source, target = (torch.ones(B, L, dtype=torch.long, device=device) for L in (Ls, Lt))
        calls: list[int] = []
        with FlopCounterMode(display=False) as alone:
            model(source, target)
        model.register_forward_hook(lambda *_: calls.append(1))
        with FlopCounterMode(display=False) as together:
            training_loss(loss.to(device), model, Batch(source, target, target, B * Lt))
        return together.get_total_flops() - max(1, len(calls)) * alone.get_total_flops()

    with suppress(Exception):
        return on_meta_tensors(count, "cpu")
    return 0.0


def on_meta_tensors(count: Callable[[str], Any], device: str) -> Any:
    """What is counted on the meta device; on another one where a component reads values, which meta tensors lack."""
    try:
        with torch.device("meta"):
            return count("meta")
    except Exception:
        with torch.random.fork_rng(devices=[]), _unfused():
            return count(device)


@contextmanager
def _unfused() -> Iterator[None]:
    """On a CPU, turn off the kernels whose operations torch does not count, and those that compute with zeros."""
    small, kernels.SMALL = kernels.SMALL, 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that there is no Intel GPU
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        kernels.SMALL = small
