"""Names of processes, and variables that set a time. Dead processes are in tests/search/test_shared_study.py."""

import os

import pytest

from transformer_pl.runtime.processes import is_dead, is_here, process_id, seconds_from


def test_a_process_is_named_apart_from_all_others():
    own = process_id(os.getpid())
    assert own == process_id(os.getpid()) != process_id(1)
    assert is_here(own) and not is_dead(own)
    assert not is_here("elsewhere 1 1") and not is_dead("elsewhere 1 1") and not is_dead("")


def test_a_time_is_read_from_a_variable(monkeypatch, capsys):
    monkeypatch.delenv("SECONDS_HERE", raising=False)
    assert seconds_from("SECONDS_HERE", 7.0) == 7
    monkeypatch.setenv("SECONDS_HERE", "2.5")
    assert seconds_from("SECONDS_HERE", 7.0) == 2.5
    for text in ("soon", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("SECONDS_HERE", text)
        with pytest.raises(SystemExit, match="2"):
            seconds_from("SECONDS_HERE", 7.0)
        assert f"SECONDS_HERE = {text}: must be a number of seconds, at least 1" in capsys.readouterr().err
