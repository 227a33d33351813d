"""Nothing gets in by a file: loading never runs code, and only components that the user trusts are imported."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest
import tiny_trials
import torch
import yaml
from helpers import ROOT, little_text
from packaging.requirements import Requirement

from transformer_pl import check, sweep, train
from transformer_pl.components import is_projects
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import sha256

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
    ("source", "danger"),
    [
        ("import yaml\nyaml.load(file, yaml.Loader)", "YAML"),
        ("import yaml\nyaml.load(file)", "YAML"),
        ("import yaml\nyaml.full_load(file)", "YAML"),
        ("import yaml\nclass Own(yaml.Loader): ...\nyaml.load(file, Own)", "YAML"),
        ("from yaml import load", "name of its own"),
        ("torch.load(path)", "weights_only"),
        ("torch.load(path, weights_only=False)", "weights_only"),
        ("trainer.fit(module, data, ckpt_path=path)", "weights_only"),
        ("from torch import load", "name of its own"),
        ("np.load(path, allow_pickle=True)", "pickles"),
        ("import pickle", "pickles"),
        ("from joblib import load", "pickles"),
        ("subprocess.run(f'ls {name}', shell=True)", "shell"),
        ("subprocess.Popen(words, shell=flag)", "shell"),
        ("os.system(words)", "shell"),
        ("eval(text)", "shell"),
        ("tempfile.mktemp()", "temporary"),
        ("open('/tmp/transformer_pl')", "temporary"),
    ],
)
def test_the_rules_find_what_they_forbid(source, danger):
    assert any(danger in what for _, what in dangers(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "class Own(yaml.SafeLoader): ...\nyaml.load(file, Own)",
        "yaml.safe_load(file)",
        "torch.load(path, weights_only=True)",
        "np.load(path, mmap_mode='r')",
        "subprocess.run(['ls', name])",
        "model.eval()",
        "tempfile.TemporaryDirectory()",
    ],
)
def test_the_rules_let_pass_what_is_safe(source):
    assert not list(dangers(ast.parse(source)))


# ---------------------------------------------------------------------------------------------------------------------
# Components from outside of the project

OWN = """
from pathlib import Path

from constants import rate
from transformer_pl.model import FeedForward

Path("imported").touch()


class Own(FeedForward):
    pass
"""


@pytest.fixture
def outside(module, tmp_path, monkeypatch):
    """A module of the user's, in a package whose import leaves a file as well, and the name of its class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    module("rate = 1\n", "constants")
    module(OWN, "strange.own")
    module("from pathlib import Path\n\nPath('imported').touch()\n", "strange.__init__")
    return "strange.own.Own"


def run(main, *words):
    with tiny_trials.in_a_command():
        return main([str(word) for word in words])


ABLATION = "ablations.learned_position.LearnedPosition"
PAPERS = "transformer_pl.model.FeedForward"
SEARCH = {"method": "random", "run_cap": 2, "metric": {"name": "val/ppl", "goal": "minimize"}}


def write_sweep(component, **more):
    """A grid of a component beside an ablation; or a search for a component."""
    if not Path("text").exists():
        Path("text").mkdir()
        little_text(Path("text"), 60, 8, 6)
    slots = {"model.ffn": {"value": component}, "model.position": {"value": ABLATION}}
    if more:
        slots = {"model.ffn": {"values": [PAPERS, component]}}
    keys = {key: {"value": value} for key, value in (tiny_trials.TINY | {"data.path": "text"}).items()}
    Path("mine.yaml").write_text(yaml.safe_dump({"method": "grid", "parameters": keys | slots} | more))
    return "mine.yaml"


REFUSED = (
    r"model\.ffn = strange\.own\.Own: with --trusted-only it must be of transformer_pl or ablations, but its module "
    r"strange\.own is from outside of the project; leave --trusted-only out .*, or name another component"
)


@pytest.mark.parametrize("more", [{}, SEARCH], ids=["grid", "search"])
def test_a_plan_lists_what_is_imported_from_outside(outside, more, capsys):
    assert run(sweep.main, write_sweep(outside, **more), "--plan") == 0
    said = capsys.readouterr().out
    assert "imported from outside of the project: constants, strange, strange.own\n" in said
    assert Path("imported").exists()
    assert run(sweep.main, write_sweep(PAPERS), "--plan", "--trusted-only") == 0
    assert "outside" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--plan"], []])
@pytest.mark.parametrize("more", [{}, SEARCH], ids=["grid", "search"])
def test_a_sweep_imports_nothing_from_outside(outside, more, words):
    with pytest.raises(InputError, match=f"^mine.yaml: {REFUSED}$"):
        run(sweep.main, write_sweep(outside, **more), "--trusted-only", *words)
    assert not Path("imported").exists() and "strange" not in sys.modules and not Path("runs").exists()


def test_train_imports_nothing_from_outside(outside):
    with pytest.raises(InputError, match=f"^{REFUSED}$"):
        run(train.main, f"--model.ffn={outside}", "--trusted-only")
    assert not Path("imported").exists() and "strange" not in sys.modules and not Path("runs").exists()


def test_a_variable_says_the_same_where_no_option_can(outside, monkeypatch):
    """As under W&B's agent."""
    monkeypatch.setenv("TRANSFORMER_PL_TRUSTED_ONLY", "1")
    with pytest.raises(InputError, match=REFUSED):
        run(train.main, f"--model.ffn={outside}")
    assert not Path("imported").exists()


@pytest.mark.parametrize("words", [[], ["--slot", "ffn"]])
def test_check_imports_nothing_from_outside(outside, words):
    with pytest.raises(InputError, match=r"strange\.own\.Own: with --trusted-only it must be of transformer_pl"):
        run(check.main, outside, "--trusted-only", *words)
    assert not Path("imported").exists() and "strange" not in sys.modules


def test_another_package_of_the_same_name_is_from_outside(tmp_path, monkeypatch):
    """Python imports from the working folder first."""
    assert is_projects("ablations.learned_position") and is_projects("transformer_pl.model")
    assert not any(map(is_projects, ("ablations_of_mine.one", "transformer_plus", "torch.nn", "builtins", "nowhere")))
    (tmp_path / "ablations").mkdir()
    (tmp_path / "ablations" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ablations", raising=False)
    assert not is_projects("ablations.learned_position")


# ---------------------------------------------------------------------------------------------------------------------
# Files and packages that would run code


class Pickled:
    def __reduce__(self):
        return Path.touch, (Path("imported"),)


def test_a_checkpoint_cannot_run_code(tmp_path, monkeypatch, capsys):
    """Also where its digest is right, and where a variable of torch's would let it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    _, trial = tiny_trials.train(tmp_path / "runs", {})
    (trial.folder / "result.json").unlink()
    checkpoint = trial.folder / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir()
    torch.save(Pickled(), checkpoint)
    checkpoint.with_suffix(".sha256").write_text(sha256(checkpoint))
    assert tiny_trials.train(tmp_path / "runs", {})[0] == 1
    assert "Weights only load failed" in capsys.readouterr().err and not Path("imported").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_no_file_of_a_trial_has_a_key_or_a_password(tmp_path, monkeypatch, capfd, fails):
    """They are variables of the process that trains it. W&B's own files: tests/training/test_logger.py."""
    secrets = {"WANDB_API_KEY": "k3y" + "0123456789" * 4, "PGPASSWORD": "s3cret-of-the-storage", "HF_TOKEN": "hf_t0ken"}
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)
    if fails:
        monkeypatch.setattr(train, "check_model", lambda *model: 1 / 0)
    code, _ = tiny_trials.train(tmp_path / "runs", {})
    assert code == int(fails)
    said = capfd.readouterr()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"log.txt", "env.json", "status.json"} <= {path.name for path in written}
    for secret in secrets.values():
        assert secret not in said.out + said.err
        assert not [path for path, content in written.items() if secret.encode() in content]


@pytest.mark.parametrize("version", ["2.6.2", "2.6.3", "2.6.5"])
def test_no_release_that_ran_foreign_code_is_installed(version):
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (lightning,) = [one for one in map(Requirement, dependencies) if one.name == "lightning"]
    assert version not in lightning.specifier
