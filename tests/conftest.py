"""Fixtures that several tests share. No test uses a network or an account."""

import shutil
import sys

import pytest
from forked import command


@pytest.fixture
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


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """The runs folder of sweeps/smoke.yaml, and what the command said."""
    runs = tmp_path_factory.mktemp("smoke") / "runs"
    return runs, command("sweep", "sweeps/smoke.yaml", "--runs", runs)


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
