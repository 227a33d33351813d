"""Components by import path: how they are found, their options, and the errors that are reported."""

from pathlib import Path

import pytest

from transformer_pl.config import COMPONENTS, KEYS, Component, Config, components, sizes
from transformer_pl.config.components import before_options, check_components, without_defaults
from transformer_pl.config.levels import Level, resolve
from transformer_pl.config.option_files import file_contents
from transformer_pl.model.dry_run import dry_run
from transformer_pl.runtime.errors import InputError

MODULE = """
class Base:
    def __init__(self, config, site, window: int, rate: float = 0.5, mode=None, flag: bool = False, name: str = "a"):
        self.given = config, site, window, rate, mode, flag, name

class Loose(Base):
    def __init__(self, config, site, *rest, bound: "int | None" = 3, **others):
        self.given = bound

class PassesOn(Base):
    def __init__(self, *args, temperature: float, **kwargs):
        super().__init__(*args, window=4)
        self.given = *self.given[:3], temperature

class Untyped(Base):
    def __init__(self, config, site, flag=True, count=2, name="a", pair=(1, 2), free=None):
        self.given = flag, count, name, pair, free

class Texts:
    def __init__(self, config, site, names: list[str], name: str):
        pass

class Plain:
    def __init__(self, config, site):
        pass

number = 4
"""


def configured(keys) -> Config:
    return resolve([Level("test", keys)])


def refused(path):
    with pytest.raises(InputError) as caught:
        components.import_component(path)
    (message,) = caught.value.messages
    return message


def given(name, /, **options):
    return components.build(Component(path=f"stranger.{name}", options=options), "the config", "cross").given


# Import paths


@pytest.mark.parametrize("path", ["Part", "./part.py", "a..Part", "part.", "nowhere.at.all.Part", "ablations.no.Part"])
def test_a_path_that_names_no_class(path):
    assert refused(path).startswith(f"{path}: ")


def test_a_class_that_is_not_there_is_told_with_the_nearest(module):
    module(MODULE)
    assert refused("stranger.Plane").endswith("did you mean Plain?")
    assert refused("stranger.number").startswith("stranger.number: ")  # it is no class


def test_a_name_that_is_not_there_loads_nothing_that_a_module_loads_when_asked(module):
    lazy = "def __dir__():\n    return ['Plain', 'Late']\n\n\ndef __getattr__(name):\n    if name == 'Late':\n"
    module(f"{lazy}        raise RuntimeError('needs another package')\n    raise AttributeError(name)\n{MODULE}")
    assert refused("stranger.Plane").endswith("did you mean Plain?")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import json\n\nimport no_such_package_at_all\n", 3),
        ("import strang\n", 1),  # a beginning of this module's own name
        ("def made():\n    return 1 / 0\n\n\nmade()\n", 2),
        ("class Part:\n    def __init__(self, config, site)\n", 2),
    ],
    ids=["package", "beginning of a name", "exception", "syntax"],
)
def test_a_module_that_cannot_be_imported_is_told_with_file_and_line(module, text, line):
    path = module(text)
    assert refused("stranger.Part").startswith(f"stranger.Part: {path}, line {line}: ")


# Options


def test_a_component_is_built_with_the_config_the_site_and_its_options(module):
    module("from __future__ import annotations\n" + MODULE)
    assert given("Base", window=16) == ("the config", "cross", 16, 0.5, None, False, "a")
    read = given("Base", window="16", rate="1e-05", mode="near", flag="True", name=16)
    assert read == ("the config", "cross", 16, 1e-05, "near", True, "16") and type(read[2]) is int
    assert given("Loose", bound="7") == 7 and given("Loose") == 3
    assert given("PassesOn", temperature="2") == ("the config", "cross", 4, 2.0)


def test_a_default_tells_the_type_of_an_option_without_one(module):
    module(MODULE)
    assert given("Untyped", flag="false", count=0.5, name=16, pair=[3, 4], free="near") == (
        False,
        0.5,
        "16",
        (3, 4),
        "near",
    )
    assert given("Untyped", flag=None, pair=None) == (None, 2, "a", None, None)  # which switches something off
    for wrong in ({"flag": "maybe"}, {"count": "many"}, {"count": True}, {"pair": 3}):
        with pytest.raises(InputError):
            given("Untyped", **wrong)


def test_what_is_given_to_every_class_must_fit_it(module):
    """As betas and eps are to every optimizer: a value that an option cannot take is left out."""
    module(MODULE)

    def build(**values):
        return components.build(Component(path="stranger.Untyped"), "the config", "cross", **values).given

    assert build(count=5, pair=(3, 4), nothing=1) == (True, 5, "a", (3, 4), None)
    assert build(count=(1, 2), pair=(1, 2, 3), flag=0.5) == build(pair=3) == build()


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("Base", {}, ["window"]),
        ("Base", {"window": 1.5}, ["window = 1.5"]),
        ("Base", {"windw": 4, "rate": "fast"}, ["windw = 4", "rate = fast", "window"]),
        ("Loose", {"rest": 1, "others": 1}, ["rest = 1", "others = 1"]),
        ("PassesOn", {}, ["temperature"]),
        ("Untyped", {"name": 1.1}, ["name = 1.1"]),  # 1.10, perhaps
        ("Texts", {"names": ["a", 12e3], "name": 12e3}, ["names = ", "name = "]),
    ],
)
def test_all_options_that_do_not_fit_the_signature_are_told(module, name, options, told):
    module(MODULE)
    with pytest.raises(InputError) as caught:
        given(name, **options)
    for message, option in zip(caught.value.messages, told, strict=True):
        assert message.startswith(f"stranger.{name}: option {option}")


LISTS = """
from dataclasses import dataclass
from pathlib import Path
@dataclass
class Settings:
    file: Path
class Part:
    def __init__(self, config, site, files: list[Path] | None = None, pair: tuple[int, int] = (1, 2), mark: str = "",
                 settings: Settings | None = None, sizes: dict[str, int] = {}, label: str = ""):
        self.given = files, pair, mark, settings and settings.file, sizes, label
"""


def test_a_list_or_mapping_is_the_same_from_a_command_line_and_from_a_file(module):
    """Where the option is one: a text in brackets is a text elsewhere."""
    module(LISTS)
    options = {"files": "[a.txt, b/1.txt]", "pair": "[3,4]", "mark": "[CLS]", "label": "{a: b}"}
    options |= {"settings": "{file: w.txt}", "sizes": "{a: 1, b: 2}"}
    expected = ([Path("a.txt"), Path("b/1.txt")], (3, 4), "[CLS]", Path("w.txt"), {"a": 1, "b": 2}, "{a: b}")
    assert given("Part", **options) == expected
    of_file = {"files": ["a.txt", "b.txt"], "settings": {"file": "w.txt"}}
    for given_options in (of_file, {"files": "[a.txt,b.txt]", "settings": "{file: w.txt}"}):
        keys = {f"model.ffn.{name}": value for name, value in given_options.items()}
        assert (
            components.without_defaults(configured({"model.ffn": "stranger.Part"} | keys)).model.ffn.options == of_file
        )


@pytest.mark.parametrize("name", sorted(components.SECRETS))
@pytest.mark.parametrize("nested", [False, True])
def test_a_password_is_refused_and_not_shown(module, name, nested):
    """A number is none: a class may take a token's id."""
    module(f"class Part:\n    def __init__(self, config, site, {name}=None, inner=None): self.given = {name}")
    options = {name: "hf_abc"}
    with pytest.raises(InputError, match=f"option {name}: .*environment variable") as caught:
        given("Part", **({"inner": {"deeper": [options]}} if nested else options))
    assert "hf_abc" not in str(caught.value) and given("Part", **{name: 7}) == 7


@pytest.mark.parametrize("declared", ["'Unknown'", "list['Unknown']", "type(len)", "'1/0'", "'int |'", "[1, 2]", "3"])
def test_a_type_that_values_cannot_be_read_by_is_not_checked(module, declared):
    module(f"class Part:\n    def __init__(self, config, site, like: {declared} = None):\n        self.given = like\n")
    assert given("Part", like="x") == "x"


def test_what_a_factory_makes_is_a_default(module):
    module(
        "from dataclasses import dataclass, field\nfrom pathlib import Path\n"
        "from lightning.pytorch.callbacks import Callback\n\n\n@dataclass\nclass Callback(Callback):\n"
        "    names: list[str] = field(default_factory=lambda: ['a'])\n"
        "    files: list[Path] = field(default_factory=list)\n"
    )
    config = configured({"trainer.callbacks": '{"stranger.Callback": {"names": ["a"]}}'})
    assert check_components(config) == [] and without_defaults(config).trainer.callbacks[0].options == {}
    (callback,) = config.trainer.callbacks
    assert file_contents(callback, 0) == {}


# All components of a model


@pytest.mark.parametrize("key", COMPONENTS)
def test_a_mistake_names_its_key(module, key):
    arguments = ", ".join(["self", *(f"given{i}" for i in range(before_options(key)))])
    module(MODULE + f"class Plain:\n    def __init__({arguments}):\n        pass\n")
    assert check_components(configured({key: "stranger.Plain"})) == []
    for keys in (
        {key: "stranger.Plane"},
        {key: "stranger.Plain", f"{key}.window": 4},
        {f"{key}.windows": 4},  # which the default has not
        {key: KEYS[key] + "s"},  # the core, but misspelled
    ):
        (message,) = check_components(configured(keys))
        assert message.startswith(f"{key} = {keys.get(key, KEYS[key])}: ")


def test_the_mistakes_of_all_components_are_told():
    found = check_components(configured({"model.ffn": "nowhere.A", "model.position": "nowhere.B"}))
    assert [message.partition(" = ")[0] for message in found] == ["model.ffn", "model.position"]


TOLD = """
class Told:
    auxiliary = {}

    def __init__(self, *arguments):
        pass

    def at_step(self, step, steps):
        pass
"""


@pytest.mark.parametrize("key", [*COMPONENTS, "trainer.callbacks", "trainer.loggers"])
def test_a_method_that_training_would_never_call_is_refused(module, key):
    """`at_step` and `auxiliary` are used of the model and losses, the first one also of optimizers and batches."""
    module(TOLD)
    refused = "".join(check_components(configured({key: "stranger.Told"})))
    may_be_told = key.startswith("model.") or key in ("optim.loss", "optim.optimizer", "data.batches")
    assert ("at_step" in refused) == (not may_be_told)
    assert ("auxiliary" in refused) == (not key.startswith("model.") and key != "optim.loss")


@pytest.mark.parametrize("path", ["builtins.int", "torch.Tensor", "pathlib.Path"])
def test_a_class_that_is_no_module_is_no_component(path):
    found = configured({"model.ffn": path})
    if not (mistakes := check_components(found)):
        with pytest.raises(InputError) as caught:
            dry_run(sizes(found.model, 40))
        mistakes = caught.value.messages
    assert len(mistakes) == 1 and "torch.nn.Module" in mistakes[0]
