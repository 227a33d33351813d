"""The page of a sweep: one file that opens offline, with the table and everything that it is made from."""

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformer_pl.config import Config
from transformer_pl.data.batches import Batch, collate
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import format_duration
from transformer_pl.table.figures import Drawing, differing_most, draw_sweep_plots
from transformer_pl.table.formats import Table
from transformer_pl.table.html import write_html
from transformer_pl.task import task_of
from transformer_pl.train.evaluate import attention_maps, shown_text, trained_model
from transformer_pl.trials.identity import config_difference, same_row
from transformer_pl.trials.runs_folder import read_plan
from transformer_pl.trials.trial import Trial

SHOWN_ROWS = 10  # beside base, whose translations and attention are shown: those that differ most from it
TRANSLATED_SENTENCES = 12  # sentences whose translations are shown
ATTENTION_SENTENCES = 4  # sentences whose attention is shown
MAX_LENGTH = 40  # tokens of a sentence whose attention is shown, in either language, with EOS or BOS
LOG_LINES = 40  # that are shown of the end of each trial's log


def write_page(
    folder: Path,
    title: str,
    base: Config,
    table: Table,
    trials: Sequence[tuple[str, Trial]],
    drawings: Mapping[str, Drawing] | None = None,
    shown: Sequence[tuple[str, Trial]] | None = None,
    comment: str = "",
) -> None:
    """Write `report.html`, its figures, and its table as `table.md`.

    trials: each with the name of its row. drawings: by file name; None: those of a grid. shown: the trials whose
    translations and attention the page has; None: the first finished one of the sweep's base, of the table's, and of
    the SHOWN_ROWS that differ most from that. The sweep's base comes first.
    comment: what the page says of the sweep where plan.json, which keeps the comment of its file, is not here.
    """
    if drawings is None:
        drawings = draw_sweep_plots(table)
    left_out = 0
    if shown is None:
        names = {contrast.row.shown_name for contrast in differing_most(table.contrasts, SHOWN_ROWS + 1)}
        finished = [(name, trial) for name, trial in trials if trial.folder.result()]
        first = dict(reversed(finished))
        wanted = [name for name, trial in finished if name in names or same_row(trial.config, base)]
        shown = [(name, first[name]) for name in dict.fromkeys(wanted)]
        left_out = len(first) - len(shown)
    shown = sorted(shown, key=lambda named: not same_row(named[1].config, base))
    write_html(
        folder,
        title,
        table,
        drawings,
        plan={"comment": comment} | read_plan(folder),
        duration=format_duration,
        left_out=left_out,
        translations=_translations(shown),
        attention={"sentences": _attention(shown)},
        task=task_of(base.data),
        trials=[_trial(base, trial) for _, trial in trials],
    )


def _trial(base: Config, trial: Trial) -> dict[str, Any]:
    """What the page says of a trial: what differs from base, where it ran, its metrics and the end of its log."""
    changes, result = config_difference(trial.config, base).items(), trial.folder.result()
    facts = {"folder": trial.folder.name} | trial.folder.environment() | (result.metrics if result else {})
    facts |= {"packages": ", ".join(f"{name} {version}" for name, version in facts.pop("packages", {}).items())}
    return {
        "name": trial.name,
        "state": trial.folder.state(),
        "result": result,
        "finished": result.finished if result else "",
        "seconds": result.wall_s if result else 0.0,
        "changes": [(key, *values) for key, values in changes if key != "seed"],
        "facts": facts | {"gpus": ", ".join(facts.pop("gpus", [])) or "none"},
        "log": "\n".join(trial.folder.log_end(LOG_LINES)),
    }


def _translations(shown: Sequence[tuple[str, Trial]]) -> list[dict[str, Any]]:
    """A few sentences that rows translate differently, or texts that language models continue differently.

    A row that was evaluated on other sentences than the first row is left out.
    """
    text, rows = None, []
    for name, trial in shown:
        measure = task_of(trial.config.data).measure
        with suppress(InputError):  # the dataset or the translations are not here
            row_text, hypotheses = trial.prepared.text("val"), trial.folder.hypotheses("val")
            scores = measure.score(trial.folder.sentences("val", measure))
            if not text:
                text, (sources, references) = row_text, shown_text(trial.prepared)
            if row_text == text:
                rows.append((name, scores, hypotheses))
    if not text:
        return []
    count = min(len(hypotheses) for _, _, hypotheses in rows)  # a language model continues only the first texts
    differ = [i for i in range(count) if len({hypotheses[i] for _, _, hypotheses in rows}) > 1]
    chosen = differ or range(count)
    return [
        {"source": sources[i], "reference": references[i], "rows": [(name, float(s[i]), h[i]) for name, s, h in rows]}
        for i in (chosen[place] for place in evenly_spaced(len(chosen), TRANSLATED_SENTENCES))
    ]


def _attention(shown: Sequence[tuple[str, Trial]]) -> list[dict[str, Any]]:
    """For a few short validation sentences: the text, the tokens, and the attention weights by row and site.

    shown: one trial per row. A row is left out if its tokenizer is another, or its weights are not finite or not here.
    """
    sentences: list[tuple[dict[str, Any], Batch]] = []
    for name, trial in shown:
        with suppress(InputError, RuntimeError):  # the dataset or the weights are not here, or a GPU lacks memory
            first = shown[0][1].prepared
            sentences = sentences or _short_sentences(first)
            if trial.prepared.folder != first.folder:
                continue
            model = trained_model(trial.config, trial.prepared, trial.folder)
            maps = [attention_maps(model, batch.source, batch.target_in) for _, batch in sentences]
            for (picture, _), by_site in zip(sentences, maps, strict=True):
                every = {site: torch.cat(layers).float().cpu() for site, layers in by_site.items()}
                if packed := {site: _pack(weights) for site, weights in every.items() if weights.isfinite().all()}:
                    picture["rows"][name] = packed
    return [picture for picture, _ in sentences if picture["rows"]]


def _short_sentences(prepared: Prepared) -> list[tuple[dict[str, Any], Batch]]:
    """For each sentence its text and tokens, without weights yet, and a batch that holds this sentence alone."""
    split, (sources, targets) = prepared.split("val"), prepared.text("val")
    text, vocabulary = sources if any(sources) else targets, prepared.tokenizer.vocabulary()
    longer, sentence = split.longer, split.target.sentence
    is_whole = np.bincount(sentence)[sentence] == 1  # not a piece of a document
    short = [i for i in evenly_spaced(len(longer), TRANSLATED_SENTENCES) if longer[i] <= MAX_LENGTH and is_whole[i]]
    sentences = []
    for i in short[:ATTENTION_SENTENCES]:
        batch = collate(split, np.array([i]))
        source, target = ([vocabulary[token] for token in side[0]] for side in (batch.source, batch.target_in))
        sentences.append(({"text": text[sentence[i]], "source": source, "target": target, "rows": {}}, batch))
    return sentences


def _pack(weights: torch.Tensor) -> dict[str, Any]:
    """weights (layers, heads, queries, keys) as base64 of signed bytes: 127 means `largest`, which is at least 1."""
    layers, heads = weights.shape[:2]
    largest = max(1.0, weights.abs().max().item())
    data = (weights * (127 / largest)).round().to(torch.int8).numpy().tobytes()
    return {"layers": layers, "heads": heads, "largest": largest, "data": base64.b64encode(data).decode()}
