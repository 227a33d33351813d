"""A trial's files, its lock, and what becomes of a trial whose files cannot be read."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import tiny_trials
from helpers import a_result, little_text
from tiny_trials import train

from transformer_pl import report, sweep
from transformer_pl.runtime.environment import ROW, SWEEP
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.tasks.translation import Translation
from transformer_pl.trials.cleaning import find_removable
from transformer_pl.trials.runs_folder import finished_results, sweep_plan
from transformer_pl.trials.trial import Trial

BLEU = Translation.measure


def test_a_translation_is_one_line_whatever_is_in_it(tmp_path):
    trial, printed = Trial(tmp_path), ["a\rb", "", "c\u2028d\x0be"]
    trial.save_sentences("val", printed, "bleu", [[0] * 10] * 3, [1.0] * 3, [1] * 3)
    assert trial.hypotheses("val") == printed


def test_the_numbers_of_sentences_are_read_as_they_were_written(tmp_path):
    trial, counts = Trial(tmp_path), [list(range(10)), list(range(10, 20))]
    trial.save_sentences("val", ["a", "b"], "bleu", counts, [1.5, 0.1], [3, 4])
    assert trial.sentences("val", BLEU).tolist() == [[*counts[0], 1.5, 3], [*counts[1], 0.1, 4]]


def test_an_infinite_perplexity_survives(tmp_path):
    trial = Trial(tmp_path)
    trial.finish(a_result(metrics={"val/ppl": float("inf"), "val/bleu": 1.0}))
    assert trial.result()["metrics"] == {"val/ppl": float("inf"), "val/bleu": 1.0}


def test_weights_are_shared_across_file_systems(tmp_path):
    """Where no link can be made, they are copied."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        if os.stat(name).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("/dev/shm is no file system of its own")
        (Path(name) / "weights.pt").write_bytes(b"weights")
        Trial(tmp_path).link(Path(name), "weights.pt")
    assert (tmp_path / "weights.pt").read_bytes() == b"weights"
    assert [path.name for path in tmp_path.glob("*weights*")] == ["weights.pt"]


def test_a_trial_is_found_by_its_id_when_its_folder_was_renamed(tmp_path):
    renamed = tmp_path / "trials" / "mine-0123456789ab"
    assert Trial.at(tmp_path, "0123456789ab", lambda: "demo-base-s1").folder.name == "demo-base-s1-0123456789ab"
    renamed.mkdir(parents=True)
    assert Trial.at(tmp_path, "0123456789ab", lambda: "demo-base-s1").folder == renamed
    assert Trial.at(tmp_path, "ba9876543210", lambda: "demo-base-s2").folder.name == "demo-base-s2-ba9876543210"


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
    assert not trial.locked()
    with trial.lock():
        assert trial.locked() and Trial(trial.folder).locked()
        with pytest.raises(InputError), Trial(trial.folder).lock():
            pass
        trial.set_status("running")
        assert trial.state() == "running"
    assert not trial.locked() and trial.state() == "stopped"


# Files that cannot be read

NO_JSON = [b"", b'{"id": "0123', b"\x93\xff\xfe\x00binary", bytes(4096), b"[]", b"null"]
NO_RESULTS = [
    *NO_JSON,
    b"{}",
    *(json.dumps(a_result(**keys)).encode() for keys in ({"metrics": {}}, {"config": []}, {"flops": "much"})),
]


@pytest.fixture(autouse=True)
def _nothing_was_said_before():
    """A process warns once; here each test is one."""
    warn.cache_clear()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The runs folder of a sweep with one trial, finished."""
    here = tmp_path_factory.mktemp("trained")
    code, _ = train(here / "runs", {})
    assert code == 0
    keys = {key: {"value": value} for key, value in (tiny_trials.TINY | {"data.path": str(here / "text")}).items()}
    (here / "tiny.yaml").write_text(json.dumps({"name": "tiny", "method": "grid", "parameters": keys}))
    assert report.main([str(here / "tiny.yaml"), f"--runs={here / 'runs'}"]) == 0
    (here / "runs" / "sweeps" / "tiny@demo").mkdir(parents=True, exist_ok=True)
    return here


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def commands_continue(here, capsys):
    """Commands that read results: they work and change nothing. Returns what each has printed."""
    file, runs, before, printed = str(here / "tiny.yaml"), f"--runs={here / 'runs'}", contents(here), []
    for main, words in ((sweep.main, [file, "--plan"]), (sweep.main, ["--list"]), (report.main, [file, "--format=md"])):
        warn.cache_clear()
        assert main([*words, runs]) == 0
        printed.append(capsys.readouterr())
    assert contents(here).items() >= before.items()
    return printed


@pytest.fixture
def the_trial(trained):
    """The trial, whose files are as before after the test."""
    (folder,) = (trained / "runs" / "trials").iterdir()
    before = contents(folder)
    yield Trial(folder)
    for path in contents(folder).keys() - before:
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)


@pytest.mark.parametrize("content", NO_RESULTS, ids=lambda content: repr(content[:12]))
def test_a_result_that_cannot_be_read_counts_as_none_and_is_named_once(tmp_path, capsys, content):
    whole, broken = (Trial(tmp_path / "trials" / name) for name in ("a-1", "b-2"))
    for trial in (whole, broken):
        trial.folder.mkdir(parents=True)
        trial.finish(a_result())
        trial.set_status("done")
    assert len(finished_results(tmp_path)) == 2
    path = broken.folder / "result.json"
    path.write_bytes(content)
    assert broken.result() is None and broken.state() == "stopped" and broken.needs_training()
    (left,) = finished_results(tmp_path)
    assert left["folder"] == whole.folder
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line


def test_a_trial_whose_result_cannot_be_read_is_trained_anew(trained, the_trial, capsys):
    """To the same result. What could not be read is kept, and other commands work meanwhile."""
    expected, path = tiny_trials.outcome(the_trial), the_trial.folder / "result.json"
    path.write_bytes(b'{"id": "half')
    plan, listed, table = commands_continue(trained, capsys)
    assert all(one.err.count(str(path)) == 1 for one in (plan, listed, table))
    assert "1 stopped" in plan.out and "stopped" in listed.out
    assert train(trained / "runs", {})[0] == 0
    tiny_trials.same(the_trial, expected)
    (kept,) = (one for one in the_trial.folder.glob("result.json*") if one != path)
    assert kept.read_bytes() == b'{"id": "half'


@pytest.mark.parametrize("content", [b"", b"\x93binary", b"[]", b"{}"])
def test_the_other_files_of_a_trial_and_a_sweep_stop_no_command(trained, the_trial, capsys, content):
    """A trial is done by its result, whatever its status says."""
    plan = trained / "runs" / "sweeps" / "tiny@demo" / "plan.json"
    for path in (*(the_trial.folder / f"{name}.json" for name in ("status", "env", "identity")), plan):
        path.write_bytes(content)
    assert the_trial.state() == "done" and the_trial.data() is None and sweep_plan(plan.parent) is None
    commands_continue(trained, capsys)
    plan.unlink()


@pytest.mark.parametrize("name", ["hyp.val.txt", "scores.val.jsonl"])
@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"abc", b"{}\n", b'{"bleu": [1], "nll": 1, "pieces": 1}\n'])
def test_sentences_that_cannot_be_read_are_named(the_trial, name, content):
    path = the_trial.folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    if name == "hyp.val.txt" and content not in (None, b"\xff\xfe"):
        return  # any other text may be a translation
    with pytest.raises(InputError) as caught:
        the_trial.hypotheses("val") if name == "hyp.val.txt" else the_trial.sentences("val", BLEU)
    assert str(path) in str(caught.value) and len(caught.value.messages) == 1


# What a training leaves


def test_cleaning_knows_every_file_of_a_trial_and_a_text(the_trial):
    (the_trial.folder / "result.json").unlink()
    found = find_removable(the_trial.folder.parents[1])
    assert [item.path.parent.name for item in found] == ["trials", "data"]
    assert not any(item.foreign for item in found), found


def test_weights_that_somebody_has_removed_are_not_missed(trained, the_trial, capsys):
    (the_trial.folder / "weights.pt").unlink()
    assert train(trained / "runs", {})[0] == 0
    assert the_trial.result() and not (the_trial.folder / "weights.pt").exists()


def test_every_attempt_has_a_log_of_its_own(tmp_path):
    runs = tmp_path / "runs"
    for attempt in range(3):
        code, trial = train(runs, {}, *(["--rerun"] if attempt else []))
        assert code == 0
        trial.log.write_text(f"{trial.log.read_text()}attempt {attempt}\n")
    logs = {path.name: path.read_text() for path in trial.folder.glob("log*")}
    last = {name: text.splitlines()[-1] for name, text in logs.items()}
    assert last == {"log.1.txt": "attempt 0", "log.2.txt": "attempt 1", "log.txt": "attempt 2"}
    assert all(text.count("val/bleu ") == 1 for text in logs.values()) and trial.log_end(1) == ["attempt 2"]


def test_a_w_and_b_run_knows_its_row_and_its_sweep_and_the_trial_does_not(tmp_path, monkeypatch):
    """The same trial may be in several sweeps: they must not be part of what it is."""
    seen, names = [], []

    class Noting(tiny_trials.NoRun):
        def __init__(self, **about):
            seen.append({key: about["config"][key] for key in ("row", "sweep")})

    monkeypatch.setattr(tiny_trials, "NoRun", Noting)
    for place in ("alone", "swept"):
        (tmp_path / place).mkdir()
        if place == "swept":
            monkeypatch.setenv(SWEEP, "table@demo")
            monkeypatch.setenv(ROW, "a row")
        keys = {"data.path": little_text(tmp_path, 60, 8, 6)}
        code, trial = train(tmp_path / place, keys)
        assert code == 0 and not trial.result()["config"].keys() & {"row", "sweep"}
        names.append((trial.folder.name, trial.identity_inputs()))
    alone, swept = seen
    assert alone["sweep"] == "none" and "max_steps=4" in alone["row"]
    assert swept == {"sweep": "table@demo", "row": "a row"} and names[0] == names[1]
