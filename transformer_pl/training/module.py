"""The LightningModule: how the model of Section 3 is trained as Section 5 says."""

import math
import time

import lightning as L
import torch
from torch import Tensor
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from transformer_pl.config import Config, sizes
from transformer_pl.data.batches import Batch
from transformer_pl.data.tokenizer import PAD
from transformer_pl.loss import negative_log_likelihood, smoothed_loss
from transformer_pl.model import DecoderLayer, Transformer
from transformer_pl.runtime.signals import component_code
from transformer_pl.schedule import learning_rate
from transformer_pl.training.divergence import Diverged, perplexity


class TransformerModule(L.LightningModule):
    """A Transformer, its loss, Adam and the learning-rate law; metrics go to the trainer's logger."""

    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        self.config = config
        self.sizes = sizes(config.model, vocab_size)
        self.model = Transformer(self.sizes)
        self._trained = torch.zeros(2)  # since the last log line, on this rank: loss in nats, target pieces
        self._diverged_at = torch.tensor(math.inf)  # the first step whose loss was not finite, on this rank
        self._since = self._elapsed = 0.0
        self._paused: float | None = None  # since when a validation goes on

    def configure_model(self) -> None:
        """Under FSDP2, each rank keeps its share of every weight, and of what Adam keeps of it."""
        if self.device_mesh is not None:
            shards = {"mesh": self.device_mesh["data_parallel"]}
            for layer in (*self.model.encoder, *self.model.decoder):
                if isinstance(layer, DecoderLayer):  # used by the encoder too, before its layer's turn
                    fully_shard(layer.cross_attention, **shards)
                    register_fsdp_forward_method(layer.cross_attention, "keys_values")
                fully_shard(layer, **shards)
            fully_shard(self.model, **shards)

    def weights(self) -> dict[str, Tensor]:
        """Of the model, whole, on rank 0. To be called on every rank: shards are gathered."""
        state = self.trainer.strategy.lightning_module_state_dict()
        return {name.removeprefix("model."): value for name, value in state.items()}

    # Guarded below Lightning: it takes a StopIteration for the end of an epoch, and KeyboardInterrupt for Ctrl-C.

    @component_code()
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The smoothed loss per target piece of the global batch.

        Lightning divides by the parts of an accumulated batch, and its strategies average over ranks; both together
        sum up here, for `batch.tokens` counts the tokens of the whole.
        """
        loss = smoothed_loss(self.model(batch.source, batch.target_in), batch.target_out, self.config.optim.eps_ls)
        step = self.trainer.global_step + 1  # nothing here waits for a GPU: what was not finite is found out later
        self._diverged_at = torch.where(loss.isfinite(), self._diverged_at, self._diverged_at.clamp(max=step))
        self._trained[0] += loss.detach()
        self._trained[1] += (batch.target_out != PAD).sum()
        return loss / batch.tokens * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def stop_if_diverged(self, *values: Tensor) -> None:
        """Raise Diverged, on every rank, if on any a loss so far, a weight, or one of `values` is not finite.

        It names the first step of which that is known. To be called on every rank, and not at every step: it waits
        for the device.
        """
        weights = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in self.parameters())
        finite = torch.stack([value.isfinite().all() for value in (*weights, *values)]).all()
        first = torch.where(finite, self._diverged_at, self._diverged_at.clamp(max=self.trainer.global_step))
        step = self.trainer.strategy.reduce(first, reduce_op="min").item()
        if math.isfinite(step):
            raise Diverged(int(step))

    @component_code()
    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def on_train_start(self) -> None:
        self._trained, self._diverged_at = self._trained.to(self.device), self._diverged_at.to(self.device)
        self._since = time.perf_counter() - self._elapsed

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """What the next log line is made of. On every rank."""
        seconds = (self._paused or time.perf_counter()) - self._since
        checkpoint["trained"] = [*self._over_ranks(self._trained.clone()), seconds]

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        loss, pieces, self._elapsed = checkpoint["trained"]
        if self.global_rank == 0:
            self._trained = torch.tensor([loss, pieces])

    def lr_scheduler_step(self, scheduler: torch.optim.lr_scheduler.LambdaLR, metric: None) -> None:
        """After every optimiser step, before a callback may save and stop: what is logged is logged once."""
        scheduler.step()
        step = self.trainer.global_step
        if step % self.config.trainer.log_every == 0:
            loss, pieces = self._over_ranks(self._trained)
            if not math.isfinite(loss):  # on every rank, for it is the sum over all
                self.stop_if_diverged()
            seconds = time.perf_counter() - self._since
            (lr,) = scheduler.get_last_lr()
            self.logger.log_metrics({"train/loss": loss / pieces, "lr": lr, "tokens_per_s": pieces / seconds}, step)
            self._trained = torch.zeros_like(self._trained)
            self._since = time.perf_counter()

    def on_validation_epoch_start(self) -> None:
        self._validated = torch.zeros(2, device=self.device)
        self._paused = time.perf_counter()

    @component_code()
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        nll = negative_log_likelihood(self.model(batch.source, batch.target_in), batch.target_out)
        self._validated += torch.stack([nll.sum(), (batch.target_out != PAD).sum()])

    def on_validation_epoch_end(self) -> None:
        self.stop_if_diverged(self._validated)
        loss, pieces = self._over_ranks(self._validated)
        nll = loss / pieces
        self.logger.log_metrics({"val/loss": nll, "val/ppl": perplexity(nll)}, self.trainer.global_step)

    def on_validation_end(self) -> None:
        """After every callback: the rate is that of training alone."""
        self._since += time.perf_counter() - self._paused
        self._paused = None

    def configure_optimizers(self) -> dict:
        optim = self.config.optim
        adam = torch.optim.Adam(
            self.model.parameters(), lr=1.0, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True
        )
        law = torch.optim.lr_scheduler.LambdaLR(
            adam, lambda done: learning_rate(done + 1, self.sizes.d_model, optim.warmup, optim.lr_scale)
        )
        return {"optimizer": adam, "lr_scheduler": {"scheduler": law, "interval": "step"}}

    def _over_ranks(self, sums: Tensor) -> list[float]:
        return self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
