"""A component that prints or exits, wherever it does: what a command says for programs, and how it ends."""

import json
import os

import forked
import pytest
from helpers import ROOT, command, little_text, write_sweep
from tiny_trials import TINY

STRANGE = """
import os, sys
from torch import nn

def reached(place):
    where, _, way = os.environ.get("STRANGE", "").partition(" ")
    if where == place:
        if way == "sys.exit":
            sys.exit(0)
        print("printed by", place)
        os.system("echo printed by a program")

reached("import")

class Strange(nn.Module):
    def __init__(self, config, site):
        super().__init__()
        reached("constructor")

    def forward(self, x, start=0):
        reached("forward")
        return x
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a component, a sweep of it, and its trained trial."""
    folder = tmp_path_factory.mktemp("strange")
    (folder / "strange.py").write_text(STRANGE)
    little_text(folder / "text")
    write_sweep(folder / "grid.yaml", keys(folder))
    (folder / "sentences.txt").write_text("ba be\nbi\n")
    assert run(folder, "", "sweep", folder / "grid.yaml").returncode == 0
    return folder


def keys(folder):
    return TINY | {"data.path": str(folder / "text"), "model.position": "strange.Strange"}


def run(folder, strange, name, *words):
    path = os.pathsep.join([str(folder), str(ROOT)])
    words = [*words, *([] if name == "check" else [f"--runs={folder / 'runs'}"])]
    return forked.command(name, *words, PYTHONPATH=path, STRANGE=strange, WANDB_MODE="disabled")


@pytest.mark.parametrize("place", ["import", pytest.param("constructor", marks=pytest.mark.slow), "forward"])
def test_what_a_component_prints_is_no_part_of_what_is_for_programs(folder, place):
    for words in (["report", folder / "grid.yaml", "--format", "json"], commands(folder)["translate"]):
        quiet, noisy = run(folder, "", *words), run(folder, place, *words)
        assert (noisy.returncode, noisy.stdout) == (0, quiet.stdout)
        read = "import" if words[0] == "report" else "forward"  # what the command comes to
        if place in ("import", read):
            assert f"printed by {place}" in noisy.stderr and "printed by a program" in noisy.stderr
    assert json.loads(run(folder, place, "report", folder / "grid.yaml", "--format", "json").stdout)["rows"]


def commands(folder):
    return {
        "sweep": ["sweep", folder / "grid.yaml", "--plan"],
        "train": ["train", *(f"--{key}={value}" for key, value in keys(folder).items())],
        "check": ["check", "strange.Strange"],
        "report": ["report", folder / "grid.yaml"],
        "translate": ["translate", "grid/base/s1", folder / "sentences.txt"],
    }


def is_told(done):
    *_, last = done.stderr.splitlines()
    return done.returncode == 2 and last.startswith("error: ") and "strange.py, line" in last and len(last) < 1000


def test_an_import_that_exits_ends_a_command_with_a_message(folder):
    for name, words in commands(folder).items():
        done = run(folder, "import sys.exit", *words)
        assert is_told(done), (name, done)


@pytest.mark.parametrize("place", ["constructor", "forward"])
def test_a_component_that_exits_ends_a_translation_with_a_message(folder, place):
    done = run(folder, f"{place} sys.exit", *commands(folder)["translate"])
    assert is_told(done), done


@pytest.mark.slow
@pytest.mark.parametrize("place", ["constructor", "forward"])
def test_a_component_that_exits_ends_a_command_that_checks_it_with_a_message(folder, place):
    """In a process of its own, as its user runs it: what the checks start is another one."""
    for name in ("sweep", "train", "check"):
        words = [*commands(folder)[name], *([] if name == "check" else [f"--runs={folder / 'others'}"])]
        path = os.pathsep.join([str(folder), str(ROOT)])
        done = command(*words, PYTHONPATH=path, STRANGE=f"{place} sys.exit", WANDB_MODE="disabled")
        told = done.returncode == 2 and "strange.py, line" in done.stdout if name == "check" else is_told(done)
        assert told, (name, done)
