"""The laws of losses, optimizers, schedules, tokenizers and tasks: right parts keep them, and each can be broken."""

import pytest
import torch
from helpers import check_names

from tests.laws import parts
from tests.laws.rehearsals import broken, each_law, of_parts, path
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.laws import losses, optimizers, schedules, tasks, tokenizers
from transformer_pl.laws.checks import check_all
from transformer_pl.laws.law import laws_of
from transformer_pl.runtime.errors import InputError
from transformer_pl.tasks.translation import Translation

SLOTS = {torch.optim.Optimizer: "optim.optimizer", parts.Schedule: "optim.schedule", JointBPE: "data.tokenizer"}
SLOTS |= {Translation: "data.task"}


def keys_of(part):
    """The keys of a row with this part: a class, a key of the tables above, or the path of an optimizer."""
    for slot, kinds, component in (
        ("optim.loss", parts.LOSSES, parts.OfLogits),
        ("data.tokenizer", parts.IDS | parts.TEXTS, parts.Changed),
    ):
        if part in kinds:
            return {slot: path(component), f"{slot}.kind": part}
    if isinstance(part, str):
        return {"optim.optimizer": part}
    slot = next((slot for kind, slot in SLOTS.items() if issubclass(part, kind)), "optim.loss")
    more = {parts.Distilled: {"optim.loss.teacher": "0123456789ab"}, parts.ClosureTwice: {"trainer.accumulate": 2}}
    return {slot: path(part)} | more.get(part, {})


RIGHT = ["noisy", "of noisy logits", parts.InHalves, parts.TwoPasses, parts.Buffered, parts.WithAuxiliary]
RIGHT += [f"torch.optim.{name}" for name in ("AdamW", "Adafactor", "SGD", "Rprop")]
RIGHT += ["ablations.muon.Muon"]  # whose `step` runs without gradients
RARE = ("Adagrad", "Adadelta", "RMSprop", "NAdam", "RAdam", "Adamax", "ASGD")


@pytest.mark.parametrize(
    "part", [*RIGHT, *(pytest.param(f"torch.optim.{name}", marks=pytest.mark.slow) for name in RARE)]
)
def test_a_right_part_breaks_no_law(row, tmp_path, part):
    found = of_parts(row(keys_of(part)), tmp_path)
    assert found and not broken(found)


def test_what_is_not_tested_of_a_right_tokenizer_is_not_said_to_hold(row, tmp_path):
    found = of_parts(row(keys_of(parts.OfShortSentences)), tmp_path)
    assert not broken(found) and found["a_long_sentence_keeps_its_end"].state == "untested"


BROKEN = {
    "it_returns_one_finite_number": ["vector"],
    "its_gradient_reaches_every_weight": ["detached", parts.DetachedWeighted, "without a gradient", parts.Unused],
    "it_leaves_out_padding": [
        "of padding",
        parts.CountsPadding,
        "noisy, of padding",
        parts.Divergence,
        parts.Distilled,
        parts.AuxiliaryOfPadding,
    ],
    "it_is_a_sum_over_tokens": [parts.Mean, parts.MeanOfBatch, parts.ByTokens, parts.BatchMean],
    "it_changes_nothing_of_its_batch": ["changes its target", parts.ChangesTheBatch, parts.AuxiliaryFromNowhere],
    "it_changes_every_weight_by_its_gradient": [
        parts.IgnoresTheClosure,
        parts.Rests,
        parts.Decays,
        parts.LeavesOut,
        parts.EvaluatesElsewhere,
    ],
    "with_accumulate_it_computes_one_gradient_a_step": [parts.ClosureTwice],
    "the_rate_is_finite_and_not_negative": [parts.Negative, parts.NotANumber],
    "the_rate_depends_on_the_step_alone": [parts.Counts],
    "every_token_has_a_text": [parts.NoText],
    "every_sentence_has_tokens": ["empty", "unknown"],
    "a_sentence_has_the_same_tokens_alone": ["padded"],
    "a_long_sentence_keeps_its_end": ["cut off", "cut off late"],
    "its_tokens_become_text": ["blank", "too few texts", parts.NoSide],
    "it_adds_nothing_to_a_sentence": ["exclaims"],
    "loaded_again_it_gives_the_same_tokens": [parts.ForgetsOffset],
    "its_score_is_that_of_the_sums": [parts.Contradicts, parts.Fails],
    "the_last_number_of_a_line_depends_on_its_reference_alone": [parts.Swapped],
}


@each_law((part, law) for law, parts in BROKEN.items() for part in parts)
def test_a_part_breaks_its_law(row, tmp_path, part, law):
    found = of_parts(row(keys_of(part)), tmp_path)
    assert found[law].is_broken and found[law].how


def test_every_law_can_be_broken_or_ends_in_a_note():
    laws = {law for kind in (losses, optimizers, schedules, tokenizers, tasks) for law in laws_of(kind)}
    tested = BROKEN.keys() | {"the_lr_of_a_group_is_a_factor"}
    check_names(tested, laws, "add a part that breaks the law to BROKEN of this file")


def test_the_rate_of_a_group_is_noted_as_a_factor(row, tmp_path):
    noted = of_parts(row(keys_of(parts.Fraction)), tmp_path)["the_lr_of_a_group_is_a_factor"]
    assert (noted.state, bool(noted.how)) == ("holds", True)


def test_a_schedule_is_tested_in_each_row(row, tmp_path):
    """Whatever has passed before: of a longer row, and of another width."""
    check_all([row(keys_of(parts.Falls))], tmp_path)
    for other in ({"optim.max_steps": 400}, {"model.d_model": 1024, "model.h": 8}):
        with pytest.raises(InputError, match="not_negative"):
            check_all([row(keys_of(parts.Falls) | other)], tmp_path)


@pytest.mark.parametrize("part", ["too few", "fractions"])
def test_a_tokenizer_that_makes_no_dataset_is_refused(row, tmp_path, part):
    with pytest.raises((InputError, RuntimeError, TypeError)):  # of which the child process makes an InputError
        of_parts(row(keys_of(part)), tmp_path)
