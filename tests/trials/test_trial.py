"""A trial's files and its lock."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
import tiny_trials
from helpers import ROOT, little_text
from tiny_trials import train

from transformer_pl.runtime.environment import ROW, SWEEP
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials import recognise
from transformer_pl.trials.trial import LOCK_FD, Trial


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


def test_a_process_that_is_given_the_lock_keeps_it_until_it_ends(tmp_path):
    """Between the moment that a sweep chooses a trial and the end of the trial's process nobody else can take it."""
    trial = Trial(tmp_path / "trial")
    held = trial.take_lock()
    assert trial.take_lock() is None
    program = (
        "import pathlib, sys; from transformer_pl.trials.trial import Trial\n"
        "with Trial(pathlib.Path(sys.argv[1])).lock(): print('locked', flush=True); input()"
    )
    words = [sys.executable, "-c", program, str(trial.folder)]
    environment = os.environ | {LOCK_FD: str(held.fileno()), "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment, pass_fds=[held.fileno()], **pipes) as process:
        held.close()
        assert trial.locked()
        assert process.stdout.readline() == "locked\n"
        assert trial.locked()
        process.communicate("\n")
    assert process.returncode == 0 and not trial.locked()


def test_the_lock_of_another_file_is_not_taken_for_the_trial_s(tmp_path, monkeypatch):
    first, second = Trial(tmp_path / "first"), Trial(tmp_path / "second")
    with first.take_lock() as other, second.lock():
        monkeypatch.setenv(LOCK_FD, str(other.fileno()))
        with pytest.raises(InputError, match="another process trains this trial"), second.lock():
            pass


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
