"""The lock of a trial: one living process holds it, and what a dead one held is free."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from helpers import ROOT, wait_for

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.lock import DEAD_S, TrialLock

HOLDS = """
import signal, sys, time
from pathlib import Path
from transformer_pl.trials.lock import LockLost, TrialLock
lock = TrialLock(Path(sys.argv[1]))
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
with lock.hold():
    print("held", flush=True)
    try:
        while not time.sleep(0.1):
            lock.check()
    except LockLost:
        print("lost", flush=True)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of a folder."""
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_one_process_holds_it_and_the_others_are_told(tmp_path, holder):
    lock, began = TrialLock(tmp_path), time.monotonic()
    assert lock.is_held()
    with pytest.raises(InputError), lock.hold():
        pass
    assert holder.poll() is None and time.monotonic() - began < DEAD_S / 2


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="needs unshare, and root")
def test_the_same_is_true_in_a_container(tmp_path):
    """Where processes have numbers of their own."""
    own = f"--basetemp={tmp_path / 'own'}"  # else it removes what earlier tests have left, which can take minutes
    test = f"{__file__}::{test_one_process_holds_it_and_the_others_are_told.__name__}"
    words = ["unshare", "-pf", "--mount-proc", sys.executable, "-m", "pytest", "-p", "no:cacheprovider", own, test]
    assert "1 passed" in subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def test_what_a_killed_process_of_this_machine_held_is_free_at_once(tmp_path, holder):
    lock = TrialLock(tmp_path)
    holder.kill()
    holder.wait()
    began = time.monotonic()
    assert not lock.is_held()
    with lock.hold():
        assert TrialLock(tmp_path).is_held()
        lock.check()
    assert time.monotonic() - began < DEAD_S / 2 and not lock.is_held()


def test_a_process_number_means_nothing_on_another_machine(tmp_path, holder):
    """Nor does one in another container."""
    holder.kill()
    holder.wait()
    marker = tmp_path / "lock"
    marker.write_text(re.sub("host=.*", "host=elsewhere", marker.read_text()))
    assert TrialLock(tmp_path).is_held()


def test_what_a_dead_process_of_another_machine_held_is_free_after_a_while(tmp_path, holder, monkeypatch):
    """Here after a second without a heartbeat."""
    monkeypatch.setattr("transformer_pl.trials.lock.DEAD_S", 1.0)
    monkeypatch.setattr("transformer_pl.trials.lock.HEARTBEAT_S", 0.3)
    monkeypatch.setattr("transformer_pl.trials.lock.INSTANT_S", 0.1)
    holder.kill()
    holder.wait()
    marker = tmp_path / "lock"
    marker.write_text(re.sub("host=.*", "host=elsewhere", marker.read_text()).replace(str(DEAD_S), "1.0"))
    with TrialLock(tmp_path).hold():
        assert TrialLock(tmp_path).is_held()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_another_user_s_lock_is_left_alone():
    """It is readable for that user only."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        with TrialLock(Path(folder)).hold():
            os.seteuid(65534)
            try:
                lock = TrialLock(Path(folder))
                assert lock.is_held()
                with pytest.raises(InputError), lock.hold():
                    pass
            finally:
                os.seteuid(0)


@pytest.mark.slow
def test_a_process_that_gives_no_heartbeat_loses_it_and_learns_that(tmp_path, holder):
    lock = TrialLock(tmp_path)
    os.kill(holder.pid, signal.SIGSTOP)
    wait_for(lambda: not lock.is_held(), DEAD_S + 20)
    with lock.hold():
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.stdout.read().split() == ["told", "lost"]
        lock.check()
