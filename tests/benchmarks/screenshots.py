"""The screenshots in sweeps/figures, each of a real run: the page of a table, a study in optuna-dashboard, a terminal.

    python tests/benchmarks/screenshots.py [page] [study] [terminal]

The page is of the trials in sweeps/results. The study has small models that are trained for it, in two minutes. The
terminal is that of tmux, 40 seconds after a sweep has begun there. Needs Chromium, tmux and the extra `dev`.
"""

import io
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from shlex import join

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "sweeps" / "figures"
COLUMNS, LINES, SECONDS = 118, 34, 40  # of the terminal
SMALL = ["model.width=1/8", "model.depth=1/3", "optim.max_steps=240", "trainer.val_every=20", "decode.beam=1"]


def command(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"transformer_pl.{name}", *words]


def picture(url: str, name: str, height: int, width: int = 900, click: str = "") -> None:
    """Save what Chromium shows of a page, if `click` is given after a click on the control with this label."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": width, "height": height})
        shown.goto(url)
        if click:
            shown.get_by_label(click).click()
            time.sleep(5)  # until it is drawn
        shown.screenshot(path=FIGURES / name)
        browser.close()


def page(runs: Path) -> None:
    """The page of Table 3 (A)."""
    with tarfile.open(ROOT / "sweeps" / "results" / "demo.tar.xz") as archive:
        archive.extractall(runs, filter="data")
    words = command("report", "sweeps/table3_A.yaml", "--runs", str(runs), "--format", "html")
    made = Path(subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip())
    picture(made.as_uri(), "report_page.png", height=880)


def study(runs: Path) -> None:
    """A study in optuna-dashboard."""
    words = ["sweeps/search_regularisation.yaml", "--runs", str(runs), "--sampler", "tpe", "seed=1", "--set", *SMALL]
    subprocess.run(command("sweep", *words), check=True, cwd=ROOT)
    (journal,) = runs.glob("sweeps/*/study.journal")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    dashboard = Path(sys.executable).with_name("optuna-dashboard")
    with subprocess.Popen([dashboard, journal, "--host", "127.0.0.1", "--port", str(port)]) as server:
        time.sleep(5)
        picture(
            f"http://127.0.0.1:{port}/dashboard/studies/0", "study.png", height=1000, width=1200, click="Log y scale"
        )
        server.terminate()


def terminal(runs: Path) -> None:
    """The live view of a sweep."""
    words = [shutil.which("tmux") or "tmux", "-L", f"screenshot-{runs.name}"]
    shown = join(["env", "COLORTERM=truecolor", *command("sweep", "sweeps/table3_A.yaml", "--runs", str(runs))])
    subprocess.run([*words, "new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), shown], check=True, cwd=ROOT)
    time.sleep(SECONDS)
    captured = subprocess.run([*words, "capture-pane", "-p", "-e"], capture_output=True, text=True, check=True).stdout
    subprocess.run([*words, "send-keys", "C-c"], check=True)  # the trials save and end
    time.sleep(10)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(captured.strip("\n")))
    drawn = console.export_svg(title="python -m transformer_pl.sweep sweeps/table3_A.yaml")
    (FIGURES / "terminal.svg").write_text(re.sub(r"@font-face {.*?}", "", drawn, flags=re.S))  # they are on a server


PICTURES: dict[str, Callable[[Path], None]] = {"page": page, "study": study, "terminal": terminal}


def main(names: list[str]) -> None:
    for name in names or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[name](Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
