"""What a trial records of the code that trained it, and of the machine."""

import os
import platform
import re
import shutil
import subprocess

import pytest
from helpers import ROOT

from transformer_pl.runtime import environment


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of one file that stands where the project's does."""
    if not shutil.which("git"):
        pytest.skip("no git: apt-get install git")
    module = tmp_path / "transformer_pl" / "runtime" / "environment.py"
    module.parent.mkdir(parents=True)
    module.write_text("one\n")
    monkeypatch.setattr(environment, "__file__", str(module))
    return module


def git(folder, *words):
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    words = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_and_whether_files_were_changed_since(repository, tmp_path):
    assert environment.code_state() is None
    git(tmp_path, "init")
    assert environment.code_state() is None  # there is no commit yet
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "runs").mkdir()  # which git does not track
    assert environment.code_state() == commit
    repository.write_text("two\n")
    assert environment.code_state() == f"{commit}-dirty"


def test_the_projects_own_repository_is_the_one():
    if (ROOT / ".git").exists():
        assert environment.code_state().removesuffix("-dirty") == git(ROOT, "rev-parse", "HEAD")


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("lscpu"), reason="lscpu says it of x86 on Linux")
def test_the_processor_is_named_with_its_family_and_model():
    """Two generations of AMD's servers have the same name, and round differently."""
    english = os.environ | {"LC_ALL": "C"}
    found = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, env=english).stdout
    keys = "Model name", "CPU family", "Model"
    name, family, model = (re.search(rf"^ *{key}: +(.+)", found, re.MULTILINE)[1] for key in keys)
    assert environment.describe_environment([])["cpu"] == f"{name} (family {family}, model {model})"
