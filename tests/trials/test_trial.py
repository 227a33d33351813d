"""A trial's files and its lock."""

import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_trials
from helpers import ROOT, a_result, little_text
from tiny_trials import train

from transformer_pl.runtime import lease
from transformer_pl.runtime.environment import ROW, SWEEP
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.lease import LEASE_S, THIS_MACHINE, Claims, Lost, Watch
from transformer_pl.training.logger import TrialLogger
from transformer_pl.trials import recognise
from transformer_pl.trials.trial import LEASE, Trial


def test_a_translation_is_one_line_whatever_is_in_it(tmp_path):
    trial, printed = Trial(tmp_path), ["a\rb", "", "c\u2028d\x0be"]
    trial.save_sentences("val", printed, "bleu", [[0] * 10] * 3, [1.0] * 3, [1] * 3)
    assert trial.hypotheses("val") == printed


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc", "..", "", ["x"], 7, None])
def test_the_text_of_a_trial_lies_in_its_folder(tmp_path, name):
    """An env.json that has been changed leads nowhere else."""
    (tmp_path / "env.json").write_text(json.dumps({"data": name}))
    assert Trial(tmp_path).data() is None
    (tmp_path / "env.json").write_text(json.dumps({"data": "0123456789abcdef"}))
    assert Trial(tmp_path).data() == "0123456789abcdef"


def test_weights_are_shared_across_file_systems(tmp_path):
    """Where no link can be made, they are copied."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        if os.stat(name).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("/dev/shm is no file system of its own")
        (Path(name) / "weights.pt").write_bytes(b"weights")
        trial = Trial(tmp_path / "demo-base-s1-0123456789ab")
        trial.make()
        trial.link(Path(name), "weights.pt")
    assert (trial.folder / "weights.pt").read_bytes() == b"weights"
    assert [path.name for path in trial.folder.glob("*weights*")] == ["weights.pt"]


def test_folders_that_may_not_be_read_or_written_are_one_message(tmp_path, monkeypatch):
    def refused(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    trial = Trial(tmp_path / "trials" / "demo-base-s1-0123456789ab")
    with monkeypatch.context() as context:
        context.setattr(THIS_MACHINE, "write", refused, raising=False)
        with pytest.raises(
            InputError, match="0123456789ab: must be a folder that can be written, but: Permission denied"
        ):
            trial.take_lease()
    monkeypatch.setattr(lease, "TRIES", 1)
    with monkeypatch.context() as context:
        context.setattr(os, "link", refused)
        with pytest.raises(InputError, match="cannot be made: Permission denied; its file system must have hard links"):
            trial.take_lease()
    monkeypatch.setattr(os, "listdir", refused)
    (tmp_path / "trials" / "other").mkdir()  # so that the folder is read again
    with pytest.raises(InputError, match="trials: must be a folder that can be read, but: Permission denied"):
        Trial.at(tmp_path, "0123456789ab", lambda: "demo-base-s1")


def test_a_trial_is_one_process_s_at_a_time(tmp_path):
    trial = Trial(tmp_path / "trial")
    assert not trial.locked()
    with trial.lock():
        assert trial.locked()
        with pytest.raises(InputError, match="another process trains this trial"), trial.lock():
            pass
    assert not trial.locked()


def test_a_lock_that_is_held_for_an_instant_is_waited_for(tmp_path):
    trial, took = Trial(tmp_path / "trial"), threading.Event()

    def ask():
        with trial.lock():
            took.set()
            time.sleep(0.2)

    other = threading.Thread(target=ask)
    other.start()
    took.wait(5)
    with trial.lock():
        pass
    other.join()


def test_a_process_that_is_given_the_lease_keeps_it_until_it_ends(tmp_path):
    """Between the moment that a sweep chooses a trial and the end of the trial's process nobody else can take it."""
    trial = Trial(tmp_path / "trial")
    held = trial.take_lease()
    assert trial.take_lease() is None
    program = (
        "import pathlib, sys; from transformer_pl.trials.trial import Trial\n"
        "with Trial(pathlib.Path(sys.argv[1])).lock(): print('locked', flush=True); input()"
    )
    words = [sys.executable, "-c", program, str(trial.folder)]
    environment = os.environ | {LEASE: held.given, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment, **pipes) as process:
        held.is_given_away = True
        held.close()
        assert process.stdout.readline() == "locked\n"
        assert trial.holder().process.endswith(f" {process.pid}") and not held.is_lost
        process.communicate("\n")
    assert process.returncode == 0 and not trial.locked()


def test_the_trial_of_a_process_that_is_killed_can_be_taken_at_once(tmp_path):
    trial = Trial(tmp_path / "trial")
    program = (
        "import pathlib, sys; from transformer_pl.trials.trial import Trial\n"
        "with Trial(pathlib.Path(sys.argv[1])).lock(): print('locked', flush=True); input()"
    )
    words = [sys.executable, "-c", program, str(trial.folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes) as process:
        assert process.stdout.readline() == "locked\n" and trial.locked()
        process.kill()
        process.wait()
        assert not trial.locked()
        with trial.lock():
            pass


def test_the_lease_of_another_trial_is_not_taken_for_the_trial_s(tmp_path, monkeypatch):
    first, second = Trial(tmp_path / "first"), Trial(tmp_path / "second")
    with closing(first.take_lease()) as other, second.lock():
        monkeypatch.setenv(LEASE, other.given)
        with pytest.raises(InputError, match="another process trains this trial"), second.lock():
            pass


def taken_over(trial):
    """As by a process on another machine that has seen no sign of life for long."""
    machine = SimpleNamespace(**{name: getattr(THIS_MACHINE, name) for name in dir(THIS_MACHINE) if name[0] != "_"})
    machine.host, machine.process = "elsewhere", "elsewhere 1"
    lease = Claims(trial.folder, machine, Watch(time.monotonic, patience_s=-1)).take()
    assert lease is not None
    return lease


def test_a_trial_that_was_taken_over_is_written_to_no_more(tmp_path):
    trial = Trial(tmp_path / "trial")
    with trial.lock():
        trial.set_status("running")
        before = {path: path.read_bytes() for path in trial.folder.iterdir() if path.name == "status.json"}
        taken_over(trial)
        for write in (
            lambda: trial.set_status("stopped"),
            lambda: trial.save_weights({}),
            lambda: trial.save_sentences("val", [], "bleu", [], [], []),
            lambda: trial.finish(a_result()),
        ):
            with pytest.raises(Lost, match="another process works here now"):
                write()
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in trial.folder.iterdir()} == {"claim.1", "claim.2", "status.json"}
    assert trial.holder().host == "elsewhere"


def test_training_that_was_taken_over_ends_without_a_trace(tmp_path, capsys, monkeypatch):
    """In the middle: it saves no checkpoint, no result, no status."""
    runs, seen = tmp_path / "runs", []
    log = TrialLogger.log_metrics

    def log_metrics(self, metrics, step=None):
        if step == 3:
            taken_over(Trial(self._folder))
            seen.extend(contents(self._folder))
        log(self, metrics, step)

    monkeypatch.setattr(TrialLogger, "log_metrics", log_metrics)
    code, trial = train(runs, {})
    assert code == 1 and "another process works here now" in capsys.readouterr().err
    assert contents(trial.folder) == seen and seen and trial.result() is None


def contents(folder):
    """All files but those to which a process only appends, each with its bytes."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [(path.name, path.read_bytes()) for path in files if path.name not in ("log.txt", "metrics.jsonl")]


def test_a_result_that_has_no_name_yet_gets_it_from_the_next_process(tmp_path, monkeypatch, capsys):
    """The first was killed between the two."""
    runs = tmp_path / "runs"

    def die(self, done):
        raise Lost("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Claims, "complete", die)
        assert train(runs, {})[0] == 1
    capsys.readouterr()
    code, trial = train(runs, {})
    assert code == 0 and "finished already" in capsys.readouterr().out and trial.result()
    assert len(list(trial.folder.glob("log*.txt"))) == 1, "nothing was trained again"


def test_the_dead_of_another_machine_are_waited_for_and_the_living_refused(tmp_path, monkeypatch, capsys):
    trial, clock = Trial(tmp_path / "trial"), [0.0]
    monkeypatch.setattr(lease, "SEEN", Watch(lambda: clock[0]))
    monkeypatch.setattr(type(THIS_MACHINE), "clock", lambda self: clock[0])
    trial.make()
    other = taken_over(trial)

    def sleep(self, seconds):
        clock[0] += 1
        if clock[0] == 100:
            other.beat()

    monkeypatch.setattr(type(THIS_MACHINE), "sleep", sleep)
    with pytest.raises(InputError, match="another process trains this trial"), trial.lock():
        pass
    assert clock[0] == 100
    with trial.lock():
        assert clock[0] == pytest.approx(100 + LEASE_S, abs=5)
    assert "elsewhere has this trial; waiting 120 s for a sign of life" in capsys.readouterr().err


def test_every_attempt_has_a_log_of_its_own(tmp_path):
    runs = tmp_path / "runs"
    for attempt in range(3):
        code, trial = train(runs, {}, *(["--rerun"] if attempt else []))
        assert code == 0
        trial.log.write_text(f"{trial.log.read_text()}attempt {attempt}\n")
    logs = {path.name: path.read_text() for path in trial.folder.glob("log*")}
    assert logs.keys() == {"log.1.txt", "log.2.txt", "log.txt"}
    assert all(text.count("val/bleu ") == 1 for text in logs.values())
    assert [logs[name].endswith(f"attempt {i}\n") for i, name in enumerate(("log.1.txt", "log.2.txt", "log.txt"))]
    assert not list(recognise._foreign_entries(trial.folder))


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
