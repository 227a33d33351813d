"""The datasets of a sweep: their preparation, and what the command says of their size and their mistakes."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from transformer_pl.config import Data
from transformer_pl.data.prepare import prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.selection import OnProgress, count_pairs, leaks
from transformer_pl.runtime.errors import collect_errors
from transformer_pl.runtime.terminal import say, shown_stages
from transformer_pl.task import SPLITS, open_corpus, task_of


def prepare_datasets(datasets: Iterable[Data], runs: Path, console: Console) -> None:
    """Prepare what is not prepared yet, show the progress, and print a line for each dataset. Raises an InputError."""
    with shown_stages(console) as on_progress:
        prepared = collect_errors(lambda data: prepare(data, runs, on_progress=on_progress), dict.fromkeys(datasets))
    for line in survey_datasets(prepared.items(), console):
        say(console, line)


def survey_datasets(datasets: Iterable[tuple[Data, Prepared]], console: Console) -> list[str]:
    """Read the datasets that are not prepared yet, and return a line for each dataset.

    Raises an InputError for a dataset that cannot be used.
    """
    with shown_stages(console) as on_progress:
        lines = collect_errors(lambda dataset: _describe(*dataset, on_progress), dict.fromkeys(datasets))
    return list(dict.fromkeys(lines.values()))


def _describe(data: Data, prepared: Prepared, on_progress: OnProgress) -> str:
    scored = task_of(data).scoring(data)
    unused = 0  # training pairs: known once they are prepared
    if prepared.is_counted():
        description, counts = prepared.meta["corpus"], prepared.meta["splits"]
        unused = (prepared.split("train").longer > data.longest).sum()
    else:
        corpus = open_corpus(data)
        description = corpus.description
        if not corpus.is_local:
            return f"dataset: {description}; it is loaded and counted when it is prepared; {scored}"
        counts = count_pairs(corpus, data, on_progress)
    blank = counts["train"].get("blank", 0)
    without = f" ({blank:,} are left out)" if blank else ""
    train, val, test = (counts[name]["pairs"] for name in SPLITS)
    sets = f"{train:,} training pairs{without}, {val:,} for validation, {test:,} for test"
    dropped = [f"{unused:,} training pairs are longer than data.max_length and are not used"] if unused else []
    return "; ".join([f"dataset: {description}: {sets}", *dropped, *leaks(counts), scored])
