"""Child processes: what `python -m` would have made, and none outlives its parent."""

import os
import signal
import subprocess
import sys

import pytest
from helpers import ROOT, wait_for

from transformer_pl.runtime import children

CHILD = """
import os, sys, time
print(sys.argv, os.environ["GIVEN"], __name__, os.getsid(0) == os.getpid(), flush=True)
print("error", file=sys.stderr)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""
PARENT = """
import os, sys, time
from pathlib import Path
from transformer_pl.runtime import children
if __name__ == "__main__":
    child = children.start_module("child", ["60"], {**os.environ, "GIVEN": "1"}, Path("log"))
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_child_runs_a_module_as_python_does(tmp_path, monkeypatch):
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    log = tmp_path / "log"
    log.write_text("before\n")
    child = children.start_module("child", ["0"], {"GIVEN": "a value"}, log)
    child.join(60)
    assert child.exitcode == 7
    assert log.read_text().splitlines() == [
        "before",
        f"{[str(tmp_path / 'child.py'), '0']} a value __main__ True",
        "error",
    ]


def test_a_child_prints_behind_no_link(tmp_path, monkeypatch):
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("mine")
    children.start_module("child", ["0"], {"GIVEN": "a value"}, tmp_path / "log").join(60)
    assert (tmp_path / "elsewhere").read_text() == "mine" and "a value" in (tmp_path / "log").read_text()


@pytest.mark.slow  # the parent is a new process
def test_no_child_outlives_its_parent(tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "parent.py").write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    words = [sys.executable, "parent.py"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        wait_for(lambda: (tmp_path / "log").exists() and "True" in (tmp_path / "log").read_text())
        os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), 20)
