"""A trial's files and its lock."""

import json
import threading
import time

import pytest

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.trial import Trial


def test_a_translation_is_one_line_whatever_is_in_it(tmp_path):
    trial, printed = Trial(tmp_path), ["a\rb", "", "c\u2028d\x0be"]
    trial.save_sentences("val", printed, [[0] * 10] * 3, [1.0] * 3, [1] * 3)
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
