"""The page of a sweep: one file that opens anywhere, with the table and all that it is made of."""

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
from transformer_pl.evaluation.evaluate import attention_maps, load_trained_model
from transformer_pl.evaluation.score import sentence_bleu
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting.render import Table
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.identity import config_difference, same_row

SENTENCES = 12  # whose translations are shown
PICTURED = 4  # of which attention is shown, too
LONGEST = 40  # pieces a side, of a sentence whose attention is shown
LOG_LINES = 40


def first_seeds(planned: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """The first finished seed of each row that has one."""
    first = {one.row: one for one in reversed(planned) if one.trial.result()}
    return [first[row] for row in sorted(first)]


def render_page(
    sweep: Sweep,
    planned: Sequence[PlannedTrial],
    shown: Sequence[PlannedTrial],
    table: Table,
    pictures: Mapping[str, Path],
) -> str:
    """Its HTML. `shown`: whose translations and attention it has; `pictures`: the figures' svg files, by captions."""
    environment = Environment(
        loader=PackageLoader("transformer_pl", "reporting/templates"), autoescape=True, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # rows and sites in their own order
    states = [one.trial.status()["state"] for one in planned]
    samples, untranslated = _samples(sweep, shown)
    sentences, unpictured = _attention(sweep, shown)
    return environment.get_template("page.html").render(
        sweep=sweep,
        scale=Path(sweep.scale).stem,
        table=table,
        cells=list(zip(*(column.cells for column in table.columns), strict=True)),
        done=states.count("done"),
        diverged=states.count("diverged"),
        failed=states.count("failed"),
        figures={caption: _svg(path) for caption, path in pictures.items()},
        samples=samples,
        untranslated=untranslated,
        attention={"sentences": sentences},
        unpictured=unpictured,
        trials=[_trial(sweep, one, state) for one, state in zip(planned, states, strict=True)],
    )


def _svg(path: Path) -> str:
    """Without the head that only a file of its own may have."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def _trial(sweep: Sweep, one: PlannedTrial, state: str) -> dict[str, Any]:
    changes = [(key, *values) for key, values in config_difference(one.config, sweep.base).items() if key != "seed"]
    facts = {"folder": one.trial.folder.name} | one.trial.environment() | (one.trial.result() or {}).get("metrics", {})
    facts |= {"packages": ", ".join(f"{name} {version}" for name, version in facts.pop("packages", {}).items())}
    if (step := one.trial.diverged_at()) is not None:
        facts["diverged at step"] = step
    log = "\n".join(one.trial.log_end(LOG_LINES))
    return {"name": one.name, "state": state, "changes": changes, "facts": facts, "log": log}


def _samples(sweep: Sweep, shown: Sequence[PlannedTrial]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A few sentences with what every row makes of them; and why the rows that are not among them are not."""
    outputs: dict[int, list[str]] = {}
    left_out: dict[str, str] = {}
    text = None
    for one in shown:
        try:
            own, hypotheses = one.prepared.text("val"), one.trial.hypotheses("val")
            text = text or own
            if own != text:
                raise InputError("it translates another text")
            if len(hypotheses) != len(own[0]):
                raise InputError(f"it has {len(hypotheses)} translations of {len(own[0])} sentences")
            outputs[one.row] = hypotheses
        except InputError as error:
            left_out[sweep.rows[one.row].name] = str(error)
    if text is None:
        return [], left_out
    sources, references = text
    base = outputs.get(next((i for i, row in enumerate(sweep.rows) if same_row(row.configs[0], sweep.base)), -1))
    samples = []
    for i in evenly_spaced(len(sources), SENTENCES):
        rows = []
        for row, hypotheses in outputs.items():
            beside = (hypotheses if base is None else base)[i].split()
            marked = _marked(hypotheses[i].split(), beside)
            rows.append((sweep.rows[row].name, sentence_bleu(hypotheses[i], references[i]), marked))
        samples.append({"source": sources[i], "reference": references[i], "rows": rows})
    return samples, left_out


def _marked(words: list[str], beside: list[str]) -> list[tuple[str, bool]]:
    """Runs of words, each with whether it stands otherwise in the other."""
    steps = difflib.SequenceMatcher(None, beside, words, autojunk=False).get_opcodes()
    return [(" ".join(words[a:b]) or "…", kind != "equal") for kind, _, _, a, b in steps]


def _attention(sweep: Sweep, shown: Sequence[PlannedTrial]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Pictures of every layer and head, a byte a weight, by sentence, row and site; and why a row has none.

    One model at a time is in memory. Rows of another tokeniser than the first have other positions, so none here.
    """
    sentences: dict[int, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    for one in shown:
        name, text = sweep.rows[one.row].name, shown[0].prepared
        try:
            if one.prepared.folder != text.folder:
                raise InputError("its tokeniser is another")
            model = load_trained_model(one.config, text, one.trial.intact("weights.pt"))
            split, sources = text.split("val"), text.text("val")[0]
        except InputError as error:
            left_out[name] = str(error)
            continue
        longest = np.maximum(split.source.lengths, split.target.lengths)
        for i in [i for i in evenly_spaced(len(sources), SENTENCES) if longest[i] < LONGEST][:PICTURED]:
            batch = collate(split, np.array([i]))
            maps = attention_maps(model, batch.source, batch.target_in)
            if maps:
                labels = sentences.setdefault(i, {"text": sources[i], "rows": {}} | _labels(text, batch))
                labels["rows"][name] = {site: _packed(torch.cat(layers).cpu()) for site, layers in maps.items()}
        if not any(name in sentence["rows"] for sentence in sentences.values()):
            left_out[name] = "its layers tell no weights"
    return list(sentences.values()), left_out


def _labels(text: Prepared, batch: Batch) -> dict[str, list[str]]:
    pieces = text.tokenizer.vocabulary()
    sides = {"source": batch.source[0], "target": batch.target_in[0]}
    return {side: [pieces[piece] for piece in ids.tolist()] for side, ids in sides.items()}


def _packed(weights: torch.Tensor) -> dict[str, Any]:
    """weights (layers, heads, queries, keys)."""
    layers, heads = weights.shape[:2]
    data = (weights * 255).round().to(torch.uint8).numpy().tobytes()
    return {"layers": layers, "heads": heads, "data": base64.b64encode(data).decode()}
