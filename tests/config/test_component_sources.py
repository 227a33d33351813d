"""The code of components: what belongs to a class, what counts as a change, and the copies that stay with a trial."""

import importlib
import subprocess
import sys
import time

import pytest

from transformer_pl.config import COMPONENTS, Component, Config, Data, custom_components_by_key
from transformer_pl.config.component_sources import keep_sources, source_digests, task_digest


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


IDEAS = """
import math
from constants import rate, other
import kernels.tools as tools
from kernels import tables

SCALE = 2
LIMIT = 3

def helper(x):
    return x * SCALE

class Base:
    def f(self, x):
        return helper(x)

class Plain(Base):
    kind: "Kind" = None
    def g(self, x):
        from kernels import late
        return rate(x) + tools.fast(x) + tables.SIZES[0] + late.late()

class Kind:
    pass

class Another:
    def g(self, x):
        return other(x) + tools.slow(x) * LIMIT
"""
HELPERS = {
    "constants": "UNIT = 1\ndef rate(x):\n    return UNIT * x\ndef other(x):\n    return x\n",
    "kernels.__init__": "",
    "kernels.tools": "def fast(x):\n    return x\ndef slow(x):\n    return x + 0\n",
    "kernels.tables": "SIZES = [5]\nUNUSED = [6]\n",
    "kernels.late": "def late():\n    return 7\n",
}
OF_PLAIN = (  # (module, a part of its text, another)
    ("stranger", "SCALE = 2", "SCALE = 9"),
    ("stranger", "x * SCALE", "x + SCALE"),
    ("stranger", "return helper(x)", "return -helper(x)"),
    ("stranger", "class Kind:", "class Kind(int):"),
    ("stranger", "import rate", "import other as rate, rate as unused"),
    ("constants", "UNIT = 1", "UNIT = 2"),
    ("constants", "UNIT * x", "UNIT + x"),
    ("constants", "def other(x):\n    return x", "def other(x):\n    return 2 * x"),  # other files count whole
    ("kernels.tools", "x + 0", "x + 1"),
    ("kernels.__init__", "", "VERSION = 1\n"),
    ("kernels.tables", "[6]", "[7]"),
    ("kernels.late", "7", "8"),
    ("kernels.__init__", "", "print('runs when it is imported')\n"),
    ("stranger", "SCALE = 2", "SCALE = 2\nprint(LIMIT)"),
)
OF_OTHERS = (
    ("stranger", "LIMIT = 3", "LIMIT = 4"),
    ("stranger", "class Another:", "class Third:\n    pass\n\nclass Another(Third):"),
    ("stranger", "import rate, other", "import rate, other, UNIT"),
    ("stranger", "import math\n", "import math\nimport json\nprint_json = json.dumps\n"),
    ("stranger", "SCALE = 2", "SCALE = 2\nif __name__ == '__main__':\n    print(1)"),
)


@pytest.fixture
def ideas(module):
    texts = {"stranger": IDEAS} | HELPERS
    return {name: (module(text, name), text) for name, text in texts.items()}


@pytest.mark.parametrize("edit", [*OF_PLAIN, *OF_OTHERS])
def test_what_a_class_refers_to_is_part_of_its_code(ideas, edit):
    """In its own file, and in files that it imports in whatever way; also what runs when these are imported."""
    name, part, other = edit
    before, (path, text) = digest(), ideas[name]
    assert part in text
    path.write_text(text.replace(part, other, 1))
    assert (digest() != before) == (edit in OF_PLAIN) and digest("stranger.Another") is not None


@pytest.mark.parametrize(
    ("importing", "counts"),
    [
        ("import kernels.tools", True),
        ("from kernels import tools as unused", True),
        ("try:\n    import kernels.tools\nexcept ImportError:\n    pass", True),
        ("class Another:\n    from kernels import tools", True),
        ("def fill():\n    import kernels.tools\n\nfill()", True),
        ("import importlib\nkept = importlib.import_module('kernels.tools')", True),
        ("def late():\n    import kernels.tools", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kernels.tools", False),
        ("if __name__ == '__main__':\n    import kernels.tools", False),
    ],
)
def test_what_is_imported_with_a_class_counts_though_it_refers_to_nothing_of_it(module, importing, counts):
    """Such a file may fill a table that the class reads, and so may the package above it."""
    files = module("TABLE = {}\n", "kernels.tools"), module("", "kernels.__init__")
    module(f"{importing}\n\nclass Plain:\n    pass\n")
    made = [digest()]
    for number, file in enumerate(files):
        file.write_text(f"TABLE = {{1: {number}}}\n")
        made.append(digest())
    assert len(set(made)) == (3 if counts else 1)


@pytest.mark.parametrize("importing", ["import stranger", "from stranger import Plain", "import stranger as other"])
@pytest.mark.parametrize("place", ["kernels.deep", "stranger"])
def test_where_code_imports_the_file_of_its_class_all_of_that_counts(module, importing, place):
    own = "import kernels.deep\n\nclass Plain:\n    pass\n"
    later = "def f():\n    {}\n    return stranger\n".format
    module(later(importing if place != "stranger" else "pass"), "kernels.deep")
    path = module(own + (f"    {importing}\n" if place == "stranger" else ""))
    before, text = digest(), path.read_text()
    path.write_text(f"{text}\nclass Another:\n    pass\n")
    assert digest() != before


def test_the_packages_above_a_class_are_part_of_its_code(module):
    above = module("", "strange.__init__")
    module("class F:\n    pass\n", "strange.deep.sub")
    before = digest("strange.deep.sub.F")
    above.write_text("import torch\ntorch.manual_seed(1)\n")
    assert digest("strange.deep.sub.F") != before


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nclass Plain:\n    def f(self, kind):\n        return importlib.import_module(kind)\n",
        "from importlib import import_module\nclass Plain:\n    f = import_module\n",
        "from constants import *\nclass Plain:\n    pass\n",
        "def __getattr__(name):\n    return type(name, (), {})\n",
        "class Plain:\n    def f(self):\n        return globals()['LA' + 'TER']\n",
        "import sys\nclass Plain:\n    def f(self, kind):\n        return getattr(sys.modules[__name__], kind)\n",
        "def find(text):\n    return eval(text)\nclass Plain:\n    f = find\n",
        "class Base:\n    def __init_subclass__(cls):\n        Base.last = cls\nclass Plain(Base):\n    pass\n",
        "class Kept(type):\n    pass\nclass Plain(metaclass=Kept):\n    pass\n",
    ],
)
def test_where_it_cannot_be_known_all_of_the_file_is_part_of_a_class(module, text):
    module(HELPERS["constants"], "constants")
    path = module(text)
    before = digest()
    path.write_text(text + "LATER = 1\n")
    assert digest() != before


CHANGES = """
KINDS = {{}}

def register(kind):
    KINDS[kind.__name__] = kind
    return kind

class Plain:
    def kind(self, name):
        return KINDS[name]

{change}
"""


@pytest.mark.parametrize(
    "change",
    [
        "for name in ('f', 'g'):\n    setattr(Plain, name, {})",
        "with open('/dev/null') as file:\n    Plain.file = {}",
        "if True:\n    Plain.rate = {}\n    other = 1",
        "_ = setattr(Plain, 'rate', {})",
        "made = register(type('Made', (), dict(rate={})))",
        "@register\nclass Made:\n    rate = {}",
        "@register\ndef made():\n    return {}",
        "if __name__ == '__main__':\n    pass\nelse:\n    Plain.rate = {}",
        "from constants import rate\nmade = rate({})",
        "rate = 1\nfor _ in range({}):\n    del rate\n    rate = 1",
        "one1 = one2 = 1\ndel one{}",
    ],
)
def test_what_changes_a_class_while_its_file_is_imported_is_part_of_it(module, change):
    module(HELPERS["constants"], "constants")
    path = module(CHANGES.format(change=change.format(1)))
    before = digest()
    path.write_text(CHANGES.format(change=change.format(2)))
    assert digest() != before


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
    found.add(source_digests({"ffn": Component(path="lies.deep.rooms.Plain")})["ffn"])
assert len(found) == 3, found
"""


@pytest.mark.parametrize("place", ["site-packages", "dist-packages/mine", "python-3"])
def test_code_counts_wherever_it_lies(tmp_path, monkeypatch, place):
    """Also in a folder that has the name of those of installed packages."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / place))  # where Python looks from its start
    (tmp_path / place).parent.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", EDITED, tmp_path / place], check=True)


def test_code_counts_below_a_relative_path(tmp_path):
    subprocess.run([sys.executable, "-c", EDITED, "mine", "mine"], cwd=tmp_path, check=True)


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


def test_a_task_s_code_is_that_of_its_class(module):
    text = "class Copying:\n    pass\n\nclass Other:\n    pass\n"
    path = module(text)
    before = task_digest(Data(task="stranger.Copying"))
    path.write_text(text.replace("class Other:", "class Other(int):"))
    assert task_digest(Data(task="stranger.Copying")) == before
    path.write_text(text.replace("class Copying:", "class Copying(int):"))
    assert task_digest(Data(task="stranger.Copying")) != before


def test_the_files_of_a_class_stay_with_its_trial(ideas, tmp_path):
    kept = tmp_path / "trial" / "sources"
    for _ in range(2):  # in place of what was kept before
        keep_sources([Component(path="stranger.Plain")], kept)
        files = {".".join(path.relative_to(kept).with_suffix("").parts): path for path in kept.rglob("*.py")}
        assert files.keys() == ideas.keys()
        assert all(files[name].read_text() == text for name, (_, text) in ideas.items())
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
