"""Nothing gets in by a file: loading never runs code. And nothing secret gets out."""

import hashlib
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_trials
import torch
from helpers import ROOT, little_text, write_sweep

from transformer_pl.api import load_trial, results
from transformer_pl.config import COMPONENTS, Component
from transformer_pl.config.component_sources import source_digests
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.train import __main__ as train

# Of ruff: exec, eval, temporary files with known names, pickles, unsafe YAML, texts that a shell runs.
RULES = "S102,S108,S301,S302,S306,S307,S403,S506,S602,S604,S605"
EXCEPTIONS = (
    "transformer_pl/runtime/files.py:S506",  # a subclass of yaml.SafeLoader, tested by what it reads
    *(f"transformer_pl/runtime/calls.py:{rule}" for rule in ("S301", "S403")),  # between a process and its own child
)


def test_no_source_runs_a_text_or_loads_what_can_run_code():
    words = ["check", "--isolated", "--preview", f"--select={RULES}", f"--per-file-ignores={','.join(EXCEPTIONS)}"]
    command = [sys.executable, "-m", "ruff", *words, "transformer_pl", "ablations"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    for path in sorted((ROOT / "transformer_pl").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        assert "allow_pickle" not in source, path
        for call in re.findall(r"(?:torch\.load|trainer\.fit)\(.*", source):
            assert "weights_only=True" in call, path


class Pickled:
    def __reduce__(self):
        return Path.touch, (Path("imported"),)


def test_a_checkpoint_cannot_run_code(tmp_path, monkeypatch):
    """Also where a variable of torch's would let it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    _, trial = tiny_trials.train(tmp_path / "runs", {})
    (trial.path / "result.json").unlink()
    checkpoint = trial.path / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir()
    torch.save(Pickled(), checkpoint)
    with pytest.raises(InputError, match=r"last\.ckpt"):
        tiny_trials.train(tmp_path / "runs", {})
    assert not Path("imported").exists()


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("data.tokenizer", {"args": "touch built", "shell": True}),
        ("decode.intervention", {"args": "touch built", "shell": True}),
        ("model.ffn", {}),
        ("data.task", {}),
    ],
)
def test_a_class_that_fills_no_slot_is_not_built_though_a_runs_folder_names_it(
    module, tmp_path, monkeypatch, key, options
):
    """A result and a dataset that were copied from elsewhere may name any class that can be imported."""
    monkeypatch.chdir(tmp_path)
    module("class Built:\n    def __init__(self, *given):\n        open('built', 'w')\n")
    path = "subprocess.Popen" if options else "stranger.Built"
    _, trial = tiny_trials.train(tmp_path / "runs", {})
    files = trial.path / "result.json", next(tmp_path.glob("runs/data/*/meta.json")), trial.path / "identity.json"
    result, meta, identity = (json.loads(file.read_text()) for file in files)
    result["config"] |= {key: path} | {f"{key}.{name}": value for name, value in options.items()}
    if key == "data.tokenizer":
        code = hashlib.sha256(b"").hexdigest()
        meta["settings"]["tokenizer"] = {"path": path, "options": options, "code": code, "content": ""}
    identity["parts"] = source_digests({key.rpartition(".")[2]: Component(path=path)})
    for file, content in zip(files, (result, meta, identity), strict=True):
        file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"{key} = {path}"):
        load_trial(trial.path).translate(["a b"])
        _ = load_trial(trial.path).task  # as the command does
    assert not Path("built").exists()


def in_api(words):
    """What a trial's file says without its model, and the records of a sweep, by Python."""
    (name,) = words
    trial = load_trial(next(Path("runs/trials").iterdir()))
    assert trial.config.model.ffn.path == "stranger.Part" and trial.metrics() and trial.decoding(beam=2)
    assert len(results(name, runs="runs")) == 2
    return 0


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (sweep.main, ["--list", "--runs=runs"]),
        (sweep.main, ["grid.yaml", "--plan", "--runs=runs"]),
        (sweep.main, ["grid.yaml", "--plan", "--runs=runs", "--set", "optim.warmup=5"]),
        (report.main, ["grid.yaml", "--runs=runs"]),
        (report.main, ["grid.yaml", "--runs=runs", "--format=json"]),
        (report.main, ["grid.yaml", "--runs=runs", "--format=html"]),
        (report.main, ["grid.yaml", "--runs=runs", "--format=csv", "--trials"]),
        (in_api, ["grid.yaml"]),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, list) else "",
)
def test_a_command_that_reads_imports_nothing_that_a_runs_folder_names(hostile, monkeypatch, main, words):
    """Though each class there is a stranger's, whose code is that with which the trials were trained."""
    monkeypatch.chdir(hostile)
    monkeypatch.syspath_prepend(hostile)
    monkeypatch.setattr("transformer_pl.api.call_in_new_interpreter", lambda function, *given: function(*given))
    assert tiny_trials.ended(main, *words)[0] == 0
    assert not Path("imported").exists() and "stranger" not in sys.modules


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder with the two finished trials of a sweep. Every class in their files has become `stranger.Part`."""
    folder = tmp_path_factory.mktemp("hostile")
    keys = tiny_trials.TINY | {"data.path": little_text(folder / "text")}
    write_sweep(folder / "grid.yaml", keys | {"variant": ["base", "model.h=4"]})
    (folder / "stranger.py").write_text("open('imported', 'w')\nclass Part:\n    pass\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        for row in ("base", "model.h=4"):
            words = [f"--{key}={value}" for key, value in (keys | {"variant": row}).items()]
            assert tiny_trials.ended(train.main, *words, "--runs=runs")[0] == 0
        assert tiny_trials.ended(sweep.main, "grid.yaml", "--runs=runs")[0] == 0
        own = Component(path="stranger.Part")
        slots = {key.rpartition(".")[2]: own for key in (*COMPONENTS, "data.task")}
        parts = source_digests(slots)
    for path in folder.glob("runs/**/*.json"):
        text = re.sub(r'"transformer_pl(\.\w+)+"', '"stranger.Part"', path.read_text())
        content = json.loads(text)
        content |= {"parts": parts} if path.name == "identity.json" else {}
        content |= {"exempt": {"stranger.Part": {"shape": "on purpose"}}} if path.name == "result.json" else {}
        path.write_text(json.dumps(content))
    return folder


def test_no_module_is_imported_before_its_code_is_compared(module, tmp_path, monkeypatch):
    """That a stranger's result names: by what loads its model, its tokenizer or its task."""
    monkeypatch.chdir(tmp_path)
    module("open('imported', 'w')\nclass Part:\n    pass\n")
    _, trial = tiny_trials.train(tmp_path / "runs", {})
    file, meta = trial.path / "result.json", next(tmp_path.glob("runs/data/*/meta.json"))
    result, settings = json.loads(file.read_text()), json.loads(meta.read_text())
    own = {"path": "stranger.Part", "options": {}, "code": "0" * 64, "content": ""}
    meta.write_text(json.dumps(settings | {"settings": settings["settings"] | {"tokenizer": own}}))
    for key in ("data.task", "model.ffn", "model.embedding", "decode.intervention"):
        file.write_text(json.dumps(result | {"config": result["config"] | {key: "stranger.Part"}}))
        for use in (lambda one: one.task, lambda one: one.model, lambda one: one.translate(["a"])):
            with suppress(InputError):
                use(load_trial(trial.path))
    assert not Path("imported").exists()


def test_no_file_of_a_trial_has_a_key_or_a_password(tmp_path, monkeypatch, capfd):
    """They are variables of the process that trains it. W&B's own files: tests/train/test_logger.py."""
    secrets = {"WANDB_API_KEY": "k3y" + "0123456789" * 4, "PGPASSWORD": "s3cret-of-the-storage", "HF_TOKEN": "hf_t0ken"}
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)
    assert tiny_trials.train(tmp_path / "runs", {})[0] == 0
    said = capfd.readouterr()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"log.txt", "env.json", "status.json"} <= {path.name for path in written}
    for secret in secrets.values():
        assert secret not in said.out + said.err
        assert not [path for path, content in written.items() if secret.encode() in content]
