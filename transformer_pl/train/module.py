"""The LightningModule: trains the model of Section 3 as Section 5 describes."""

import math
import time
from contextlib import nullcontext
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch._inductor import list_options
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from transformer_pl.config import PAD, Config, Decode, sizes
from transformer_pl.config.components import build
from transformer_pl.data.batches import Batch
from transformer_pl.data.datamodule import DataModule
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.model import Transformer
from transformer_pl.model.loss import SmoothedCrossEntropy, negative_log_likelihood, training_loss
from transformer_pl.model.optimizer import build_optimizer
from transformer_pl.model.slots import Stepwise, modules_with
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import component_code
from transformer_pl.runtime.terminal import plain
from transformer_pl.task import checked_scores, task_of
from transformer_pl.train.cuda_graphs import StepGraphs
from transformer_pl.train.divergence import DivergenceWatch, check_rates, diverged_if_not_finite
from transformer_pl.train.evaluate import best_translations
from transformer_pl.train.passes import Losses, NormalNoise, apart, undone
from transformer_pl.train.precision import bfloat16_copies
from transformer_pl.train.teacher import build_loss
from transformer_pl.trials.metrics import perplexity

OF_COMPILED = 0.15  # how much bfloat16's rounding may change the gradients of compiled layers; other masks change more


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
        self.optim = config.optim.model_copy(update={"max_steps": config.steps, "duration": 1.0})
        self.loss = build_loss(self.optim, self.sizes, teachers or {})
        self._is_stepwise = any(modules_with(self.model, Stepwise))  # whether a component asks for the step
        self._auxiliary = sorted(self.model.auxiliary())  # the names of auxiliary losses
        # On this rank since the last log line: loss in nats, target tokens, and each auxiliary loss times the tokens.
        self._trained = torch.zeros(2 + len(self._auxiliary))
        self._divergence = DivergenceWatch()
        self._is_first_pass = True  # whether the next pass is a micro-batch's first: an optimizer may ask for several
        self._rates: dict[str, float] = {}  # the learning rates of the last step
        self._next_rates: dict[str, float] = {}  # and those of the next one
        self._seconds = 0.0  # seconds of training since the last log line, without validations
        self._clock = 0.0  # the time until which `_seconds` counts
        self.validation_loss = math.inf  # nats per token, of the last validation
        self._compiled = self._is_to_compile = False
        self._graphs: StepGraphs | None = None  # where training steps are replayed

    def configure_model(self) -> None:
        """Under FSDP2, shard every weight, and with it Adam's state, over the ranks."""
        if self.device_mesh is not None:
            self._check_sharding()
            shards: dict[str, Any] = {"mesh": self.device_mesh["data_parallel"]}
            for layer in dict.fromkeys((*self.model.encoder, *self.model.decoder)):  # a shared layer once
                if (
                    getattr(layer, "cross_attention", None) is not None
                ):  # the encoder calls it too, before the layer's own forward
                    fully_shard(layer.cross_attention, **shards)
                    register_fsdp_forward_method(layer.cross_attention, "keys_values")
                fully_shard(layer, **shards)
            fully_shard(self.model, **shards)
            register_fsdp_forward_method(self.model, "states")

    def _check_sharding(self) -> None:
        """Raise an InputError for weights that FSDP2 cannot shard."""
        remedy = "with fsdp2; use trainer.strategy=ddp"
        if self._loss_weights():
            raise InputError(f"optim.loss = {self.optim.loss.path}: must have no weights of its own {remedy}")
        names = dict(self.model.named_parameters(remove_duplicate=False))
        if shared := names.keys() - dict(self.model.named_parameters()).keys():
            rule = f"must have each weight once, but {min(shared)} is also another"
            raise InputError(f"model.architecture = {self.sizes.architecture.path}: {rule}: not possible {remedy}")

    def compile_model(self, on_gpu: bool = False) -> None:
        """Compile the layers and the loss when training computes them: each class of layers once, for all lengths.

        A component that cannot be compiled, such as an LSTM, runs as it is between compiled parts. Dropout draws the
        same masks as without compiling, so that numbers differ in their last digits only. (Torch's own compiled dropout
        repeats parts of its masks on a GPU: pytorch issue 198333, of 2.13.) This is compared at the first batch.
        """
        self._compiled = self._is_to_compile = True
        self._masks = "align_random_eager" if on_gpu and "align_random_eager" in list_options() else "fallback_random"
        torch._dynamo.config.recompile_limit = 64  # a component may hold a different number in each layer
        torch.fx.experimental._config.use_duck_shape = False  # lengths may be equal by chance, which is no rule

    def _compile_at(self, batch: Batch) -> None:
        """Compile the layers, unless that fails or gives other gradients for this batch than without compiling."""
        self._is_to_compile = False
        with undone(self), NormalNoise() as noise:
            eager = self._gradients(batch)
        masks = "fallback_random" if noise.is_drawn else self._masks  # the other would be uniform: pytorch issue 193938
        layers = dict.fromkeys((*self.model.encoder, *self.model.decoder))  # a shared layer once
        for layer in layers:
            layer.compile(dynamic=True, options={masks: True})
        if isinstance(self.loss, SmoothedCrossEntropy):
            self.loss.compile()
        try:
            with undone(self):
                distance = apart(self._gradients(batch), eager)
            why = f"the gradients of a batch are {distance:.2g} apart" if not distance <= OF_COMPILED else None
        except Exception as error:  # of any kind: without compiling, the pass has succeeded
            why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        if why:
            print(plain(f"layers are not compiled: {why}"), flush=True)
            self._compiled = False
            for layer in layers:
                layer._compiled_call_impl = None
            if isinstance(self.loss, SmoothedCrossEntropy):
                self.loss.compiled = None

    def _gradients(self, batch: Batch) -> list[Tensor]:
        """The gradients of a micro-batch. They are not added to those of the weights, which ranks would exchange."""
        loss, weights = self._losses(batch).loss, [weight for weight in self.parameters() if weight.requires_grad]
        with torch.autocast(self.device.type, enabled=False):
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        return [gradient for gradient in gradients if gradient is not None]

    def replay_steps(self) -> None:
        """Replay forward and backward passes as CUDA graphs, as far as they compute the same."""
        self._graphs = StepGraphs(self._losses, self)

    @property
    def replays(self) -> bool:
        """Whether training steps are replayed, so that batches should have few shapes."""
        return self._graphs is not None and self._graphs.are_used

    def weights(self) -> dict[str, Tensor]:
        """The model's state dict, whole, on rank 0. Call it on every rank, for it gathers shards."""
        state = self.trainer.strategy.lightning_module_state_dict()  # also that of a loss that is a module
        return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}

    def log_now(self, metrics: dict[str, float]) -> None:
        """Give metrics of the last step to every logger, and to callbacks such as EarlyStopping."""
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        for logger in self.loggers:
            logger.log_metrics(metrics, self.trainer.global_step)

    # `component_code` must guard these methods and not the trainer: Lightning takes a component's StopIteration for the
    # end of an epoch, and its KeyboardInterrupt for Ctrl-C.

    @component_code()
    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self._is_first_pass = True
        # Once a step, and not with each part of a batch. `_is_stepwise` saves a search of all modules at every step.
        if self._is_stepwise and batch_idx % self.trainer.accumulate_grad_batches == 0:
            self.model.at_step(self.trainer.global_step + 1, self.config.steps)

    @component_code()
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss per target token of the global batch, with auxiliary losses (means) added.

        `batch.tokens` counts the tokens of the global batch. Lightning divides by the number of accumulated parts, and
        its strategies average over ranks, so the loss is multiplied by both: the gradients sum up.
        """
        parts = self.trainer.accumulate_grad_batches
        if self._is_to_compile:
            self._compile_at(batch)
        if self._graphs is None:
            loss, sums = self._losses(batch)
        else:
            if batch_idx % parts == 0:
                self._graphs.zero_gradients()
            loss, sums = self._graphs(batch)
        self._divergence.note_loss(sums[0], self.trainer.global_step + 1)
        if self._is_first_pass:
            self._trained += sums
            self._is_first_pass = False
        return loss * parts * self.trainer.world_size

    def _losses(self, batch: Batch) -> Losses:
        """What a micro-batch adds to the loss per target token of its global batch, and the sums that are logged."""
        with bfloat16_copies(self) if self.config.trainer.precision == "bf16-master" else nullcontext():
            loss = training_loss(self.loss, self.model, batch)
            auxiliary = self.model.auxiliary() if self._auxiliary else {}
        tokens = (batch.target_out != PAD).sum()
        sums = [loss, tokens, *(auxiliary[name] * tokens for name in self._auxiliary)]
        logged = torch.stack([value.detach().float() for value in sums])
        return Losses((loss + sum(sums[2:])) / batch.tokens, logged)

    def stop_if_diverged(self, *values: Tensor) -> None:
        """Raise Diverged on every rank if an earlier loss, a weight, or one of `values` is not finite on any rank."""
        self._divergence.check(self.trainer, [*self.parameters(), *values])

    @component_code()
    def backward(self, loss: Tensor) -> None:
        if self._graphs is None:  # else the gradients have been computed with the loss
            loss.backward()

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        if self._graphs is None:
            optimizer.zero_grad()

    def on_train_start(self) -> None:
        if self.global_rank:  # after all ranks have built the same weights
            torch.manual_seed(seed_of_rank(self.config.seed, self.global_rank))
        self._trained = self._trained.to(self.device)
        self._divergence.to(self.device)
        self._clock = time.perf_counter()
        if self._graphs:
            self._graphs.largest = self.trainer.train_dataloader.largest_shape()  # type: ignore[union-attr]

    def on_train_end(self) -> None:
        if self._graphs:
            self._graphs.end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the sums and the seconds that the next log line is made from. Lightning calls it on every rank."""
        sums = self.trainer.strategy.all_gather(self._trained)  # (ranks, k), or (k,)
        checkpoint["trained"] = {"sums": sums.reshape(-1, len(self._trained)).tolist(), "seconds": self._seconds}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` has saved. If the number of ranks is another, rank 0 gets all sums."""
        self._seconds, sums = checkpoint["trained"]["seconds"], torch.tensor(checkpoint["trained"]["sums"])
        if len(sums) != self.trainer.world_size:
            sums = torch.cat([sums.sum(0, keepdim=True), torch.zeros(self.trainer.world_size - 1, sums.shape[1])])
        self._trained = sums[self.global_rank]

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
        if self._compiled:  # torch would compile again for other lengths, no gradients, and caches
            torch.compiler.set_stance("force_eager")

    @component_code()
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        states = self.model.states(batch.source, batch.target_in)
        nll = negative_log_likelihood(self.model.embedding, states, batch.target_out)
        self._validated += torch.stack([nll.sum(), (batch.target_out != PAD).sum()])

    def on_validation_epoch_end(self) -> None:
        self.stop_if_diverged(self._validated)
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
        if self._compiled:
            torch.compiler.set_stance("default")
        self._clock = time.perf_counter()
        if self._graphs:
            self._graphs.look_again()

    def configure_optimizers(self) -> Any:
        """The optimizer and its schedule, Section 5.3."""
        optimizer, schedule = build_optimizer(self.optim, self.sizes, self.model, self._loss_weights())
        check_rates(learning_rates(schedule).values(), step=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _loss_weights(self) -> list[tuple[str, nn.Parameter]]:
        """The weights of the loss, if it is a module that has some, by name. They are trained like the model's."""
        return list(self.loss.named_parameters("loss")) if isinstance(self.loss, nn.Module) else []

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradient of the whole batch (`optim.clip`)."""
        if self.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.optim.clip)

    def _sum_over_ranks(self, sums: Tensor) -> list[float]:
        return self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()


def learning_rates(scheduler: torch.optim.lr_scheduler.LambdaLR) -> dict[str, float]:
    """The learning rate of each group of parameters, as they are logged: `lr`, `lr.1`, `lr.2`."""
    return {f"lr.{group}" if group else "lr": float(rate) for group, rate in enumerate(scheduler.get_last_lr())}
