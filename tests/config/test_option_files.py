"""Files that options name: their content decides, wherever they lie."""

import json
import os

import pytest

from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.identity import identity, path_notes

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
    (folder / "y").write_text("two")
    made.append(id_(folder))
    (folder / "x").write_text("two")  # two files exchange their names
    (folder / "y").write_text("one")
    made.append(id_(folder))
    (folder / "y").rename(folder / "z")
    made.append(id_(folder))
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "z").write_text("one")
    (folder / "link").symlink_to(linked)
    (linked / "back").symlink_to(folder)  # each lies in the other
    (folder / "nowhere").symlink_to(tmp_path / "nowhere")
    made.append(id_(folder))
    (linked / "z").write_text("two")
    made.append(id_(folder))
    folder.rename(moved)
    (linked / "back").unlink()
    (linked / "back").symlink_to(moved)
    assert id_(moved) == made[-1] and len(set(made)) == len(made)


def test_other_options_count_as_they_are_written(module, tmp_path, monkeypatch):
    module(OWN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").write_text("one")
    keys = of_position("FromFile", "a.pt") | {"model.position.label": "a.pt"}
    inputs = identity(resolve([Level("test", keys)]), {}, {}).inputs
    assert inputs["model.position.label"] == "a.pt" != inputs["model.position.file"]


KINDS = """
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Iterable, NamedTuple, NewType, Optional, Union
from pydantic import BaseModel
from torch import nn
from typing_extensions import TypeAliasType, TypedDict

Alias = TypeAliasType("Alias", Path | None)

if TYPE_CHECKING:
    import pathlib as own
    from pathlib import Path as Other
    from nowhere import Unknown

class Known:
    pass

Name = NewType("Name", Path)

@dataclass(frozen=True)
class Files:
    file: Path
    label: str = "c"

class Model(BaseModel):
    file: Path | str

class Pair(NamedTuple):
    size: int
    files: list[Path]

class Keys(TypedDict):
    pair: Pair

@dataclass
class Slotted:
    __slots__ = ("inner",)
    inner: Files

class Plain(nn.Module):
    def __init__(self, config, site, file: {kind} = {default}):
        super().__init__()

class Derived(Plain):
    def __init__(self, config, site):
        super().__init__(config, site)
"""
TYPED = [  # a type, a default, and how a command line names another file
    ("Path", "Path('a')", "b"),
    ("Path", "'a'", "b"),
    ("'Path | None'", "'a'", "b"),
    ("Optional['Path']", "Path('a')", "b"),
    ("Union[str, Path]", "'a'", "b"),
    ("Known | Path", "'a'", "b"),
    ("Alias", "'a'", "b"),
    ("Annotated[Path, 1]", "'a'", "b"),
    ("os.PathLike[str]", "'a'", "b"),
    ("'Other'", "'a'", "b"),
    ("'own.Path | Unknown'", "'a'", "b"),
    ("list['Path']", "['c', 'a']", '["c", "b"]'),
    ("Iterable[Path]", "['a']", '["b"]'),
    ("tuple[str, Path]", "('c', 'a')", '["c", "b"]'),
    ("dict[str, list[str | Path]]", "{'c': ['a']}", '{"c": ["b"]}'),
    ("Name", "'a'", "b"),
    ("Files", "Files(Path('a'))", '{"file": "b"}'),
    ("'Files | None'", "Files(Path('a'))", '{"file": "b"}'),
    ("Model", "Model(file='a')", '{"file": "b"}'),
    ("Pair", "Pair(1, [Path('a')])", '[1, ["b"]]'),
    ("list[Model]", "[Model(file='a')]", '[{"file": "b"}]'),
    ("dict[str, Files]", "{'x': Files(Path('a'))}", '{"x": {"file": "b"}}'),
    ("Keys", "Keys(pair=Pair(1, [Path('a')]))", '{"pair": [1, ["b"]]}'),
    ("Slotted", "Slotted(Files(Path('a')))", '{"inner": {"file": "b"}}'),
    ("dict[Path, float]", "{'a': 0.5}", '{"b": 0.5}'),
    (None, "Path('a')", "b"),
    (None, "(Path('a'), Path('c'))", '["b", "c"]'),
    (None, "[Path('a')]", '["b"]'),
    (None, "Files(Path('a'))", '{"file": "b"}'),
    (None, "{'c': Path('a')}", '{"c": "b"}'),
]


@pytest.mark.parametrize(("kind", "default", "given"), TYPED)
def test_every_value_that_is_a_path_counts_by_content(module, tmp_path, monkeypatch, kind, default, given):
    """A default too, which is no part of the identity itself."""
    monkeypatch.chdir(tmp_path)
    text = KINDS.replace(": {kind} = ", ": {kind} = " if kind else "=").format(kind=kind, default=default)
    module(text)

    def ids():
        keys = {"model.ffn": "stranger.Plain"}, {"model.ffn": "stranger.Derived"}
        found = [identity(resolve([Level("test", one)]), {}, {}) for one in keys]
        found.append(identity(resolve([Level("test", keys[0] | {"model.ffn.file": given})]), {}, {}))
        return [one.trial for one in found]

    made = [ids()]
    for name in ("a", "b"):
        (tmp_path / name).write_text("one")
        made.append(ids())
    assert "'a'" not in str(identity(resolve([Level("test", {"model.ffn": "stranger.Plain"})]), {}, {}).inputs)
    nothing, default_there, given_there = made
    assert nothing[:2] != default_there[:2] == given_there[:2] and nothing[2] == default_there[2] != given_there[2]
    for name in ("a", "b"):
        (tmp_path / name).write_text("another")
    assert not set(ids()) & set(given_there)


def test_a_path_where_nothing_lies_is_noted(module, tmp_path):
    module(OWN)
    there, nowhere = tmp_path / "there", tmp_path / "nowhere"
    there.write_text("")
    configs = [resolve([Level("test", keys)]) for path in (there, nowhere) for keys in (
        of_position("FromFile", path), of_callback("", path))]  # fmt: skip
    notes = path_notes([*configs, *configs])
    assert len(notes) == 2 and all(str(nowhere) in note for note in notes)


@pytest.mark.parametrize("file", ["pipe", "folder", "/dev/zero"])
def test_what_cannot_be_read_is_refused(module, tmp_path, file):
    module(OWN)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "folder" / "pipe")
    with pytest.raises(InputError, match=r"stranger\.FromFile: option file: .*must be a file"):
        identity(resolve([Level("test", of_position("FromFile", tmp_path / file))]), {}, {})


def test_a_default_that_is_no_path_though_its_type_says_so_is_refused(module):
    module(KINDS.format(kind="Path", default="3"))
    with pytest.raises(InputError, match=r"stranger\.Plain: option file = 3: "):
        identity(resolve([Level("test", {"model.ffn": "stranger.Plain"})]), {}, {})


@pytest.mark.parametrize("kind", ["Known", "list[Known]", "'nowhere.Unknown'", "Callable[[Known], int] | Known"])
def test_a_text_of_a_type_that_nobody_knows_is_refused(module, kind):
    """It may be a path. A number is none."""
    module(KINDS.replace("Iterable,", "Iterable, Callable,").format(kind=kind, default="None"))
    keys = {"model.ffn": "stranger.Plain", "model.ffn.file": '["b"]' if "list" in kind else "b"}
    with pytest.raises(InputError, match=r"stranger\.Plain: option file = .*type"):
        identity(resolve([Level("test", keys)]), {}, {})
    identity(resolve([Level("test", keys | {"model.ffn.file": "3"})]), {}, {})
