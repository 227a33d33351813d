"""The columns of a table: heading, key, the value of a row, and its format.

A new column is a line of the function of its group, such as `_of_training`, `_of_measure` or `_for_programs`: terminal,
Markdown, LaTeX, the page, CSV and JSON print it. A value that was not measured is never shown as a number: the cell
reads `diverged`, `failed`, or `-` for a row that is not finished.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from transformer_pl.table import cells
from transformer_pl.table.cells import number
from transformer_pl.table.formats import ON_REQUEST, Column
from transformer_pl.table.rows import (
    ALPHA,
    SETS,
    About,
    Contrast,
    Measure,
    PrintedTable,
    Row,
    base_of,
    difference,
    standard_deviation,
)
from transformer_pl.table.steps import FLOPS, STEPS

Contrasts = Mapping[str, Sequence[Contrast]]  # by the key of the measure
STAR, DAGGER = f"{cells.SIGNIFICANT}: p < {ALPHA:g}.", f"{cells.UNCONVERGED}: training had not converged."
ALONE = "The 95 % interval is for this row alone."
TOGETHER = "Simultaneous 95 % intervals: in 95 % of tables all contain the true differences."


Value = str | Callable[[Any], Any]  # of a row or a contrast: a function of it, or its attribute, such as `ending.fall`


def column(
    of: Sequence[Any],
    name: str,
    key: str,
    value: Value,
    text: Callable[[Any], str] | str = "",
    meaning: str = "",
    rank: int | None = None,
    page: int | None = None,
    below: bool = False,
) -> Column:
    """One column of rows or of contrasts.

    name: the heading; empty: for programs alone. key: in CSV and JSON. text: of a row or a contrast; or, as a format or
    as `cells.short`, of the value. The other arguments are those of a `Column`.
    """
    values = [_attribute(one, value) if isinstance(value, str) else value(one) for one in of]
    if not name:
        return Column(key=key, values=values)
    if isinstance(text, str):
        texts = [number(value, text) for value in values]
    else:
        texts = [text(one) for one in (values if text is cells.short else of)]
    return Column(name, texts, key, values, meaning, rank, page, below)


def _attribute(one: Any, path: str) -> Any:
    """An attribute of an attribute; None where there is none."""
    for name in path.split("."):
        one = getattr(one, name, None)
    return one


def all_columns(rows: Sequence[Row], contrasts: Contrasts, about: About) -> list[Column]:
    """All columns of a table, in their order; those without a heading are for programs alone."""
    differs, label = "What the runs of a row share.", ""
    if about.shows_settings:
        differs = "What differs from base; an empty cell is as base. Sizes and labels such as (A) are the paper's."
        label = "row"
    columns = [
        column(rows, "", "name", "name"),
        column(rows, "row", label, "label", cells.title, differs, page=0),
        *(_settings(rows, about.setting_names) if about.shows_settings else ()),
        *_of_training(rows, contrasts, about),
    ]
    columns += [one for measure in (STEPS, FLOPS) for one in _of_steps(measure, contrasts.get(measure.key, ()))]
    for place, measure in enumerate(about.measures):
        columns += _of_measure(measure, contrasts[measure.key], about, 10 * place)
    columns += [*_printed(rows, about), *_for_programs(rows, contrasts, about)]
    by_key = {one.key or one.name: one for one in reversed(columns)}  # the first of each key
    return [one for one in columns if by_key[one.key or one.name] is one]


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which not all rows agree."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if any(values.get(key, ...) != settings[0].get(key, ...) for values in settings)]


def _settings(rows: Sequence[Row], names: Mapping[str, str]) -> list[Column]:
    """The settings in which rows differ. names: headings that are not the end of the key."""
    return [
        Column(names.get(key) or key.partition(".")[2] or key, cells.setting_cells(key, rows), key, values, drop_rank=0)
        for key in differing_keys([row.settings for row in rows])
        if (values := [row.settings.get(key) for row in rows])
    ]


def _of_training(rows: Sequence[Row], contrasts: Contrasts, about: About) -> list[Column]:
    """The size and the cost of each row, its perplexity, and further metrics."""
    columns, metric, (score, *_) = list[Column](), about.perplexity, about.measures
    if about.loss:
        params = [row.params for row in rows]
        columns.append(Column("params", cells.params(rows), "params", params, "Trained weights.", 8))
        meaning = f"Perplexity per token of the {SETS[about.split]}; lower is better. {STAR} {DAGGER}"
        of, text = contrasts[about.loss.key], partial(cells.perplexity, metric)
        columns.append(column(of, "PPL", f"{metric}.mean", _mean(metric), text, meaning, 10, page=5))
    for key, name, meaning, rank in _further_metrics(about):
        if any(key in row.values for row in rows):
            text = partial(cells.mean, key, score.digits)
            columns.append(column(rows, name, f"{key}.mean", _mean(key), text, meaning, rank))
    if any(row.printed and row.printed.flops for row in rows):
        meaning = "Of a training; only matrix products count."
        columns.append(column(rows, "FLOPs", "flops", "flops", cells.flops, meaning))
    if any(row.is_selected for row in rows):
        meaning = "The step whose weights are scored: the mean over seeds."
        columns.append(column(rows, "step", "scored_step", "scored_step", ",.0f", meaning, 7))
    return columns


def _of_steps(measure: Measure, of: Sequence[Contrast]) -> list[Column]:
    """How fast the loss of rows is base's, beside base; nothing where it is known of no row."""
    if all(one.difference is None for one in of):
        return []
    what, page = (measure.title.partition(" ")[0], 8 if measure is FLOPS else 7)
    meaning = f"{what} until the row's validation loss is the last one of base, as a share of what base needs: below 1 "
    meaning += "is faster. A row that never gets there is compared at its own last loss."
    interval = "The 95 % interval is for this row alone, over seeds of the row and of base."

    def put(heading: str, ending: str, path: str, text: Any = "", meaning: str = "", below: bool = False) -> Column:
        key, value = f"{measure.key}{ending}", partial(_exp, path)
        return column(of, heading, key, value, text, meaning, ON_REQUEST, page, below)

    low, high = "estimate.low", "estimate.high"
    return [
        put(measure.title, "", "difference", ".2f", meaning),
        put(f"{measure.title} 95 %", ".low", low, cells.ratio_interval, interval, below=True),
        put("", ".high", high),
    ]


def _exp(path: str, contrast: Contrast) -> float | None:
    """What the logarithm at this path is of."""
    value = _attribute(contrast, path)
    return None if value is None else math.exp(value)


def _further_metrics(about: About) -> list[tuple[str, str, str, int | None]]:
    """The key, the name, the meaning and the rank of metrics without a test; also of the test set, as printed ones."""
    (score, *_), printed = about.measures, about.printed
    shown: list[tuple[str, str, str, int | None]]
    shown = [(key, name, "Higher is better.", 6) for key, name in about.others.items()]
    if printed and printed.split == "test" != about.split:
        others = {score.key: score.title, **about.others}
        of_test = [(f"test/{key.partition('/')[2]}", f"test {name}") for key, name in others.items()]
        shown += [(*one, "Of the test set.", 7 if place else None) for place, one in enumerate(of_test)]
    return shown


def _of_measure(measure: Measure, of: Sequence[Contrast], about: About, place: int = 0) -> list[Column]:
    """The columns of one measure: its mean and spread, its difference from base, and how many seeds it has."""
    key, title, margin, columns = measure.key, measure.title, about.margins.get(measure.key), list[Column]()
    suffix, compares = f" of {title}" if len(about.measures) > 1 else "", any(one.difference is not None for one in of)
    spread = measure.meaning or f"Mean ± standard deviation over {about.trial}s."
    better = f"{'Lower' if measure.lower_is_better else 'Higher'} is better. {DAGGER}"
    tested = sum(one.p_value is not None for one in of)
    chance = f"How probable such a difference is if no row differs, corrected for the {tested} tested rows."
    power = f"The true difference that this row's {about.trial}s would find in 80 % of cases."
    equal = f"Equal: the simultaneous interval is within {margin} on both sides. Better, worse: p < {ALPHA:g}."

    def put(heading: str, ending: str, *more: Any, **where: Any) -> None:
        columns.append(column(of, heading, f"{key}.{ending}", *more, **where))

    def name(heading: str) -> str:
        return heading if compares else ""

    put(title, "mean", "score", cells.score, f"{spread} {better}", page=1)
    put("", "sd", "spread")
    put(f"{title} 95 %", "low", "mean.low", cells.row_interval, ALONE, 9, page=1, below=True)
    put("", "high", "mean.high")
    minus, interval = f"{title} minus base's. {STAR}", cells.difference_interval
    put(name(f"Δ {title}"), "difference", "difference", cells.difference, minus, page=2)
    put(name(f"Δ 95 %{suffix}"), "difference.low", "estimate.low", interval, TOGETHER, 13, page=2, below=True)
    put("", "difference.high", "estimate.high")
    if margin is not None:
        verdict = partial(cells.verdict, margin)
        put(f"within {margin:g}{suffix}", f"difference.within.{margin:g}", verdict, verdict, equal, page=4)
    put(name(f"p{suffix}"), "difference.p", "p_value", cells.p_value, chance, 12, page=3)
    if any(one.beside_runs for one in of):
        alone = "Whether a row's one run could be one of base's; it says nothing of how the row itself spreads."
        put(f"one run{suffix}", "one_run", "beside_runs", lambda one: one.beside_runs or "", alone, page=4)
        put("", "one_run.p", "one_run")
    put(name(f"detectable Δ{suffix}"), "difference.detectable", "estimate.detectable", cells.detectable, power, 6)
    counts = f"Finished {'trainings' if about.trial == 'seed' else 'runs'}; 2/3: two of three."
    put(f"{about.trial}s{suffix}", "n", lambda one: len(one.scores), cells.counts, counts, 11, page=6)
    return [one if one.page is None else one._replace(page=place + one.page) for one in columns]


def _printed(rows: Sequence[Row], about: About) -> list[Column]:
    """What others have printed beside the rows."""
    printed, (score, *_) = about.printed, about.measures
    if not printed:
        return []
    title, metric, form = score.title, score.key.partition("/")[2], f".{printed.decimals}f"
    listed = ", ".join(f"{one.label} {one.score:g}" for one in printed.others)
    source, who = f"The number printed for the same row: {printed.source}.", printed.name
    others = f"{source} Others: {listed}." if listed else source
    cost = "Training time, times the number of GPUs, times their sustained rate."
    heading, key = (f"test {title}", f"test/{metric}") if printed.split == "test" else (title, metric)
    change = "The printed number of the row minus that of base."

    change_of_score, change_of_ppl = (partial(_change, printed, name) for name in ("score", "ppl"))
    return [
        column(rows, f"{who} PPL", "paper/ppl", "printed.ppl", ".2f", source, 3),
        column(rows, f"{who} Δ PPL", "paper/ppl.difference", change_of_ppl, "+z.2f", change, 0),
        column(rows, f"{who} {heading}", f"paper/{key}", "printed.score", form, others, 5),
        column(rows, f"{who} Δ {title}", f"paper/{metric}.difference", change_of_score, f"+z{form}", change, 4, page=4),
        column(rows, f"{who} params", "paper/params", "printed.params", cells.short, rank=1),
        column(rows, f"{who} FLOPs", "paper/flops", "printed.flops", cells.short, cost, 2),
    ]


def _change(printed: PrintedTable, name: str, row: Row) -> float | None:
    return printed.difference(row.printed, name)


def _mean(metric: str) -> Callable[[Any], float | None]:
    return lambda one: (one.row if isinstance(one, Contrast) else one).mean(metric)


def _for_programs(rows: Sequence[Row], contrasts: Contrasts, about: About) -> list[Column]:
    """Every number of a row that no other column has, at full precision."""
    base, columns = base_of(rows, about.measures[0]), list[Column]()
    if about.loss:
        facts: dict[str, Value] = {
            "seeds": lambda row: len(row.states),
            **{state: partial(_count, state) for state in ("done", "failed", "diverged", "refused")},
            "flops": "flops",
            "scored_step": "scored_step",
            "exempt": lambda row: "; ".join(row.exempt) or None,
            "val/loss.fall": "ending.fall",
            "val/loss.fall.noise": "ending.noise",
        }
        columns += [column(rows, "", key, value) for key, value in facts.items()]
        columns += _of_measure(about.loss, contrasts[about.loss.key], about)
    for metric in dict.fromkeys(metric for row in rows for metric in row.values):
        of_rows = [row.values.get(metric, ()) for row in rows]
        columns += [
            column(rows, "", f"{metric}.mean", _mean(metric)),
            column(of_rows, "", f"{metric}.sd", standard_deviation),
            column(of_rows, "", f"{metric}.n", len),
            column(rows, "", f"{metric}.difference", partial(difference, base=base, metric=metric)),
        ]
    return [one._replace(name="") for one in columns]


def _count(state: str, row: Row) -> int:
    return row.states.count(state)
