"""Counts what a training computes where a part of a user's own decides that: the whole passes of its model.

A whole pass is a call of the model: its `states`, and their logits. A loss, an optimizer or a callback may ask for
several of them in a step, with or without gradients, and of other sentences than the batch's.
"""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor

from transformer_pl.config import PAD, Config
from transformer_pl.config.components import is_core, own_parts
from transformer_pl.data.batches import Batch
from transformer_pl.trials.flops import Computed, Sentences

DECIDES = {"optim.loss", "optim.optimizer", "data.batches"}  # which passes are computed, if it is not the core's


def is_counted(config: Config) -> bool:
    """Whether a part of a user's own may decide what is computed; else the batches of the config tell."""
    of_users = any(callback.in_identity and not is_core(callback.path) for callback in config.trainer.callbacks)
    return of_users or bool(DECIDES & own_parts(config).keys())


class CountedPasses(L.Callback):
    """Counts the sentences and tokens of the batches of a training, and of the passes of its model."""

    def __init__(self) -> None:
        # Of batches, of passes with gradients, and of those without: sentences, source tokens, target tokens.
        self.sums = torch.zeros(3, 3, dtype=torch.int64)
        self.otherwise = ""  # what has been called beside whole passes
        self._is_within = False  # a whole pass
        self._positions = 0  # of states whose logits have not been computed
        self._trainer: L.Trainer | None = None

    def computed(self) -> Computed:
        """What was computed until now, on all ranks. Call it on every rank."""
        sums = self._sum_over_ranks()
        batches, with_gradient, without = (Sentences(*row) for row in sums[:-1].view(3, 3).tolist())
        return Computed(batches, with_gradient, without, is_whole=not sums[-1])

    def _sum_over_ranks(self) -> Tensor:
        is_other = self.sums.new_tensor([bool(self.otherwise or self._positions)])
        sums = torch.cat([self.sums.flatten(), is_other])
        return self._trainer.strategy.reduce(sums, reduce_op="sum") if self._trainer else sums

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sum_over_ranks().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        *sums, is_other = state["sums"]
        self.sums, self.otherwise = torch.tensor(sums).view(3, 3), "something" if is_other else ""

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        self._trainer = trainer
        self.sums = (self.sums if trainer.is_global_zero else torch.zeros_like(self.sums)).to(module.device)
        _watch(module.model, self)

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        self.sums[0] += _sizes(batch.source, batch.target_in)

    @property
    def counts(self) -> bool:
        """Whether this is a training step, and no validation, and outside of a whole pass."""
        return not self._is_within and self._trainer is not None and self._trainer.training

    def whole_pass(self, compute: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
        """Compute the states of a whole pass, and count it."""
        if not self.counts:
            return compute(*given, **named)
        source, target = [*given, *named.values()][:2]
        self.sums[1 if torch.is_grad_enabled() else 2] += _sizes(source, target)
        self._positions += target.numel()
        if len(source) != len(target):
            self.otherwise = self.otherwise or "states, with several targets for a source"
        self._is_within = True
        try:
            return compute(*given, **named)
        finally:
            self._is_within = False

    def logits(self, x: Tensor) -> None:
        """Count the logits of some states."""
        self._positions -= x.shape[:-1].numel() if self.counts else 0

    def another(self, name: str) -> None:
        """Note that a part of the model has been called, if it was outside of a whole pass."""
        if self.counts and not self.otherwise:
            self.otherwise = name


def _sizes(source: Tensor, target: Tensor) -> Tensor:
    """Sentences, and tokens of their sources and targets: (3,)."""
    with torch.no_grad():
        return torch.stack([side.ne(PAD).sum() for side in (target[:, :1], source, target)])


def _watch(model: Any, counted: CountedPasses) -> None:
    """Tell `counted` of each call of a model. A copy of the model is watched, too: it has the same class and hooks."""

    class Watched(type(model)):  # type: ignore[misc]
        def states(self, *given: Any, **named: Any) -> Tensor:
            return counted.whole_pass(super().states, *given, **named)

    class WatchedEmbedding(type(model.embedding)):  # type: ignore[misc]
        def logits(self, x: Tensor) -> Tensor:
            counted.logits(x)
            return super().logits(x)

    of_embedding = set(model.embedding.modules())
    for name, part in model.named_modules():
        if part is not model and part not in of_embedding:
            part.register_forward_pre_hook(lambda part, given, name=name: counted.another(name))
    model.__class__, model.embedding.__class__ = Watched, WatchedEmbedding
