"""The check command: what it prints of each law, and how it finds the slot."""

import re
import shlex

import pytest
import tiny_trials
from torch import nn

from transformer_pl.check import main, slot_of
from transformer_pl.config import COMPONENTS, KEYS
from transformer_pl.config.components import import_component
from transformer_pl.config.levels import Level, resolve
from transformer_pl.laws.checks import check_all
from transformer_pl.runtime.errors import InputError

OWN = """
import lightning
import torch
from torch import nn
from transformer_pl.model import FeedForward, ScaledDotProductAttention


class Temperature(ScaledDotProductAttention):
    def __init__(self, config, site, start: float = 1.0, forgets: bool = False):
        super().__init__(config, site)
        self.temperature = nn.Parameter(torch.full((config.h, 1, 1), start))
        self.forgets = forgets

    def forward(self, Q, K, V, mask, start=0):
        return self.weights(Q, K, mask, 0 if self.forgets else start) @ V

    def weights(self, Q, K, mask, start=0):
        return super().weights(Q * self.temperature, K, mask, start)


class Excused(FeedForward):
    exempt = {"bfloat16_is_close": "it needs more digits"}


class Frozen(FeedForward):
    def __init__(self, config, site):
        super().__init__(config, site)
        self.W_1.weight.requires_grad = False


class NotANumber(FeedForward):
    def forward(self, x):
        return super().forward(x) * float("nan")


class FailsBeyond32(FeedForward):
    def forward(self, x):
        return super().forward(x) * (1 // (x.shape[1] <= 32))


class NoWeights(ScaledDotProductAttention):
    def forward(self, Q, K, V, mask, start=0):
        return self.weights(Q, K, mask, start) @ V


class Odd(nn.Module):
    def forward(self, a, b, c):
        return a


class Loss:
    def __init__(self, config, optim, mean: bool = False):
        self.reduction = "mean" if mean else "sum"

    def __call__(self, scores, gold):
        return nn.functional.cross_entropy(scores.mT, gold, ignore_index=0, reduction=self.reduction)


class LossModule(nn.Module):
    def forward(self, logits, target):
        return logits.sum()


class LossOfBatch(nn.Module):
    def of_batch(self, model, batch):
        return 0.0


class Schedule:
    def __init__(self, config, optim, last: float = 1.0):
        self.last, self.steps = last, optim.max_steps

    def __call__(self, step):
        return self.last if step == self.steps else 1e-3


class ScheduleOfOtherNames:
    def __call__(self, t):
        return 1.0


class Forgets(lightning.Callback):
    def __init__(self, often: int = 1):
        self.often, self.calls = often, 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.calls += 1
        module.model.embedding.weight.data *= 1 - 0.001 * (self.calls >= self.often)


class Watches(lightning.Callback):
    pass


class Uncalled:
    pass


def made(config, site):
    return FeedForward(config, site)
"""


SLOW = (
    pytest.mark.slow
)  # seconds; every day a loss and an optimizer are tried, as one that is found and one that is named


@pytest.fixture
def check(module):
    module(OWN)

    def run(*words):
        with tiny_trials.in_a_command():
            return main([*words])

    return run


def states(printed):
    """What is said of each law, by its name."""
    return {law: state for state, law in re.findall(r"^(\w+) +(\w+): ", printed, re.M)}


def test_the_command_that_a_message_names_finds_the_broken_law(check, tmp_path):
    """With the options of the component, without which nothing is broken, and the other components."""
    keys = {"model.attention": "stranger.Temperature", "model.attention.forgets": True, "model.ffn": "stranger.Excused"}
    keys |= {"model.d_model": 64, "model.d_ff": 64}
    with pytest.raises(InputError) as caught:
        check_all([resolve([Level("test", keys)])], tmp_path)
    command = re.search(r"run `python -m transformer_pl\.check (.*?)`", str(caught.value))[1]
    assert check(*shlex.split(command)) == 2


def test_each_law_has_a_line(check, capsys):
    """Of one that is broken it has the numbers, and of one that an error hides none is said to hold."""
    assert check("stranger.Temperature", "forgets=true", "model.h=2", "model.ffn=stranger.Excused") == 2
    first, *lines = capsys.readouterr().out.splitlines()
    found = states("\n".join(lines))
    assert found["decoding_step_by_step_equals_decoding_at_once"] == "BROKEN" and len(found) == len(lines)
    assert found["bfloat16_is_close"] == "exempt" and any("it needs more digits" in line for line in lines)
    assert f": {[*found.values()].count('holds')} of {len(found)} laws hold" in first


def test_a_law_in_which_the_component_fails_hides_no_other(check, capsys):
    assert check("stranger.FailsBeyond32") == 2
    printed = capsys.readouterr().out
    found = states(printed)
    assert found.pop("the_future_is_hidden") == "FAILS" and set(found.values()) <= {"holds", "untested"}
    (line,) = re.findall("^FAILS.*$", printed, re.M)
    assert "ZeroDivisionError" in line and "stranger.py" in line and "usual cause" not in line


def test_frozen_weights_are_named_and_break_nothing(check, capsys):
    assert check("stranger.Frozen", "model.d_model=64", "model.d_ff=128") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("model.ffn = stranger.Frozen, at scale demo ")
    (line,) = re.findall("^note +every_weight_gets_a_gradient.*$", printed, re.M)
    assert "encoder.0.ffn.W_1.weight" in line and "decoder.0.ffn.W_1.weight" in line


def test_a_law_that_was_not_tested_is_named_where_the_others_hold(check, capsys):
    assert check("stranger.NoWeights") == 0
    first, *lines = capsys.readouterr().out.splitlines()
    (untested,) = [law for law, state in states("\n".join(lines)).items() if state == "untested"]
    assert f"of {len(lines)} laws hold; not tested: {untested}" in first


def test_what_is_not_measured_is_not_said_to_hold(check, capsys):
    """After logits that are not finite."""
    assert check("stranger.NotANumber") == 2
    printed = capsys.readouterr().out
    first, *others = states(printed).values()
    assert first == "BROKEN" and set(others) == {"untested"} and ": 0 of" in printed


@pytest.mark.parametrize(
    ("path", "slot"),
    [
        *((component.path, slot) for slot, component in COMPONENTS.items()),
        (KEYS["data.task"], "data.task"),
        ("ablations.learned_position.LearnedPosition", "model.position"),
        ("ablations.recurrent_layer.RecurrentLayer", "model.self_attention"),
        ("ablations.untied_embedding.UntiedEmbedding", "model.embedding"),
        ("ablations.focal_loss.FocalLoss", "optim.loss"),
        ("ablations.schedules.Cosine", "optim.schedule"),
        ("ablations.muon.Muon", "optim.optimizer"),
        ("ablations.character_tokenizer.Characters", "data.tokenizer"),
        ("copying_task.Copying", "data.task"),
        ("ablations.bpe_dropout.BPEDropout", "data.batches"),
        ("ablations.int8_weights.Int8Weights", "decode.intervention"),
        ("lightning.pytorch.loggers.CSVLogger", "trainer.loggers"),
        ("lightning.pytorch.callbacks.EarlyStopping", "trainer.callbacks"),
        *((f"stranger.{name}", "optim.loss") for name in ("Loss", "LossModule", "LossOfBatch")),
        *((f"stranger.{name}", "optim.schedule") for name in ("Schedule", "ScheduleOfOtherNames")),
        ("stranger.Watches", "trainer.callbacks"),
    ],
)
def test_the_slot_is_found_by_the_class_and_the_methods(module, path, slot):
    module(OWN)
    assert slot_of(path, import_component(path)) == slot


def test_an_attention_that_lacks_an_argument_is_one():
    class WithoutStart(nn.Module):
        def forward(self, Q, K, V, mask):
            return V

    assert slot_of("mine.WithoutStart", WithoutStart) == "model.attention"


@pytest.mark.parametrize(
    ("words", "law"),
    [
        (["stranger.Loss"], "it_leaves_out_padding"),
        (["torch.optim.SGD", "momentum=0.9", "--slot", "optim.optimizer"], "it_changes_every_weight_by_its_gradient"),
        pytest.param(["copying_task.Copying", "data.vocab_size=275"], "its_score_is_that_of_the_sums", marks=SLOW),
        pytest.param(
            ["ablations.distillation.WordDistillation", "teacher=0123456789ab"], "it_is_a_sum_over_tokens", marks=SLOW
        ),
        pytest.param(["stranger.Watches"], "what_counts_changes_something", marks=SLOW),
    ],
    ids=str,
)
def test_what_lies_around_the_model_is_rehearsed(check, capsys, words, law):
    """With the laws of its kind, and those of every training."""
    assert check(*words) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    found = states("\n".join(lines))
    assert f" = {words[0]}, at scale demo" in first and ("inferred" in first) == ("--slot" not in words)
    assert {found[name] for name in ("it_is_trained_and_scored", "a_stopped_training_comes_to_the_same_end")} == {
        "holds"
    }
    assert found[law] == ("note" if words == ["stranger.Watches"] else "holds")


def test_an_intervention_is_tried_on_a_model(check, capsys):
    assert check("ablations.removed_heads.RemovedHeads", "layer=1", "head=2") == 0
    assert set(states(capsys.readouterr().out).values()) == {"holds"}
    assert check("ablations.removed_heads.RemovedHeads", "layer=9", "head=2") == 2
    assert "layer = 9" in capsys.readouterr().out


END = "a_stopped_training_comes_to_the_same_end"


@pytest.mark.parametrize(
    ("words", "law", "state"),
    [
        ("stranger.Loss mean=true", "it_is_a_sum_over_tokens", "BROKEN"),
        ("stranger.Schedule last=nan", "the_rate_is_finite_and_not_negative", "BROKEN"),
        ("stranger.Loss model.ffn=stranger.NotANumber", "the_logits_are_finite", "BROKEN"),
        ("stopping_callback.StopAt step=1", END, "untested"),  # which ends the training at once
    ],
)
def test_a_law_that_is_broken_or_cannot_be_tested_has_a_line(check, capsys, words, law, state):
    assert check(*words.split()) == (2 if state == "BROKEN" else 0)
    assert states(capsys.readouterr().out)[law] == state


@pytest.mark.parametrize("slot", ["ffn", "model.ffn"])  # two names of a slot of the model
def test_a_part_that_cannot_be_used_has_a_line(check, capsys, slot):
    assert check("stranger.Odd", "--slot", slot) == 2
    assert re.search(r"^BROKEN +model\.ffn = stranger\.Odd", capsys.readouterr().out, re.M)


def test_a_part_of_the_project_is_not_said_to_be_checked(check, capsys):
    assert check(KEYS["optim.loss"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"optim.loss = {KEYS['optim.loss']}") and not states(printed)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "COMPONENT"),
        (["stranger.Odd"], "--slot"),
        (["stranger.Uncalled"], "--slot"),
        (["builtins.int"], "--slot"),
        (["stranger.Odd", "--slot", "fnn"], "fnn.*did you mean ffn"),
        (["stranger.Odd", "--slot", "optim.lss"], "did you mean optim.loss"),
        (["stranger.Uncalled", "--slot", "trainer.callbacks"], "derived from Lightning's Callback"),
        (["stranger.Loss", "--slot", "data.task"], "derived from"),
        (["stranger.Loss", "men=true"], "did you mean mean"),
        (["stranger.Loss", "optim.wrmup=3"], "did you mean optim.warmup"),
        (["copying_task.Copying", "option=3"], "data.task.option"),
        (["stranger.Temperature", "2"], "2"),
        (["stranger.Temperature", "begin=2"], "begin = 2"),
        (["stranger.Excused", "model.h=3"], r"model\.h = 3"),
        (["nowhere.Odd"], "nowhere"),
        (["stranger.made"], "is a function"),
    ],
)
def test_a_wrong_word_is_reported(check, words, named):
    with pytest.raises(InputError, match=named):
        check(*words)
