"""The end of a sweep: its table in the terminal, in the sweep's folder and at W&B, and its page."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from filelock import FileLock
from rich.console import Console

from transformer_pl.reporting.render import Table
from transformer_pl.runtime.files import write_atomically
from transformer_pl.runtime.terminal import say
from transformer_pl.training.wandb_process import SEND_S, WandbRun
from transformer_pl.trials.runs_folder import sweep_title


@dataclass(frozen=True)
class Publisher:
    """Publishes the table of one sweep at one scale.

    folder: the sweep's folder, `runs/sweeps/<name>@<scale>`. differs: the options that its name has a hash of.
    """

    name: str
    scale: str
    folder: Path
    console: Console
    differs: str = ""

    def publish(self, table: Table, draw_page: Callable[[], dict[str, Path]], exit_code: int) -> int:
        """Print the table, write it with its page and send it to W&B; return the exit code of the command.

        draw_page: writes the page with `write_page_files` and returns the figures by their captions. It is called
        where the folder has the page of another table, or none, and never after an interruption (any exit code but 0
        and 1), which must end soon.
        """
        self.console.print(table.terminal(self.console.width))
        page, markdown = self.folder / "report.html", self.folder / "table.md"
        try:
            with FileLock(self.folder / "lock"):  # of several commands on one sweep, the first writes the page
                drawn = page.exists() and markdown.exists() and markdown.read_text("utf-8") == table.markdown()
                write_atomically(self.folder / "table.tex", table.latex())
                write_atomically(self.folder / "results.csv", table.csv())
                if exit_code in (0, 1) and not drawn:
                    self._send_to_wandb(table, draw_page())
                write_atomically(markdown, table.markdown())
        except OSError as error:  # the results themselves are safe in the folders of the trials
            say(self.console, f"table: cannot be written: {error}; run the same command again to write it")
            return exit_code or 1
        suffix = f" (-{self.folder.name.rpartition('-')[2]}: {self.differs})" if self.differs else ""
        say(self.console, f"table and results: {self.folder}{suffix}")
        if page.exists():
            say(self.console, f"page: {page}")
        return exit_code

    def _send_to_wandb(self, table: Table, figures: dict[str, Path]) -> None:
        """Log the table and the figures as a run of their own, in the sweep's group."""
        name, scale = sweep_title(self.name, self.scale), Path(self.scale).stem
        labels = {"sweep": self.folder.name, "row": "none"}
        report = WandbRun(folder=str(self.folder), name=name, tags=[scale], config=labels, job_type="report")
        report.tell(tables={"results": table.typed()})
        report.tell(images={caption: str(path) for caption, path in figures.items()})
        report.finish(0, wait=SEND_S)  # everything is still to be sent


def mention_offline_runs(folders: Iterable[Path], runs: Path, console: Console) -> None:
    """Print how to upload the W&B runs that were kept offline, if there are any."""
    if any(any(folder.glob("wandb/offline-run-*")) for folder in folders):
        upload = f"wandb sync {quote(str(runs))}/*/*/wandb/offline-run-*"
        say(console, f"W&B: kept offline; to upload: {upload}")
