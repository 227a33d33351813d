"""The end of a sweep: its table in the terminal and in the sweep's folder, and its page."""

from collections.abc import Callable, Iterable
from pathlib import Path
from shlex import quote

from filelock import FileLock
from rich.console import Console

from transformer_pl.report.render import Table
from transformer_pl.runtime.files import write_atomically
from transformer_pl.runtime.terminal import say


def publish(table: Table, draw_page: Callable[[], object], folder: Path, console: Console, exit_code: int) -> int:
    """Print a table and write it with its page; return the exit code of the command.

    folder: the sweep's, `runs/sweeps/<name>@<scale>`. draw_page: writes the page. It is called where the folder has the
    page of another table, or none, and never after an interruption (any exit code but 0 and 1), which must end soon.
    """
    console.print(table.terminal(console.width))
    page, markdown = folder / "report.html", folder / "table.md"
    try:
        with FileLock(folder / "lock"):  # of several commands on one sweep, the first writes the page
            drawn = page.exists() and markdown.exists() and markdown.read_text("utf-8") == table.markdown()
            write_atomically(folder / "table.tex", table.latex())
            write_atomically(folder / "results.csv", table.csv())
            if exit_code in (0, 1) and not drawn:
                draw_page()
            write_atomically(markdown, table.markdown())
    except OSError as error:  # the results themselves are safe in the folders of the trials
        say(console, f"table: cannot be written: {error}; run the same command again to write it")
        return exit_code or 1
    say(console, f"table and results: {folder}")
    if page.exists():
        say(console, f"page: {page}")
    return exit_code


def mention_offline_runs(folders: Iterable[Path], runs: Path, console: Console) -> None:
    """Print how to upload the W&B runs that were kept offline, if there are any."""
    if any(any(folder.glob("wandb/offline-run-*")) for folder in folders):
        upload = f"wandb sync {quote(str(runs))}/*/*/wandb/offline-run-*"
        say(console, f"W&B: kept offline; to upload: {upload}")
