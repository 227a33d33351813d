"""The HTML page of a sweep: one file without external resources, with the table and everything it is made from."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader

from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting.attention import attention_pictures
from transformer_pl.reporting.page_table import page_columns
from transformer_pl.reporting.render import Table
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import task_of
from transformer_pl.trials.convergence import of_trial
from transformer_pl.trials.identity import config_difference

TRANSLATED_SENTENCES = 12  # sentences whose translations are shown
LOG_LINES = 40  # of each trial
# Colours of the figures that follow the page's light or dark scheme.
SCHEME_COLOURS = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    "#999999": "var(--faint)",
    "#cccccc": "var(--line)",
}


class PageFigure(NamedTuple):
    """A figure of the page."""

    title: str
    explanation: str
    svg: Path


def render_page(
    sweep: Sweep,
    planned: Sequence[PlannedTrial],
    shown: Sequence[PlannedTrial],
    table: Table,
    figures: Sequence[PageFigure],
) -> str:
    """The HTML of the page.

    planned: all trials. shown: the trials whose translations and attention it has, one per row.
    """
    environment = Environment(
        loader=PackageLoader("transformer_pl", "reporting/templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pieces"] = _pieces
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # keep the order of rows and of sites
    columns = page_columns(table, [row.name for row in sweep.rows])
    states = [one.trial.status()["state"] for one in planned]
    translations, translation_errors = _translations(sweep, shown)
    attention, attention_errors = attention_pictures(sweep, shown, TRANSLATED_SENTENCES)
    return environment.get_template("page.html").render(
        sweep=sweep,
        scale=Path(sweep.scale).stem,
        table=table,
        columns=columns,
        cells=list(zip(*(column.cells for column in columns), strict=True)),
        done=states.count("done"),
        diverged=states.count("diverged"),
        failed=states.count("failed"),
        figures=[(figure, _inline_svg(figure.svg)) for figure in figures],
        translations=translations,
        translation_errors=translation_errors,
        attention={"sentences": attention},
        attention_errors=attention_errors,
        measure=task_of(sweep.base.data).measure.title,
        trials=[_trial(sweep, one, state) for one, state in zip(planned, states, strict=True)],
    )


def _pieces(name: str) -> list[str]:
    """A name in the pieces between which a line may end: `position=`, `Learned`, `Position`."""
    return re.split(r"(?<=[=.])(?=[A-Za-z])|(?<=[a-z])(?=[A-Z])", name)


def _inline_svg(path: Path) -> str:
    """The svg element of a file, without the XML declaration before it, in the colours of the page's scheme."""
    text = path.read_text(encoding="utf-8")
    element = text[text.index("<svg") :]
    for colour, of_scheme in SCHEME_COLOURS.items():
        element = element.replace(colour, of_scheme)
    return element


def _trial(sweep: Sweep, one: PlannedTrial, state: str) -> dict[str, Any]:
    """What the page says of a trial: what differs from base, where it ran, its metrics and the end of its log."""
    changes = [(key, *values) for key, values in config_difference(one.config, sweep.base).items() if key != "seed"]
    facts = {"folder": one.trial.folder.name} | one.trial.environment() | (one.trial.result() or {}).get("metrics", {})
    facts |= {"packages": ", ".join(f"{name} {version}" for name, version in facts.pop("packages", {}).items())}
    facts |= {"gpus": ", ".join(facts.pop("gpus", [])) or "none"}
    if ended := of_trial(one.trial):
        facts["fall of val/loss over the last fifth of the steps"] = ended.fall
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
    base_hypotheses = None if sweep.base_row is None else hypotheses.get(sweep.base_row)
    samples, task = [], task_of(sweep.base.data)
    for i in evenly_spaced(len(sources), TRANSLATED_SENTENCES):
        rows = []
        for row, row_hypotheses in hypotheses.items():
            base_words = (base_hypotheses or row_hypotheses)[i].split()
            words = _mark_changes(row_hypotheses[i].split(), base_words)
            rows.append((sweep.rows[row].name, task.score_one(row_hypotheses[i], references[i], sweep.base), words))
        samples.append({"source": sources[i], "reference": references[i], "rows": rows})
    return samples, errors


def _mark_changes(words: list[str], base_words: list[str]) -> list[tuple[str, bool]]:
    """Runs of words, each with whether it differs from base. A run that only base has is shown as an ellipsis."""
    steps = difflib.SequenceMatcher(None, base_words, words, autojunk=False).get_opcodes()
    return [(" ".join(words[start:end]) or "…", kind != "equal") for kind, _, _, start, end in steps]
