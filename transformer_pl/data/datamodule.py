"""The LightningDataModule: the batches of a prepared corpus."""

import lightning as L
from torch.utils.data import DataLoader

from transformer_pl.config import Config
from transformer_pl.config.components import build, carrying
from transformer_pl.data.batches import Batch, TrainStream, batches_in_order, collate, eval_batches, nothing_to_predict
from transformer_pl.data.prepared import Prepared


class DataModule(L.LightningDataModule):
    """Batches by length (Section 5.1), made in this process: with memory-mapped arrays, workers would be slower."""

    def __init__(self, config: Config, prepared: Prepared):
        super().__init__()
        self.config, self.prepared = config, prepared

    def train_dataloader(self) -> TrainStream:
        """The whole training as one stream, so that Lightning sees one epoch of known length."""
        split, tokenizer = self.prepared.split("train"), self.prepared.tokenizer
        return build(self.config.data.batches, split, tokenizer, self.config, *self._rank_and_world)

    def val_dataloader(self) -> DataLoader:
        """This rank's batches of the validation set. Every rank has the same number, as some strategies require."""
        split, tokens = self.prepared.split("val"), self.config.trainer.eval_tokens
        rank, world = self._rank_and_world
        if carrying(self.config.model):
            shares = [batches_in_order(split.target, tokens, one, world) for one in range(world)]
        else:
            batches = eval_batches(split.source.lengths_with_special, split.target.lengths_with_special, tokens)
            shares = [batches[one::world] for one in range(world)]
        share = [collate(split, indexes) for indexes in shares[rank]]
        missing = max(map(len, shares)) - len(share)
        share += [nothing_to_predict(split, shares[0][0]) for _ in range(missing)]
        return DataLoader(share, batch_size=None)  # type: ignore[arg-type]  # a list is a dataset, too

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Put the batch into pinned memory, so that training need not wait for its copy to a GPU."""
        if self.trainer is None or self.trainer.strategy.root_device.type == "cpu":
            return batch
        source, target_in, target_out, tokens = batch
        return Batch(source.pin_memory(), target_in.pin_memory(), target_out.pin_memory(), tokens)

    @property
    def _rank_and_world(self) -> tuple[int, int]:
        """Which of the processes that train together this one is, and how many they are."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
