"""The page of a sweep: one file that opens offline, with the table and everything that it is made from."""

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jinja2 import Environment, PackageLoader

from transformer_pl.data.batches import Batch, collate
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.plan.plan import PlannedTrial
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.figures import Drawing, draw_sweep_plots, save
from transformer_pl.report.render import Column, Table
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_atomically
from transformer_pl.task import task_of
from transformer_pl.train.evaluate import attention_maps, trained_model
from transformer_pl.trials.identity import config_difference
from transformer_pl.trials.metrics import SCORE_COLUMNS

TRANSLATED_SENTENCES = 12  # sentences whose translations are shown
ALWAYS_SHOWN = ("p", "seeds", "params")  # columns, beside the score and its difference
ATTENTION_SENTENCES = 4  # whose attention is shown
MAX_LENGTH = 40  # tokens of a sentence whose attention is shown, in either language
LOG_LINES = 40  # of each trial
# Colours of the figures that follow the page's light or dark scheme.
SCHEME_COLOURS = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    "#999999": "var(--faint)",
    "#cccccc": "var(--line)",
}


def write_page(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table, folder: Path) -> None:
    """Write `report.html`, `table.md` and the figures of a grid.

    Translations and attention are those of the first finished seed of each row.
    """
    first = {one.row: one for one in reversed(planned) if one.trial.result()}
    shown = [first[row] for row in sorted(first)]
    write_page_files(sweep, planned, shown, table, draw_sweep_plots(sweep, planned, table), folder)


def write_page_files(
    sweep: Sweep,
    planned: Sequence[PlannedTrial],
    shown: Sequence[PlannedTrial],
    table: Table,
    drawings: Mapping[str, Drawing],
    folder: Path,
) -> None:
    """Write `report.html` with its figures, and its table as `table.md`.

    planned: all trials. shown: those whose translations and attention the page has, one per row. drawings: by file
    name.
    """
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    svgs = [save(drawing.figure, folder / "figures" / name) for name, drawing in drawings.items()]
    loader = PackageLoader("transformer_pl", "report/templates")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # keep the order of rows and of sites
    trials = [_trial(sweep, one) for one in planned]
    page = environment.get_template("page.html").render(
        sweep=sweep,
        scale=Path(sweep.scale).stem,
        table=table,
        columns=page_columns(table, [row.name for row in sweep.rows]),
        figures=list(zip(drawings.values(), map(_inline_svg, svgs), strict=True)),
        translations=_translations(sweep, shown),
        attention={"sentences": _attention_pictures(sweep, shown)},
        measure=task_of(sweep.base.data).measure.title,
        trials=trials,
        states=[trial["state"] for trial in trials],
    )
    write_atomically(folder / "report.html", page)
    write_atomically(folder / "table.md", table.markdown())


class PageColumn(NamedTuple):
    """A column of the page's table."""

    column: Column
    below: Column | None = None  # its cells stand in small print below those of the column
    folded: bool = False  # shown only on demand


def page_columns(table: Table, names: Sequence[str]) -> list[PageColumn]:
    """The columns for the page: what a reader compares first stands first, with intervals below the numbers.

    names: of the rows of a sweep. The table of a search keeps its own columns, but the drawn settings come last.
    """
    first, *others = table.columns
    if not table.rows:
        return [PageColumn(one) for one in (first, *sorted(others, key=lambda one: one.setting))]
    results = {column.name: column for column in others if not column.setting}
    title = table.rows[0].results.measure.title
    intervals = {title: f"{title} 95 %", f"Δ {title}": "Δ 95 %"}
    labels = [row.label if row.label != name else "" for name, row in zip(names, table.rows, strict=True)]
    meaning = "Named by the settings in which it differs from base. Labels such as (A) are the paper's."
    shown = [PageColumn(Column("row", list(names), meaning=meaning), Column("", labels))]
    order = [name for name in (*intervals, *ALWAYS_SHOWN) if name in results]
    shown += [PageColumn(results[name], results.get(intervals.get(name, ""))) for name in order]
    folded = [one for one in others if one.setting or one.name not in (*order, *intervals.values())]
    return shown + [PageColumn(one, folded=True) for one in folded]


def _inline_svg(path: Path) -> str:
    """The svg element of a file, without the XML declaration before it, in the colours of the page's scheme."""
    text = path.read_text(encoding="utf-8")
    element = text[text.index("<svg") :]
    for colour, of_scheme in SCHEME_COLOURS.items():
        element = element.replace(colour, of_scheme)
    return element


def _trial(sweep: Sweep, one: PlannedTrial) -> dict[str, Any]:
    """What the page says of a trial: what differs from base, where it ran, its metrics and the end of its log."""
    trial, changes = one.trial, config_difference(one.config, sweep.base).items()
    facts = {"folder": trial.folder.name} | trial.environment() | (trial.result() or {}).get("metrics", {})
    facts |= {"packages": ", ".join(f"{name} {version}" for name, version in facts.pop("packages", {}).items())}
    return {
        "name": one.name,
        "state": trial.status()["state"],
        "changes": [(key, *values) for key, values in changes if key != "seed"],
        "facts": facts | {"gpus": ", ".join(facts.pop("gpus", [])) or "none"},
        "log": "\n".join(trial.log_end(LOG_LINES)),
    }


def _translations(sweep: Sweep, shown: Sequence[PlannedTrial]) -> list[dict[str, Any]]:
    """A few sentences, each with its translation by every row that was evaluated on the text of the first one."""
    hypotheses: dict[int, list[str]] = {}  # by row
    numbers: dict[int, np.ndarray] = {}  # of each sentence, by row
    measure = task_of(sweep.base.data).measure
    text: tuple[list[str], list[str]] = ([], [])
    for one in shown:
        with suppress(InputError):  # the text or the translations are not here
            row_text, row_hypotheses = one.prepared.text("val"), one.trial.hypotheses("val")
            text = text if hypotheses else row_text
            if row_text == text and len(row_hypotheses) == len(text[0]):
                numbers[one.row] = one.trial.sentences("val", measure)[:, SCORE_COLUMNS]
                hypotheses[one.row] = row_hypotheses
    samples: list[dict[str, Any]] = []
    for i in evenly_spaced(len(text[0]), TRANSLATED_SENTENCES) if hypotheses else []:
        source, reference = text[0][i], text[1][i]
        rows = [
            (sweep.rows[row].name, float(measure.of_sums(numbers[row][i])), of_row[i])
            for row, of_row in hypotheses.items()
        ]
        samples.append({"source": source, "reference": reference, "rows": rows})
    return samples


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def _attention_pictures(sweep: Sweep, shown: Sequence[PlannedTrial]) -> list[dict[str, Any]]:
    """For a few sentences the text, the tokens, and the weights by row and site.

    shown: one trial per row. A row has pictures if it uses the tokenizer of the first one, so that positions are the
    same, its layers report weights, and they can be loaded.
    """
    sentences: list[tuple[dict[str, Any], Batch]] = []
    for one in shown:
        with suppress(InputError, RuntimeError):  # the text or the weights are not here, or a GPU lacks memory
            sentences = sentences or _short_sentences(shown[0].prepared)
            if one.prepared.folder != shown[0].prepared.folder:
                continue
            for (picture, _), by_site in zip(sentences, _weights(one, [batch for _, batch in sentences]), strict=True):
                if by_site:
                    picture["rows"][sweep.rows[one.row].name] = by_site
    return [picture for picture, _ in sentences if picture["rows"]]


def _short_sentences(text: Prepared) -> list[tuple[dict[str, Any], Batch]]:
    """Short ones of the translated sentences: text and tokens, without weights yet, and a batch of each."""
    split, sources = text.split("val"), text.text("val")[0]
    lengths = np.maximum(split.source.lengths, split.target.lengths)
    short = [i for i in evenly_spaced(len(sources), TRANSLATED_SENTENCES) if lengths[i] < MAX_LENGTH]
    vocabulary, sentences = text.tokenizer.vocabulary(), []
    for i in short[:ATTENTION_SENTENCES]:
        batch = collate(split, np.array([i]))
        sides = {"source": batch.source[0], "target": batch.target_in[0]}  # the decoder reads the target
        tokens = {side: [vocabulary[token] for token in ids.tolist()] for side, ids in sides.items()}
        sentences.append(({"text": sources[i], "rows": {}} | tokens, batch))
    return sentences


def _weights(one: PlannedTrial, batches: Sequence[Batch]) -> list[dict[str, dict[str, Any]]]:
    """The packed weights of a trial for each batch, by site, empty where no layer reports any. Its model is in memory
    during this call alone."""
    model = trained_model(one.config, one.prepared, one.trial)
    maps = [attention_maps(model, batch.source, batch.target_in) for batch in batches]
    return [{site: _pack(torch.cat(layers).cpu()) for site, layers in by_site.items()} for by_site in maps]


def _pack(weights: torch.Tensor) -> dict[str, Any]:
    """weights (layers, heads, queries, keys) from 0 to 1, as base64 of one byte per weight, 255 for 1."""
    layers, heads = weights.shape[:2]
    data = (weights * 255).round().to(torch.uint8).numpy().tobytes()
    return {"layers": layers, "heads": heads, "data": base64.b64encode(data).decode()}
