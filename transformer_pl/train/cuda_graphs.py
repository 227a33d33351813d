"""Training steps as CUDA graphs, so that a GPU need not wait until Python has launched its kernels one after another.

A graph holds the kernels of one forward and backward pass, for one shape of batches. Few shapes occur, because both
sides of a batch are padded to one length (`DataModule`). Optimizer, schedule, logs and callbacks stay outside.
"""

from collections import Counter
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor, nn

from transformer_pl.config import Config
from transformer_pl.data.batches import Batch, padded_batch, unpadded
from transformer_pl.model.slots import Auxiliary, Stepwise, modules_with
from transformer_pl.runtime.terminal import plain
from transformer_pl.train.passes import Kept, Losses, Passes, apart, gradients_of_two, padding_counts, passed, undone

MARGIN = 0.05  # the share of the card's memory that graphs leave free beside what a pass without a graph takes
RARE = 2  # a shape that occurs so often is not captured
OF_LOSS, OF_GRADIENTS = 1e-4, 1e-3  # how much rounding may change the loss of a padded batch, and gradients of a pass
SAFE = "2.13"  # the first version of torch in which a failed capture does not end the training


class _Captured(NamedTuple):
    graph: Any
    batch: Batch  # the tensors that a replay reads
    losses: Losses  # the tensors that it writes
    kept: Kept  # holds all other tensors that it may read


def why_no_graphs(config: Config, model: nn.Module, loss: Any) -> str | None:
    """Why a training on a GPU cannot be replayed, as far as that can be known before it begins."""
    trainer, is_risky = config.trainer, torch.__version__ < SAFE
    changing = [one.path for one in trainer.callbacks if one.in_identity and not one.path.startswith("lightning.")]
    is_stepwise = any(modules_with(model, Stepwise)) or isinstance(loss, Stepwise)
    reasons = {
        "several processes train together": trainer.devices * trainer.num_nodes > 1 or trainer.strategy != "auto",
        f"trainer.precision is {trainer.precision}": trainer.precision == "16-mixed",
        "a component or the loss has at_step, and a graph would repeat the numbers of one step": is_stepwise,
        "a component has an auxiliary loss, which would count rows of padding": any(modules_with(model, Auxiliary)),
        f"{', '.join(changing)} may change the model, unless it has in_identity: false": changing,
        f"a failed capture ends the training in torch {torch.__version__}": is_risky and trainer.compile != "on",
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if is_risky and not why:
        remedy = "; choose trainer.compile=off if one does"
        print(plain(f"warning: a failed capture ends the training in torch {torch.__version__}{remedy}"), flush=True)
    return why


class StepGraphs(Passes):
    """The forward and backward passes of training steps, captured for each shape that is not rare, then replayed.

    Two sentences are captured first, in a pool of their own, then a batch at least as large as all others, so that the
    others find their memory in its blocks. The first replay of a shape is compared with the same pass without a graph
    and with the same random numbers. Where they differ, or where a pass cannot be captured, one line says why, and all
    passes are computed without graphs from then on. On a CPU there are no graphs.
    """

    replays = True

    def __init__(self, module: Any):
        super().__init__(module)
        self._seen: Counter[torch.Size] = Counter()  # passes without a graph, by shape
        self._captured: dict[torch.Size, _Captured | None] = {}  # None where memory was not enough
        self._pool: Any = None  # the memory of all graphs: they can share it, as no two run at once
        self._stream: Any = None  # on which graphs are captured: each stream has its own workspaces
        self._places: list[Any] = []  # where weights and buffers lie, and which weights are trained
        self._tensors: list[Tensor] | None = None  # weights and buffers; None if Python may have put others there
        self._gradients: dict[nn.Parameter, Tensor] = {}  # replays add to these tensors, so they stay

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Look for all weights and buffers before the next step, because a validation may have changed them."""
        self._tensors = None

    def backward(self, loss: Tensor) -> None:
        """Nothing: the gradients have been computed with the loss."""

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: they were zero before the first micro-batch."""

    def _zero_gradients(self) -> None:
        """Set the gradients to zero before a global batch, in the tensors to which the graphs add them."""
        if not self.replays:
            self.module.zero_grad()
            return
        if self._tensors is None:
            self._tensors = [*self.module.parameters(), *self.module.buffers()]
        places = [(id(one), one.data_ptr(), one.requires_grad) for one in self._tensors]
        if places != self._places:  # something has put other tensors in their place, or has frozen weights
            self._forget_graphs()
            self._places = places
        if not self._gradients:
            self.module.zero_grad()
            return
        torch._foreach_zero_(list(self._gradients.values()))
        for weight, gradient in self._gradients.items():
            weight.grad = gradient

    def __call__(self, batch: Batch, begins: bool) -> Losses:
        """The losses of a micro-batch. Its gradients are added to those of the weights."""
        if begins:
            self._zero_gradients()
        tokens: Any = torch.full((), float(batch.tokens), device=batch.source.device)
        batch, shape = batch._replace(tokens=tokens), batch.source.shape
        if not (self.replays and batch.source.is_cuda):
            return self._passed(batch)
        if not self._seen:
            batch = self._tried(batch)
        if shape not in self._captured and self._seen[shape] >= RARE and self.replays:
            self._capture_in_pool(batch)
        if captured := self._captured.get(shape):
            return _replayed(captured, batch)
        self._seen[shape] += 1
        return self._passed(batch)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Give the memory of graphs and gradients back, and say how many shapes had no graph."""
        left_out = sum(not self._captured.get(shape) for shape in self._seen)
        if self._captured and left_out:
            reason = f"which occurred {RARE} times or less, or for which memory was not enough"
            print(plain(f"CUDA graphs: without those of {left_out} of {len(self._seen)} shapes, {reason}"), flush=True)
        self._forget_graphs()
        self.module.zero_grad()
        torch.cuda.empty_cache()

    def _refuse(self, why: str) -> None:
        print(plain(f"no CUDA graphs: {why}"), flush=True)
        self.replays = False
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        self._captured, self._gradients, self._pool = {}, {}, None

    def _tried(self, batch: Batch) -> Batch:
        """The first batch. Refuse graphs if padding changes its loss, or if two of its sentences cannot be captured.

        Then the batch is returned without padding, so that the training is the one that never asked for graphs.
        """
        alone = unpadded(batch)
        if not padding_counts(self.module.losses, self.module, alone) <= OF_LOSS:
            self._refuse("a component or the loss depends on the other sentences of a batch, or draws random numbers")
        elif self._is_without_waiting(two := _first_two(batch, 2, batch.source.shape[1])):
            self._capture(two, torch.cuda.graph_pool_handle())
        return batch if self.replays else alone

    def _is_without_waiting(self, batch: Batch) -> bool:
        """Refuse graphs if a pass waits for the device. The first pass may, because it prepares what others use."""
        with undone(self.module):
            self._passed(batch)
            try:
                torch.cuda.set_sync_debug_mode("error")
                self._passed(batch)
            except RuntimeError as error:
                self._refuse(f"a step waits for the GPU: {error}".splitlines()[0])
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return self.replays

    def _passed(self, batch: Batch) -> Losses:
        """A forward and a backward pass without a graph."""
        losses = passed(self.module.losses, batch)
        self._gradients = {weight: weight.grad for weight in self.module.parameters() if weight.grad is not None}
        self._tensors = None
        return losses

    def _capture_in_pool(self, batch: Batch) -> None:
        """Capture this shape in the pool of all, which begins with the largest batch."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            largest = _first_two(batch, *self.module.trainer.train_dataloader.largest_shape())
            self._captured[largest.source.shape] = self._capture(largest, self._pool, needed=2)
            if self.replays and not self._captured[largest.source.shape]:
                self._refuse("the GPU's memory does not hold the largest batch twice; increase trainer.accumulate")
        if self.replays and batch.source.shape not in self._captured:
            self._captured[batch.source.shape] = self._capture(batch, self._pool)

    def _capture(self, batch: Batch, pool: Any, needed: int = 1) -> _Captured | None:
        """A graph for batches of this shape. None if memory is not enough; if it cannot be, all graphs are refused.

        needed: the passes for which memory must be free: one without a graph, and one more to begin a pool.
        """
        try:
            return self._compared(batch, pool, needed)
        except RuntimeError as error:
            self._refuse(f"a step cannot be captured: {error.__context__ or error}".splitlines()[0])
        return None

    def _compared(self, batch: Batch, pool: Any, needed: int) -> _Captured | None:
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        with torch.cuda.stream(self._stream), undone(self.module):  # the first pass also prepares workspaces
            once = gradients_of_two(lambda: self._passed(batch), self.module)
        pass_bytes = torch.cuda.max_memory_reserved() - before
        with undone(self.module):
            with torch.cuda.stream(self._stream):
                again = gradients_of_two(lambda: self._passed(batch), self.module)
            torch.cuda.current_stream().wait_stream(self._stream)
            if not apart(again, once) <= OF_GRADIENTS:
                raise RuntimeError("two passes with the same random numbers have other gradients")
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            if free < needed * pass_bytes + MARGIN * total:
                return None
            captured = self._recorded(batch, pool)
        with undone(self.module):
            replayed = gradients_of_two(lambda: _replayed(captured, batch), self.module)
        if not apart(replayed, once) <= OF_GRADIENTS:
            raise RuntimeError("a replay has other gradients than the step itself")
        return captured

    def _recorded(self, batch: Batch, pool: Any) -> _Captured:
        graph, own = torch.cuda.CUDAGraph(), Batch(*map(torch.clone, batch))  # type: ignore[arg-type]
        outside = torch.cuda.stream(torch.cuda.current_stream())  # restores the stream that a failed capture stays on
        kept = Kept(self.module.model, self.module.loss)
        try:
            with outside, torch.cuda.graph(graph, pool, self._stream):
                return _Captured(graph, own, self._passed(own), kept)
        except RuntimeError:
            self._failed = graph  # which the allocator still refers to
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())  # the old one still captures (pytorch issue 171263)
            raise


def _first_two(batch: Batch, rows: int, length: int) -> Batch:
    """A batch of this shape with the first two sentences of another."""
    source, target_in, target_out = (side[: min(2, rows), :length] for side in batch[:3])
    return padded_batch(Batch(source, target_in, target_out, batch.tokens), rows, length)


def _replayed(captured: _Captured, batch: Batch) -> Losses:
    for own, new in zip(captured.batch, batch, strict=True):
        own.copy_(new, non_blocking=True)  # type: ignore[attr-defined]
    captured.graph.replay()
    return captured.losses
