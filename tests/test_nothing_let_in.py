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
from helpers import ROOT

from transformer_pl.api import load_trial
from transformer_pl.config import Component
from transformer_pl.config.component_sources import source_digests
from transformer_pl.runtime.errors import InputError

# Of ruff: exec, eval, temporary files with known names, pickles, unsafe YAML, texts that a shell runs.
RULES = "S102,S108,S301,S302,S306,S307,S403,S506,S602,S604,S605"
EXCEPTIONS = (
    "transformer_pl/runtime/files.py:S506",  # a subclass of yaml.SafeLoader, tested by what it reads
    *(f"transformer_pl/runtime/calls.py:{rule}" for rule in ("S301", "S403")),  # between a process and its own child
    *(f"transformer_pl/train/passes.py:{rule}" for rule in ("S301", "S403")),  # what this process has just written
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
    (trial.folder / "result.json").unlink()
    checkpoint = trial.folder / "checkpoints" / "last.ckpt"
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
    files = trial.folder / "result.json", next(tmp_path.glob("runs/data/*/meta.json")), trial.folder / "identity.json"
    result, meta, identity = (json.loads(file.read_text()) for file in files)
    result["config"] |= {key: path} | {f"{key}.{name}": value for name, value in options.items()}
    if key == "data.tokenizer":
        code = hashlib.sha256(b"").hexdigest()
        meta["settings"]["tokenizer"] = {"path": path, "options": options, "code": code, "content": ""}
    identity["parts"] = source_digests({key.rpartition(".")[2]: Component(path=path)})
    for file, content in zip(files, (result, meta, identity), strict=True):
        file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"{key} = {path}"):
        load_trial(trial.folder).translate(["a b"])
        _ = load_trial(trial.folder).task  # as the command does
    assert not Path("built").exists()


def test_no_module_is_imported_before_its_code_is_compared(module, tmp_path, monkeypatch):
    """That a stranger's result names: by what loads its model, its tokenizer or its task."""
    monkeypatch.chdir(tmp_path)
    module("open('imported', 'w')\nclass Part:\n    pass\n")
    _, trial = tiny_trials.train(tmp_path / "runs", {})
    file, meta = trial.folder / "result.json", next(tmp_path.glob("runs/data/*/meta.json"))
    result, settings = json.loads(file.read_text()), json.loads(meta.read_text())
    own = {"path": "stranger.Part", "options": {}, "code": "0" * 64, "content": ""}
    meta.write_text(json.dumps(settings | {"settings": settings["settings"] | {"tokenizer": own}}))
    for key in ("data.task", "model.ffn", "model.embedding", "decode.intervention"):
        file.write_text(json.dumps(result | {"config": result["config"] | {key: "stranger.Part"}}))
        for use in (lambda one: one.task, lambda one: one.model, lambda one: one.translate(["a"])):
            with suppress(InputError):
                use(load_trial(trial.folder))
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
