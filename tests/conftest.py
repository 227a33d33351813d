"""Fixtures that several tests share. No test uses a network or an account."""

import fcntl
import gc
import hashlib
import os
import pickle
import shutil
import signal
import sys
from collections import Counter
from unittest import mock

import pytest
from forked import command

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which is ignored where `nohup` runs the tests


def pytest_addoption(parser):
    parser.addoption("--order", metavar="TEXT", help="run files in an order drawn from TEXT, and name those not run")


def pytest_configure(config):
    """Tests see a GPU only with `-m gpu`, also in processes that they start. `-m core` leaves out slow tests."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.option.markexpr == "core":  # which takes a minute: without the slow tests of these files
        config.option.markexpr = "core and not slow"
    if config.option.order and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NotRun())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if order := config.option.order:
        items.sort(key=lambda item: hashlib.sha256(f"{order} {item.nodeid.partition('::')[0]}".encode()).digest())


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()  # what was imported is not searched for garbage again


class NotRun:
    """Prints a last line: how many tests of which files were not run, because pytest was stopped before."""

    def __init__(self):
        self.left = {}  # the tests to come, in their order
        self.without_any = "Tests that were not run: all, because the time was over while they were collected"

    def pytest_collection_finish(self, session):
        self.left |= dict.fromkeys(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self.left |= dict.fromkeys(ids)

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self.left.pop(report.nodeid, None)
            self.without_any = "Tests that were not run: none"

    def pytest_unconfigure(self):
        files = Counter(test.partition("::")[0] for test in self.left)
        named = ", ".join(f"{count} of {file}" for file, count in files.items())
        print(f"Tests that were not run: {len(self.left)}: {named}" if self.left else self.without_any)


@pytest.fixture(autouse=True)
def same_environment():
    """What a command that runs in the process of the tests sets does not reach another test."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("no Chromium: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Run the tests of a file in one process, because they share what its fixtures have trained."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # files with few tests are the slowest here, and must not come last
    return LoadFileScheduling(config, log)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """The runs folder of sweeps/smoke.yaml, and what the command said. Several processes of pytest share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "smoke"
    folder.mkdir(exist_ok=True)
    runs, completed = folder / "runs", folder / "completed.pickle"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not completed.exists():
            completed.write_bytes(pickle.dumps(command("sweep", "sweeps/smoke.yaml", "--runs", runs)))
    return runs, pickle.loads(completed.read_bytes())


@pytest.fixture
def unrehearsed():
    """Parts of the trials that this process trains are taken as they are."""
    from tiny_trials import unrehearsed  # which imports Lightning

    with unrehearsed():
        yield


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of the user's own, importable from a folder of its own; returns its file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(text, name="stranger"):
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("stranger", "strange", "kernels", "constants"):
            del sys.modules[name]
