"""The wheel that a release is: installed in an environment of its own, and used from a folder that holds nothing else.

The environment sees the packages of this one, so that nothing is downloaded, but not this folder.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
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
IN_SWEEPS = ("*.yaml", "published/*.csv", "results/*.tar.xz")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A folder with the source distribution, and the wheel that is made from it alone. Nothing is deprecated."""
    pytest.importorskip("build", reason="no build: pip install build")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGED, "tests"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    said = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", made, cwd=source, errors=subprocess.STDOUT)
    assert "deprecat" not in said.lower() and "is absent from" not in said, said
    return made


@pytest.fixture(scope="module")
def wheel(release):
    return next(release.glob("*.whl"))


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


def run(*words: object, cwd: Path, errors: int = subprocess.PIPE) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "WANDB_MODE": "disabled"
    }
    words = [str(word) for word in words]
    outputs = {"stdout": subprocess.PIPE, "stderr": errors}
    done = subprocess.run(words, cwd=cwd, env=environment, **outputs, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    with zipfile.ZipFile(wheel) as file:
        packaged = {name for name in file.namelist() if ".dist-info/" not in name}
    files = {path.relative_to(ROOT) for name in PACKAGED for path in (ROOT / name).rglob("*") if path.suffix in DATA}
    beside = {str(path) for path in files if path.parts[0] != "sweeps" and "sweeps" not in path.parts}
    sweeps = [path for kind in IN_SWEEPS for path in (ROOT / "sweeps").glob(kind)]
    assert packaged == beside | {f"transformer_pl/{path.relative_to(ROOT)}" for path in sweeps}


def test_a_sweep_runs_from_another_folder(command, elsewhere):
    said = run(command, "sweep", "mine.yaml", "--scale", "tiny.yaml", cwd=elsewhere)
    assert "position=NoPosition" in said and "residual=Mine" in said and "3 trials, 3 to train" in said
    page = run(command, "report", "mine.yaml", "--scale", "tiny.yaml", "--format", "html", cwd=elsewhere).strip()
    assert "position=NoPosition" in (elsewhere / page).read_text()


def test_the_source_distribution_has_no_tests(release):
    """Only some of their files would be in it."""
    with tarfile.open(next(release.glob("*.tar.gz"))) as file:
        assert not [name for name in file.getnames() if "tests" in Path(name).parts]


def test_what_ships_is_found_by_its_name(command, elsewhere):
    """A sweep file, a scale, the paper's numbers, those of another paper, and trials; and no message has its path."""
    assert "table3-E at scale demo" in run(command, "sweep", "table3_E", "--plan", cwd=elsewhere)
    words = ["table3_E", "--scale", "tiny.yaml", "--seeds", "1", "--paper"]
    assert "25.7" in run(command, "sweep", *words, cwd=elsewhere)
    words = ["narang2021.csv", "--row=model", "--metric=early_loss", "--lower-is-better", "--std=std", "--n=n"]
    assert "Funnel Transformer" in run(command, "report", *words, cwd=elsewhere)
    said = run(command, "report", "table3_A", "--shipped", cwd=elsewhere, errors=subprocess.STDOUT)
    assert "h=32" in said and "-packages" not in said
    words = [command, "report", "table3_A", "--runs", "none"]
    refused = subprocess.run(words, cwd=elsewhere, capture_output=True, text=True)
    assert refused.returncode == 2 and "--shipped" in refused.stderr and "-packages" not in refused.stderr


def test_the_version_is_that_of_pyproject(command, elsewhere):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(command, "--version", cwd=elsewhere) == f"transformer-pl {version}\n"
    assert run(command, "sweep", "--version", cwd=elsewhere) == f"transformer-pl {version}\n"
