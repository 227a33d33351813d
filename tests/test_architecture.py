"""How the modules depend on each other: imports run one way, and each outside library has one door."""

import ast
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from helpers import ROOT

PACKAGE = ROOT / "transformer_pl"
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
DOORS = {
    "wandb": "transformer_pl.training.wandb_process",
    "datasets": "transformer_pl.data.hub",
    "pyarrow": "transformer_pl.data.files",
    "sacrebleu": "transformer_pl.evaluation.score",
    "sacremoses": "transformer_pl.evaluation.score",
    "sentencepiece": "transformer_pl.data.tokenizer",
    "matplotlib": "transformer_pl.reporting.plots",
    "optuna": "transformer_pl.search.",
}


def imported(path: Path, everywhere: bool) -> set[str]:
    """The modules that a file imports: at its top, where no import is for type checkers alone, or everywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package(module: str) -> str:
    """`data` of `transformer_pl.data.batches`; the name of a module at the root stays."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (PACKAGE / parts[-1]).is_dir() else module


def packages_imported_by() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for module, path in FILES.items():
        own = [name for name in imported(path, everywhere=False) if name in FILES]
        graph.setdefault(package(module), set()).update(package(name) for name in own)
    return {name: others - {name} for name, others in graph.items()}


def test_packages_import_each_other_one_way():
    """A graph has no circle if nodes that nobody imports can be removed until none is left."""
    graph = packages_imported_by()
    while graph:
        free = [name for name in graph if not any(name in others for others in graph.values())]
        assert free, f"these import each other in a circle: {graph}"
        graph = {name: others for name, others in graph.items() if name not in free}


@pytest.mark.parametrize("library", DOORS)
def test_a_library_is_imported_in_one_place(library):
    users = [
        module
        for module, path in FILES.items()
        if any(name.partition(".")[0] == library for name in imported(path, everywhere=True))
    ]
    assert users and all(user.startswith(DOORS[library]) for user in users), users


def test_every_package_is_installed():
    """setuptools finds what matches these patterns; tests/test_wheel.py installs it."""
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = [".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("__init__.py")]
    assert len(packages) > 10 and all(any(fnmatch(name, one) for one in include) for name in ["ablations", *packages])


def test_the_core_imports_no_ablation():
    assert not any(name.startswith("ablations") for path in FILES.values() for name in imported(path, everywhere=True))
