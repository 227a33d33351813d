"""The columns of a table: heading, key, the value of a row, and its format.

A new column is a line of the function of its group, such as `_of_training`, `_of_measure` or `_for_programs`: terminal,
Markdown, LaTeX, the page, CSV and JSON print it. A value that was not measured is never shown as a number: the cell
reads `diverged`, `failed`, or `-` for a row that is not finished.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from transformer_pl.table import cells
from transformer_pl.table.formats import ON_REQUEST, Column
from transformer_pl.table.rows import ALPHA, SETS, About, Contrast, Measure, PrintedTable, Row, base_of, difference
from transformer_pl.table.steps import FLOPS, STEPS

Contrasts = Mapping[str, Sequence[Contrast]]  # by the key of the measure
STAR, DAGGER = f"{cells.SIGNIFICANT}: p < {ALPHA:g}.", f"{cells.UNCONVERGED}: training had not converged."
ALONE = "The 95 % interval is for this row alone."
TOGETHER = "Simultaneous 95 % intervals: in 95 % of tables all contain the true differences."
DIFFERENCE = {"": "difference", ".low": "estimate.low", ".high": "estimate.high", ".p": "p_value"}  # for programs
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
    missing: Callable[[Any], str] | None = None,
) -> Column:
    """One column of rows or of contrasts.

    name: the heading; empty: for programs alone. key: in CSV and JSON. text: of a row or a contrast; or the form in
    which `cells.number` prints the value, if that is no text itself. missing: the text of a row or a contrast without a
    value; None: none. The other arguments are those of a `Column`.
    """
    values = [_attribute(one, value) if isinstance(value, str) else value(one) for one in of]
    if not name:
        return Column(key=key, values=values)

    def shown(one: Any, value: Any) -> str:
        if value is None:
            return missing(one) if missing else ""
        if callable(text):
            return text(one)
        return value if isinstance(value, str) else cells.number(value, text)

    return Column(name, [*map(shown, of, values)], key, values, meaning, rank, page, below)


def _attribute(one: Any, path: str) -> Any:
    """An attribute of an attribute; None where there is none."""
    for name in path.split("."):
        one = getattr(one, name, None)
    return one


def for_programs(of: Sequence[Any], key: str, values: Mapping[str, Value]) -> list[Column]:
    """Columns without headings. values: by the end of their keys."""
    return [column(of, "", f"{key}{ending}", value) for ending, value in values.items()]


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
        *(one for measure in (STEPS, FLOPS) for one in _of_steps(measure, contrasts.get(measure.key, ()))),
    ]
    for place, measure in enumerate(about.measures):
        columns += _of_measure(measure, contrasts[measure.key], about, 10 * place)
    columns += _printed(rows, about.printed, about.measures[0]) if about.printed else ()
    columns += [one._replace(name="") for one in _for_programs(rows, contrasts, about)]
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


def _of_training(rows: Sequence[Row], contrasts: Contrasts, about: About) -> Iterator[Column]:
    """The size and the cost of each row, its perplexity, and further metrics."""
    metric, form = about.perplexity, f".{about.measures[0].digits}f"
    if about.loss:
        params = [row.params for row in rows]
        yield Column("params", cells.params(rows), "params", params, "Trained weights.", 8)
        meaning = f"Perplexity per token of the {SETS[about.split]}; lower is better. {STAR} {DAGGER}"
        of, key, text = contrasts[about.loss.key], f"{metric}.mean", partial(cells.perplexity, metric)
        yield column(of, "PPL", key, lambda one: one.row.mean(metric), text, meaning, 10, 5, missing=cells.unmeasured)
    for key, name, meaning, rank in _further_metrics(about):
        if any(key in row.values for row in rows):
            value = partial(Row.mean, metric=key)
            yield column(rows, name, f"{key}.mean", value, form, meaning, rank, missing=cells.unmeasured)
    if any(row.printed and row.printed.flops for row in rows):
        meaning = "Of a training; only matrix products count."
        yield column(rows, "FLOPs", "flops", "flops", "", meaning, missing=cells.unmeasured)
    if any(row.is_selected for row in rows):
        meaning = "The step whose weights are scored: the mean over seeds."
        yield column(rows, "step", "scored_step", "scored_step", ",.0f", meaning, 7)


def _further_metrics(about: About) -> Iterator[tuple[str, str, str, int | None]]:
    """The key, the name, the meaning and the rank of metrics without a test; also of the test set, as printed ones."""
    yield from ((key, name, "Higher is better.", 6) for key, name in about.others.items())
    if about.printed and about.printed.split == "test" != about.split:
        score = about.measures[0]
        for key, name in {score.key: score.title, **about.others}.items():
            rank = None if key == score.key else 7
            yield f"test/{key.partition('/')[2]}", f"test {name}", "Of the test set.", rank


def _of_steps(measure: Measure, of: Sequence[Contrast]) -> Iterator[Column]:
    """How fast the loss of rows is base's, beside base; nothing where it is known of no row."""
    if all(one.difference is None for one in of):
        return
    key, title, page = measure.key, measure.title, 8 if measure is FLOPS else 7
    meaning = f"{title.partition(' ')[0]} until the row's validation loss is the lowest of base, as a share of what "
    meaning += "base needs: below 1 is faster. A row that never gets there is compared at its own lowest loss."
    interval = "The 95 % interval is for this row alone, over seeds of the row and of base."

    def ratio(path: str, contrast: Contrast) -> float | None:
        return None if (logarithm := _attribute(contrast, path)) is None else math.exp(logarithm)

    share, low, high = (partial(ratio, path) for path in ("difference", "estimate.low", "estimate.high"))

    def ends(contrast: Contrast) -> str:
        return cells.interval((low(contrast) or 0.0, high(contrast) or 0.0), f".{measure.digits}f")

    yield column(of, title, key, share, ".2f", meaning, ON_REQUEST, page)
    yield column(of, f"{title} 95 %", f"{key}.low", low, ends, interval, ON_REQUEST, page, below=True)
    yield column(of, "", f"{key}.high", high)


def _of_measure(measure: Measure, of: Sequence[Contrast], about: About, place: int = 0) -> Iterator[Column]:
    """The columns of one measure: its mean and spread, its difference from base, and how many seeds it has.

    place: on the page, of those before it.
    """
    key, title, form, put = measure.key, measure.title, f".{measure.digits}f", partial(column, of)
    delta, suffix = f"{key}.difference", f" of {title}" if len(about.measures) > 1 else ""
    meaning = measure.meaning or f"Mean ± standard deviation over {about.trial}s."
    meaning += f" {'Lower' if measure.lower_is_better else 'Higher'} is better. {DAGGER}"
    yield put(title, f"{key}.mean", "score", cells.score, meaning, None, place + 1, missing=cells.unmeasured)
    yield put("", f"{key}.sd", "spread")
    yield put(f"{title} 95 %", f"{key}.low", "mean.low", cells.row_interval, ALONE, 9, place + 1, below=True)
    yield put("", f"{key}.high", "mean.high")
    name = f"Δ {title}" if any(one.difference is not None for one in of) else ""
    meaning, interval = f"{title} minus base's. {STAR}", cells.difference_interval
    yield put(name, delta, "difference", cells.difference, meaning, None, place + 2, missing=cells.difference)
    yield put(f"Δ 95 %{suffix}", f"{delta}.low", "estimate.low", interval, TOGETHER, 13, place + 2, below=True)
    yield put("", f"{delta}.high", "estimate.high")
    if (margin := about.margins.get(key)) is not None:
        meaning = f"Equal: the simultaneous interval is within {margin} on both sides. Better, worse: p < {ALPHA:g}."
        verdict, key_of_verdict = partial(cells.verdict, margin), f"{delta}.within.{margin:g}"
        yield put(f"within {margin:g}{suffix}", key_of_verdict, verdict, "", meaning, None, place + 4)
    tested = sum(one.p_value is not None for one in of)
    meaning = f"How probable such a difference is if no row differs, corrected for the {tested} tested rows."
    yield put(f"p{suffix}", f"{delta}.p", "p_value", cells.p_value, meaning, 12, place + 3)
    if any(one.beside_runs for one in of):
        meaning = "Whether a row's one run could be one of base's; it says nothing of how the row itself spreads."
        yield put(f"one run{suffix}", f"{key}.one_run", "beside_runs", "", meaning, None, place + 4)
        yield put("", f"{key}.one_run.p", "one_run")
    meaning = f"The true difference that this row's {about.trial}s would find in 80 % of cases."
    yield put(f"detectable Δ{suffix}", f"{delta}.detectable", "estimate.detectable", form, meaning, 6)
    meaning = f"Finished {'trainings' if about.trial == 'seed' else 'runs'}; 2/3: two of three."
    yield put(f"{about.trial}s{suffix}", f"{key}.n", lambda one: len(one.scores), cells.counts, meaning, 11, place + 6)


def _printed(rows: Sequence[Row], printed: PrintedTable, score: Measure) -> Iterator[Column]:
    """What others have printed beside the rows. score: the main measure."""
    title, metric, form, who = score.title, score.key.partition("/")[2], f".{printed.decimals}f", printed.name
    listed = ", ".join(f"{one.label} {one.score:g}" for one in printed.others)
    source = f"The number printed for the same row: {printed.source}."
    others = f"{source} Others: {listed}." if listed else source
    cost = "Training time, times the number of GPUs, times their sustained rate."
    heading, key = (f"test {title}", f"test/{metric}") if printed.split == "test" else (title, metric)
    meaning = "The printed number of the row minus that of base."

    def change(number: str, row: Row) -> float | None:
        return printed.difference(row.printed, number)

    of_ppl, of_score, key_of_score = partial(change, "ppl"), partial(change, "score"), f"paper/{metric}.difference"
    yield column(rows, f"{who} PPL", "paper/ppl", "printed.ppl", ".2f", source, 3)
    yield column(rows, f"{who} Δ PPL", "paper/ppl.difference", of_ppl, "+z.2f", meaning, 0)
    yield column(rows, f"{who} {heading}", f"paper/{key}", "printed.score", form, others, 5)
    yield column(rows, f"{who} Δ {title}", key_of_score, of_score, f"+z{form}", meaning, 4, page=4)
    yield column(rows, f"{who} params", "paper/params", "printed.params", rank=1)
    yield column(rows, f"{who} FLOPs", "paper/flops", "printed.flops", "", cost, 2)


def _for_programs(rows: Sequence[Row], contrasts: Contrasts, about: About) -> Iterator[Column]:
    """Every number of a row that no other column has, at full precision."""
    base = base_of(rows, about.measures[0])
    if about.loss:
        yield Column(key="seeds", values=[len(row.states) for row in rows])
        for state in ("done", "failed", "diverged", "refused"):
            yield Column(key=state, values=[row.states.count(state) for row in rows])
        yield from for_programs(rows, "", {"flops": "flops", "scored_step": "scored_step"})
        yield Column(key="exempt", values=["; ".join(row.exempt) or None for row in rows])
        yield from for_programs(rows, "val/loss", {".fall": "ending.fall", ".fall.noise": "ending.noise"})
        yield from _of_measure(about.loss, contrasts[about.loss.key], about)
    for metric in dict.fromkeys(metric for row in rows for metric in row.values):
        yield column(rows, "", f"{metric}.mean", partial(Row.mean, metric=metric))
        yield column(rows, "", f"{metric}.sd", partial(Row.spread, metric=metric))
        yield Column(key=f"{metric}.n", values=[len(row.scores(metric)) for row in rows])
        yield column(rows, "", f"{metric}.difference", partial(difference, base=base, metric=metric))
