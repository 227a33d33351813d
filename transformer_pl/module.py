"""The LightningModule: how the model of Section 3 is trained as Section 5 says."""

import time

import lightning as L
import torch
from torch import Tensor
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from transformer_pl.batches import Batch
from transformer_pl.config import Config, sizes
from transformer_pl.loss import negative_log_likelihood, smoothed_loss
from transformer_pl.model import DecoderLayer, Transformer
from transformer_pl.schedule import learning_rate
from transformer_pl.stopping import component_code
from transformer_pl.tokens import PAD


class TransformerModule(L.LightningModule):
    """A Transformer, its loss, Adam and the learning-rate law; metrics go to the trainer's logger."""

    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        self.config = config
        self.sizes = sizes(config.model, vocab_size)
        self.model = Transformer(self.sizes)
        self._trained = torch.zeros(2)  # since the last log line, on this rank: loss in nats, target pieces
        self._since = self._elapsed = 0.0

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
        sum up here, for `batch.pieces` counts the pieces of the whole.
        """
        loss = smoothed_loss(self.model(batch.source, batch.target_in), batch.target_out, self.config.optim.eps_ls)
        self._trained[0] += loss.detach()
        self._trained[1] += (batch.target_out != PAD).sum()
        return loss / batch.pieces * self.trainer.accumulate_grad_batches * self.trainer.world_size

    @component_code()
    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def on_train_start(self) -> None:
        self._trained = self._trained.to(self.device)
        self._since = time.perf_counter() - self._elapsed

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        """What the next log line is made of. On every rank."""
        checkpoint["trained"] = [*self._over_ranks(self._trained.clone()), time.perf_counter() - self._since]

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
        loss, pieces = self._over_ranks(self._validated)
        nll = torch.tensor(loss / pieces)
        self.logger.log_metrics({"val/loss": nll.item(), "val/ppl": nll.exp().item()}, self.trainer.global_step)
        self._since += time.perf_counter() - self._paused  # the rate is that of training alone

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
