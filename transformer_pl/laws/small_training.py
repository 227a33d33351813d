"""A row's own training, made small: a few sentences of its text, one layer a stack, and its first steps.

It is a call of the function that trains any trial. What is scaled is what takes time; the row's other keys stay, its
`optim.max_steps` among them: the training is stopped after STEPS steps.
"""

import io
import math
import os
import signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import numpy as np
import torch

from transformer_pl.config import ALL_PAIRS, COMPONENTS, Callback, Config, custom_components, sizes
from transformer_pl.config.components import build
from transformer_pl.data.batches import Batch, collate
from transformer_pl.data.excerpt import SENTENCES
from transformer_pl.data.prepare import prepared_in
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.model import Transformer
from transformer_pl.model.dry_run import dry_run
from transformer_pl.task import Pair
from transformer_pl.train import fit
from transformer_pl.train.one_trial import train_and_evaluate
from transformer_pl.train.teacher import without_teachers
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.result import Result
from transformer_pl.trials.trial import Trial

STEPS = 20
BATCHES = 4  # of an epoch, at least
RATES = 1000  # steps at which the greatest rate is looked for


class SmallTraining:
    """A small training of a row, in a folder of its own: what the laws of all but components are given."""

    def __init__(self, row: Config, folder: Path, written: tuple[Tokenizer, list[Pair]] | None = None):
        """The folder holds the dataset. written: what `write_excerpt`, which has written it, has returned."""
        self.folder, self.written = folder, written
        self.config = _small(row, prepared_in(folder / "data", row.data))
        self.prepared = prepared_in(folder / "data", self.config.data)
        self.device = "cuda" if self.config.trainer.accelerator == "gpu" else "cpu"

    def model(self) -> Transformer:
        """An untrained model, the same at each call."""
        torch.manual_seed(self.config.seed)
        shape = sizes(self.config.model, len(self.prepared.tokenizer))
        model: Transformer = build(shape.architecture, shape).to(self.device)
        model.at_step(1, self.config.steps)
        return model

    def batch(self, part: int = 0) -> Batch:
        """A few sentences of the training set; of another part there are others."""
        split = self.prepared.split("train")
        batch = collate(split, np.arange(len(split.source))[part::BATCHES])
        source, target_in, target_out = (side.to(self.device) for side in batch[:3])
        return Batch(source, target_in, target_out, batch.tokens)

    def trial(self, name: str) -> Trial:
        """The trial of one of the trainings, such as `whole`."""
        identity = Identity({"rehearsal": name})
        folder = self.folder / name / "trials" / f"rehearsal-{identity.trial}"
        return Trial(folder, identity=identity, scale="rehearsal")

    def train(self, name: str, callbacks: tuple[Callback, ...] | None = None, stop_at: int | None = None) -> Result:
        """Train and evaluate as any trial, from a checkpoint where one was stopped. Returns the result.

        callbacks: in the place of the row's. stop_at: the step in which a signal asks to stop.
        """
        os.environ["WANDB_MODE"] = "disabled"
        fit.start_libraries()
        trial = self.trial(name)
        trial.make()
        observer = Callback(path=f"{__name__}.Observer", options={"name": name, "stop_at": stop_at})
        own = self.config.trainer.callbacks if callbacks is None else callbacks
        trainer = self.config.trainer.model_copy(update={"callbacks": (*own, observer)})
        trial.config = self.config.model_copy(update={"trainer": trainer})
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return train_and_evaluate(trial, self.prepared)

    def differences(self, name: str, other: str) -> str:
        """In which weights, and fields of the results, two trainings differ; empty where they do not."""
        (weights, first), (others, second) = ((t.weights(), t.result()) for t in map(self.trial, (name, other)))
        unequal = [key for key, weight in weights.items() if not torch.equal(weight, others[key])]
        unequal += [key for key in ("steps", "metrics") if getattr(first, key) != getattr(second, key)]
        return ", ".join(unequal[:3])


def _small(row: Config, prepared: Prepared) -> Config:
    """The row's config with the dataset of a rehearsal. Each stack has one layer, unless parts may look for others.

    The model is trained on a GPU if its components do not run on a CPU. The rate is as high as the row's ever is:
    otherwise a long warm-up would leave it near zero for all steps.
    """
    shape, trainer, steps = sizes(row.model, len(prepared.tokenizer)), row.trainer, row.steps
    optim = row.optim.model_copy(update={"max_steps": steps, "duration": 1.0, "match": "steps"})
    schedule = build(optim.schedule, shape, optim)
    tried = evenly_spaced(steps, RATES), range(min(STEPS, steps))
    greatest, first = (max(float(schedule(step + 1)) for step in some) for some in tried)
    higher = greatest / first if first > 0 and math.isfinite(greatest / first) else 1.0
    longest = int(prepared.split("train").longer.max())
    several = longest * SENTENCES["train"] // BATCHES  # else an epoch would be one batch, whose order says nothing
    on_gpu = torch.cuda.is_available() and dry_run(shape) == "cuda"
    of_few = {"N": 1, "N_encoder": row.model.N_encoder and 1, "N_decoder": None, "depth": 1.0}
    keys: dict[str, dict[str, Any]] = {
        "model": {} if trainer.callbacks or "loss" in custom_components(optim) else of_few,
        "optim": {"lr_scale": optim.lr_scale * higher, "loss": without_teachers(optim.loss)},
        "data": {
            **ALL_PAIRS,
            "vocab_size": len(prepared.tokenizer),
            "max_length": max(row.data.max_length, longest),
            "batch_tokens": max(longest, min(row.data.batch_tokens, several)),
        },
        "decode": {"average": min(row.decode.average, 3), "intervention": COMPONENTS["decode.intervention"]},
        "trainer": {
            **{"accelerator": "gpu" if on_gpu else "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto"},
            **{"compile": "off", "threads": 1},
            "precision": "32-true" if trainer.precision == "16-mixed" else trainer.precision,
            "val_every": min(STEPS, max(4, round(trainer.val_every * STEPS / steps))),
            "log_every": max(1, round(trainer.log_every * STEPS / steps)),
            "callbacks": _without("dirpath", trainer.callbacks),
            "loggers": _without("save_dir", trainer.loggers),
        },
    }
    row = row.model_copy(update={"optim": optim})
    return row.model_copy(update={name: getattr(row, name).model_copy(update=new) for name, new in keys.items()})


def _without(option: str, plugins: tuple[Any, ...]) -> tuple[Any, ...]:
    """Callbacks or loggers without their option for a folder, so that they write to the trial's."""
    return tuple(
        one.model_copy(update={"options": {k: v for k, v in one.options.items() if k != option}}) for one in plugins
    )


class Observer(L.Callback):
    """Watches a training from within: how often the model is called, and whether the trainer stays as it is.

    It ends the training after STEPS steps. stop_at: the step in which it sends a signal to stop.
    """

    of: ClassVar[dict[str, "Observer"]] = {}  # by the names of the trainings of this process

    def __init__(self, name: str, stop_at: int | None):
        self.stop_at, self.forward, self.batches = stop_at, 0, 0
        Observer.of[name] = self

    @property
    def passes(self) -> float:
        """The calls of the model for each part of a batch."""
        return round(self.forward / self.batches, 2) if self.batches else 1.0

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        self.settings, observer = [self._settings(trainer)], self

        class Counted(type(module.model)):  # type: ignore[misc]  # a copy of the model is one, too, of its own weights
            def states(self, *arguments: Any) -> torch.Tensor:
                observer.forward += self.training and torch.is_grad_enabled()
                return super().states(*arguments)

        module.model.__class__ = Counted

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        if trainer.global_step + 1 == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.batches += 1
        trainer.should_stop = trainer.should_stop or trainer.global_step >= STEPS

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        self.settings.append(self._settings(trainer))

    def _settings(self, trainer: L.Trainer) -> list[Any]:
        """What callbacks must leave as it is."""
        return [trainer.lr_scheduler_configs[0].scheduler, trainer.accumulate_grad_batches, trainer.max_steps]
