"""The HTML page of a sweep: one file without external resources, with the table and everything it is made from."""

import base64
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader

from transformer_pl.data.batches import Batch, collate
from transformer_pl.data.prepare import Prepared, evenly_spaced
from transformer_pl.evaluation.evaluate import attention_maps, trained_model
from transformer_pl.evaluation.score import sentence_bleu
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting.render import Table
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.identity import config_difference, same_row

TRANSLATED_SENTENCES = 12  # sentences whose translations are shown
ATTENTION_SENTENCES = 4  # of these, the number whose attention is shown, too
MAX_ATTENTION_LENGTH = 40  # tokens of a sentence whose attention is shown, in either language
LOG_LINES = 40


def render_page(
    sweep: Sweep,
    planned: Sequence[PlannedTrial],
    shown: Sequence[PlannedTrial],
    table: Table,
    figures: Mapping[str, Path],
) -> str:
    """The HTML of the page.

    planned: all trials. shown: the trials whose translations and attention it has, one per row. figures: svg files by
    caption.
    """
    environment = Environment(
        loader=PackageLoader("transformer_pl", "reporting/templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # keep the order of rows and of sites
    states = [one.trial.status()["state"] for one in planned]
    translations, translation_errors = _translations(sweep, shown)
    attention, attention_errors = _attention(sweep, shown)
    return environment.get_template("page.html").render(
        sweep=sweep,
        scale=Path(sweep.scale).stem,
        table=table,
        cells=list(zip(*(column.cells for column in table.columns), strict=True)),
        done=states.count("done"),
        diverged=states.count("diverged"),
        failed=states.count("failed"),
        figures={caption: _inline_svg(path) for caption, path in figures.items()},
        translations=translations,
        translation_errors=translation_errors,
        attention={"sentences": attention},
        attention_errors=attention_errors,
        trials=[_trial(sweep, one, state) for one, state in zip(planned, states, strict=True)],
    )


def _inline_svg(path: Path) -> str:
    """The svg element of a file, without the XML declaration before it."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def _trial(sweep: Sweep, one: PlannedTrial, state: str) -> dict[str, Any]:
    """What the page says of a trial: what differs from base, where it ran, its metrics and the end of its log."""
    changes = [(key, *values) for key, values in config_difference(one.config, sweep.base).items() if key != "seed"]
    facts = {"folder": one.trial.folder.name} | one.trial.environment() | (one.trial.result() or {}).get("metrics", {})
    facts |= {"packages": ", ".join(f"{name} {version}" for name, version in facts.pop("packages", {}).items())}
    if (step := one.trial.diverged_at()) is not None:
        facts["diverged at step"] = step
    log = "\n".join(one.trial.log_end(LOG_LINES))
    return {"name": one.name, "state": state, "changes": changes, "facts": facts, "log": log}


# ---------------------------------------------------------------------------------------------------------------------
# Translations


def _translations(sweep: Sweep, shown: Sequence[PlannedTrial]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A few sentences, each with its translation by every row; and by the names of rows without any, why."""
    hypotheses: dict[int, list[str]] = {}  # by row
    errors: dict[str, str] = {}
    text: tuple[list[str], list[str]] | None = None
    for one in shown:
        try:
            row_text, row_hypotheses = one.prepared.text("val"), one.trial.hypotheses("val")
            text = text or row_text
            if row_text != text:
                raise InputError("it was evaluated on other text")
            if len(row_hypotheses) != len(row_text[0]):
                raise InputError(f"it has {len(row_hypotheses)} translations of {len(row_text[0])} sentences")
            hypotheses[one.row] = row_hypotheses
        except InputError as error:
            errors[sweep.rows[one.row].name] = str(error)
    if text is None:
        return [], errors
    sources, references = text
    base_hypotheses = hypotheses.get(_base_row(sweep))
    samples = []
    for i in evenly_spaced(len(sources), TRANSLATED_SENTENCES):
        rows = []
        for row, row_hypotheses in hypotheses.items():
            base_words = (base_hypotheses or row_hypotheses)[i].split()
            words = _mark_changes(row_hypotheses[i].split(), base_words)
            rows.append((sweep.rows[row].name, sentence_bleu(row_hypotheses[i], references[i]), words))
        samples.append({"source": sources[i], "reference": references[i], "rows": rows})
    return samples, errors


def _base_row(sweep: Sweep) -> int:
    """The index of the base row; -1 if the sweep has none."""
    return next((i for i, row in enumerate(sweep.rows) if same_row(row.configs[0], sweep.base)), -1)


def _mark_changes(words: list[str], base_words: list[str]) -> list[tuple[str, bool]]:
    """Runs of words, each with whether it differs from base. A run that only base has is shown as an ellipsis."""
    steps = difflib.SequenceMatcher(None, base_words, words, autojunk=False).get_opcodes()
    return [(" ".join(words[start:end]) or "…", kind != "equal") for kind, _, _, start, end in steps]


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def _attention(sweep: Sweep, shown: Sequence[PlannedTrial]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The attention weights of a few sentences, by row and site; and by the names of rows without any, why.

    Only one model at a time is in memory. Rows must use the tokenizer of the first one, so that positions are the same.
    """
    sentences: dict[int, dict[str, Any]] = {}  # by their index in the validation set
    errors: dict[str, str] = {}
    for one in shown:
        name, text = sweep.rows[one.row].name, shown[0].prepared
        try:
            if one.prepared.folder != text.folder:
                raise InputError("its tokenizer is another")
            one.trial.intact("weights.pt")
            with trained_model(one.config, text, one.trial) as model:
                for i, batch in _short_sentences(text):
                    if maps := attention_maps(model, batch.source, batch.target_in):
                        about = {"text": text.text("val")[0][i], "rows": {}} | _token_labels(text, batch)
                        weights = {site: _pack(torch.cat(layers).cpu()) for site, layers in maps.items()}
                        sentences.setdefault(i, about)["rows"][name] = weights
        except InputError as error:
            errors[name] = str(error)
            continue
        if not any(name in sentence["rows"] for sentence in sentences.values()):
            errors[name] = "its layers do not report attention weights"
    return list(sentences.values()), errors


def _short_sentences(text: Prepared) -> list[tuple[int, Batch]]:
    """The sentences whose attention is shown: their indexes in the validation set, and batches of each alone."""
    split = text.split("val")
    lengths = np.maximum(split.source.lengths, split.target.lengths)
    sampled = evenly_spaced(len(lengths), TRANSLATED_SENTENCES)
    short_enough = [i for i in sampled if lengths[i] < MAX_ATTENTION_LENGTH]
    return [(i, collate(split, np.array([i]))) for i in short_enough[:ATTENTION_SENTENCES]]


def _token_labels(text: Prepared, batch: Batch) -> dict[str, list[str]]:
    """The tokens of the source and of the target, as text."""
    vocabulary = text.tokenizer.vocabulary()
    token_ids = {"source": batch.source[0], "target": batch.target_in[0]}
    return {side: [vocabulary[token] for token in ids.tolist()] for side, ids in token_ids.items()}


def _pack(weights: torch.Tensor) -> dict[str, Any]:
    """weights (layers, heads, queries, keys) from 0 to 1, as base64 of one byte per weight, 255 for 1."""
    layers, heads = weights.shape[:2]
    data = (weights * 255).round().to(torch.uint8).numpy().tobytes()
    return {"layers": layers, "heads": heads, "data": base64.b64encode(data).decode()}
