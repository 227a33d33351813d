"""The laws that take a training: a part is trained, stopped, continued and scored; a callback says what it changes."""

import json

import pytest
from lightning.pytorch.callbacks import (
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

from tests.laws import parts
from tests.laws.rehearsals import broken, each_law, of_trainings, path
from transformer_pl.data.excerpt import write_excerpt
from transformer_pl.laws import callbacks, resuming, trainings
from transformer_pl.laws.law import laws_of
from transformer_pl.laws.small_training import STEPS, SmallTraining
from transformer_pl.runtime.errors import InputError


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
        "optim.schedule": path(parts.Constant),
        "optim.loss": path(parts.Loss),
        "data.task": path(parts.Plain),
        "data.tokenizer": path(parts.Words),
    },
    "three passes": {
        "optim.optimizer": "torch.optim.LBFGS",
        "optim.optimizer.max_iter": 3,
        "optim.loss": path(parts.Buffered),
    },
    "two passes": {"optim.optimizer": path(parts.ClosureTwice), "optim.schedule": path(parts.Numpy)},
    "several callbacks": {"optim.loss": path(parts.Weighted), "optim.clip": 0.5, "trainer.accumulate": 2}
    | callbacks_of(
        LearningRateMonitor, RichProgressBar, parts.Remembers, parts.Draws, parts.ByTheRow, parts.SecondLayer
    ),
    "averages of weights": callbacks_of(with_options(EMAWeightAveraging, decay=0.9), Timer),
    "a callback that ends it": callbacks_of(with_options(StopAt, step=10), with_options(parts.Watches, **WATCHES)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks_of(*LAWS) if name in SELDOM else []) for name in TRAINED]
)
def test_a_right_part_is_trained_stopped_and_continued(row, tmp_path, name):
    (steps, passes), found = of_trainings(row(TRAINED[name]), tmp_path, is_stopped=True)
    assert not broken(found) and found["a_stopped_training_comes_to_the_same_end"].state == "holds"
    assert steps == (10 if name == "a callback that ends it" else STEPS)
    if name == "a callback that ends it":
        assert not found["what_counts_changes_something"].how
    assert passes == {"two passes": 2, "three passes": passes}.get(name, 1)


WAYS = "it_goes_by_the_better_values_of_a_score"
BROKEN = [
    ({"data.batches": path(parts.ReturnsNothing)}, "it_is_trained_and_scored"),
    ({"optim.optimizer": path(parts.NumpyState)}, "a_stopped_training_comes_to_the_same_end"),
    ({"data.batches": path(parts.CountsEpochs)}, "a_stopped_training_comes_to_the_same_end"),
    *((callbacks_of(part), "a_stopped_training_comes_to_the_same_end") for part in (parts.NumpyBest, parts.Forgets)),
    *(
        (callbacks_of(part) | {"decode.average": 2}, "it_is_trained_and_scored")
        for part in (with_options(EMAWeightAveraging, decay=0.9), parts.Averages)
    ),
    *(
        (callbacks_of(part), "it_is_trained_and_scored")
        for part in (
            with_options(StochasticWeightAveraging, swa_lrs=0.1),
            with_options(StochasticWeightAveraging, swa_lrs=0.1, swa_epoch_start=1),
            with_options(EarlyStopping, monitor="val/bleu"),
            with_options(StopAt, step=10, **WATCHES),
        )
    ),
    *(
        (callbacks_of(part), "it_leaves_the_trainer_as_it_is")
        for part in (parts.Replaces, with_options(GradientAccumulationScheduler, scheduling={"0": 2}))
    ),
    ({"data.batches": path(parts.Alternates)}, "accumulate_changes_nothing"),
    *(
        (callbacks_of(with_options(EarlyStopping, **options)) | {"trainer.val_sample": 4}, WAYS)
        for options in ({"monitor": "val/bleu_sample"}, {"monitor": "val/ppl", "mode": "max"})
    ),
]


@each_law(BROKEN)
def test_a_part_breaks_its_law(row, tmp_path, part, law):
    _, found = of_trainings(row(part), tmp_path, is_stopped=law in laws_of(resuming))
    assert found[law].is_broken and found[law].how


def test_a_part_that_cannot_be_stopped_is_refused(row, tmp_path):
    with pytest.raises(RuntimeError, match="cannot be stopped"):  # of which the child process makes an InputError
        of_trainings(row(callbacks_of(parts.Fits)), tmp_path, is_stopped=True)


RATES = "it_leaves_the_rates_to_the_schedule"


@pytest.mark.parametrize(
    ("part", "state", "law"),
    [
        (parts.Watches, "holds", "what_counts_changes_something"),
        (with_options(EarlyStopping, monitor="val/loss"), "untested", "what_counts_changes_something"),
        (parts.HalvesRate, "holds", RATES),
    ],
)
def test_what_a_callback_does_without_a_word_is_noted(row, tmp_path, part, state, law):
    """That one changes nothing, but not of EarlyStopping, which stops longer trainings; that a rate lasts one step."""
    found = of_trainings(row(callbacks_of(part)), tmp_path)[1]
    assert (found[law].state, bool(found[law].how)) == (state, True) and not broken(found)
    assert bool(found[RATES].how) == (part is parts.HalvesRate)


@pytest.mark.parametrize(
    ("key", "part", "is_noted"),
    [
        ("data.batches", parts.Renamed, True),
        ("optim.optimizer", parts.Unhurried, True),
        ("optim.schedule", parts.AsThePaper, True),
        ("optim.schedule", parts.Later, False),
        ("optim.loss", parts.Loss, False),
    ],
)
def test_a_part_that_changes_nothing_is_noted(row, tmp_path, key, part, is_noted):
    """A loss without smoothing, and rates of later steps, do change the training."""
    _, found = of_trainings(row({key: path(part)}), tmp_path)
    effect = found["it_changes_the_training"]
    assert (effect.part, effect.state, bool(effect.how)) == (f"{key} = {path(part)}", "holds", is_noted)


def test_a_part_whose_flops_nobody_knows_is_noted(row, tmp_path):
    (_, passes), found = of_trainings(row({"optim.loss": path(parts.Encodes)}), tmp_path)
    assert passes is None and "encode" in found["its_flops_are_known"].how


def test_an_auxiliary_loss_that_nothing_would_read_is_refused(row, tmp_path):
    _, found = of_trainings(row(callbacks_of(parts.HasAuxiliary)), tmp_path)
    assert "auxiliary" in found["it_is_trained_and_scored"].how and broken(found)


def test_every_law_of_trainings_can_be_broken():
    """Or ends in a note."""
    laws = {law for kind in (trainings, resuming, callbacks) for law in laws_of(kind)}
    noted = {"what_counts_changes_something", "its_flops_are_known", RATES}
    assert {law for _, law in BROKEN} | noted == laws


def test_a_rehearsal_is_of_the_row_s_own_training(row, tmp_path):
    """Widths, options, precision and the number of steps stay; the rate is as high as the row's ever is."""
    own = row({"model.h": 2, "optim.clip": 0.5, "decode.beam": 3, "trainer.precision": "bf16-mixed", "seed": 5})
    write_excerpt(own.data, tmp_path, tmp_path)
    small = SmallTraining(own, tmp_path).config
    assert small.steps == own.steps and small.model.N == 1
    kept = {"model.h", "model.width", "optim.clip", "optim.warmup", "decode.beam", "trainer.precision", "seed"}
    assert {small.flat()[key] == own.flat()[key] for key in kept} == {True}
    assert (small.trainer.val_every, small.trainer.log_every) == (5, 2)


def test_a_vocabulary_that_a_tokenizer_refuses_is_named_by_the_number_that_was_written(row, tmp_path, module):
    module(
        "from transformer_pl.data.tokenizer import JointBPE\nfrom transformer_pl.runtime.errors import InputError\n\n\n"
        "class Refuses(JointBPE):\n    def train(self, pairs, vocab_size):\n"
        "        raise InputError(f'data.vocab_size = {vocab_size}: must be prime')\n"
    )
    own = row({"data.vocab_size": 270, "data.tokenizer": "stranger.Refuses"})
    with pytest.raises(InputError, match=r"data\.vocab_size = 270"):
        write_excerpt(own.data, tmp_path, tmp_path)
