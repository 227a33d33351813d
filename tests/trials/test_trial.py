"""A trial's files, its lock, and what becomes of a trial whose files cannot be read."""

import json
import math
import statistics

import numpy as np
import pytest
import tiny_trials
import torch
from helpers import a_result, result_keys
from tiny_trials import train

from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.tasks.translation import Translation
from transformer_pl.trials.flops import ASSUMED_LENGTH, training_costs
from transformer_pl.trials.lock import LockLost, TrialLock
from transformer_pl.trials.runs_folder import finished_trials
from transformer_pl.trials.trial import Trial

BLEU = Translation.measure


def test_a_translation_is_one_line_whatever_is_in_it(tmp_path):
    trial, printed = Trial(tmp_path), ["a\rb", "", "c\u2028d\x0be"]
    trial.save_sentences("val", printed, BLEU, np.ones((3, 12)))
    assert trial.hypotheses("val") == printed


def test_the_numbers_of_sentences_are_read_as_they_were_written(tmp_path):
    trial, sentences = Trial(tmp_path), np.array([[*range(10), 1.5, 3], [*range(10, 20), 0.1, 4]])
    trial.save_sentences("val", ["a", "b"], BLEU, sentences)
    assert np.array_equal(trial.sentences("val", BLEU), sentences)


def test_weights_are_read_as_they_were_saved(tmp_path):
    """Of any layout and type; also tensors that share memory, as those of tied layers do."""
    matrix = torch.randn(3, 4)
    state = {"a": matrix, "tied": matrix, "part": matrix[1], "turned": matrix.T, "count": torch.tensor(7)}
    state["half"] = matrix.bfloat16()
    Trial(tmp_path).save_weights(state)
    weights = Trial(tmp_path).weights()
    assert weights.keys() == state.keys() and all(torch.equal(weights[name], state[name]) for name in state)
    assert {name: value.dtype for name, value in weights.items()} == {n: v.dtype for n, v in state.items()}


def test_whoever_may_read_a_result_may_read_its_weights(tmp_path):
    trial = Trial(tmp_path)
    trial.save_weights({"a": torch.zeros(1)})
    trial.finish(a_result())
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "result.json").stat().st_mode


def test_weights_that_cannot_be_read_are_named(tmp_path):
    for content in (b"", b"no weights", None):
        path = tmp_path / "weights.safetensors"
        path.write_bytes(content) if content is not None else path.unlink()
        with pytest.raises(InputError, match=r"weights\.safetensors"):
            Trial(tmp_path).weights()


def test_a_trial_is_found_by_its_id_when_its_folder_was_renamed(tmp_path):
    renamed = tmp_path / "trials" / "mine-0123456789ab"
    assert Trial.at(tmp_path, "base-s1-0123456789ab").folder.name == "base-s1-0123456789ab"
    renamed.mkdir(parents=True)
    assert Trial.at(tmp_path, "base-s1-0123456789ab").folder == renamed
    assert Trial.at(tmp_path, "base-s2-ba9876543210").folder.name == "base-s2-ba9876543210"


def test_a_trial_that_no_process_trains_is_done_if_it_has_a_result(tmp_path):
    trial = Trial(tmp_path)
    trial.finish(a_result())
    for state in ("running", "stopped", "failed"):
        trial.set_status(state)
        assert trial.state() == "done" and not trial.needs_training()
    (tmp_path / "result.json").unlink()
    for state, expected in (("done", "stopped"), ("running", "stopped"), ("failed", "failed"), ("pruned", "pruned")):
        trial.set_status(state)
        assert trial.state() == expected and trial.needs_training()
    trial.set_status("diverged", step=3)
    assert trial.diverged_at() == 3 and not trial.needs_training()


# The lock


def test_a_trial_is_one_process_s_at_a_time(tmp_path):
    trial = Trial(tmp_path / "trial")
    assert not trial.lock.is_held()
    with trial.lock.hold():
        assert trial.lock.is_held() and Trial(trial.folder).lock.is_held()
        with pytest.raises(InputError), Trial(trial.folder).lock.hold():
            pass
        trial.set_status("running")
        assert trial.state() == "running"
    assert not trial.lock.is_held() and trial.state() == "stopped"


def lost(*_):
    raise LockLost


@pytest.mark.parametrize(
    "write",
    [
        lambda trial: trial.set_status("done"),
        lambda trial: trial.save_weights({"a": torch.zeros(1)}),
        lambda trial: trial.save_sentences("val", ["a"], BLEU, np.ones((1, 12))),
        lambda trial: trial.finish(a_result()),
    ],
    ids=["status", "weights", "sentences", "result"],
)
def test_a_trial_that_another_process_has_taken_over_is_written_by_that_alone(tmp_path, monkeypatch, write):
    monkeypatch.setattr(TrialLock, "check", lost)
    with pytest.raises(LockLost):
        write(Trial(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_training_that_has_lost_its_trial_ends_and_does_not_say_how(tmp_path, monkeypatch):
    monkeypatch.setattr(TrialLock, "check", lost)
    code, trial = train(tmp_path / "runs", {})
    assert code == 1 and trial.state() == "new"


def test_a_trial_whose_result_cannot_be_written_keeps_its_checkpoints(tmp_path):
    """So that the next command need not train it again."""
    checkpoint, in_the_way = tmp_path / "checkpoints" / "last.ckpt", tmp_path / "result.json"
    for folder in (checkpoint.parent, in_the_way):
        folder.mkdir()
    checkpoint.touch()
    with pytest.raises(OSError):
        Trial(tmp_path).finish(a_result())
    assert checkpoint.exists()
    in_the_way.rmdir()
    Trial(tmp_path).finish(a_result())
    assert not checkpoint.exists()


# Files that cannot be read

NO_RESULTS = [b"", b'{"id": "0123', b"\x93\xff\xfe", b"[1]"]
NO_RESULTS += [
    json.dumps(result_keys(**wrong)).encode()
    for wrong in (
        {"id": "\x1b[2J"},
        {"config": "none"},
        {"config": {"trainer.devices": "two"}},
        {"metrics": {"val/ppl": 2.0, "val/bleu": math.nan}},
        {"metrics": {"val/ppl": 1e300, "val/bleu": 3.0}},
        {"metrics": {"val/ppl": 2.0}},
        {"score": "f1"},
        {"steps": 10**30},
        {"convergence": {"fall": 0.1}},
    )
]


@pytest.fixture(autouse=True)
def _nothing_was_said_before():
    """A process warns once; here each test is one."""
    warn.cache_clear()


@pytest.mark.parametrize("content", NO_RESULTS)
def test_a_result_that_cannot_be_read_counts_as_none_and_is_named_once(tmp_path, capsys, content):
    whole, broken = (Trial(tmp_path / "trials" / name) for name in ("a-1", "b-2"))
    for trial in (whole, broken):
        trial.folder.mkdir(parents=True)
        trial.finish(a_result())
        trial.set_status("done")
    assert len(finished_trials(tmp_path)) == 2
    path = broken.folder / "result.json"
    path.write_bytes(content)
    assert broken.result() is None and broken.state() == "stopped" and broken.needs_training()
    ((left, _),) = finished_trials(tmp_path)
    assert left.folder == whole.folder
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"{}\n", b'{"bleu": [1], "nll": 1, "pieces": 1}\n'])
def test_sentences_that_cannot_be_read_are_named(tmp_path, content):
    path = tmp_path / "scores.val.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=str(path)):
        Trial(tmp_path).sentences("val", BLEU)
    with pytest.raises(InputError, match=str(tmp_path / "hyp.val.txt")):
        Trial(tmp_path).hypotheses("val")


# What a training leaves

COUNTING = """
from copying_task import Copying
from transformer_pl.task import Scores

class Counting(Copying):
    calls = 0

    def score(self, hypotheses, references, config):
        Counting.calls += 1
        right = [[Counting.calls, 100] for _ in references]
        return Scores({"right": float(Counting.calls)}, right, "counted")
"""


@pytest.mark.usefixtures("unrehearsed")
def test_a_result_is_of_the_last_sample_the_mean_rate_and_the_trial_s_own_text(tmp_path, module):
    """Each score of this task differs from those before: what no rehearsal would let pass."""
    module(COUNTING)
    keys = {"data.task": "stranger.Counting", "data.path": None, "data.vocab_size": 275, "trainer.val_sample": 2}
    code, trial = train(tmp_path / "runs", keys)
    result, lines = trial.result(), trial.metrics()
    assert code == 0 and result.params == sum(weight.numel() for weight in trial.weights().values())
    samples, rates = ([line[name] for line in lines if name in line] for name in ("val/right_sample", "tokens_per_s"))
    assert result.metrics["val/right_sample"] == samples[-1] > samples[0]
    assert result.tokens_per_s == pytest.approx(statistics.fmean(rates), abs=0.1)
    prepared = Prepared(tmp_path / "runs" / "data" / trial.data())
    [cost] = training_costs([(trial.config, prepared.mean_lengths)])
    assert (result.flops, result.params) == cost[::-1] and max(prepared.mean_lengths) < ASSUMED_LENGTH - 1


def test_a_trial_whose_result_cannot_be_read_is_trained_anew(tmp_path):
    """To the same result."""
    runs = tmp_path / "runs"
    code, trial = train(runs, {})
    expected, path = tiny_trials.outcome(trial), trial.folder / "result.json"
    path.write_bytes(b'{"id": "half')
    assert code == 0 and train(runs, {})[0] == 0
    tiny_trials.same(trial, expected)


def test_a_training_writes_behind_no_link_but_that_of_its_folder(tmp_path):
    runs, others = tmp_path / "runs", tmp_path / "others"
    others.mkdir()
    trial = train(runs, {})[1]
    (trial.folder / "result.json").unlink()
    for path in list(trial.folder.iterdir()):
        if path.is_file():
            path.rename(others / path.name)
            path.symlink_to(others / path.name)
    elsewhere = trial.folder.rename(tmp_path / "elsewhere")
    trial.folder.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in others.iterdir()}
    assert {"log.txt", "metrics.jsonl"} <= {path.name for path in before} and train(runs, {})[0] == 0
    assert {path: path.read_bytes() for path in others.iterdir()} == before
    assert trial.folder.is_symlink() and "val/bleu" in (elsewhere / "log.txt").read_text()


@pytest.mark.usefixtures("unrehearsed")
def test_a_trial_that_is_trained_again_has_no_result_until_that_has_ended(tmp_path):
    runs, options = tmp_path / "runs", {"fails_once": str(tmp_path / "failed"), "step": 99, "in_identity": False}
    fails = {"stopping_callback.StopAt": options}
    assert train(runs, {})[0] == 0
    code, trial = train(runs, {"trainer.callbacks": json.dumps(fails)}, "--rerun")
    assert code == 1 and trial.result() is None and trial.state() == "failed"
    assert not list(trial.folder.glob("hyp.*"))


def test_the_log_holds_every_attempt(tmp_path):
    for attempt in range(2):
        code, trial = train(tmp_path / "runs", {}, *(["--rerun"] if attempt else []))
        assert code == 0 and trial.log.read_text().count("val/bleu ") == attempt + 1
