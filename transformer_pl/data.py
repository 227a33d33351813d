"""The LightningDataModule: a prepared corpus as batches."""

import lightning as L
from torch.utils.data import DataLoader

from transformer_pl.batches import TrainStream, collate, eval_batches, lengths
from transformer_pl.config import Config
from transformer_pl.prepare import Prepared


class TranslationData(L.LightningDataModule):
    """Batches by length (Section 5.1), made in this process: from memory-mapped arrays no worker would be quicker."""

    def __init__(self, config: Config, prepared: Prepared):
        super().__init__()
        self.config, self.prepared = config, prepared
        self.dropped = 0  # training pairs that are too long

    def train_dataloader(self) -> TrainStream:
        """The whole training as one stream, so that Lightning sees one epoch of known length."""
        data, trainer = self.config.data, self.trainer
        stream = TrainStream(
            self.prepared.split("train"),
            data.batch_tokens,
            data.max_length,
            self.config.seed,
            self.config.steps,
            rank=trainer.global_rank,
            world=trainer.world_size,
            accumulate=self.config.trainer.accumulate,
        )
        self.dropped = stream.dropped
        return stream

    def val_dataloader(self) -> DataLoader:
        """The whole validation set, on every rank."""
        split = self.prepared.split("val")
        batches = eval_batches(lengths(split.source), lengths(split.target), self.config.trainer.eval_tokens)
        return DataLoader([collate(split, indexes) for indexes in batches], batch_size=None)
