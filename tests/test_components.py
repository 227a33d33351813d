"""Components by import path: how they are found, their options, and the errors that are reported."""

import pytest

from transformer_pl import components
from transformer_pl.checks.dry_run import dry_run
from transformer_pl.components import check_components
from transformer_pl.config import KEYS, SLOTS, Component, Model, is_papers, sizes
from transformer_pl.levels import Level, resolve
from transformer_pl.runtime.errors import InputError

MODULE = """
class Base:
    def __init__(self, config, site, window: int, rate: float = 0.5, mode=None, flag: bool = False):
        self.given = config, site, window, rate, mode, flag


class Loose(Base):
    def __init__(self, config, site, *rest, bound: "int | None" = 3, **others):
        self.given = bound


class Plain:
    def __init__(self, config, site):
        pass


number = 4
"""


def model(keys) -> Model:
    return resolve([Level("test", keys)]).model


def completed(path):
    with pytest.raises(InputError) as caught:
        components.import_component(path)
    (message,) = caught.value.messages
    return message


def given(**options):
    return components.build(Component(path="stranger.Base", options=options), "the config", "cross").given


# ---------------------------------------------------------------------------------------------------------------------
# Loading


def test_a_class_is_found_where_it_lives(module):
    module(MODULE)
    module(MODULE, "strange.nested.rooms")
    assert components.import_component("stranger.Plain").__module__ == "stranger"
    assert components.import_component("strange.nested.rooms.Plain").__module__ == "strange.nested.rooms"


@pytest.mark.parametrize("path", ["Part", "./part.py", "my.py/Part", "a..Part", ".Part", "part."])
def test_a_path_that_names_no_class(path):
    assert completed(path).startswith(f"{path}: ")


def test_a_module_that_is_not_there_is_told_with_the_folder_beside_the_sweep_file(tmp_path):
    assert "no module nowhere;" in completed("nowhere.at.all.Part")
    assert "no module ablations.nowhere;" in completed("ablations.nowhere.Part")
    (tmp_path / "beside_it.py").write_text("")
    (message,) = check_components(model({"model.ffn": "beside_it.Part"}), tmp_path)
    assert str(tmp_path) in message


def test_a_class_that_is_not_there_is_reported_the_nearest(module):
    module(MODULE)
    assert completed("stranger.Plane").endswith("did you mean Plain?")
    assert completed("stranger.zzz").endswith("known: Base, Loose, Plain")
    assert completed("stranger.number").startswith("stranger.number: ")  # it is no class


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import json\n\nimport no_such_package_at_all\n", 3),
        ("\nfrom json import no_such_name\n", 2),
        ("import strang\n", 1),  # a beginning of this module's own name
        ("def made():\n    return 1 / 0\n\n\nmade()\n", 2),
        ("class Part:\n    def __init__(self, config, site)\n", 2),
    ],
    ids=["package", "name", "beginning of a name", "exception", "syntax"],
)
def test_a_module_that_cannot_be_imported_is_reported_with_file_and_line(module, text, line):
    path = module(text)
    assert completed("stranger.Part").startswith(f"stranger.Part: {path}, line {line}: ")


# ---------------------------------------------------------------------------------------------------------------------
# Options


def test_a_part_is_built_with_the_config_the_site_and_its_options(module):
    module(MODULE)
    assert given(window=16) == ("the config", "cross", 16, 0.5, None, False)
    assert given(window="16", rate="1e-05", mode="near", flag="True") == (
        "the config",
        "cross",
        16,
        1e-05,
        "near",
        True,
    )
    assert type(given(window="16")[2]) is int
    module("class Named:\n    def __init__(self, config, site, name: str):\n        self.name = name\n", "strange")
    named = Component(path="strange.Named", options={"name": 16})  # wherever it is said, it has been read as a number
    assert components.build(named, "the config", "cross").name == "16"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ["window"]),
        ({"window": 1, "rat": 2}, ["rat = 2"]),
        ({"window": "wide"}, ["window = wide"]),
        ({"window": 1.5}, ["window = 1.5"]),
        ({"windw": 4, "rate": "fast"}, ["windw = 4", "rate = fast", "window"]),
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_signature_are_reported_at_once(module, options, told):
    module(MODULE)
    with pytest.raises(InputError) as caught:
        given(**options)
    for message, option in zip(caught.value.messages, told, strict=True):
        assert message.startswith(f"stranger.Base: option {option}")


def test_an_option_of_a_type_of_the_keys_is_refused_as_a_key_is(module):
    module(
        "from transformer_pl.key_types import ClassPath, Count\n\n"
        "class Part:\n    def __init__(self, config, site, size: Count = 1, path: ClassPath = 'a.B'):\n        pass\n"
    )
    for option, value, key in (("size", True, "model.h"), ("size", "eight", "model.h"), ("path", "B", "data.task")):
        with pytest.raises(InputError) as of_option:
            components.build(Component(path="stranger.Part", options={option: value}), None, None)
        with pytest.raises(InputError) as of_key:
            resolve([Level("test", {key: value})])
        assert str(of_option.value).partition(": option ")[2].partition(": ")[2] == str(of_key.value).split(": ", 2)[2]


def test_a_type_in_quotes_is_a_type_and_what_has_no_name_is_no_option(module):
    module("from __future__ import annotations\n" + MODULE)
    part = Component(path="stranger.Loose", options={"bound": "7"})
    assert components.build(part, None, None).given == 7
    assert components.build(Component(path="stranger.Loose"), None, None).given == 3
    for name in ("rest", "others", "anything"):
        with pytest.raises(InputError, match=f"option {name} = 1: .*bound"):
            components.build(Component(path="stranger.Loose", options={name: 1}), None, None)


STAR = """
class Base:
    def __init__(self, config, site, window: int = 4):
        self.given = (config, site, window)

class Star(Base):
    def __init__(self, *args, temperature: float, **kwargs):
        super().__init__(*args, **kwargs)
        self.temperature = temperature

class Site(Base):
    def __init__(self, config, *args, temperature: float):
        super().__init__(config, *args)
        self.temperature = temperature
"""


@pytest.mark.parametrize("name", ["Star", "Site"])
def test_a_constructor_may_pass_its_arguments_on(module, name):
    module(STAR)
    built = components.build(Component(path=f"stranger.{name}", options={"temperature": "2"}), "the config", "cross")
    assert built.given == ("the config", "cross", 4) and built.temperature == 2.0
    with pytest.raises(InputError, match="temperature"):
        components.build(Component(path=f"stranger.{name}"), "the config", "cross")


@pytest.mark.parametrize("declared", ["'Unknown'", "list['Unknown']", "type(len)"])
def test_a_type_that_values_cannot_be_read_by_is_not_checked(module, declared):
    module(f"class Part:\n    def __init__(self, config, site, like: {declared} = None):\n        self.given = like\n")
    assert components.build(Component(path="stranger.Part", options={"like": "x"}), None, None).given == "x"


# ---------------------------------------------------------------------------------------------------------------------
# Checking a model's parts


def test_the_paper_s_components_have_no_mistakes():
    assert check_components(Model()) == []
    assert all(is_papers(slot, getattr(Model(), slot)) for slot in SLOTS)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_mistake_names_its_key(module, slot):
    module(MODULE)
    key = f"model.{slot}"
    assert check_components(model({key: "stranger.Plain"})) == []
    for keys in (
        {key: "stranger.Plane"},
        {key: "stranger.Plain", f"{key}.window": 4},
        {f"{key}.window": 4},  # the paper's own take no options
        {key: KEYS[key] + "s"},  # the core, but misspelled
    ):
        (message,) = check_components(model(keys))
        assert message.startswith(f"{key} = {keys.get(key, KEYS[key])}: ")


def test_the_mistakes_of_all_components_are_reported():
    found = check_components(model({"model.ffn": "nowhere.A", "model.position": "nowhere.B"}))
    assert [message.partition(" = ")[0] for message in found] == ["model.ffn", "model.position"]


# ---------------------------------------------------------------------------------------------------------------------
# Strange classes


@pytest.mark.parametrize("path", ["builtins.int", "torch.Tensor", "numpy.ndarray", "pathlib.Path", "enum.Enum"])
def test_a_class_that_is_no_module_is_no_component(path):
    found = model({"model.ffn": path})
    if not (mistakes := check_components(found)):
        with pytest.raises(InputError) as caught:
            dry_run(sizes(found, 40))
        mistakes = caught.value.messages
    (message,) = mistakes
    assert "torch.nn.Module" in message


@pytest.mark.parametrize("declared", ["'1/0'", "'int |'", "'math.nosuch'", "[1, 2]", "3"])
def test_an_annotation_that_cannot_be_evaluated_leaves_the_value_as_it_is(module, declared):
    module(
        f"import math\nfrom torch import nn\n\n"
        f"class Part(nn.Module):\n    def __init__(self, c, site, k: {declared}): 0\n"
    )
    assert check_components(model({"model.ffn": "stranger.Part", "model.ffn.k": "4"})) == []
