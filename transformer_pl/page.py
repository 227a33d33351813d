"""The page of a sweep: one file that opens anywhere, with the table and all that it is made of."""

import base64
import difflib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader

from transformer_pl.batches import collate
from transformer_pl.evaluate import attention_maps, trained
from transformer_pl.figures import Figure
from transformer_pl.identity import difference
from transformer_pl.plan import Planned
from transformer_pl.render import Table
from transformer_pl.score import sentence_bleu
from transformer_pl.sweepfile import Sweep

SENTENCES = 12  # whose translations are shown
PICTURED = 4  # of which attention is shown, too
LONGEST = 40  # pieces a side, of a sentence whose attention is shown
LOG_LINES = 40


def page(sweep: Sweep, planned: Sequence[Planned], table: Table, drawn: Mapping[str, Figure]) -> str:
    """Its HTML; `drawn`: the figures, by their captions."""
    done = [one for one in planned if one.trial.result()]
    first = {one.row: one for one in reversed(done)}  # the first seed of each row that has one
    shown = [first[row] for row in sorted(first)]
    environment = Environment(loader=PackageLoader("transformer_pl"), autoescape=True, trim_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # rows and sites in their own order
    states = [one.trial.status()["state"] for one in planned]
    return environment.get_template("page.html").render(
        sweep=sweep,
        scale=Path(sweep.scale).stem,
        table=table,
        cells=list(zip(*(column.cells for column in table.columns), strict=True)),
        done=len(done),
        failed=states.count("failed"),
        figures={caption: _svg(figure) for caption, figure in drawn.items()},
        samples=_samples(sweep, shown),
        attention={"sentences": _attention(sweep, shown)},
        trials=[_trial(sweep, one, state) for one, state in zip(planned, states, strict=True)],
    )


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight")
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def _trial(sweep: Sweep, one: Planned, state: str) -> dict[str, Any]:
    changes = [(key, *values) for key, values in difference(one.config, sweep.base).items() if key != "seed"]
    facts = {"folder": one.trial.folder.name} | one.trial.environment() | (one.trial.result() or {}).get("metrics", {})
    facts |= {"packages": ", ".join(f"{name} {version}" for name, version in facts.pop("packages", {}).items())}
    log = "\n".join(one.trial.log_end(LOG_LINES))
    return {"name": one.name, "state": state, "changes": changes, "facts": facts, "log": log}


def _chosen(one: Planned) -> np.ndarray:
    """Sentences from all over the validation set."""
    count = len(one.text.text("val")[0])
    return np.unique(np.linspace(0, count - 1, SENTENCES).astype(int))


def _samples(sweep: Sweep, shown: Sequence[Planned]) -> list[dict[str, Any]]:
    """A few sentences with what every row makes of them; only rows of one text can stand side by side."""
    shown = [one for one in shown if one.text.folder == shown[0].text.folder]
    if not shown:
        return []
    sources, references = shown[0].text.text("val")
    outputs = {one.row: one.trial.hypotheses("val") for one in shown}
    base = next((one.row for one in shown if sweep.rows[one.row].name == "base"), None)
    samples = []
    for i in _chosen(shown[0]):
        rows = []
        for one in shown:
            words = outputs[one.row][i].split()
            beside = words if base is None else outputs[base][i].split()
            score = sentence_bleu(outputs[one.row][i], references[i])
            rows.append((sweep.rows[one.row].name, score, _marked(words, beside)))
        samples.append({"source": sources[i], "reference": references[i], "rows": rows})
    return samples


def _marked(words: list[str], beside: list[str]) -> list[tuple[str, bool]]:
    """Runs of words, each with whether it stands so in the other, too."""
    steps = difflib.SequenceMatcher(None, beside, words, autojunk=False).get_opcodes()
    return [(" ".join(words[a:b]) or "…", kind != "equal") for kind, _, _, a, b in steps]


def _attention(sweep: Sweep, shown: Sequence[Planned]) -> list[dict[str, Any]]:
    """Pictures of every layer and head, a byte a weight, by sentence, row and site."""
    shown = [one for one in shown if one.text.folder == shown[0].text.folder]
    if not shown:
        return []
    text = shown[0].text
    split, pieces = text.split("val"), text.tokenizer.pieces()
    longest = np.maximum(split.source.lengths, split.target.lengths)
    chosen = [i for i in _chosen(shown[0]) if longest[i] < LONGEST][:PICTURED]
    models = {sweep.rows[one.row].name: trained(one.config, text, one.trial.folder / "weights.pt") for one in shown}
    sentences = []
    for i in chosen:
        batch = collate(split, np.array([i]))
        rows = {}
        for name, model in models.items():
            maps = attention_maps(model, batch.source, batch.target_in)
            rows[name] = {site: _packed(torch.cat(layers).cpu()) for site, layers in maps.items()}
        if any(rows.values()):
            sides = {"source": batch.source[0].tolist(), "target": batch.target_in[0].tolist()}
            labels = {side: [pieces[piece] for piece in ids] for side, ids in sides.items()}
            sentences.append({"text": text.text("val")[0][i], "rows": {k: v for k, v in rows.items() if v}} | labels)
    return sentences


def _packed(weights: torch.Tensor) -> dict[str, Any]:
    """weights (layers, heads, queries, keys)."""
    layers, heads = weights.shape[:2]
    data = (weights * 255).round().to(torch.uint8).numpy().tobytes()
    return {"layers": layers, "heads": heads, "data": base64.b64encode(data).decode()}
