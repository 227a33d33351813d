"""The laws that take a training: a part is trained, stopped, continued and scored; a callback says what it changes."""

import json

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    RichProgressBar,
    StochasticWeightAveraging,
    Timer,
)
from shipped_components import marks_of
from stopping_callback import StopAt
from torch import nn

from tests.laws.rehearsals import Buffered, ClosureTwice, Loss, Schedule, broken, each_law, of_all_stages, path
from transformer_pl.data.batches import TrainStream
from transformer_pl.data.excerpt import write_excerpt
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.laws import callbacks, resuming, trainings
from transformer_pl.laws.law import laws_of
from transformer_pl.laws.small_training import STEPS, SmallTraining
from transformer_pl.tasks.translation import Translation


class Plain(Translation):
    pass


class Constant(Schedule):
    def __call__(self, step):
        return 1e-3


class Words(JointBPE):
    pass


class Weighted(Buffered):
    def __init__(self, config, optim):
        super().__init__(config, optim)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, logits, target):
        return super().forward(logits * self.temperature, target)


class Numpy(Schedule):
    def __call__(self, step):
        return np.float64(1e-3)


class NumpyState(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            self.state[group["params"][0]]["last"] = np.float64(loss.item())
        return loss


class CountsEpochs(TrainStream):
    epochs = 0

    def epoch_batches(self, split, epoch):
        self.epochs += 1
        batches = super().epoch_batches(split, epoch)
        return batches[self.epochs % len(batches) :] + batches[: self.epochs % len(batches)]


class ReturnsNothing(TrainStream):
    def changed(self, batch, generator):
        pass


# ---------------------------------------------------------------------------------------------------------------------
# Callbacks


class NumpyBest(Callback):
    best = np.float64(1e9)

    def on_validation_end(self, trainer, module):
        self.best = np.minimum(self.best, float(trainer.callback_metrics["val/loss"]))

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


class Forgets(Callback):
    calls = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.calls += 1
        module.model.embedding.weight.data *= 1 - 0.001 * self.calls


class Remembers(Forgets):
    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class Fits(Callback):
    def on_exception(self, trainer, module, exception):
        raise RuntimeError("cannot be stopped")


class Averages(Callback):
    def on_train_end(self, trainer, module):
        for weight in module.model.parameters():
            weight.data *= 0.5


class Watches(Callback):
    pass


class Draws(Callback):
    # from torch's own generator, before each step
    @torch.no_grad()
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        batch.target_in[:, 1:] = torch.where(torch.rand(batch.target_in[:, 1:].shape) < 0.2, 5, batch.target_in[:, 1:])


class ByTheRow(Callback):
    # goes by the steps of the row, as progress callbacks do
    def on_train_start(self, trainer, module):
        assert trainer.max_steps == 40

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.global_step % (trainer.max_steps // 30)


class SecondLayer(Callback):
    def on_fit_start(self, trainer, module):
        module.model.encoder[1]


class Replaces(Callback):
    # puts a schedule of its own in the place of the row's
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 3:
            own = torch.optim.lr_scheduler.ConstantLR(trainer.optimizers[0], 1.0)
            trainer.lr_scheduler_configs[0].scheduler = own


def callbacks_of(*entries):
    """Classes, or a class with its options."""
    named = [path(one) if isinstance(one, type) else one for one in entries]
    return {"trainer.callbacks": json.dumps(named)}


def with_options(part, **options):
    return {path(part): options}


WATCHES = {"in_identity": False}
LAWS = ("transformer_pl/laws/", "transformer_pl/train/")
SELDOM = ("three passes", "averages of weights")
TRAINED = {
    "each part around the model": {
        "optim.optimizer": "torch.optim.SGD",
        "optim.schedule": path(Constant),
        "optim.loss": path(Loss),
        "data.task": path(Plain),
        "data.tokenizer": path(Words),
    },
    "three passes": {
        "optim.optimizer": "torch.optim.LBFGS",
        "optim.optimizer.max_iter": 3,
        "optim.loss": path(Buffered),
    },
    "two passes": {"optim.optimizer": path(ClosureTwice), "optim.schedule": path(Numpy)},
    "several callbacks": {"optim.loss": path(Weighted), "optim.clip": 0.5, "trainer.accumulate": 2}
    | callbacks_of(LearningRateMonitor, RichProgressBar, Remembers, Draws, ByTheRow, SecondLayer),
    "averages of weights": callbacks_of(with_options(EMAWeightAveraging, decay=0.9), Timer),
    "a callback that ends it": callbacks_of(with_options(StopAt, step=10), with_options(Watches, **WATCHES)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks_of(*LAWS) if name in SELDOM else []) for name in TRAINED]
)
def test_a_right_part_is_trained_stopped_and_continued(row, tmp_path, name):
    begun, found = of_all_stages(row(TRAINED[name]), tmp_path)
    assert not broken(found) and found["a_stopped_training_comes_to_the_same_end"].state == "holds"
    assert begun.steps == (10 if name == "a callback that ends it" else STEPS)
    if name == "a callback that ends it":
        assert not found["what_counts_changes_something"].how
    assert begun.passes == {"two passes": 2, "three passes": begun.passes}.get(name, 1)


BROKEN = [
    ({"data.batches": path(ReturnsNothing)}, "it_is_trained_and_scored"),
    ({"optim.optimizer": path(NumpyState)}, "a_stopped_training_comes_to_the_same_end"),
    ({"data.batches": path(CountsEpochs)}, "a_stopped_training_comes_to_the_same_end"),
    *((callbacks_of(part), "a_stopped_training_comes_to_the_same_end") for part in (NumpyBest, Forgets)),
    *(
        (callbacks_of(part) | {"decode.average": 2}, "it_is_trained_and_scored")
        for part in (with_options(EMAWeightAveraging, decay=0.9), Averages)
    ),
    *(
        (callbacks_of(part), "it_is_trained_and_scored")
        for part in (
            with_options(StochasticWeightAveraging, swa_lrs=0.1),
            with_options(StochasticWeightAveraging, swa_lrs=0.1, swa_epoch_start=1),
            with_options(GradientAccumulationScheduler, scheduling={"0": 2}),
            with_options(EarlyStopping, monitor="val/bleu"),
            with_options(StopAt, step=10, **WATCHES),
        )
    ),
    (callbacks_of(Replaces), "it_leaves_the_trainer_as_it_is"),
    (callbacks_of(with_options(Remembers, **WATCHES)), "what_only_watches_changes_nothing"),
]


@each_law(BROKEN)
def test_a_part_breaks_its_law(row, tmp_path, part, law):
    _, found = of_all_stages(row(part), tmp_path)
    assert found[law].is_broken and found[law].how


def test_a_part_that_cannot_be_stopped_is_refused(row, tmp_path):
    with pytest.raises(RuntimeError, match="cannot be stopped"):  # of which the child process makes an InputError
        of_all_stages(row(callbacks_of(Fits)), tmp_path)


@pytest.mark.parametrize(
    ("part", "state"), [(Watches, "holds"), (with_options(EarlyStopping, monitor="val/loss"), "untested")]
)
def test_a_callback_that_counts_and_changes_nothing_is_noted(row, tmp_path, part, state):
    """EarlyStopping is not: it stops trainings that are longer than the rehearsal."""
    noted = of_all_stages(row(callbacks_of(part)), tmp_path)[1]["what_counts_changes_something"]
    assert (noted.state, bool(noted.how)) == (state, True)


def test_every_law_of_trainings_can_be_broken():
    """Or ends in a note."""
    laws = {law for kind in (trainings, resuming, callbacks) for law in laws_of(kind)}
    assert {law for _, law in BROKEN} | {"what_counts_changes_something"} == laws


def test_a_rehearsal_is_of_the_row_s_own_training(row, tmp_path):
    """Widths, options, precision and the number of steps stay; the rate is as high as the row's ever is."""
    own = row({"model.h": 2, "optim.clip": 0.5, "decode.beam": 3, "trainer.precision": "bf16-mixed", "seed": 5})
    write_excerpt(own.data, tmp_path, tmp_path)
    small = SmallTraining(own, tmp_path).config
    assert small.steps == own.steps and small.model.N == 1
    kept = {"model.h", "model.width", "optim.clip", "optim.warmup", "decode.beam", "trainer.precision", "seed"}
    assert {small.flat()[key] == own.flat()[key] for key in kept} == {True}
    assert (small.trainer.val_every, small.trainer.log_every) == (5, 2)
