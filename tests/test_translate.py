"""Translating with a trained trial, as a user does."""

import codecs
import io
import os
import pty
import shutil
import subprocess
import sys

import pytest
import tiny_trials
from forked import command
from helpers import ROOT

from transformer_pl.data.prepared import Prepared
from transformer_pl.translate import main
from transformer_pl.trials.trial_folder import TrialFolder


def printed(*argv, text):
    words = [sys.executable, "-m", "transformer_pl.translate", *map(str, argv)]
    return subprocess.run(words, cwd=ROOT, input=text, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def trial(smoke):
    (folder,) = (path.parent for path in smoke[0].glob("trials/h=4*/result.json"))
    return TrialFolder(folder)


@pytest.fixture(autouse=True)
def nothing_is_typed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


def test_a_pipe_gives_what_the_trial_gave(smoke, trial, tmp_path, monkeypatch):
    """The first validation sentences, blank lines between; the same by name, by id, and by folder."""
    runs, _ = smoke
    source, _ = Prepared(runs / "data" / trial.data()).text("val")
    expected = (trial.path / "hyp.val.txt").read_text().splitlines()[:5]
    lines = [line for sentence in source[:5] for line in (sentence, "")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(f"{line}\n" for line in lines).encode())))
    code, out, err = tiny_trials.ended(main, "smoke/h=4/s1", "--runs", runs)
    assert code == 0, err
    assert out.splitlines() == [line for sentence in expected for line in (sentence, "")]
    (tmp_path / "in.txt").write_text("\n".join(source[:5]))
    for name in (trial.path.name[-12:], trial.path):
        assert command("translate", name, tmp_path / "in.txt", "--runs", runs).stdout.splitlines() == expected
    assert all(word in err for word in ("20 steps", "en to de", "synthetic, scale demo", "cpu"))


@pytest.mark.slow
def test_a_line_is_what_ends_with_a_newline(smoke, trial, tmp_path):
    """A carriage return within it is a character, and at its end none. Nor is the byte order mark of a file."""
    (tmp_path / "in.txt").write_bytes(codecs.BOM_UTF8 + b"a man\ra dog\na cat\n")
    completed = command("translate", trial.path, tmp_path / "in.txt")
    assert len(completed.stdout.splitlines()) == 2, completed.stderr
    assert printed(trial.path, text="a man\ra dog\na cat\n").stdout == completed.stdout
    assert printed(trial.path, text="a man\ra dog\r\na cat\r\n").stdout == completed.stdout


def test_typed_lines_are_answered_one_by_one(smoke, trial):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "transformer_pl.translate", str(trial.path)]
    with subprocess.Popen(words, cwd=ROOT, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for _ in range(2):
            os.write(ours, b"the dog sees a cat .\n")
            assert process.stdout.readline()  # before the next line, or any end
        os.write(ours, b"\x04")
        _, completed = process.communicate(timeout=30)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0 and b"Ctrl-D" in completed


@pytest.mark.slow
def test_any_characters_go_through_a_pipe_in_any_locale(smoke, trial):
    """Also after a byte order mark."""
    words = [sys.executable, "-m", "transformer_pl.translate", str(trial.path)]
    latin = os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    plain, marked = (
        subprocess.run(words, cwd=ROOT, env=latin, capture_output=True, input=mark + "„a dog“ sees …\n".encode())
        for mark in (b"", "\ufeff".encode())
    )
    assert plain.returncode == marked.returncode == 0, plain.stderr + marked.stderr
    assert plain.stdout.decode() == marked.stdout.decode()


@pytest.mark.parametrize("missing", ["weights.safetensors", "data"])
def test_a_trial_without_its_weights_or_its_text_names_what_is_missing(smoke, trial, tmp_path, missing):
    """As in an archive of results."""
    copy = tmp_path / "trials" / trial.path.name
    shutil.copytree(trial.path, copy, ignore=shutil.ignore_patterns(missing, "wandb"))
    if missing != "data":
        (tmp_path / "data").symlink_to(smoke[0] / "data")
    code, out, err = tiny_trials.ended(main, copy)
    assert code == 2 and not out and missing in err


@pytest.mark.parametrize(
    ("argv", "law"),
    [
        (["nothing-like-it"], "nothing-like-it"),
        (["demo"], "TRIAL demo"),
        (["smoke/h=4/s1", "missing.txt"], "missing.txt"),
        (["smoke/h=4/s1", "--beam", "0"], "decode.beam = 0"),
        ([], "TRIAL"),
    ],
)
def test_wrong_input_is_reported(smoke, argv, law):
    code, out, err = tiny_trials.ended(main, *argv, "--runs", smoke[0])
    assert code == 2 and not out and law in err and "Traceback" not in err
