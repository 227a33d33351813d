"""The texts of a sweep, as its command shows them: their size, their mistakes, the progress of their preparation."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from transformer_pl.config import Data
from transformer_pl.data.prepare import prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.selection import OnProgress, check_counts, count_pairs
from transformer_pl.runtime.errors import collect_errors
from transformer_pl.runtime.terminal import say, shown_stages
from transformer_pl.task import SPLITS, open_corpus

LEFT_OUT = ("blank", "long", "uneven", "repeated")  # why training pairs are left out


def prepare_datasets(texts: Iterable[Data], runs: Path, console: Console) -> None:
    """Prepare what is not prepared yet, show the progress, and print a line for each text. Raises an InputError."""
    with shown_stages(console) as on_progress:
        prepared = collect_errors(lambda data: prepare(data, runs, on_progress=on_progress), dict.fromkeys(texts))
    for line in survey_datasets(prepared.items(), console):
        say(console, line)


def survey_datasets(texts: Iterable[tuple[Data, Prepared]], console: Console) -> list[str]:
    """Read the texts that are not prepared yet, and return a line for each text.

    Raises an InputError for text that cannot be used.
    """
    with shown_stages(console) as on_progress:
        lines = collect_errors(lambda text: _describe(*text, on_progress), dict.fromkeys(texts))
    return list(dict.fromkeys(lines.values()))


def _describe(data: Data, prepared: Prepared, on_progress: OnProgress) -> str:
    if prepared.is_counted():
        description, counts = prepared.meta["corpus"], prepared.meta["splits"]
        check_counts(counts, data, description)
    else:
        corpus = open_corpus(data)
        description = corpus.description
        if not corpus.is_local:
            return f"text: {description}; it is loaded and counted when it is prepared"
        counts = count_pairs(corpus, data, on_progress)
    left_out = sum(counts["train"].get(reason, 0) for reason in LEFT_OUT)
    without = f" ({left_out:,} are left out)" if left_out else ""
    train, val, test = (counts[name]["pairs"] for name in SPLITS)
    return f"text: {description}: {train:,} training pairs{without}, {val:,} for validation, {test:,} for test"
