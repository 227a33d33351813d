"""The code of components: what belongs to a class, what counts as a change, and the copies that stay with a trial."""

import importlib
import subprocess
import sys
import time

import pytest

from transformer_pl.config import COMPONENTS, Component, Config, custom_components_by_key
from transformer_pl.config.component_sources import keep_sources, source_digests
from transformer_pl.runtime.errors import InputError


def digest(path="stranger.Plain"):
    return source_digests({"ffn": Component(path=path)})["ffn"]


DOCUMENTED = '''
"""A module."""
import math  # for the root

class Plain:
    """A component."""

    def __init__(self, config, site):
        """Builds it."""
        self.root = math.sqrt(2)
'''
LAID_OUT_ANEW = """import math
class Plain:
  'another text'
  # a comment
  def __init__(self, config,
               site):
    self.root = math.sqrt(
        2
    )
"""


def test_code_is_a_change_but_comments_docstrings_and_layout_are_none(module):
    path = module(DOCUMENTED)
    before = digest()
    for text in (LAID_OUT_ANEW, DOCUMENTED + "# edited\n", DOCUMENTED.replace("A component", "Another")):
        path.write_text(text)
        assert digest() == before
    for text in (DOCUMENTED.replace("2", "2.0"), DOCUMENTED.replace("Plain:", "Plain(object):"), "a binary \0 file"):
        path.write_text(text)
        assert digest() != before


PLUGINS = {  # a package whose modules fill a table, as each `fills` does
    "names": "TABLE = {}\n",
    "plugins.ops": "from names import TABLE\n\nTABLE['own'] = 1\n",
    "plugins.deep.more": "from names import TABLE\n\nTABLE['more'] = 1\n",
}
OF_PACKAGE = (  # the code of plugins/__init__.py, and what imports it
    (
        "for m in __import__('pkgutil').iter_modules(__path__):\n    __import__(f'{__name__}.{m.name}')",
        "import plugins",
    ),
    ("__all__ = ['ops', 'deep']", "from plugins import *"),
    ("def __getattr__(name):\n    return importlib.import_module('.' + name, __name__)", "from plugins import own"),
    ("def load(name):\n    return importlib.import_module(f'plugins.{name}')", "import plugins as other"),
    ("def fill():\n    ...", "import plugins.one\n"),  # which has that done that the package is imported with
    ("def fill():\n    ...", "kept = importlib.import_module(name='plugins')"),
    ("VERSION = 1", "import sys\nkept = sys.modules['plugins']"),
    ("", "import importlib, plugins\nfor m in plugins.__path__:\n    importlib.import_module(m)"),
    (None, "def load(name):\n    return __import__('plugins.' + name)"),  # None: a folder without an __init__.py
    (None, "load('plugins.{}'.format)"),
)
ONE_FILE = (  # code that brings another module, `tools`, into that of a class
    "import tools",
    "from tools import TABLE as unused",
    "try:\n    import tools\nexcept ImportError:\n    pass",
    "class Another:\n    def late(self):\n        from tools import TABLE",
    "if __name__ == '__main__':\n    import tools",
    "import importlib\nkept = importlib.import_module(name='tools')",
    "load = __import__\nfor name in ('tools', 'more'):\n    load(name)",
    "from helper import load\n\nkept = load('tools')",
    "from helper import locate\n\nkept = locate('tools.Part')",
    "from helper import resolve\n\nkept = resolve('tools:TABLE')",
    "from sys import modules as loaded\nkept = loaded['tools']",
    "import sys\nkept = sys.modules.get('tools')",
    "def load(kind='tools.Part', *, other=None):\n    pass",
    "import sys\nNAME = 'tools'\nkept = sys.modules.get(NAME)",
    "import pkgutil\nNAMES = ['tools:TABLE']\nkept = [*map(pkgutil.resolve_name, NAMES)]",
    "from pydoc import locate\n\nclass Another:\n    kind = 'tools.Part'",
    "import runpy\nkept = runpy.run_path('./tools.py')",
    "PLACE = 'tools.py'\nexec(open(PLACE).read())",
    "class Another(pydantic.BaseModel):\n    kind: ImportString = 'tools.Part'",
    "exec('from tools import TABLE')",
    "kept = eval('__import__(\"tools\").TABLE')",
    "import importlib\nfor name in 'tools more'.split():\n    importlib.import_module(name)",
    "import importlib\nkept = importlib.import_module('to' + NAME)",
    "kept = [*map(__import__, NAMES)]",
    "def register(kind, name='x'):\n    return lambda other: other\n\n@register('tools')\nclass Another:\n    pass",
)
NO_FILE = (
    "x = 'tools'",
    "def f():\n    'tools'",
    "print('the tools')",
    "print('tools/a.txt')",
    "print('tools: the text of a message')",
    "# import tools",
    "tools = 1",
)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the files of modules; an `__init__.py` only where it is named."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(texts):
        for name, text in texts.items():
            file = (tmp_path / name.replace(".", "/")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return written


@pytest.mark.parametrize("text", [*ONE_FILE, *NO_FILE])
def test_what_a_file_imports_or_names_is_part_of_the_code_of_its_classes(write, text):
    """Wherever that stands, and whatever refers to it: such a file may fill a table that a class reads."""
    write({"stranger": f"{text}\n\nclass Plain:\n    pass\n", "helper": "", "tools": "import more\n", "more": ""})
    made = [digest()]
    for name in ("more", "tools"):  # `more` is imported by `tools`
        write({name: "TABLE = {}\n"})
        made.append(digest())
    assert len(set(map(str, made))) == (3 if text in ONE_FILE else 1)


@pytest.mark.parametrize(("package", "text"), OF_PACKAGE)
def test_a_package_counts_with_all_its_modules(write, package, text):
    write(PLUGINS | {"stranger": f"{text}\n\nclass Plain:\n    pass\n", "plugins.one": ""})
    if package is not None:
        write({"plugins.__init__": package})
    before = digest()
    for name in ("plugins.ops", "plugins.deep.more"):
        write({name: PLUGINS[name].replace("1", "2")})
        assert digest() != before, name
        write({name: PLUGINS[name]})
        assert digest() == before


@pytest.mark.parametrize("text", ["import sys\nsys.path.append('lib')\n", "from sys import path as places\n"])
def test_a_file_may_not_say_where_modules_lie(write, text):
    """As its code would be another one before it has run."""
    write({"stranger": text})
    with pytest.raises(InputError, match=r"stranger\.py"):
        digest()


@pytest.mark.parametrize("package", [None, "", "from lab.helper import VERSION\n\n__all__ = ['one', 'two']\n"])
def test_a_folder_above_a_module_does_not_count(write, package):
    """So one file for each ablation: an edit of one is none of another. What runs with the import counts."""
    write({"lab.one": "from . import two\n\nclass F:\n    pass\n", "lab.two": "", "lab.three": "", "lab.helper": ""})
    write({} if package is None else {"lab.__init__": package})
    before = digest("lab.one.F")
    write({"lab.three": "class F:\n    pass\n"})
    assert digest("lab.one.F") == before
    for name in ("lab.two", *(["lab.helper", "lab.__init__"] if package else [])):
        write({name: "import math\n"})
        assert digest("lab.one.F") != before, name
        before = digest("lab.one.F")


def test_modules_that_import_each_other_and_folders_in_themselves_come_to_an_end(write, tmp_path):
    write({"stranger": "import loop\n\nclass Plain:\n    pass\n", "loop.__init__": "import stranger\nx = f()\n"})
    (tmp_path / "loop" / "again").symlink_to(tmp_path / "loop")
    before = digest()
    write({"loop.ops": "x = 1\n"})
    assert digest() != before


def test_a_text_of_an_option_names_a_module(write):
    write({"stranger": "class Plain:\n    pass\n", "tools": ""})
    part = Component(path="stranger.Plain", options={"kinds": [{"act": "tools.Act"}]})
    before = source_digests({"ffn": part})
    write({"tools": "class Act:\n    pass\n"})
    assert source_digests({"ffn": part}) != before


EDITED = """
import sys
from pathlib import Path
from transformer_pl.config import Component
from transformer_pl.config.component_sources import source_digests

sys.path += sys.argv[2:]
place = Path(sys.argv[1])
file = place / "lies" / "deep" / "rooms.py"
file.parent.mkdir(parents=True, exist_ok=True)
found = set()
for rate in range(3):
    file.write_text(f"class Plain:\\n    rate = {rate}\\n")
    found.add(source_digests({"ffn": Component(path="lies.deep.rooms.Plain")})["ffn"]["lies/deep/rooms.py"])
assert len(found) == 3, found
"""


@pytest.mark.parametrize("place", ["site-packages", "dist-packages/mine", "python-3", "relative"])
def test_code_counts_wherever_it_lies(tmp_path, monkeypatch, place):
    """Also in a folder that has the name of those of installed packages, and below a relative path."""
    folder, more = (place, [place]) if place == "relative" else (tmp_path / place, [])
    monkeypatch.setenv("PYTHONPATH", str(folder))  # where Python looks from its start
    (tmp_path / place).parent.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", EDITED, folder, *more], cwd=tmp_path, check=True)


FORGETTING = """
import sys
from pathlib import Path
from transformer_pl.config import Component
from transformer_pl.config.component_sources import forget_edited

sys.path.insert(0, sys.argv[1])
import stranger

def again():
    forget_edited([Component(path="stranger.Plain")])
    import stranger
    return stranger.Plain

first = stranger.Plain
assert again() is first and again() is first
helper = Path(sys.argv[1], "strange.py")
helper.write_text(helper.read_text() + "# edited")
second = again()
assert second is not first and again() is second
helper.write_text("rate = 2")
assert again().rate == 2
"""


def test_what_was_not_edited_is_not_imported_anew(module):
    """Also at the first use in a process, which may have imported it by itself."""
    module("rate = 1\n", "strange")
    file = module("from strange import rate\n\nclass Plain:\n    rate = rate\n")
    time.sleep(0.2)  # a file of this very moment may have changed since the process has read it
    subprocess.run([sys.executable, "-c", FORGETTING, file.parent], check=True)


def test_a_digest_imports_nothing(tmp_path, monkeypatch):
    """Neither the module of a class nor the packages above it, with and without an __init__.py."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for package in ("strange/deep", "stranger/deep"):
        folder = tmp_path / package
        folder.mkdir(parents=True)
        (folder / "rooms.py").write_text("raise SystemExit('imported')\nclass Plain:\n    pass\n")
    for name in ("strange/__init__.py", "strange/deep/__init__.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')\n")
    found = {path: digest(path) for path in ("strange.deep.rooms.Plain", "stranger.deep.rooms.Plain")}
    for package in ("strange/deep", "stranger/deep"):
        (tmp_path / package / "rooms.py").write_text("class Plain:\n    pass\n")
    assert all(digest(path) != before for path, before in found.items())
    assert "strange" not in sys.modules and "stranger" not in sys.modules


def test_the_files_of_a_class_stay_with_its_trial(write, tmp_path):
    texts = {"stranger": "from lab import one\n\nclass Plain:\n    pass\n", "lab.__init__": "x = 1", "lab.one": "'a'\n"}
    write(texts)
    kept = tmp_path / "trial" / "sources"
    for _ in range(2):  # in place of what was kept before
        keep_sources([Component(path="stranger.Plain")], kept)
        files = {".".join(path.relative_to(kept).with_suffix("").parts): path for path in kept.rglob("*.py")}
        assert {name: file.read_text() for name, file in files.items()} == texts
        (kept / "old.py").write_text("")


def test_code_is_what_is_written_and_not_what_is_loaded(module):
    """Every process is to find the same, whatever other rows have brought along."""
    lazy = module("rate = 1\n", "constants")
    module(
        "class Plain:\n    def late(self):\n        import constants\n        import no_such_package\n"
        "        from . import none\n        return constants.rate\n"
    )
    before = digest()
    importlib.import_module("constants")
    assert digest() == before
    lazy.write_text("rate = 2\n")
    assert digest() != before


def test_the_core_has_no_code_of_its_own_here():
    """Its revision stands for it, as the version of torch for torch's."""
    assert source_digests(custom_components_by_key(Config())) == {}
    own = {key: component for key, component in COMPONENTS.items() if component.path.startswith("transformer_pl.")}
    assert len(own) > 6 and source_digests(own) == {}


@pytest.mark.parametrize(("text", "counts"), [("open('lexica')", False), ("load('lexica.{}'.format)", True)])
def test_a_text_names_a_folder_only_where_modules_in_it_are_looked_up(write, text, counts):
    """A folder of data is none, though Python files lie in it."""
    write({"stranger": f"{text}\n\nclass Plain:\n    pass\n", "lexica.tool": "x = 1\n"})
    before = digest()
    write({"lexica.tool": "x = 2\n"})
    assert (digest() != before) == counts


def test_looking_for_modules_changes_no_imports(module, monkeypatch):
    """A finder that somebody has added is not asked for what Python finds itself: setuptools' changes imports then."""
    asked = []

    class Finder:
        @staticmethod
        def find_spec(name, places=None, target=None):
            asked.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    module('import json, helpers_of_mine\nrun("pip", "email.mime")\n\n\nclass Part:\n    pass\n')
    source_digests({"ffn": Component(path="stranger.Part")})
    assert "helpers_of_mine" in asked and not {"stranger", "json", "pip", "email"} & {*asked}
