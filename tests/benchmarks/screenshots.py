"""The screenshots in sweeps/figures, each of a real run: the page of a table, a study in optuna-dashboard, terminals.

    python tests/benchmarks/screenshots.py [page] [study] [terminal] [curves]

The page is of the trials in sweeps/results. The study has small models that are trained for it, in two minutes. The
terminal is that of tmux, 40 seconds after a sweep has begun there; the curves are those of a smaller sweep in `wandb
leet`, while it runs. Needs Chromium, tmux and the extra `dev`.
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


def tmux(session: str, *words: str) -> str:
    """The output of a tmux command on a server of this session's own."""
    full = [shutil.which("tmux") or "tmux", "-L", session, *words]
    return subprocess.run(full, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def begin(session: str, *words: str) -> None:
    """Start a command in a terminal."""
    shown = join(["env", "COLORTERM=truecolor", *words])
    tmux(session, "new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), shown)


def drawn(session: str, title: str, name: str, renamed: dict[str, str] | None = None) -> None:
    """Save what a terminal shows. renamed: texts that are shown as others."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    captured = tmux(session, "capture-pane", "-p", "-e").strip("\n")
    for text, other in (renamed or {}).items():
        captured = captured.replace(text, other)
    console.print(Text.from_ansi(captured))
    svg = re.sub(r"@font-face {.*?}", "", console.export_svg(title=title), flags=re.S)  # they are on a server
    (FIGURES / name).write_text(svg)


def terminal(runs: Path) -> None:
    """The live view of a sweep."""
    session = f"sweep-{runs.name}"
    begin(session, *command("sweep", "sweeps/table3_A.yaml", "--runs", str(runs)))
    time.sleep(SECONDS)
    drawn(session, "python -m transformer_pl.sweep sweeps/table3_A.yaml", "terminal.svg")
    tmux(session, "send-keys", "C-c")  # the trials save and end
    time.sleep(10)


def curves(runs: Path) -> None:
    """The curves of a sweep that runs, in wandb leet."""
    sweep, leet = f"sweep-{runs.name}", f"leet-{runs.name}"
    begin(sweep, *command("sweep", "sweeps/table3_A.yaml", "--runs", str(runs), "--seeds", "1", "--set", *SMALL))
    time.sleep(2 * SECONDS)
    (links,) = runs.glob("sweeps/*/wandb")
    settings = f"WANDB_CONFIG_DIR={runs}"  # leet keeps its settings there
    begin(leet, settings, str(Path(sys.executable).with_name("wandb")), "leet", str(links))
    # Without the overview; the loss alone, its charts one below the other; all runs.
    for keys in ("]", "/", "(train|val)/loss", "Enter", "c", "1", "r", "2", "Escape", "C-a", "y"):
        time.sleep(2)
        tmux(leet, "send-keys", keys)
    time.sleep(5)
    drawn(leet, f"wandb leet runs/{links.relative_to(runs)}", "curves.svg", {str(runs): "runs"})
    tmux(leet, "kill-server")
    tmux(sweep, "send-keys", "C-c")
    time.sleep(10)


PICTURES: dict[str, Callable[[Path], None]] = {"page": page, "study": study, "terminal": terminal, "curves": curves}


def main(names: list[str]) -> None:
    for name in names or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[name](Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
