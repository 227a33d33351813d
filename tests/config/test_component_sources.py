"""The sources of components: which files they are, what counts as a change, and the copies that stay with a trial."""

import importlib
import sys

import pytest

from transformer_pl.config import Model
from transformer_pl.config.component_sources import (
    changed_files,
    code_digest,
    keep_sources,
    kept_sources,
    source_digests,
)
from transformer_pl.config.components import import_component
from transformer_pl.config.levels import Level, resolve
from transformer_pl.runtime.errors import InputError

MODULE = """
class Plain:
    def __init__(self, config, site):
        pass
"""


def model(keys) -> Model:
    return resolve([Level("test", keys)]).model


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
    before = code_digest(path)
    for text in (LAID_OUT_ANEW, DOCUMENTED + "# edited\n", DOCUMENTED.replace("A component", "Another")):
        path.write_text(text)
        assert code_digest(path) == before
    for text in (LAID_OUT_ANEW + "x = None\n", LAID_OUT_ANEW + "x = 'text'\n", LAID_OUT_ANEW.replace("2", "2.0")):
        path.write_text(text)
        assert code_digest(path) != before
    path.write_text("a binary \0 file")
    assert code_digest(path) != before


def test_kept_sources_run_in_place_of_edited_ones(module, tmp_path):
    """Also those that a component imports, late or relatively; afterwards the present ones run again."""
    module("", "kernels.__init__")
    helper = module("rate = 1\n", "kernels.rates")
    path = module(
        "from .rates import rate\n\nclass Fast:\n    kind, rate = 'old', rate\n    def late(self):\n"
        "        from kernels import rates\n        return rates.rate\n",
        "kernels.fast",
    )
    config, kept = model({"model.ffn": "kernels.fast.Fast"}), tmp_path / "trial" / "sources"
    keep_sources(config, kept)
    assert sorted(str(p.relative_to(kept)) for p in kept.rglob("*.py")) == [
        "kernels/__init__.py",
        "kernels/fast.py",
        "kernels/rates.py",
    ]
    assert changed_files([config.ffn], kept) == []
    assert import_component("kernels.fast.Fast").kind == "old"
    path.write_text(path.read_text().replace("old", "newer"))
    helper.write_text("rate = 23\n")
    for name in [name for name in sys.modules if name.startswith("kernels")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    assert import_component("kernels.fast.Fast").kind == "newer"
    assert sorted(map(str, changed_files([config.ffn], kept))) == ["kernels/fast.py", "kernels/rates.py"]
    with kept_sources(config, kept):
        fast = import_component("kernels.fast.Fast")
        assert (fast.kind, fast.rate, fast().late()) == ("old", 1, 1)
    present = import_component("kernels.fast.Fast")
    assert (present.kind, present.rate, present().late()) == ("newer", 23, 23)
    assert str(kept) not in sys.path and not list(kept.rglob("*.pyc"))


def test_a_trial_without_kept_sources_is_refused(module, tmp_path):
    module(MODULE)
    kept = tmp_path / "sources"
    with pytest.raises(InputError, match=str(kept)), kept_sources(model({"model.ffn": "stranger.Plain"}), kept):
        pass
    with kept_sources(Model(), kept):  # the paper's components need none
        pass


def test_sources_change_when_a_file_that_a_part_imports_is_edited(module):
    """By whatever way of importing; what is installed has a version."""
    helpers = [module("rate = 1\n", name) for name in ("kernels.fast", "kernels.slow", "constants")]
    deeper = module("rate = 2\n", "kernels.deeper")
    helpers[1].write_text("from . import deeper\nimport numpy\n")
    above = module("rate = 1\n", "kernels.__init__")  # it runs before the modules of its package
    module("import constants\nfrom kernels import fast\nimport kernels.slow as s\n" + MODULE)
    keys = {"model.ffn": "stranger.Plain"}
    before = source_digests(model(keys))
    for path in (*helpers, deeper, above):
        text = path.read_text()
        path.write_text(text + "rate = 3\n")
        assert source_digests(model(keys)) != before, path
        path.write_text(text)
    assert source_digests(model(keys)) == before


def test_sources_are_what_is_written_and_not_what_is_loaded(module):
    """Every process is to find the same, whatever other rows have brought along."""
    lazy = module("rate = 1\n", "constants")
    module(f"def late():\n    import constants\n    import no_such_package\n    from . import none\n{MODULE}")
    keys = {"model.ffn": "stranger.Plain"}
    before = source_digests(model(keys))
    importlib.import_module("constants")
    assert source_digests(model(keys)) == before
    lazy.write_text("rate = 2\n")
    assert source_digests(model(keys)) != before


def test_the_core_has_no_sources_of_its_own():
    assert source_digests(Model()) == {}  # its revision stands for it
