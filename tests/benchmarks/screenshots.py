"""The pictures of pages in sweeps/figures, from the trials in sweeps/results, by Chromium.

python tests/benchmarks/screenshots.py
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "sweeps" / "figures"
SIZE = {"width": 900, "height": 880}


def page_of(sweep: str, scale: str, runs: Path) -> Path:
    """Make the page of a shipped sweep from the trials of a scale, and return its file."""
    with tarfile.open(ROOT / "sweeps" / "results" / f"{scale}.tar.xz") as archive:
        archive.extractall(runs, filter="data")
    command = [sys.executable, "-m", "transformer_pl.report", sweep, "--runs", str(runs), "--format", "html"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip())


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(page_of("sweeps/table3_A.yaml", "demo", Path(folder)).as_uri())
        page.screenshot(path=FIGURES / "report_page.png")
        browser.close()


if __name__ == "__main__":
    main()
