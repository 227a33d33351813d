"""Small grids, which are trained in seconds, and what their commands have left."""

from pathlib import Path
from typing import Any

import yaml
from helpers import little_text
from tiny_trials import TINY


def small_grid(folder: Path, rows: tuple[str, ...] = ("base",), seeds: tuple[int, ...] = (1, 2), **keys: Any) -> Path:
    """A sweep file of tiny trials, with its text beside it. keys: with `__` for a dot."""
    folder.mkdir(exist_ok=True)
    little_text(folder / "text")
    fixed = TINY | {"data.path": str(folder / "text")} | {key.replace("__", "."): v for key, v in keys.items()}
    parameters = {key: {"value": value} for key, value in fixed.items()}
    parameters |= {"variant": {"values": list(rows)}, "seed": {"values": list(seeds)}}
    content = {"program": "transformer_pl/train.py", "name": "grid", "method": "grid", "parameters": parameters}
    (folder / "grid.yaml").write_text(yaml.safe_dump(content))
    return folder / "grid.yaml"


def table(runs: Path) -> str:
    """The only table of a runs folder, in full precision: it has no times."""
    (file,) = runs.glob("sweeps/*/results.csv")
    return file.read_text()
