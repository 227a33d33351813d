"""A row's own training, made small: a few sentences of its text, one layer a stack, and its first steps.

It is a call of the function that trains any trial. What is scaled is what takes time; the row's other keys stay, its
`optim.max_steps` among them: the training is stopped after STEPS steps.
"""

import io
import math
import os
import signal
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import numpy as np
import torch

from transformer_pl.config import ALL_PAIRS, COMPONENTS, Callback, Component, Config, Model, custom_components, sizes
from transformer_pl.config.components import build, unused_hooks
from transformer_pl.data.batches import Batch, collate
from transformer_pl.data.excerpt import SENTENCES
from transformer_pl.data.prepare import prepared_in
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.model import Transformer
from transformer_pl.model.dry_run import can_be_built, dry_run, without_files
from transformer_pl.model.slots import tell_step
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Corpus, Pair
from transformer_pl.train import fit
from transformer_pl.train.counting import CountedPasses
from transformer_pl.train.one_trial import train_and_evaluate
from transformer_pl.train.teacher import Teacher, all_teachers, build_loss, load_teachers, without_teachers
from transformer_pl.trials.flops import Computed
from transformer_pl.trials.identity import Identity
from transformer_pl.trials.result import Checked, Result
from transformer_pl.trials.trial import Origin, Trial
from transformer_pl.trials.trial_folder import TrialFolder

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
        self.shape = sizes(self.config.model, len(self.prepared.tokenizer))
        self.device = "cuda" if self.config.trainer.accelerator == "gpu" else "cpu"

    def model(self) -> Transformer:
        """An untrained model, the same at each call."""
        torch.manual_seed(self.config.seed)
        model: Transformer = build(self.shape.architecture, self.shape).to(self.device)
        tell_step(1, self.config.steps, model)
        return model

    def loss(self) -> tuple[Any, list[Teacher]]:
        """The loss, where the model is, and its teachers."""
        teachers = load_teachers(self.config, Path(), self.prepared)
        loss = build_loss(self.config.optim, self.shape, teachers)
        return loss.to(self.device) if isinstance(loss, torch.nn.Module) else loss, all_teachers(teachers)

    def batch(self, part: int = 0) -> Batch:
        """A few sentences of the training set; of another part there are others."""
        split = self.prepared.split("train")
        return self.on_device(collate(split, np.arange(len(split.source))[part::BATCHES]))

    def on_device(self, batch: Batch) -> Batch:
        """The batch where the model is."""
        source, target_in, target_out = (side.to(self.device) for side in batch[:3])
        return Batch(source, target_in, target_out, batch.tokens)

    def trial(self, name: str) -> TrialFolder:
        """The folder of the trial of one of the trainings, such as `whole`."""
        return TrialFolder(self.folder / name / "trials" / f"rehearsal-{_identity(name).trial}")

    def train(
        self,
        name: str,
        callbacks: tuple[Callback, ...] | None = None,
        stop_at: int | None = None,
        without: str | None = None,
    ) -> Result:
        """Train and evaluate as any trial, from a checkpoint where one was stopped. Returns the result.

        callbacks: in the place of the row's. stop_at: the step in which a signal asks to stop. without: the key of a
        part that has the paper's in its place.
        """
        os.environ["WANDB_MODE"] = "disabled"
        fit.start_libraries()
        folder = self.trial(name)
        folder.make()
        observer = Callback(path=f"{__name__}.Observer", options={"name": name, "stop_at": stop_at})
        own = self.config.trainer.callbacks if callbacks is None else callbacks
        papers = {without: COMPONENTS[without]} if without else {}
        config = self.config.with_values({"trainer.callbacks": (*own, observer)} | papers)
        corpus = Corpus({}, "", lambda split: iter(()))
        trial = Trial(folder, config, _identity(name), corpus, Origin(scale="rehearsal"))
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return train_and_evaluate(trial, self.prepared, Checked())

    def differences(self, name: str, other: str) -> str:
        """In which weights, and fields of the results, two trainings differ; empty where they do not."""
        (weights, first), (others, second) = ((t.weights(), t.result()) for t in map(self.trial, (name, other)))
        unequal = [key for key, weight in weights.items() if not torch.equal(weight, others[key])]
        unequal += [key for key in ("steps", "metrics") if getattr(first, key) != getattr(second, key)]
        return ", ".join(unequal[:3])


def _identity(name: str) -> Identity:
    return Identity({"rehearsal": name})


def _small(row: Config, prepared: Prepared) -> Config:
    """The row's config with the dataset of a rehearsal. Each stack has one layer, unless parts may look for others.

    The model is trained on a GPU if its components do not run on a CPU. The rate is as high as the row's ever is:
    otherwise a long warm-up would leave it near zero for all steps.
    """
    shape, trainer, steps = sizes(row.model, len(prepared.tokenizer)), row.trainer, row.steps
    optim = row.optim_of_all_steps
    schedule = build(optim.schedule, shape, optim)
    tried = evenly_spaced(steps, RATES), range(min(STEPS, steps))
    greatest, first = (max(float(schedule(step + 1)) for step in some) for some in tried)
    higher = greatest / first if first > 0 and math.isfinite(greatest / first) else 1.0
    longest = int(prepared.split("train").longer.max())
    several = longest * SENTENCES["train"] // BATCHES  # else an epoch would be one batch, whose order says nothing
    on_gpu = torch.cuda.is_available() and dry_run(shape) == "cuda"
    few = {"model.N": 1, "model.N_encoder": row.model.N_encoder and 1, "model.N_decoder": None, "model.depth": 1.0}
    small = row.with_values(
        {
            **({} if trainer.callbacks or optim.freeze or "loss" in custom_components(optim) else few),
            **{"optim.max_steps": steps, "optim.duration": 1.0, "optim.match": "steps"},
            "optim.lr_scale": optim.lr_scale * higher,
            "optim.loss": without_teachers(optim.loss),
            **{f"data.{key}": value for key, value in ALL_PAIRS.items()},
            "data.vocab_size": len(prepared.tokenizer),
            "data.sets": (),
            "data.max_length": max(row.data.max_length, longest),
            "data.batch_tokens": max(longest, min(row.data.batch_tokens, several)),
            "model.start": None,  # random weights stand in
            "decode.average": min(row.decode.average, 3),
            "decode.intervention": COMPONENTS["decode.intervention"],
            **{"trainer.accelerator": "gpu" if on_gpu else "cpu", "trainer.devices": 1, "trainer.num_nodes": 1},
            **{"trainer.strategy": "auto", "trainer.compile": "off", "trainer.threads": 1},
            "trainer.precision": "32-true" if trainer.precision == "16-mixed" else trainer.precision,
            "trainer.val_every": min(STEPS, max(4, round(trainer.val_every * STEPS / steps))),
            "trainer.log_every": max(1, round(trainer.log_every * STEPS / steps)),
            "trainer.callbacks": _without("dirpath", trainer.callbacks),
            "trainer.loggers": _without("save_dir", trainer.loggers),
        }
    )
    return small.with_values({"model.architecture": _buildable(small.model, len(prepared.tokenizer))})


def _buildable(model: Model, vocab_size: int) -> Component:
    """The architecture of a rehearsal: the row's, without the files of one that cannot have the rehearsal's sizes.

    Where it cannot be built without them, the paper's: a rehearsal is of what stands around the model.
    """
    if "architecture" not in custom_components(model):
        return model.architecture
    shape = without_files(sizes(model, vocab_size))
    return shape.architecture if can_be_built(shape) else COMPONENTS["model.architecture"]


def _without(option: str, plugins: tuple[Any, ...]) -> tuple[Any, ...]:
    """Callbacks or loggers without their option for a folder, so that they write to the trial's."""
    return tuple(
        one.model_copy(update={"options": {k: v for k, v in one.options.items() if k != option}}) for one in plugins
    )


class Observer(L.Callback):
    """Watches a training from within: what it computes, and whether the trainer stays as it is.

    It ends the training after STEPS steps. stop_at: the step in which it sends a signal to stop.
    """

    of: ClassVar[dict[str, "Observer"]] = {}  # by the names of the trainings of this process
    callbacks: Sequence[L.Callback] = ()  # of the trainer
    other_rates = ""  # the first learning rate of a step that is not the schedule's

    def __init__(self, name: str, stop_at: int | None):
        self.stop_at = stop_at
        self.computed: Computed | None = None  # what was counted
        Observer.of[name] = self

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        self.settings = [self._settings(trainer)]
        built: dict[str, Any] = {"optim.optimizer": trainer.optimizers, "data.batches": [trainer.train_dataloader]}
        built |= {"trainer.callbacks": trainer.callbacks, "trainer.loggers": trainer.loggers}  # type: ignore[attr-defined]
        for key, part in [(key, part) for key, parts in built.items() for part in parts]:
            if unused := unused_hooks(key, part):
                name = f"{type(part).__module__}.{type(part).__qualname__}"
                raise InputError(*(f"{key} = {name}: {rule}" for rule in unused))

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        if trainer.global_step + 1 == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_before_optimizer_step(self, trainer: L.Trainer, module: Any, optimizer: torch.optim.Optimizer) -> None:
        self.callbacks = trainer.callbacks  # type: ignore[attr-defined]
        rates = [group["lr"] for group in optimizer.param_groups]
        of_schedule = trainer.lr_scheduler_configs[0].scheduler.get_last_lr()
        if rates != of_schedule and not self.other_rates:
            step = trainer.global_step + 1
            self.other_rates = f"{rates[0]:.3g} at step {step}, not the schedule's {of_schedule[0]:.3g}"

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        trainer.should_stop = trainer.should_stop or trainer.global_step >= STEPS

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        self.settings.append(self._settings(trainer))
        for counted in (callback for callback in trainer.callbacks if isinstance(callback, CountedPasses)):  # type: ignore[attr-defined]
            self.computed, self.otherwise = counted.computed(), counted.otherwise

    def _settings(self, trainer: L.Trainer) -> list[Any]:
        """What callbacks must leave as it is."""
        return [trainer.lr_scheduler_configs[0].scheduler, trainer.accumulate_grad_batches, trainer.max_steps]
