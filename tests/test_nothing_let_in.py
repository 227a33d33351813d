"""Nothing gets in by a file: loading never runs code."""

import ast
from pathlib import Path

import pytest
import tiny_trials
import torch
from helpers import ROOT

SOURCES = [path for folder in ("transformer_pl", "ablations") for path in sorted((ROOT / folder).rglob("*.py"))]


# ---------------------------------------------------------------------------------------------------------------------
# How the source loads, starts and makes files

PICKLES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
SAFE_YAML = {"yaml.safe_load", "yaml.safe_dump"}
RUNS_TEXT = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
RUNS_TEXT |= {"asyncio.create_subprocess_shell", "pty.spawn"}
GUESSABLE = {"tempfile.mktemp", "tempfile.gettempdir", "os.tmpnam"}


def dangers(tree):
    """What a source does that its rules forbid, each with its line."""
    loaders = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and is_safe_loader(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if PICKLES & {name.partition(".")[0] for name in names}:
                yield node.lineno, "loads or saves pickles"
            if isinstance(node, ast.ImportFrom) and node.module in ("yaml", "subprocess", "os", "torch", "tempfile"):
                called = {f"{node.module}.{alias.name}" for alias in node.names}
                if called & (RUNS_TEXT | GUESSABLE | {"torch.load", "yaml.load"}):
                    yield node.lineno, "imports a function under a name of its own"
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, danger) for danger in dangers_of_call(node, loaders))
        elif isinstance(node, ast.Constant) and str(node.value).startswith(("/tmp", "/var/tmp")):
            yield node.lineno, "names a temporary file itself"


def is_safe_loader(node):
    return [ast.unparse(base) for base in node.bases] == ["yaml.SafeLoader"]


def dangers_of_call(call, loaders):
    name = ast.unparse(call.func)
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name == "yaml.load":
        if not (len(call.args) == 2 and ast.unparse(call.args[1]) in loaders):
            yield "loads YAML unsafely"
    elif name.startswith("yaml.") and "load" in name and name not in SAFE_YAML:
        yield "loads YAML unsafely"
    if name in ("torch.load", "trainer.fit") and keywords.get("weights_only") != "True":
        yield "loads a file of torch without weights_only=True"
    if keywords.get("allow_pickle", "False") != "False":
        yield "loads or saves pickles"
    if name in RUNS_TEXT or keywords.get("shell", "False") != "False":
        yield "lets a shell or Python run a text"
    if name in GUESSABLE:
        yield "names a temporary file itself"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_that_is_read_can_run_code(path):
    assert not list(dangers(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "source",
    [
        "yaml.load(file, yaml.Loader)",
        "yaml.full_load(file)",
        "class Own(yaml.Loader): ...\nyaml.load(file, Own)",
        "from yaml import load",
        "torch.load(path, weights_only=False)",
        "trainer.fit(module, data, ckpt_path=path)",
        "np.load(path, allow_pickle=True)",
        "import pickle",
        "subprocess.run(f'ls {name}', shell=True)",
        "os.system(words)",
        "eval(text)",
        "open('/tmp/transformer_pl')",
    ],
)
def test_the_rules_find_what_they_forbid(source):
    assert list(dangers(ast.parse(source)))


# ---------------------------------------------------------------------------------------------------------------------
# Files and packages that would run code


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
    tiny_trials.train(tmp_path / "runs", {})
    assert not Path("imported").exists()


def test_no_file_of_a_trial_has_a_key_or_a_password(tmp_path, monkeypatch, capfd):
    """They are variables of the process that trains it. W&B's own files: tests/training/test_logger.py."""
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
