"""Child processes: what `python -m` would have made, and none outlives its parent."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import ROOT, processes, wait_for

from transformer_pl.runtime import children

CHILD = """
import os, sys, time
print(sys.argv, os.environ["GIVEN"], __name__, os.getsid(0) == os.getpid(), flush=True)
print("error", file=sys.stderr)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""
STARTING = """
import os, time
from pathlib import Path
from transformer_pl.runtime import children
if __name__ == "__main__":
    log = Path("log")
    child = children.start_module("child", ["60"], {**os.environ, "GIVEN": "1"}, log)
    while "True" not in log.read_text():
        time.sleep(0.01)
    Path("pid").write_text(str(child.pid))
    time.sleep(60)
"""
ISOLATING = """
from hanging import hang
from transformer_pl.runtime import children
from transformer_pl.runtime.calls import call_in_child
if __name__ == "__main__":
    children.IMPORTED = []
    call_in_child("it", hang)
"""
HANGING = """
import os, time
from pathlib import Path
def hang():
    Path("pid").write_text(str(os.getpid()))
    time.sleep(60)
"""

IMPORTING = """
import importlib, torch
asked = []
for name in ("is_available", "device_count", "current_device", "get_device_properties", "init", "_lazy_init"):
    setattr(torch.cuda, name, lambda *words, name=name: asked.append(name))
from transformer_pl.runtime.children import IMPORTED
for module in IMPORTED:
    importlib.import_module(module)
print(asked)
"""


@pytest.mark.slow  # a new interpreter imports all
def test_what_is_imported_for_children_asks_for_no_gpu():
    """CUDA does not survive a fork once something has asked for it."""
    asked = subprocess.run([sys.executable, "-c", IMPORTING], cwd=ROOT, capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"


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


COMMANDS = {
    "sweep": ["sweep", "smoke"],
    "train": ["train", "--model.width=1/16", "--model.depth=1/6", "--model.position=ablations.no_position.NoPosition"],
}


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("sweep", 0.3), *(pytest.param(name, s, marks=pytest.mark.slow) for name in COMMANDS for s in (0, 0.05, 1))],
)
def test_ctrl_c_while_the_server_imports_ends_all_and_prints_no_traceback(tmp_path, name, seconds):
    """As a terminal sends it: to the whole group. seconds: since the server was started."""
    words = [sys.executable, "-m", *f"transformer_pl.{' '.join(COMMANDS[name])}".split(), f"--runs={tmp_path}/runs"]
    with (tmp_path / "output").open("w+") as output:
        program = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        group = lambda: [one for one in processes() if one.session == program.pid]  # noqa: E731
        wait_for(lambda: any("forkserver" in one.command for one in group()), every=0.01)
        time.sleep(seconds)
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(30) == 130
        wait_for(lambda: not group(), 2)  # the server would import for longer
        output.seek(0)
        printed = output.read()
    assert "Traceback" not in printed and printed.splitlines()[-1].startswith("stopped by SIGINT")


@pytest.mark.parametrize(
    "parent", [pytest.param(STARTING, id="starting", marks=pytest.mark.slow), pytest.param(ISOLATING, id="isolating")]
)
def test_no_child_outlives_its_parent(tmp_path, parent):
    for name, text in {"parent": parent, "hanging": HANGING, "child": CHILD}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "log").touch()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    pid = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "parent.py"], cwd=tmp_path, env=environment) as process:
        wait_for(lambda: pid.exists() and pid.read_text())
        process.kill()
    wait_for(lambda: not os.path.exists(f"/proc/{pid.read_text()}"), 20)
