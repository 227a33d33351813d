"""The LightningModule: trains the model of Section 3 as Section 5 describes."""

import math
import time
from contextlib import nullcontext
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from transformer_pl.config import PAD, Config, Decode, sizes
from transformer_pl.config.components import build
from transformer_pl.data.batches import Batch
from transformer_pl.data.datamodule import DataModule
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.model import Transformer
from transformer_pl.model.loss import negative_log_likelihood, training_loss
from transformer_pl.model.optimizer import build_optimizer
from transformer_pl.model.slots import Carrying, Stepwise, auxiliary_losses, carried, carry, parts_with, tell_step
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import component_code
from transformer_pl.task import checked_scores, task_of
from transformer_pl.train.divergence import Diverged, check_rates, diverged_if_not_finite
from transformer_pl.train.evaluate import best_translations
from transformer_pl.train.precision import bfloat16_copies
from transformer_pl.train.sharding import shard
from transformer_pl.train.start import freeze
from transformer_pl.train.teacher import build_loss
from transformer_pl.trials.metrics import perplexity


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of dropout on a rank: each pair of the two has its own, so that trials of other seeds share no masks."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0]) if rank else seed


class TransformerModule(L.LightningModule):
    """A Transformer, its loss, its optimizer and schedule. Metrics go to the trainer's loggers."""

    def __init__(self, config: Config, vocab_size: int, teachers: dict[str, Any] | None = None):
        """teachers: the models that the options of the loss name, by option (see `load_teachers`)."""
        super().__init__()
        self.config = config
        self.sizes = sizes(config.model, vocab_size)
        self.model: Transformer = build(self.sizes.architecture, self.sizes)
        freeze(self.model, config.optim.freeze)
        self.optim = config.optim_of_all_steps
        self.loss = build_loss(self.optim, self.sizes, teachers or {})
        self._is_stepwise = False  # whether a part asks for the step
        self._is_carrying = any(parts_with(Carrying, self.model))
        self._carried: dict[int, list[dict[str, Tensor]]] = {}  # what the rows of each part of a batch have left
        self._auxiliary = sorted(auxiliary_losses(self.model, self.loss))  # the names of auxiliary losses
        # On this rank since the last log line: loss in nats, target tokens, and each auxiliary loss times the tokens.
        self._trained = torch.zeros(2 + len(self._auxiliary))
        self._is_first_pass = True  # whether the next pass is a micro-batch's first: an optimizer may ask for several
        self._rates: dict[str, float] = {}  # the learning rates of the last step
        self._next_rates: dict[str, float] = {}  # and those of the next one
        self._seconds = 0.0  # seconds of training since the last log line, without validations
        self._clock = 0.0  # the time until which `_seconds` counts
        self.validation_loss = math.inf  # nats per token, of the last validation
        self._diverged_at = torch.tensor(math.inf)  # the first step on this rank whose loss was not finite

    def configure_model(self) -> None:
        """Under FSDP2, shard the weights."""
        if self.device_mesh is not None:
            shard(self.model, self.loss, self.config, self.device_mesh["data_parallel"])

    def weights(self) -> dict[str, Tensor]:
        """The model's state dict, whole, on rank 0. Call it on every rank, for it gathers shards."""
        state = self.trainer.strategy.lightning_module_state_dict()  # also that of a loss that is a module
        return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}

    def log_now(self, metrics: dict[str, float]) -> None:
        """Give metrics of the last step to every logger, and to callbacks such as EarlyStopping."""
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        for logger in self.loggers:
            logger.log_metrics(metrics, self.trainer.global_step)

    @property
    def _parts(self) -> list[Any]:
        """What may ask for the step, beside the batches."""
        return [self.model, self.loss, *self.trainer.optimizers]

    # `component_code` must guard these methods and not the trainer: Lightning takes a component's StopIteration for the
    # end of an epoch, and its KeyboardInterrupt for Ctrl-C.

    @component_code()
    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self._is_first_pass = True
        # Once a step, and not with each part of a batch. `_is_stepwise` saves a search of all modules at every step.
        if self._is_stepwise and self._part(batch_idx) == 0:
            tell_step(self.trainer.global_step + 1, self.config.steps, *self._parts)
        if self._is_carrying:
            carry(self.model, self._carried.get(self._part(batch_idx), []), batch.begins)

    def _part(self, batch_idx: int) -> int:
        """Which part of its global batch a micro-batch is."""
        return batch_idx % self.trainer.accumulate_grad_batches

    @component_code()
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss per target token of the global batch, with auxiliary losses (means) added.

        `batch.tokens` counts the tokens of the global batch. Lightning divides by the number of accumulated parts, and
        its strategies average over ranks, so the loss is multiplied by both: the gradients sum up.
        """
        loss, sums = self._losses(batch)
        if self._is_first_pass:
            self._trained += sums
            self._is_first_pass = False
            if self._is_carrying:
                self._carried[self._part(batch_idx)] = carried(self.model)
        return loss * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What a micro-batch adds to the loss per target token of its global batch, and the sums that are logged."""
        with bfloat16_copies(self) if self.config.trainer.precision == "bf16-master" else nullcontext():
            loss = training_loss(self.loss, self.model, batch)
            auxiliary = auxiliary_losses(self.model, self.loss) if self._auxiliary else {}
        tokens = (batch.target_out != PAD).sum()
        sums = [loss, tokens, *(auxiliary[name] * tokens for name in self._auxiliary)]
        logged = torch.stack([value.detach().float() for value in sums])
        return (loss + sum(sums[2:])) / batch.tokens, logged

    def stop_if_diverged(self, *values: Tensor) -> None:
        """Raise Diverged on every rank if an earlier loss, a weight, or one of `values` is not finite on any rank.

        The error names the first step that is known to have diverged. Call it on every rank, and not at every step: it
        waits for the device.
        """
        tensors = [*self.parameters(), *values]
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
        finite = torch.stack([tensor.isfinite().all() for tensor in local]).all()
        first = torch.where(finite, self._diverged_at, self._diverged_at.clamp(max=self.trainer.global_step))
        step = self.trainer.strategy.reduce(first, reduce_op="min").item()
        if math.isfinite(step):
            raise Diverged(int(step))

    def on_before_backward(self, loss: Tensor) -> None:
        """Remember the step if its loss is not finite. No step waits for a GPU: this is only a tensor operation."""
        first = self._diverged_at.clamp(max=self.trainer.global_step + 1)
        self._diverged_at = torch.where(loss.isfinite(), self._diverged_at, first)

    @component_code()
    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def on_train_start(self) -> None:
        if self.global_rank:  # after all ranks have built the same weights
            torch.manual_seed(seed_of_rank(self.config.seed, self.global_rank))
        self._trained, self._diverged_at = self._trained.to(self.device), self._diverged_at.to(self.device)
        self._is_stepwise = any(parts_with(Stepwise, *self._parts))
        self._clock = time.perf_counter()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the sums and the seconds that the next log line is made from. Lightning calls it on every rank."""
        sums = self.trainer.strategy.all_gather(self._trained)  # (ranks, k), or (k,)
        checkpoint["trained"] = {"sums": sums.reshape(-1, len(self._trained)).tolist(), "seconds": self._seconds}
        if self._is_carrying:
            checkpoint["carried"] = of_all_ranks(move_data_to_device(self._carried, torch.device("cpu")))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` has saved. If the number of ranks is another, rank 0 gets all sums.

        Raises an InputError for the last state of a start whose loss has other weights or auxiliary losses.
        """
        self._seconds, sums = checkpoint["trained"]["seconds"], torch.tensor(checkpoint["trained"]["sums"])
        weights = checkpoint.get("state_dict")  # which fsdp2 keeps elsewhere
        if sums.shape[1] != len(self._trained) or (weights and weights.keys() != self.state_dict().keys()):
            rule = "must go on with a loss that has the weights and auxiliary losses of its start's"
            remedy = "leave optim.loss as it is there, or set model.start_with=weights"
            raise InputError(f"model.start_with = all: {rule}; {remedy}")
        if len(sums) != self.trainer.world_size:
            sums = torch.cat([sums.sum(0, keepdim=True), torch.zeros(self.trainer.world_size - 1, sums.shape[1])])
        self._trained = sums[self.global_rank]
        if self._is_carrying and "carried" in checkpoint:  # a start without memory has none
            ranks = checkpoint["carried"]
            if len(ranks) != self.trainer.world_size:
                rule = (
                    f"must be {len(ranks)} in all, with which this trial began, as each carries what its rows have left"
                )
                raise InputError(f"trainer.devices, trainer.num_nodes: {rule}; set that")
            self._carried = ranks[self.global_rank]

    def lr_scheduler_step(self, scheduler: torch.optim.lr_scheduler.LambdaLR, metric: None) -> None:  # type: ignore[override]
        """Step the schedule, and keep the rates for `log_step`."""
        self._rates = learning_rates(scheduler)
        scheduler.step()
        self._next_rates = learning_rates(scheduler)

    def log_step(self) -> None:
        """Every `trainer.log_every` steps, log the losses since the last line, the learning rates and the speed.

        Call it at the end of every step, before a checkpoint is saved, so that no line is logged twice. Raises Diverged
        where a loss was not finite, or where the schedule has no rate for the next step.
        """
        is_due = self.trainer.global_step % self.config.trainer.log_every == 0
        if is_due:  # before the clock is read, because it waits for the device
            loss, tokens, *auxiliary_sums = self._sum_over_ranks(self._trained)
        now = time.perf_counter()
        self._seconds += now - self._clock
        self._clock = now
        if is_due:
            if not math.isfinite(loss):  # the same on every rank, as it is the sum over all
                self.stop_if_diverged()
            metrics = {"train/loss": loss / tokens, **self._rates, "tokens_per_s": tokens / self._seconds}
            for name, auxiliary_sum in zip(self._auxiliary, auxiliary_sums, strict=True):
                metrics[f"train/aux.{name}"] = auxiliary_sum / tokens
            self.log_now(metrics)
            self._trained, self._seconds = torch.zeros_like(self._trained), 0.0
        check_rates(self._next_rates.values(), self.trainer.global_step + 1)

    def on_train_epoch_end(self) -> None:
        """Raise an error if the batches end before the training does: Lightning would begin empty epochs for ever."""
        if self.trainer.global_step < self.trainer.max_steps and not self.trainer.should_stop:
            step, why = self.trainer.global_step, "a callback may have changed trainer.accumulate_grad_batches"
            raise RuntimeError(f"the batches end at step {step} of {self.trainer.max_steps}: {why}; leave it out")

    def on_validation_epoch_start(self) -> None:
        self._validated = torch.zeros(2, device=self.device)  # on this rank: loss in nats, target tokens
        self._carried_on: list[dict[str, Tensor]] = []  # by the last batch of the validation

    @component_code()
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self._is_carrying:
            carry(self.model, self._carried_on, batch.begins)
        states = self.model.states(batch.source, batch.target_in)
        self._carried_on = carried(self.model) if self._is_carrying else []
        nll = negative_log_likelihood(self.model.embedding, states, batch.target_out)
        self._validated += torch.stack([nll.sum(), (batch.target_out != PAD).sum()])

    def on_validation_epoch_end(self) -> None:
        self.stop_if_diverged(self._validated)
        carry(self.model)
        loss, tokens = self._sum_over_ranks(self._validated)
        self.validation_loss = loss / tokens
        self.log_now({"val/loss": loss / tokens, "val/ppl": perplexity(loss / tokens)})
        if self.config.trainer.val_sample:
            self._score_sample(self.trainer.datamodule)  # type: ignore[attr-defined]

    @component_code()
    def _score_sample(self, data: DataModule) -> None:
        """Log the score of `trainer.val_sample` evenly spaced sentences of the validation set: cheap, for a pruner.

        Every rank translates all of them, since each has the whole model.
        """
        prepared, keys, task = data.prepared, self.config.trainer, task_of(self.config.data)
        source, (_, references) = prepared.split("val").source, prepared.text("val")
        chosen = evenly_spaced(len(source), keys.val_sample)
        quick = Decode(beam=1)  # keys of decoding do not count: trials that differ only in these share a training
        with diverged_if_not_finite(self.trainer.global_step):
            sample = source.take(chosen)
            hypotheses = best_translations(self.model, sample, prepared.tokenizer, quick, keys.eval_tokens)
        scores = checked_scores(hypotheses, [references[i] for i in chosen], self.config)
        self.log_now({task.sample_metric: scores.metrics[task.measure.name]})

    def on_validation_end(self) -> None:
        """Leave the time of the validation and of its callbacks out of the training rate."""
        self._clock = time.perf_counter()

    def configure_optimizers(self) -> Any:
        """The optimizer and its schedule, Section 5.3. If the loss is a module, its weights are trained, too."""
        of_loss = self.loss.named_parameters("loss") if isinstance(self.loss, nn.Module) else ()
        optimizer, schedule = build_optimizer(self.optim, self.sizes, self.model, of_loss)
        check_rates(learning_rates(schedule).values(), step=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradient of the whole batch (`optim.clip`)."""
        if self.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.optim.clip)

    def _sum_over_ranks(self, sums: Tensor) -> list[float]:
        return self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()


def of_all_ranks(value: Any) -> list[Any]:
    """This value of every rank, by rank. Call it on every rank."""
    values = [value]
    if torch.distributed.is_initialized():
        values *= torch.distributed.get_world_size()
        torch.distributed.all_gather_object(values, value)
    return values


def learning_rates(scheduler: torch.optim.lr_scheduler.LambdaLR) -> dict[str, float]:
    """The learning rate of each group of parameters, as they are logged: `lr`, `lr.1`, `lr.2`."""
    return {f"lr.{group}" if group else "lr": float(rate) for group, rate in enumerate(scheduler.get_last_lr())}
