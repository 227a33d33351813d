"""The page of a sweep: one file that opens offline, with the table and everything that it is made from."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader

from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting.attention import attention_pictures
from transformer_pl.reporting.page_table import page_columns
from transformer_pl.reporting.plots import Drawing, save
from transformer_pl.reporting.render import Table
from transformer_pl.reporting.sweep_plots import draw_sweep_plots
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import write_atomically
from transformer_pl.task import task_of
from transformer_pl.trials.identity import config_difference
from transformer_pl.trials.metrics import SCORE_COLUMNS

TRANSLATED_SENTENCES = 12  # sentences whose translations are shown
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
    loader = PackageLoader("transformer_pl", "reporting/templates")
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
        attention={"sentences": attention_pictures(sweep, shown, TRANSLATED_SENTENCES)},
        measure=task_of(sweep.base.data).measure.title,
        trials=trials,
        states=[trial["state"] for trial in trials],
    )
    write_atomically(folder / "report.html", page)
    write_atomically(folder / "table.md", table.markdown())


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
