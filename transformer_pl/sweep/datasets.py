"""The datasets of a sweep: their preparation, and what the command says of their size and their mistakes."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from transformer_pl.config import Data
from transformer_pl.data.prepare import learn_vocabulary, prepare
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.selection import OnProgress, count_pairs, leaks
from transformer_pl.runtime.errors import collect_errors
from transformer_pl.runtime.terminal import say, shown_stages
from transformer_pl.task import open_corpus, task_of

SMALL = 20_000  # training pairs, of which a vocabulary is learned in seconds: a plan knows whether data.vocab_size fits


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
    task = task_of(data)
    scored, unit = task.scoring(data), task.unit
    unused = cut = 0  # of the training set, known once it is prepared
    if prepared.is_counted():
        description, counts = prepared.meta["corpus"], prepared.meta["splits"]
        for name in data.evaluated:
            task.check_references(data, prepared.text(name)[1])
        train = prepared.split("train")
        unused = (train.longer > data.longest).sum()
        cut = 0 if prepared.joined else len(train.target) - counts["train"]["pairs"]
    else:
        corpus = open_corpus(data)
        description = corpus.description
        if not corpus.is_local:
            return f"dataset: {description}; it is loaded and counted when it is prepared; {scored}"
        counts = count_pairs(corpus, data, on_progress)
        if (pairs := counts["train"]["pairs"]) <= SMALL and data.of_vocabulary == data:
            learn_vocabulary(data, corpus, pairs)
    sizes = []
    for name in ("train", *data.evaluated):
        blank = counts[name].get("blank", 0)
        sizes.append(f"{counts[name]['pairs']:,} {{}}" + (f" ({blank:,} empty ones are left out)" if blank else ""))
    sets = ", ".join(sizes).format(
        f"training {unit}s", "for validation", "for test", *(f"for {name}" for name in data.further)
    )
    dropped = [f"{unused:,} training {unit}s are longer than data.max_length and are not used"] if unused else []
    if data.max_words:
        dropped.append(f"{unit}s with more than data.max_words = {data.max_words} words are left out")
    dropped += [f"longer ones are cut at data.max_length, which makes {cut:,} more pieces"] if cut else []
    return "; ".join([f"dataset: {description}: {sets}", *dropped, *leaks(counts, unit), scored])
