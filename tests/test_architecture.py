"""How the modules depend on each other: imports run one way, and each outside library has one door."""

import ast
import tomllib
from pathlib import Path

import pytest
from helpers import ROOT, check_names

PACKAGE = ROOT / "transformer_pl"
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
DOORS = {
    "wandb": "transformer_pl.train.wandb_run",
    "lm_eval": "transformer_pl.lm_eval",
    "wandb_workspaces": "transformer_pl.train.wandb_view",
    "datasets": "transformer_pl.data.hub",
    "pynvml": "transformer_pl.runtime.machine",
    "pyarrow": "transformer_pl.data.files",
    "sacrebleu": "transformer_pl.tasks.translation",
    "sacremoses": "transformer_pl.tasks.translation",
    "sentencepiece": "transformer_pl.data.tokenizer",
    "safetensors": "transformer_pl.trials.trial_folder",
    "matplotlib": "transformer_pl.table.figures",
    "optuna": "transformer_pl.search.",
}


def imported(path: Path) -> set[str]:
    """The modules that a file imports, at its top, in functions and for type checkers."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imports() -> dict[str, set[str]]:
    """Which modules each module imports, with those that it names for type checkers alone."""
    modules = {module.removesuffix(".__init__"): path for module, path in FILES.items()}
    return {module: (imported(path) & modules.keys()) - {module} for module, path in modules.items()}


def test_modules_import_each_other_one_way():
    """A graph has no circle if nodes that nobody imports can be removed until none is left."""
    graph = imports()
    while graph:
        needed = set().union(*graph.values())
        assert graph.keys() - needed, f"these import each other in a circle: {graph}"
        graph = {name: others for name, others in graph.items() if name in needed}


def test_no_import_runs_up():
    """The map lists the rooms from the top. The files of commands lie above all of them, and the API calls them."""
    table = (PACKAGE / "README.md").read_text(encoding="utf-8").split("|---|---|")[1].split("\n\n")[0]
    order = [line.split("`")[1].removesuffix(".py").rstrip("/") for line in table.strip().splitlines()]
    graph = imports()
    rooms = {module: module.split(".")[1] for module in graph if "." in module and not module.endswith(".__main__")}
    check_names(order, rooms.values(), "list each room once in the first table of transformer_pl/README.md")
    for module, room in rooms.items():
        others = {name for name in graph[module] if name in rooms and rooms[name] != room}
        up = [name for name in others if order.index(rooms[name]) < order.index(room)]
        assert not up, f"{module} imports {up}"


@pytest.mark.parametrize("library", DOORS)
def test_a_library_is_imported_in_one_place(library):
    users = [
        module for module, path in FILES.items() if any(name.partition(".")[0] == library for name in imported(path))
    ]
    assert users and all(user.startswith(DOORS[library]) for user in users), users


def test_every_package_is_installed():
    """tests/test_wheel.py installs them."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    outside = {"ablations", "transformer_pl.sweeps", "transformer_pl.sweeps.published", "transformer_pl.sweeps.results"}
    folders = {path.parent for path in PACKAGE.rglob("*") if path.suffix in (".py", ".yaml", ".html")}
    expected = {*outside, *(".".join(folder.relative_to(ROOT).parts) for folder in folders)}
    check_names(packages, expected, "name each folder in `packages` of pyproject.toml")


def test_tables_are_made_of_arrays_and_names():
    """Anyone can make one of their own: the room imports nothing of the rest."""
    of_table = [names for module, names in imports().items() if module.startswith("transformer_pl.table")]
    rooms = {name.split(".")[1] for names in of_table for name in names if "." in name}
    assert rooms <= {"table", "runtime"}


def test_the_core_imports_no_ablation():
    assert not any(name.startswith("ablations") for path in FILES.values() for name in imported(path))
