"""Files that options name: their content decides, wherever they lie."""

import json

import pytest

from transformer_pl.config.levels import Level, resolve
from transformer_pl.trials.identity import identity

OWN = """
from pathlib import Path
from lightning.pytorch.callbacks import Callback
from torch import nn


class FromFile(nn.Module):
    def __init__(self, config, site, file: Path, label: str = "a"):
        super().__init__()


class Optional(FromFile):
    def __init__(self, config, site, file: "Path | None" = None):
        super().__init__(config, site, file)


class Reads(Callback):
    def __init__(self, file: Path):
        pass
"""


def of_position(name, file):
    return {"model.position": f"stranger.{name}", "model.position.file": str(file)}


def of_callback(_, file):
    return {"trainer.callbacks": json.dumps({"stranger.Reads": {"file": str(file)}})}


@pytest.mark.parametrize(
    ("keys", "name"),
    [(of_position, "FromFile"), (of_position, "Optional"), (of_callback, "")],
    ids=lambda x: str(x)[:20],
)
def test_a_file_counts_by_its_content_in_place_of_its_path(module, tmp_path, keys, name):
    module(OWN)
    file, copy, other = (tmp_path / name for name in ("a.pt", "elsewhere.pt", "b.pt"))
    file.write_text("one")
    copy.write_text("one")
    other.write_text("two")

    def id_(path):
        return identity(resolve([Level("test", keys(name, path))]), {}, {}).trial

    before = id_(file)
    assert id_(copy) == before != id_(other)
    file.write_text("two")
    assert id_(file) == id_(other)


def test_a_folder_counts_by_its_files(module, tmp_path):
    module(OWN)
    folder, moved = tmp_path / "a", tmp_path / "b"

    def id_(path):
        return identity(resolve([Level("test", of_position("FromFile", path))]), {}, {}).trial

    made = [id_(folder)]  # nothing lies there yet
    (folder / "deep").mkdir(parents=True)
    for name in ("x", "y", "deep/x"):
        (folder / name).write_text("one")
        made.append(id_(folder))
    folder.rename(moved)
    assert id_(moved) == made[-1] and len(set(made)) == len(made)


def test_other_options_count_as_they_are_written(module, tmp_path, monkeypatch):
    module(OWN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").write_text("one")
    keys = of_position("FromFile", "a.pt") | {"model.position.label": "a.pt"}
    inputs = identity(resolve([Level("test", keys)]), {}, {}).inputs
    assert inputs["model.position.label"] == "a.pt" != inputs["model.position.file"]
