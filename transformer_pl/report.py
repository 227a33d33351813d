"""The table of a sweep, from the results on disk:  python -m transformer_pl.report FILE... [--format md|tex|...]"""

import argparse
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from transformer_pl.config import read_yaml
from transformer_pl.errors import InputError, Parser, run, together
from transformer_pl.plan import Planned, plan
from transformer_pl.render import Table
from transformer_pl.results import RUNS, write
from transformer_pl.retune import retuning
from transformer_pl.sweepfile import SEARCHES, Sweep, load
from transformer_pl.table import Row, against, build

if TYPE_CHECKING:
    from transformer_pl.figures import Figure
    from transformer_pl.search.file import Search
    from transformer_pl.search.outcome import Outcome

FORMATS = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv, "json": Table.json}


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m transformer_pl.report", description="The table of a sweep.")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    add_sweep_options(parser)
    parser.add_argument("--format", choices=("terminal", *FORMATS, "html"), default="terminal")
    parser.add_argument(
        "--test",
        choices=("t", "randomisation"),
        default="t",
        help="of differences (%(default)s; of one seed the latter)",
    )
    parser.add_argument("--against", type=_folder, metavar="DIR", help="another runs folder, to compare the same rows")
    options = parser.parse_args(argv)
    for flag, place in (("--runs", options.runs), ("--against", options.against)):
        if place and not place.is_dir():
            raise InputError(f"{flag} {place}: must be the folder that the sweep was run with, but there is none")
    if options.format == "html" and options.against:
        raise InputError("--format html: the page is of one runs folder; leave --against out, or take another format")
    if options.format in ("json", "csv") and len(options.files) > 1:
        raise InputError(f"--format {options.format}: must be of one sweep file, but {len(options.files)} are given")
    told = together(lambda file: _of_file(file, options), dict.fromkeys(options.files))
    for title, table in told.values():
        if options.format == "html":
            print(table)
        elif options.format == "terminal":
            Console().print(*([title] if len(told) > 1 else []), table.terminal(), sep="\n")
        else:
            heading = {"md": f"## {title}\n\n", "tex": f"% {title}\n"} if len(told) > 1 else {}
            print(heading.get(options.format, "") + FORMATS[options.format](table), end="\n" if heading else "")
    return 0


def _of_file(file: Path, options: argparse.Namespace) -> tuple[str, Table | Path]:
    """The title and the table of a sweep; for html, the path of its page."""
    content = read_yaml(file)
    if content.get("method") in SEARCHES:
        return _of_search(file, content, options)
    sweep = load(file, options.scale, options.seeds, options.set)
    if options.retune:
        tuning = retuning(sweep, options.retune, options.budget, content.get("metric"))
        tried = plan(tuning.tries(sweep), options.runs)
        if missing := [one for one in tried if one.trial.status()["state"] not in ("done", "failed")]:
            raise InputError(
                f"--retune: every row must have been tried at every point, but {len(missing)} of {len(tried)} trials "
                "are missing; run the sweep with it first"
            )
        sweep = tuning.best(sweep, tried)
    title, planned = f"{sweep.name} at scale {Path(sweep.scale).stem}", plan(sweep, options.runs)
    if options.against:
        folders = (options.runs, options.against)
        sides = [rows_of(sweep, plan(sweep, folder)) for folder in folders]
        places = tuple(folder.name if len({f.name for f in folders}) > 1 else str(folder) for folder in folders)
        return title, against([row.name for row in sweep.rows], *sides, places)
    table = table_of(sweep, planned, options.test == "randomisation")
    if options.format != "html":
        return title, table
    folder = sweep_folder(sweep, options)
    folder.mkdir(parents=True, exist_ok=True)
    write_page(sweep, planned, table, folder)
    return title, folder / "report.html"


def _of_search(file: Path, content: dict[str, Any], options: argparse.Namespace) -> tuple[str, Table | Path]:
    from transformer_pl.search import storage  # optuna takes a quarter of a second
    from transformer_pl.search.outcome import Outcome

    if options.against:
        raise InputError(f"{file}: a search has no rows to hold against another folder's; leave --against out")
    found = search_of(file, content, options)
    folder = sweep_folder(found, options)
    outcome = Outcome(found, storage.find(found, folder, options.storage), options.runs)
    title, table = f"{found.name} at scale {Path(found.scale).stem}", outcome.table()
    if options.format != "html":
        return title, table
    write_search_page(outcome, table, folder)
    return title, folder / "report.html"


def search_of(file: Path, content: dict[str, Any], options: argparse.Namespace) -> "Search":
    """A sweep file that searches. Where the command line has a password, the process begins anew without it."""
    from transformer_pl.search.file import load
    from transformer_pl.search.storage import hide_password

    hide_password(options.storage)
    if options.retune:
        raise InputError(f"--retune: is for the rows of a grid, but {file} searches; add the keys to its parameters")
    return load(file, content, options.scale, options.seeds, options.set)


def add_sweep_options(parser: Parser) -> None:
    """What says which trials are meant, beside the sweep file."""
    parser.add_argument("--scale", help="a scale's name or a YAML file; replaces the file's")
    parser.add_argument("--seeds", type=_seeds, metavar="1,2", help="replaces the file's seeds")
    parser.add_argument(
        "--set", type=_setting, nargs="+", action=_Settings, default={}, metavar="KEY=VALUE", help="wins over the file"
    )
    parser.add_argument(
        "--retune",
        type=_keys,
        metavar="KEY,KEY",
        help="give every row its own best value of these: the same small search for each",
    )
    parser.add_argument("--budget", type=_budget, default=8, metavar="K", help="tries a row for --retune (%(default)s)")
    parser.add_argument("--storage", metavar="URL", help="of a search's study, in place of a journal beside the table")
    parser.add_argument("--runs", type=_folder, default=RUNS, metavar="DIR", help="where results lie (%(default)s)")


def table_of(sweep: Sweep, planned: list[Planned], randomise: bool = False) -> Table:
    """The table of a sweep as far as it is there."""
    table = build(rows_of(sweep, planned), sweep.base, randomise=randomise)
    return table._replace(notes=[*table.notes, *sweep.notes])


def rows_of(sweep: Sweep, planned: list[Planned]) -> list[Row]:
    rows = []
    for index, row in enumerate(sweep.rows):
        trials = [one.trial for one in planned if one.row == index]
        results = [trial.result() for trial in trials]
        sentences = _stacked([trial.sentences("val") for trial, result in zip(trials, results, strict=True) if result])
        rows.append(Row(row.configs[0], results, [trial.status()["state"] for trial in trials], sentences))
    return rows


def write_page(sweep: Sweep, planned: list[Planned], table: Table, folder: Path) -> dict[str, Path]:
    """`report.html` in the sweep's folder, and its figures as files; returns the pictures by their captions."""
    from transformer_pl import gallery, page  # which take seconds

    pictures = _saved(gallery.hang(sweep, planned, table), folder)
    write(folder / "report.html", page.page(sweep, planned, page.first_seeds(planned), table, _vectors(pictures)))
    return pictures


def write_search_page(outcome: "Outcome", table: Table, folder: Path) -> dict[str, Path]:
    """The same of a search."""
    from transformer_pl import page  # which take seconds
    from transformer_pl.search import gallery

    pictures = _saved(gallery.hang(outcome), folder)
    sweep, planned, shown = gallery.as_sweep(outcome, folder.parents[1])
    write(folder / "report.html", page.page(sweep, planned, shown, table, _vectors(pictures)))
    return pictures


def _saved(drawn: "dict[str, tuple[str, Figure]]", folder: Path) -> dict[str, Path]:
    """The pictures of figures, by their captions."""
    from transformer_pl import figures

    (folder / "figures").mkdir(exist_ok=True)
    return {caption: figures.save(figure, folder / "figures" / name) for name, (caption, figure) in drawn.items()}


def _vectors(pictures: dict[str, Path]) -> dict[str, Path]:
    return {caption: path.with_suffix(".svg") for caption, path in pictures.items()}


def sweep_folder(sweep: Any, options: argparse.Namespace) -> Path:
    """`runs/sweeps/<name>@<scale>`; a --set adds a short hash, as --retune does, for it makes another table."""
    name = f"{sweep.name}@{Path(sweep.scale).stem}"
    said = sorted(options.set.items())
    if options.retune:
        said += [("--retune", options.retune), ("--budget", options.budget)]
    if said:
        name += "-" + hashlib.sha256(repr(said).encode()).hexdigest()[:6]
    return options.runs / "sweeps" / re.sub(r"[^A-Za-z0-9@._-]+", "-", name)


def _stacked(seeds: list[Any]) -> Any:
    """(seeds, sentences, 12); None where a seed's are not there, or of other text."""
    import numpy as np

    if not seeds or any(one is None or one.shape != seeds[0].shape for one in seeds):
        return None
    return np.stack(seeds)


class _Settings(argparse.Action):
    """KEY=VALUE pairs as a mapping; --set may be said several times, a key once."""

    def __call__(self, parser: Any, namespace: Any, pairs: list[tuple[str, str]], option_string: Any = None) -> None:
        settings = dict(getattr(namespace, self.dest))
        for key, value in pairs:
            if key in settings:
                raise argparse.ArgumentError(self, f"{key} is set twice; set it once")
            settings[key] = value
        setattr(namespace, self.dest, settings)


def _seeds(text: str) -> list[str]:
    seeds = text.split(",")
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text) or len(set(map(int, seeds))) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r} must be different whole numbers with commas between, such as 1,2")
    return seeds


def _keys(text: str) -> list[str]:
    keys = text.split(",")
    if not all(keys) or len(set(keys)) < len(keys):
        raise argparse.ArgumentTypeError(f"{text!r} must be different keys with commas between")
    return keys


def _budget(text: str) -> int:
    if not text.isdigit() or int(text) < 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a whole number of at least 2: base's own values are one try"
        )
    return int(text)


def _folder(text: str) -> Path:
    if not text or (os.path.exists(text) and not os.path.isdir(text)):
        raise argparse.ArgumentTypeError(f"{text!r} must be a folder; choose another")
    return Path(text)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE, such as model.h=4")
    return key, value


if __name__ == "__main__":
    run(main)
