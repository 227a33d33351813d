"""What all commands share: their help, their version, the console command, and sweep files found by their names."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tiny_trials
import yaml
from helpers import ROOT, SHIPPED, check_names, shared_text

from transformer_pl import __main__ as console
from transformer_pl import check, complexity, lm_eval, translate
from transformer_pl.plan.shared_options import sweep_file
from transformer_pl.plan.sweep_file import located
from transformer_pl.report import __main__ as report
from transformer_pl.runtime import children
from transformer_pl.runtime.errors import InputError
from transformer_pl.sweep import __main__ as sweep
from transformer_pl.train import __main__ as train

MODULES = {module.__name__.split(".")[1]: module for module in (sweep, report, train, translate, check, complexity)}
SLOW = ("torch", "lightning", "matplotlib", "optuna", "sqlalchemy", "wandb", "datasets", "sacrebleu")
SLOW += ("scipy.stats", "scipy.special", "scipy.optimize")  # which scipy itself loads where they are first used


def test_the_help_imports_nothing_slow():
    """It takes a few tenths of a second, where torch alone takes seconds."""
    program = (
        "import importlib, sys\n"
        f"for name in {[module.__name__ for module in MODULES.values()]}:\n"
        "    try: importlib.import_module(name).main(['--help'])\n"
        "    except SystemExit: pass\n"
        f"print('imported:', *[name for name in {SLOW} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "imported:", done.stderr


@pytest.mark.parametrize("module", [*MODULES.values(), lm_eval], ids=[*MODULES, "lm_eval"])
def test_the_help_fits_a_narrow_terminal(module, monkeypatch, capsys):
    """Whatever is wider is one word."""
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        module.main(["--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 60 and " " in line.strip()] == []


TRIAL = f"""
import sys
before = set(sys.modules)
from transformer_pl.train.__main__ import main
code = main(sys.argv[1:])
print("imported:", *[name for name in {SLOW} if name in set(sys.modules) - before])
sys.exit(code)
"""


def test_the_trials_of_a_sweep_import_nothing_slow(tmp_path, monkeypatch):
    """They are forked from a process that has imported it once."""
    (tmp_path / "trial.py").write_text(TRIAL)
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = tiny_trials.TINY | {"data.path": shared_text(), "runs": tmp_path / "runs"}
    argv, log = [f"--{key}={value}" for key, value in keys.items()], tmp_path / "log"
    child = children.start_module("trial", argv, os.environ | {"WANDB_MODE": "disabled"}, log)
    child.join(120)
    assert child.exitcode == 0 and log.read_text().splitlines()[-1] == "imported:", log.read_text()


EVALUATING = """
import sys
from transformer_pl import translate
from transformer_pl.api import load_trial
from transformer_pl.report import __main__ as report
from transformer_pl.sweep import __main__ as sweep
file, text, runs = sys.argv[1:]
calls = {
    "translate": lambda: translate.main(["smoke/base/s1", text, "--runs", runs]),
    "load_trial": lambda: load_trial("smoke/base/s1", runs).model,
    "page": lambda: report.main([file, "--format", "html", "--runs", runs]),
    "sweep": lambda: sweep.main([file, "--runs", runs]),
}
for name, call in calls.items():
    call()
    print(f"imported by {name}:", *{"lightning"} & {*sys.modules})
"""


def test_what_only_evaluates_imports_no_lightning(smoke, tmp_path):
    """It takes seconds, and 200 MB. The page with its attention, and the end of a sweep, evaluate, too."""
    runs, text = shutil.copytree(smoke[0], tmp_path / "runs"), tmp_path / "text"
    content = yaml.safe_load((ROOT / "sweeps" / "smoke.yaml").read_text())
    content["parameters"]["variant"]["values"] = ["base", "model.h=4"]
    (tmp_path / "smoke.yaml").write_text(yaml.safe_dump(content))
    text.write_text("a cat\n")
    words = [sys.executable, "-c", EVALUATING, tmp_path / "smoke.yaml", text, runs]
    environment = os.environ | {"WANDB_MODE": "disabled"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    imported = [line for line in done.stdout.splitlines() if line.startswith("imported by ")]
    assert len(imported) == 4 and all(line.endswith(":") for line in imported), done.stdout + done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_every_command_tells_the_version(name, capsys):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with pytest.raises(SystemExit):
        MODULES[name].main(["--version"])
    assert capsys.readouterr().out == f"transformer-pl {version}\n"


# ---------------------------------------------------------------------------------------------------------------------
# The console command


def test_a_sweep_file_in_the_place_of_a_command_is_answered_with_the_command():
    with pytest.raises(InputError, match=r"transformer-pl sweep my/x\.yaml"):
        console.explain(["my/x.yaml"])


def test_the_console_command_explains_every_command(capsys):
    check_names(console.COMMANDS, MODULES, "give each command its sentence in COMMANDS of transformer_pl/__main__.py")
    with pytest.raises(SystemExit):
        console.explain(["--help"])
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in MODULES)
    with pytest.raises(InputError, match="repotr"):
        console.explain(["repotr"])


@pytest.mark.slow
def test_the_console_command_becomes_the_command(tmp_path):
    """With its exit code, and with the modules of the folder in which it was started."""
    (tmp_path / "mine.py").write_text("class Mine:\n    def forward(self, a, b, c):\n        pass\n")
    words = [sys.executable, "-m", "transformer_pl", "check", "mine.Mine"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "mine.Mine" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("sweep table3_B --plan >&-", 2),
        pytest.param("sweep table3_B --plan | true", 1, marks=pytest.mark.slow),
        pytest.param("sweep nosuch | true", 2, marks=pytest.mark.slow),
    ],
)
def test_an_output_that_nobody_reads_ends_without_a_traceback(tmp_path, words, code):
    shell = f"{sys.executable} -m transformer_pl.{words}; echo ${{PIPESTATUS[0]}} > {tmp_path}/code"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (tmp_path / "code").read_text() == f"{code}\n" and "Traceback" not in done.stderr, done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Sweep files by name


@pytest.mark.parametrize("words", ["sweep table3_B --plan --runs", "train --data.path"])
def test_a_path_that_is_too_long_is_a_mistake_of_the_command_line(words):
    """Wherever the first file below it is looked for."""
    command = [sys.executable, "-m", *f"transformer_pl.{words}={'a' * 5000}".split()]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "aaa" in done.stderr, done.stderr


def test_a_shipped_sweep_file_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert all(located(sweep_file(path.stem)).samefile(path) for path in SHIPPED)


def test_a_file_comes_before_a_name_that_ships(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attention").mkdir()  # a folder is no sweep file
    assert located(sweep_file("attention")).is_file()
    (tmp_path / "table3").write_text("name: mine\n")
    for word in ("table3", "table3.yaml", "sweeps/table3", str(tmp_path / "none")):
        assert located(sweep_file(word)) == Path(word)


def test_the_train_command_gives_a_sign_of_life_before_it_imports_torch(tmp_path, monkeypatch, capsys):
    """Which takes seconds. The sweep command does not import it at all: `--help` above."""
    for name in ("lightning", "transformer_pl.train.one_trial"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="one_trial"):
        tiny_trials.train(tmp_path / "runs", {})
    assert re.fullmatch(rf"{tmp_path}/runs/trials/\S+: importing torch\n", capsys.readouterr().out)
