"""The wheel that a release is: installed in an environment of its own, and used from a folder that holds nothing else.

The environment sees the packages of this one, so that nothing is downloaded, but not this folder.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from helpers import ROOT, little_text
from tiny_trials import TINY

pytestmark = pytest.mark.slow
PACKAGED = ("transformer_pl", "ablations", "sweeps")
DATA = (".py", ".yaml", ".html", ".css", ".js", ".gz", ".csv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build", reason="no build: pip install build")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGED:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", made, cwd=source)
    return next(made.glob("*.whl"))


@pytest.fixture(scope="module")
def command(wheel, tmp_path_factory):
    """The console command of the wheel, in an environment of its own."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "outside.pth").write_text("\n".join({sysconfig.get_path(name) for name in ("purelib", "platlib")}))
    return folder / "bin" / "transformer-pl"


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with a copied sweep file, of which two rows are ablations, one that ships and one's own, and a scale."""
    content = yaml.safe_load((ROOT / "sweeps" / "smoke.yaml").read_text())
    own = "model.residual=ablations.mine.Mine"
    content["parameters"] = {"variant": {"values": ["base", "model.position=ablations.no_position.NoPosition", own]}}
    (tmp_path / "ablations").mkdir()  # the user's own folder of this name joins the one that ships
    (tmp_path / "ablations" / "mine.py").write_text(
        "from transformer_pl.model import PostNormResidual\n\n\nclass Mine(PostNormResidual):\n    pass\n"
    )
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    little_text(tmp_path / "text")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY | {"data.path": "text"}))
    return tmp_path


def run(*words: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "WANDB_MODE": "disabled"
    }
    words = [str(word) for word in words]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    with zipfile.ZipFile(wheel) as file:
        packaged = {name for name in file.namelist() if ".dist-info/" not in name}
    files = {path.relative_to(ROOT) for name in PACKAGED for path in (ROOT / name).rglob("*") if path.suffix in DATA}
    beside = {str(path) for path in files if path.parts[0] != "sweeps" and "sweeps" not in path.parts}
    sweeps = [path for kind in ("*.yaml", "published/*.csv") for path in (ROOT / "sweeps").glob(kind)]
    assert packaged == beside | {f"transformer_pl/{path.relative_to(ROOT)}" for path in sweeps}


def test_a_sweep_runs_from_another_folder(command, elsewhere):
    said = run(command, "sweep", "mine.yaml", "--scale", "tiny.yaml", cwd=elsewhere)
    assert "position=NoPosition" in said and "residual=Mine" in said and "3 trials, 3 to train" in said
    page = run(command, "report", "mine.yaml", "--scale", "tiny.yaml", "--format", "html", cwd=elsewhere).strip()
    assert "position=NoPosition" in (elsewhere / page).read_text()


def test_what_ships_is_found_by_its_name(command, elsewhere):
    """A sweep file, a scale, the paper's numbers, and those of another paper."""
    assert "table3-E at scale demo" in run(command, "sweep", "table3_E", "--plan", cwd=elsewhere)
    words = ["table3_E", "--scale", "tiny.yaml", "--seeds", "1", "--paper"]
    assert "25.7" in run(command, "sweep", *words, cwd=elsewhere)
    words = ["narang2021.csv", "--row=model", "--metric=early_loss", "--std=std", "--n=n"]
    assert "Funnel Transformer" in run(command, "report", *words, cwd=elsewhere)


def test_the_version_is_that_of_pyproject(command, elsewhere):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(command, "--version", cwd=elsewhere) == f"transformer-pl {version}\n"
    assert run(command, "sweep", "--version", cwd=elsewhere) == f"transformer-pl {version}\n"
