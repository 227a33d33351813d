"""Training steps as CUDA graphs, so that a GPU need not wait until Python has launched its kernels one after another.

A graph holds the kernels of one forward and backward pass, for one shape of batches. Few shapes occur, because both
sides of a batch are padded to one length (`DataModule`). Optimizer, schedule, logs and callbacks stay outside.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from transformer_pl.config import PAD, Config
from transformer_pl.data.batches import Batch, padded_batch
from transformer_pl.model.slots import Auxiliary, Stepwise, modules_with
from transformer_pl.runtime.terminal import plain

FREE = 0.2  # the share of the card's memory that graphs leave free
OF_LOSS, OF_GRADIENTS = 1e-4, 1e-3  # how much rounding may change the loss of a padded batch, and gradients of a replay


class Losses(NamedTuple):
    """What a forward pass gives."""

    loss: Tensor  # what is minimised
    sums: Tensor  # over the batch, detached: the loss in nats, the target tokens, each auxiliary loss times the tokens


class _Captured(NamedTuple):
    graph: Any
    batch: Batch  # the tensors that a replay reads
    losses: Losses  # the tensors that it writes


def why_no_graphs(config: Config, model: nn.Module) -> str | None:
    """Why a training on a GPU cannot be replayed, as far as that can be known before it begins."""
    trainer = config.trainer
    changing = [one.path for one in trainer.callbacks if one.in_identity and not one.path.startswith("lightning.")]
    reasons = {
        "several processes train together": trainer.devices * trainer.num_nodes > 1 or trainer.strategy != "auto",
        f"trainer.precision is {trainer.precision}": trainer.precision == "16-mixed",
        "a component has at_step, and a graph would repeat the numbers of one step": any(modules_with(model, Stepwise)),
        "a component has an auxiliary loss, which would count rows of padding": any(modules_with(model, Auxiliary)),
        f"{', '.join(changing)} may change the model, unless it has in_identity: false": changing,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class StepGraphs:
    """The forward and backward passes of training steps, captured for each shape when it first occurs, then replayed.

    The first replay of a shape is compared with the same pass without a graph and with the same random numbers. Where
    they differ, or where a pass cannot be captured, one line says why, and all passes are computed without graphs from
    then on. On a CPU there are no graphs.

    compute: the forward pass of a batch, whose `tokens` are a tensor.
    module: what it trains, a model and its loss.
    """

    def __init__(self, compute: Callable[[Batch], Losses], module: nn.Module):
        self.compute, self.module = compute, module
        self.are_used = True
        self._captured: dict[tuple[torch.Size, ...], _Captured | None] = {}  # None where memory was not enough
        self._pool: Any = None  # the memory of all graphs: they can share it, as no two run at once
        self._stream: Any = None  # on which graphs are captured: each stream has its own workspaces
        self._pass_bytes = 0  # the memory that a pass without a graph takes
        self._places: list[Any] = []  # where weights and buffers lie, and which weights are trained
        self._gradients: dict[nn.Parameter, Tensor] = {}  # replays add to these tensors, so they stay
        self._rows_are_checked = False

    def zero_gradients(self) -> None:
        """Set the gradients to zero before a global batch, in the tensors to which the graphs add them."""
        places: list[Any] = [(weight.data_ptr(), weight.requires_grad) for weight in self.module.parameters()]
        places += [buffer.data_ptr() for buffer in self.module.buffers()]
        if places != self._places:  # something has put other tensors in their place, or has frozen weights
            self._forget_graphs()
            self._places = places
        if not (self.are_used and self._gradients):
            self.module.zero_grad()
            return
        torch._foreach_zero_(list(self._gradients.values()))
        for weight, gradient in self._gradients.items():
            weight.grad = gradient

    def __call__(self, batch: Batch) -> Losses:
        """The losses of a batch. Its gradients are added to those of the weights."""
        if not self._rows_are_checked:
            self._rows_are_checked = True
            batch = self._checked(batch)
        tokens: Any = torch.full((), float(batch.tokens), device=batch.source.device)
        batch, shape = batch._replace(tokens=tokens), (batch.source.shape, batch.target_in.shape)
        if not (self.are_used and batch.source.is_cuda):
            return self._passed(batch)
        if shape not in self._captured:
            free, total = torch.cuda.mem_get_info()
            is_enough = free > FREE * total + 2 * self._pass_bytes
            self._captured[shape] = self._capture(batch) if is_enough else None
        captured = self._captured.get(shape)
        return _replayed(captured, batch) if captured else self._passed(batch)

    def _refuse(self, why: str) -> None:
        print(plain(f"no CUDA graphs: {why}"), flush=True)
        self.are_used = False
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        self._captured, self._gradients, self._pool = {}, {}, None

    def _checked(self, batch: Batch) -> Batch:
        """The first batch. If its padding changes the loss, refuse graphs, and return the batch without padding."""
        rows = (batch.target_out != PAD).any(1)
        rows[0] = True
        source, target_in, target_out = (_without_padding(side[rows]) for side in batch[:3])
        alone = Batch(source, target_in, target_out[:, : target_in.shape[1]], batch.tokens)
        B, L = len(alone.source), max(alone.source.shape[1], alone.target_in.shape[1])
        dropouts = [one for one in self.module.modules() if isinstance(one, nn.Dropout) and one.training]
        sums = []
        with torch.autocast(batch.source.device.type, enabled=False), torch.compiler.set_stance("force_eager"):
            for dropout in dropouts:
                dropout.eval()
            for one in (alone, padded_batch(alone, rows=B + 1, length=L)):
                with self._undone():
                    sums.append(self.compute(one).sums[0])
            for dropout in dropouts:
                dropout.train()
        if (sums[0] - sums[1]).abs() <= OF_LOSS * sums[0].abs():
            return batch
        self._refuse("a component or the loss depends on the other sentences of a batch, or draws random numbers")
        return alone

    def _passed(self, batch: Batch) -> Losses:
        """A forward and a backward pass without a graph."""
        torch.clear_autocast_cache()  # a graph must cast the weights itself
        loss, sums = self.compute(batch)
        with torch.autocast(batch.source.device.type, enabled=False):  # a backward pass of Lightning's has no autocast
            loss.backward()
        torch.clear_autocast_cache()
        self._gradients = {weight: weight.grad for weight in self.module.parameters() if weight.grad is not None}
        return Losses(loss.detach(), sums)

    def _capture(self, batch: Batch) -> _Captured | None:
        """A graph for batches of this shape. Returns None and refuses all graphs if it computes something else."""
        self._stream = self._stream or torch.cuda.Stream()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.cuda.stream(self._stream):  # the first pass also prepares what kernels need, such as workspaces
            once, again = (self._gradients_of_two(lambda: self._passed(batch)) for _ in range(2))
        torch.cuda.current_stream().wait_stream(self._stream)
        self._pass_bytes = max(self._pass_bytes, torch.cuda.max_memory_allocated() - before)
        if not self.are_used:
            return None
        graph, own = torch.cuda.CUDAGraph(), Batch(*map(torch.clone, batch))  # type: ignore[arg-type]
        outside = torch.cuda.stream(torch.cuda.current_stream())  # restores the stream that a failed capture stays on
        try:
            with self._undone(), outside, torch.cuda.graph(graph, self._pool, self._stream):
                losses = self._passed(own)
        except RuntimeError as error:
            self._failed = graph  # which the allocator still refers to
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())  # the old one still captures (pytorch issue 171263)
            self._refuse(f"a step cannot be captured: {error.__context__ or error}".splitlines()[0])
            return None
        captured = _Captured(graph, own, losses)
        replayed = self._gradients_of_two(lambda: _replayed(captured, batch))
        if not _apart(replayed, once) <= 2 * _apart(again, once) + OF_GRADIENTS:
            self._refuse("a replayed step had other gradients than the step itself")
            return None
        return captured

    def _gradients_of_two(self, compute: Callable[[], Losses]) -> list[Tensor]:
        """The summed gradients of two passes in a row: a random number that a graph repeats would show in the second.

        Refuses graphs for a model that keeps or draws numbers in Python, because a replay would not.
        """
        with self._undone():
            before = self._kept_in_python()
            compute(), compute()
            if self._kept_in_python() != before:
                self._refuse("a component keeps or draws numbers in Python, or assigns a buffer anew")
            return [gradient.clone() for gradient in self._gradients.values()]

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Undo what passes change: gradients, buffers, the numbers of modules, and random numbers."""
        gradients = {weight: weight.grad.clone() for weight in self.module.parameters() if weight.grad is not None}
        tensors = [
            (module._buffers, name, buffer, buffer.clone())
            for module in self.module.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        numbers = self._numbers()
        with isolate_rng():
            yield
        for weight in self.module.parameters():
            if weight.grad is not None:
                weight.grad.copy_(gradients[weight]) if weight in gradients else weight.grad.zero_()
        for buffers, name, buffer, value in tensors:
            buffers[name] = buffer.copy_(value)
        for module, kept, now in zip(self.module.modules(), numbers, self._numbers(), strict=True):
            vars(module).update(kept)
            for name in now.keys() - kept.keys():
                delattr(module, name)

    def _kept_in_python(self) -> tuple[Any, ...]:
        """What a pass may change and a replay does not: numbers, generators of the host, and where buffers lie."""
        drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
        return self._numbers(), drawn, [buffer.data_ptr() for buffer in self.module.buffers()]

    def _numbers(self) -> list[dict[str, float]]:
        """The numbers that each module keeps in Python."""
        return [
            {name: value for name, value in vars(module).items() if isinstance(value, int | float)}
            for module in self.module.modules()
        ]


def _without_padding(side: Tensor) -> Tensor:
    """A side of a batch up to its last token."""
    return side[:, : int((side != PAD).any(0).nonzero().max()) + 1]


def _replayed(captured: _Captured, batch: Batch) -> Losses:
    for own, new in zip(captured.batch, batch, strict=True):
        own.copy_(new, non_blocking=True)  # type: ignore[attr-defined]
    captured.graph.replay()
    return captured.losses


def _apart(gradients: list[Tensor], others: list[Tensor]) -> float:
    """The norm of the difference of two gradients, as a share of the second's norm."""
    if len(gradients) != len(others):
        return float("inf")
    differences = torch._foreach_sub(gradients, others)
    apart, whole = (torch.stack(torch._foreach_norm(one)).norm() for one in (differences, others))
    return float(apart / whole) if whole else float(apart)
