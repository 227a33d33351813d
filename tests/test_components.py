"""Components by import path: how they are found, their options, and the errors that are reported."""

import signal

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
    expected = f"{path}: must be the import path of a class, MODULE.CLASS, such as my_ablation.Alibi"
    with pytest.raises(InputError) as raised:
        components.import_component(path)
    assert str(raised.value) == expected


def test_a_module_that_is_not_there():
    assert completed("nowhere.at.all.Part") == (
        "nowhere.at.all.Part: no module nowhere; it must be importable from here: start the command in the folder that "
        "holds nowhere.py, or add that folder to PYTHONPATH"
    )
    assert completed("ablations.nowhere.Part").startswith("ablations.nowhere.Part: no module ablations.nowhere;")


def test_a_module_beside_the_sweep_file_is_told_with_its_folder(tmp_path):
    (tmp_path / "beside_it.py").write_text("")
    (message,) = components.check_components(model({"model.ffn": "beside_it.Part"}), tmp_path)
    assert message.endswith(f"start the command in {tmp_path}, or add that folder to PYTHONPATH")


def test_a_class_that_is_not_there_is_reported_the_nearest(module):
    module(MODULE)
    assert completed("stranger.Plane") == "stranger.Plane: stranger holds no class Plane; did you mean Plain?"
    assert completed("stranger.zzz") == "stranger.zzz: stranger holds no class zzz; known: Base, Loose, Plain"
    assert completed("stranger.number").startswith("stranger.number: stranger holds no class number")
    module("number = 4\n", "strange")
    assert completed("strange.number") == "strange.number: strange holds no class number"


@pytest.mark.parametrize(
    ("text", "line", "law"),
    [
        ("import json\n\nimport no_such_package_at_all\n", 3, "No module named 'no_such_package_at_all'"),
        ("\nfrom json import no_such_name\n", 2, "ImportError: cannot import name 'no_such_name'"),
        ("import strang\n", 1, "No module named 'strang'"),  # a beginning of this module's own name
        ("def made():\n    return 1 / 0\n\n\nmade()\n", 2, "ZeroDivisionError: division by zero"),
        ("class Part:\n    def __init__(self, config, site)\n", 2, "SyntaxError: expected ':'"),
    ],
    ids=["package", "name", "beginning of a name", "exception", "syntax"],
)
def test_a_module_that_cannot_be_imported_is_reported_with_file_and_line(module, text, line, law):
    path = module(text)
    message = completed("stranger.Part")
    assert message.startswith(f"stranger.Part: {path}, line {line}: ") and law in message


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
    ("options", "messages"),
    [
        ({}, ["option window must be given"]),
        ({"window": 1, "rat": 2}, ["option rat = 2: no such option; did you mean rate?"]),
        ({"window": "wide"}, ["option window = wide: must be a valid integer"]),
        ({"window": 1.5}, ["option window = 1.5: must be a valid integer, got a number with a fractional part"]),
        ({"window": 1, "xyz": 2}, ["option xyz = 2: no such option; known: window, rate, mode, flag"]),
        (
            {"windw": 4, "rate": "fast"},
            [
                "option windw = 4: no such option; did you mean window?",
                "option rate = fast: must be a valid number",
                "option window must be given",
            ],
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_signature_are_reported_at_once(module, options, messages):
    module(MODULE)
    with pytest.raises(InputError) as caught:
        given(**options)
    assert list(caught.value.messages) == [f"stranger.Base: {message}" for message in messages]


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
        with pytest.raises(InputError, match=f"option {name} = 1: no such option; known: bound"):
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
    with pytest.raises(InputError, match="option temperature must be given"):
        components.build(Component(path=f"stranger.{name}"), "the config", "cross")


@pytest.mark.parametrize("declared", ["'Unknown'", "list['Unknown']", "type(len)"])
def test_a_type_that_values_cannot_be_read_by_is_not_checked(module, declared):
    module(f"class Part:\n    def __init__(self, config, site, like: {declared} = None):\n        self.given = like\n")
    assert components.build(Component(path="stranger.Part", options={"like": "x"}), None, None).given == "x"


# ---------------------------------------------------------------------------------------------------------------------
# Checking a model's parts


def test_the_paper_s_components_have_no_mistakes():
    assert components.check_components(Model()) == []
    assert all(is_papers(slot, getattr(Model(), slot)) for slot in SLOTS)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_mistake_names_its_key(module, slot):
    module(MODULE)
    key = f"model.{slot}"
    assert components.check_components(model({key: "stranger.Plain"})) == []
    assert components.check_components(model({key: "stranger.Plane"})) == [
        f"{key} = stranger.Plane: stranger holds no class Plane; did you mean Plain?"
    ]
    assert components.check_components(model({key: "stranger.Plain", f"{key}.window": 4})) == [
        f"{key} = stranger.Plain: option window = 4: no such option; it takes none"
    ]
    (message,) = components.check_components(model({f"{key}.window": 4}))  # the paper's own take no options
    assert message == f"{key} = {KEYS[key]}: option window = 4: no such option; it takes none"
    (message,) = components.check_components(model({key: KEYS[key] + "s"}))  # the core, but misspelled
    assert message.endswith(f"did you mean {KEYS[key].rpartition('.')[2]}?")


def test_the_mistakes_of_all_components_are_reported():
    found = components.check_components(model({"model.ffn": "nowhere.A", "model.position": "nowhere.B"}))
    assert [message.partition(" = ")[0] for message in found] == ["model.ffn", "model.position"]


# ---------------------------------------------------------------------------------------------------------------------
# Strange classes


@pytest.mark.parametrize("path", ["builtins.int", "builtins.type", "torch.Tensor", "collections.OrderedDict"])
def test_a_class_without_a_signature_is_no_component(path):
    (message,) = check_components(resolve([Level("test", {"model.ffn": path})]).model)
    assert message.endswith("must be a torch.nn.Module, but is built into Python or C; derive one")


@pytest.mark.parametrize("path", ["numpy.ndarray", "builtins.object", "pathlib.Path", "enum.Enum"])
def test_a_class_that_is_no_module_is_no_component(path):
    with pytest.raises(InputError) as caught:
        dry_run(sizes(resolve([Level("test", {"model.ffn": path})]).model, 40))
    (message,) = caught.value.messages
    assert "must be a torch.nn.Module, but is another class; derive it from one" in message


@pytest.mark.parametrize("declared", ["'1/0'", "'int |'", "'math.nosuch'", "'x.y.z'", "[1, 2]", "3"])
def test_an_annotation_that_cannot_be_evaluated_leaves_the_value_as_it_is(module, declared):
    module(
        f"import math\nfrom torch import nn\n\n"
        f"class Part(nn.Module):\n    def __init__(self, c, site, k: {declared}): 0\n"
    )
    keys = {"model.ffn": "stranger.Part", "model.ffn.k": "4"}
    assert check_components(resolve([Level("test", keys)]).model) == []


UNSPEAKABLE = """
from torch import nn

class Unspeakable({base}):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__

class Part(nn.Module):
    def __init__(self, config, site): super().__init__()
    def forward(self, x): raise Unspeakable(7)

if {now}: raise Unspeakable(7)
"""


@pytest.mark.parametrize("base", ["Exception", "BaseException"])
@pytest.mark.parametrize("now", [True, False], ids=["import", "forward"])
def test_an_exception_that_cannot_say_what_it_is_is_reported(module, base, now):
    path = module(UNSPEAKABLE.format(base=base, now=now))
    with pytest.raises(InputError) as caught:
        dry_run(sizes(resolve([Level("test", {"model.ffn": "stranger.Part"})]).model, 40))
    (message,) = caught.value.messages
    line = 12 if now else 10
    why = "RuntimeError: a component must raise errors only, but raised Unspeakable(7)"
    why = "Unspeakable: its message cannot be read" if base == "Exception" else why
    assert f"{path}, line {line}: {why}" in message


@pytest.mark.parametrize("where", ["import", "constructor", "forward"])
def test_a_component_that_does_not_end_is_told(module, monkeypatch, where):
    """At the line that it has come to, even where it catches every exception of its own for a while."""
    waits = "\nimport time\ndef wait():\n    try: time.sleep(60)\n    except Exception: time.sleep(60)\n"
    calls = {name: "wait()" if name == where else "0" for name in ("import", "constructor", "forward")}
    path = module(
        f"from torch import nn{waits}\n{calls['import']}\n"
        f"class Part(nn.Module):\n    def __init__(self, config, site):\n        super().__init__()\n"
        f"        {calls['constructor']}\n    def forward(self, x):\n        {calls['forward']}\n"
    )
    monkeypatch.setattr(components, "LONGEST_S", 1.5)
    with pytest.raises(
        InputError,
        match=rf"{path}, line 5: TimeoutError: it has not ended after 1.5 seconds; an import, or a check, must",
    ):
        dry_run(sizes(resolve([Level("test", {"model.ffn": "stranger.Part"})]).model, 40))
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0) and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
