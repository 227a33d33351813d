"""A trial's files, its lock, and what becomes of a trial whose files cannot be read."""

import json
import math
import statistics

import numpy as np
import pytest
import sacrebleu
import tiny_trials
import torch
from helpers import a_result, little_text, result_keys
from tiny_trials import ended, main, train

from transformer_pl.data.prepared import Prepared
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.tasks.translation import Translation
from transformer_pl.trials.flops import ASSUMED_LENGTH, training_costs
from transformer_pl.trials.lock import LockLost, TrialLock
from transformer_pl.trials.metrics import read_metrics
from transformer_pl.trials.records import infinite_as_null
from transformer_pl.trials.runs_folder import RunsFolder, trained_config
from transformer_pl.trials.trial_folder import TrialFolder

BLEU = Translation.measure


def test_translations_are_a_line_each_whatever_is_in_them_and_their_numbers_are_read_as_they_were_written(tmp_path):
    trial, printed = TrialFolder(tmp_path), ["a\rb", "", "c\u2028d\x0be"]
    sentences = np.array([[*range(10), 1.5, 3], [*range(10, 20), 0.1, 4], [0] * 12])
    trial.save_sentences("val", printed, BLEU, sentences)
    assert trial.hypotheses("val") == printed and np.array_equal(trial.sentences("val", BLEU), sentences)


def test_weights_are_read_as_they_were_saved(tmp_path):
    """Of any layout and type; also tensors that share memory, as those of tied layers do."""
    matrix = torch.randn(3, 4)
    state = {"a": matrix, "tied": matrix, "part": matrix[1], "turned": matrix.T, "count": torch.tensor(7)}
    state["half"] = matrix.bfloat16()
    TrialFolder(tmp_path).save_weights(state)
    weights = TrialFolder(tmp_path).weights()
    assert weights.keys() == state.keys() and all(torch.equal(weights[name], state[name]) for name in state)
    assert {name: value.dtype for name, value in weights.items()} == {n: v.dtype for n, v in state.items()}


def test_whoever_may_read_a_result_may_read_its_weights(tmp_path):
    trial = TrialFolder(tmp_path)
    trial.save_weights({"a": torch.zeros(1)})
    trial.finish(a_result())
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "result.json").stat().st_mode


def test_weights_that_cannot_be_read_are_named(tmp_path):
    for content in (b"", b"no weights", None):
        path = tmp_path / "weights.safetensors"
        path.write_bytes(content) if content is not None else path.unlink()
        with pytest.raises(InputError, match=r"weights\.safetensors"):
            TrialFolder(tmp_path).weights()


def test_a_trial_is_found_by_its_id_when_its_folder_was_renamed(tmp_path):
    renamed = tmp_path / "trials" / "mine-0123456789ab"
    assert RunsFolder(tmp_path).trial("base-s1-0123456789ab").name == "base-s1-0123456789ab"
    renamed.mkdir(parents=True)
    assert RunsFolder(tmp_path).trial("base-s1-0123456789ab").path == renamed
    assert RunsFolder(tmp_path).trial("base-s2-ba9876543210").name == "base-s2-ba9876543210"


def test_a_trial_that_no_process_trains_is_done_if_it_has_a_result(tmp_path):
    trial = TrialFolder(tmp_path)
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


@pytest.mark.parametrize(
    ("metrics", "kind"),
    [({"train/loss": 1.0, "lr": 0.1, "tokens_per_s": 9.0}, "train"), ({"val/ppl": math.inf}, "validation")],
)
def test_a_line_of_metrics_is_read_as_it_was_written(tmp_path, metrics, kind):
    """Without one that a process left unfinished."""
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    lines = [{"step": step, "kind": kind, **metrics, "time": 1.5} for step in range(100)]
    path.write_text("".join(json.dumps(infinite_as_null(line)) + "\n" for line in lines) + '{"step": 7, "va')
    assert read_metrics(path) == lines
    path.write_text('{"step": 3, "mine": 1.0}\n')  # as a callback may write it
    assert read_metrics(path) == [{"step": 3, "mine": 1.0, "kind": "train"}]


# The lock


def test_a_trial_is_one_process_s_at_a_time(tmp_path):
    trial = TrialFolder(tmp_path / "trial")
    assert not trial.lock.is_held()
    with trial.lock.hold():
        assert trial.lock.is_held() and TrialFolder(trial.path).lock.is_held()
        with pytest.raises(InputError), TrialFolder(trial.path).lock.hold():
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
        write(TrialFolder(tmp_path))
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
        TrialFolder(tmp_path).finish(a_result())
    assert checkpoint.exists()
    in_the_way.rmdir()
    TrialFolder(tmp_path).finish(a_result())
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
    whole, broken = (TrialFolder(tmp_path / "trials" / name) for name in ("a-1", "b-2"))
    for trial in (whole, broken):
        trial.path.mkdir(parents=True)
        trial.finish(a_result())
        trial.set_status("done")
    assert len(RunsFolder(tmp_path).finished()) == 2
    path = broken.path / "result.json"
    path.write_bytes(content)
    assert broken.result() is None and broken.state() == "stopped" and broken.needs_training()
    ((left, _),) = RunsFolder(tmp_path).finished()
    assert left.path == whole.path
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"{}\n", b'{"bleu": [1], "nll": 1, "pieces": 1}\n'])
def test_sentences_that_cannot_be_read_are_named(tmp_path, content):
    path = tmp_path / "scores.val.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=str(path)):
        TrialFolder(tmp_path).sentences("val", BLEU)
    with pytest.raises(InputError, match=str(tmp_path / "hyp.val.txt")):
        TrialFolder(tmp_path).hypotheses("val")


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
    [cost] = training_costs([(trained_config(trial, result), prepared.mean_lengths)])
    assert (result.flops, result.params) == cost[::-1] and max(prepared.mean_lengths) < ASSUMED_LENGTH - 1


def test_a_trial_whose_result_cannot_be_read_is_trained_anew(tmp_path):
    """To the same result."""
    runs = tmp_path / "runs"
    code, trial = train(runs, {})
    expected, path = tiny_trials.outcome(trial), trial.path / "result.json"
    path.write_bytes(b'{"id": "half')
    assert code == 0 and train(runs, {})[0] == 0
    tiny_trials.same(trial, expected)


def test_a_training_writes_behind_no_link_but_that_of_its_folder(tmp_path):
    runs, others = tmp_path / "runs", tmp_path / "others"
    others.mkdir()
    trial = train(runs, {})[1]
    (trial.path / "result.json").unlink()
    for path in list(trial.path.iterdir()):
        if path.is_file():
            path.rename(others / path.name)
            path.symlink_to(others / path.name)
    elsewhere = trial.path.rename(tmp_path / "elsewhere")
    trial.path.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in others.iterdir()}
    assert {"log.txt", "metrics.jsonl"} <= {path.name for path in before} and train(runs, {})[0] == 0
    assert {path: path.read_bytes() for path in others.iterdir()} == before
    assert trial.path.is_symlink() and "val/bleu" in (elsewhere / "log.txt").read_text()


@pytest.mark.usefixtures("unrehearsed")
def test_a_trial_that_is_trained_again_has_no_result_until_that_has_ended(tmp_path):
    runs, options = tmp_path / "runs", {"fails_once": str(tmp_path / "failed"), "step": 99, "in_identity": False}
    fails = {"stopping_callback.StopAt": options}
    assert train(runs, {})[0] == 0
    code, trial = train(runs, {"trainer.callbacks": json.dumps(fails)}, "--rerun")
    assert code == 1 and trial.result() is None and trial.state() == "failed"
    assert not list(trial.path.glob("hyp.*"))


def test_trials_that_differ_in_decoding_share_their_weights(tmp_path):
    """Each has a final evaluation of its own. One that is trained again has weights of its own."""
    keys = {"optim.max_steps": 10, "data.path": tmp_path / "text"}
    little_text(tmp_path / "text")
    code, first = train(tmp_path / "runs", keys)
    words = [f"--{key}={value}" for key, value in (tiny_trials.TINY | keys | {"decode.alpha": 0.1}).items()]
    assert code == ended(main, f"--runs={tmp_path / 'runs'}", *words)[0] == 0
    (folder,) = {*(tmp_path / "runs" / "trials").iterdir()} - {first.path}
    second, (weights, others) = TrialFolder(folder), (one / "weights.safetensors" for one in (first.path, folder))
    ours, theirs = first.result(), second.result()
    assert weights.samefile(others) and theirs.weights_of == ours.id != theirs.id
    assert ours.metrics["val/ppl"] == theirs.metrics["val/ppl"] and ours.convergence == theirs.convergence is not None
    assert all(sum("val/bleu" in line for line in one.metrics()) == 1 for one in (first, second))
    assert ended(main, f"--runs={tmp_path / 'runs'}", *words, "--rerun")[0] == 0 and not weights.samefile(others)


@pytest.mark.parametrize(("key", "value", "name"), [("test", "more", "test"), ("sets", "[new=TEXT:more]", "new")])
def test_another_set_costs_an_evaluation_alone(tmp_path, key, value, name):
    """Its scores are those of a training that had it from the start, and the tokens of the training text are shared."""
    text, runs = little_text(tmp_path / "text"), tmp_path / "runs"
    for side in ("en", "de"):
        (text / f"more.{side}").write_text("".join((text / f"test.{side}").read_text().splitlines(True)[3:1:-1] * 2))
    keys = {"optim.max_steps": 10, "data.path": text}
    code, first = train(runs, keys)
    before = first.result()
    first.finish(before.model_copy(update={"weights_id": 12 * "0"}))  # as ids were made before
    with_set = keys | {f"data.{key}": value.replace("TEXT", str(text))}
    words = [f"--{key}={value}" for key, value in (tiny_trials.TINY | with_set).items()]
    assert code == ended(main, f"--runs={runs}", *words)[0] == 0
    (second,) = (TrialFolder(path) for path in (runs / "trials").iterdir() if path != first.path)
    assert second.result().weights_of == first.id and second.hypotheses(name) != first.hypotheses("test")
    tiny_trials.same(second, tiny_trials.outcome(train(tmp_path / "fresh" / "runs", with_set)[1]))
    if key == "sets":
        assert {*before.metrics.items()} < {*second.result().metrics.items()}  # val and test are what they were
    references = [(text / "more.de").read_text().splitlines()]
    bleu = sacrebleu.corpus_bleu(second.hypotheses(name), references)
    assert second.result().metrics[f"{name}/bleu"] == pytest.approx(bleu.score)
    assert second.documents("val") is None and second.documents(name) is None
    one, other = (runs / "data" / trial.data() for trial in (first, second))
    assert one != other and (one / "train.source.tokens").samefile(other / "train.source.tokens")


def test_the_log_holds_every_attempt(tmp_path):
    for attempt in range(2):
        code, trial = train(tmp_path / "runs", {}, *(["--rerun"] if attempt else []))
        assert code == 0 and trial.log.read_text().count("val/bleu ") == attempt + 1
