"""The columns of a table, which people read, and its records, which programs read.

A new column is a line of the function of its group in `columns_of`, such as `_of_training` or `_of_outcome`, and a key
of the same group in `records_of`. A value that was not measured is never shown as a number: the cell reads `diverged`,
`failed`, or `-` for a row that is not finished, and a record has None.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any, TypeVar

from transformer_pl.table import cells
from transformer_pl.table.comparison import base_of, difference
from transformer_pl.table.formats import ON_REQUEST, Column
from transformer_pl.table.row import ALPHA, SAME_BUDGET, About, Contrast, Outcome, Printed, PrintedTable, Row
from transformer_pl.table.statistics import Estimate
from transformer_pl.table.steps import FLOPS, STEPS

Contrasts = Mapping[str, Sequence[Contrast]]  # by the key of the outcome
Record = dict[str, Any]
Item = TypeVar("Item")  # a row or a contrast
STAR, DAGGER = f"{cells.SIGNIFICANT}: p < {ALPHA:g}.", f"{cells.UNCONVERGED}: training had not converged."
ALONE = "The 95 % interval is for this row alone."
TOGETHER = "Simultaneous 95 % intervals: in 95 % of tables all contain the true differences."
OPEN = (
    " Where it says above 0 or below 0, the test excludes zero, and says nothing of how far from it the difference is."
)


def column(items: Sequence[Item], name: str, text: Callable[[Item], str], *more: Any, **place: Any) -> Column:
    """A column of rows or of contrasts. more, place: the other fields of the `Column`."""
    return Column(name, [text(item) for item in items], *more, **place)


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which not all rows agree."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if any(values.get(key, ...) != settings[0].get(key, ...) for values in settings)]


# ---------------------------------------------------------------------------------------------------------------------
# For people


def columns_of(rows: Sequence[Row], contrasts: Contrasts, about: About) -> list[Column]:
    """The columns of a table, in their order; those without any text are left out where it is printed."""
    differs = "What the runs of a row share."
    if about.shows_settings:
        differs = "What differs from base; an empty cell is as base. Sizes and labels such as (A) are the paper's."
    columns = [
        column(rows, "row", cells.title, differs, page=0),
        *(_settings(rows, about.setting_names) if about.shows_settings else ()),
        *([Column("params", cells.params(rows), "Trained weights.", 8)] if about.loss else ()),
        *_of_training(rows, about),
        *(shown for outcome in (STEPS, FLOPS) for shown in _of_steps(outcome, contrasts.get(outcome.key, ()))),
    ]
    for place, outcome in enumerate(about.outcomes):
        of_rows = contrasts[outcome.key]
        if outcome.is_logarithm:
            columns += _of_ratio(outcome, of_rows, 10 * place)
        else:
            columns += _of_outcome(outcome, of_rows, about, 10 * place)
    return [*columns, *_printed(rows, about)]


def _settings(rows: Sequence[Row], names: Mapping[str, str]) -> list[Column]:
    """The settings in which rows differ. names: headings that are not the end of the key."""
    keys = differing_keys([row.settings for row in rows])
    headings = [names.get(key) or key.partition(".")[2] or key for key in keys]
    shown = [cells.setting_cells(key, rows) for key in keys]
    return [Column(heading, cells, drop_rank=0) for heading, cells in zip(headings, shown, strict=True)]


def _of_training(rows: Sequence[Row], about: About) -> Iterator[Column]:
    """Further metrics and the cost of each row."""
    for key, name, meaning, rank in _further_metrics(about):
        if any(key in row.values for row in rows):
            yield column(rows, name, partial(cells.metric, key, f".{about.score.digits}f"), meaning, rank)
    yield from _of_cost(rows)
    if about.has_steps:
        meaning = "The step whose weights are scored: the mean over seeds."
        yield column(rows, "step", lambda row: cells.measured(row.scored_step, ",.0f", row), meaning, 7)


def _of_cost(rows: Sequence[Row]) -> Iterator[Column]:
    """The FLOPs of each row, where others print them or where rows differ in them."""
    if any(row.printed and row.printed.flops for row in rows):
        meaning = "Of a training; only matrix products count."
        yield column(rows, "FLOPs", lambda row: cells.measured(row.flops, "", row), meaning)
    if any(row.flops_before != rows[0].flops_before for row in rows):
        meaning = "Of a training, and of those before it, with whose weights it begins; only matrix products count."
        yield column(rows, "FLOPs to date", lambda row: cells.measured(row.flops_to_date, "", row), meaning, 7)
    budgets = [row.budget(next((base for base in rows if base.is_base), None)) for row in rows]
    known = [budget for budget in budgets if budget]
    if known and max(known) > SAME_BUDGET * min(known):
        meaning = "FLOPs until the step whose weights are scored, with trainings before it, as a multiple of base's."
        yield Column("FLOPs / base", [cells.number_if_known(budget, ".2f") for budget in budgets], meaning, 7, 9)


def _further_metrics(about: About) -> Iterator[tuple[str, str, str, int | None]]:
    """The key, the name, the meaning and the rank of metrics without a test; also of the test set, as printed ones."""
    yield from ((key, name, "Higher is better.", 6) for key, name in about.others.items())
    if about.printed and about.printed.split == "test" != about.split:
        score = about.score
        for key, name in {score.key: score.title, **about.others}.items():
            rank = None if key == score.key else 7
            yield f"test/{key.partition('/')[2]}", f"test {name}", "Of the test set.", rank


def _of_steps(outcome: Outcome, of_rows: Sequence[Contrast]) -> Iterator[Column]:
    """How fast the loss of rows is base's, beside base; nothing where it is known of no row."""
    if all(contrast.difference is None for contrast in of_rows):
        return
    title, page = outcome.title, 8 if outcome is FLOPS else 7
    meaning = f"{title.partition(' ')[0]} until the row's validation loss is the lowest of base, as a share of what "
    meaning += "base needs: below 1 is faster. A row that never gets there is compared at its own lowest loss."
    interval = "The 95 % interval is for this row alone, over seeds of the row and of base."
    yield column(of_rows, title, cells.ratio, meaning, ON_REQUEST, page)
    yield column(of_rows, f"{title} 95 %", cells.ratio_interval, interval, ON_REQUEST, page, below=True)


def _of_outcome(outcome: Outcome, of_rows: Sequence[Contrast], about: About, place: int) -> Iterator[Column]:
    """The columns of one outcome: its mean and spread, its difference from base, and how many seeds it has.

    place: on the page, of those before it.
    """
    title, put, suffix = outcome.title, partial(column, of_rows), ""
    if sum(not other.is_logarithm for other in about.outcomes) > 1:
        suffix = f" of {title}"
    meaning = outcome.meaning or f"Mean ± standard deviation over {about.trial}s."
    meaning += f" {'Lower' if outcome.lower_is_better else 'Higher'} is better. {DAGGER}"
    yield put(title, cells.score, meaning, None, place + 1)
    yield put(f"{title} 95 %", cells.row_interval, ALONE, 9, place + 1, below=True)
    if any(contrast.difference is not None for contrast in of_rows):
        yield put(f"Δ {title}", cells.difference, f"{title} minus base's. {STAR}", None, place + 2)
    together = TOGETHER + OPEN * any(contrast.open_end for contrast in of_rows)
    yield put(f"Δ 95 %{suffix}", cells.difference_interval, together, 13, place + 2, below=True)
    if (margin := about.margins.get(outcome.key)) is not None:
        meaning = f"Equal: the simultaneous interval is within {margin} on both sides. Better, worse: p < {ALPHA:g}."
        yield put(f"within {margin:g}{suffix}", partial(cells.verdict, margin), meaning, None, place + 4)
    tested = sum(contrast.is_counted for contrast in of_rows)
    pairs = "all pairs of " if any(contrast.row.is_reference for contrast in of_rows) else ""
    meaning = f"How probable such a difference is if no row differs, corrected for {pairs}the {tested} tested rows."
    yield put(f"p{suffix}", cells.p_value, meaning, 12, place + 3)
    meaning = "Whether a row's one run could be one of base's; it says nothing of how the row itself spreads."
    yield put(f"one run{suffix}", lambda contrast: contrast.beside_runs or "", meaning, None, place + 4)
    meaning = f"The true difference that this row's {about.trial}s would find in 80 % of cases."
    yield put(f"detectable Δ{suffix}", cells.detectable, meaning, 6)
    meaning = f"Finished {'trainings' if about.trial == 'seed' else 'runs'}; 2/3: two of three."
    yield put(f"{about.trial}s{suffix}", cells.counts, meaning, 11, place + 6)


def _of_ratio(outcome: Outcome, of_rows: Sequence[Contrast], place: int) -> Iterator[Column]:
    """The columns of an outcome whose values are logarithms: it, and its ratio to base's. place: 0 for the main one."""
    interval, p = (13, 12) if place == 0 else (8, 7)  # ranks
    title, put, name = outcome.title, partial(column, of_rows), f"{outcome.title} / base"
    meaning = f"{outcome.meaning} {'Lower' if outcome.lower_is_better else 'Higher'} is better. {DAGGER}"
    yield put(title, cells.score, meaning, 10, place + 1)
    yield put(f"{title} 95 %", cells.row_interval, ALONE, 6, place + 1, below=True)
    meaning = (
        f"{title} divided by base's; tested is the difference of logarithms. {STAR} {cells.UNLIKE}: see the notes."
    )
    yield put(name, cells.difference, meaning, 10, place + 2)
    together = TOGETHER + OPEN * any(contrast.open_end for contrast in of_rows)
    yield put(f"{name} 95 %", cells.difference_interval, together, interval, place + 2, below=True)
    yield put(f"p of {title}", cells.p_value, "As p, of the logarithm.", p)
    yield put(f"detectable {name}", cells.detectable, "The true ratio that would be found in 80 % of cases.", 6)


def _printed(rows: Sequence[Row], about: About) -> Iterator[Column]:
    """What others have printed beside the rows. The page has what is of the main outcome; a terminal drops it last."""
    if (printed := about.printed) is None:
        return
    title, form, who = about.score.title, f".{printed.decimals}f", printed.name
    main, other = (5, 4, 4), (3, 0, None)  # the rank of the number, and the rank and the page of its difference
    of_ppl, of_score = (main, other) if about.outcomes[0].is_logarithm else (other, main)
    listed = ", ".join(f"{system.label} {system.score:g}" for system in printed.others)
    source = f"The number printed for the same row: {printed.source}."
    others = f"{source} Others: {listed}." if listed else source
    cost = "Training time, times the number of GPUs, times their sustained rate."
    meaning, ratio = (f"The printed number of the row {how} that of base." for how in ("minus", "divided by"))
    heading = f"test {title}" if printed.split == "test" else title

    def number(field: str, form: str = "") -> Callable[[Row], str]:
        return lambda row: cells.number_if_known(row.printed and getattr(row.printed, field), form)

    def change(outcome: Outcome, form: str) -> list[str]:
        changes = [printed.change(row.printed, outcome) for row in rows]
        return [cells.number_if_known(None if one is None else outcome.shown(one), form) for one in changes]

    yield column(rows, f"{who} PPL", number("ppl", ".2f"), source, of_ppl[0])
    if about.loss:
        yield Column(f"{who} PPL / base", change(about.loss, ".2f"), ratio, *of_ppl[1:])
    yield column(rows, f"{who} {heading}", number("score", form), others, of_score[0])
    yield Column(f"{who} Δ {title}", change(about.score, f"+z{form}"), meaning, *of_score[1:])
    yield column(rows, f"{who} params", number("params"), drop_rank=1)
    yield column(rows, f"{who} FLOPs", number("flops"), cost, 2)


# ---------------------------------------------------------------------------------------------------------------------
# For programs


def records_of(rows: Sequence[Row], contrasts: Contrasts, about: About) -> list[Record]:
    """A record of each row, with the same keys, at full precision; None where nothing was measured."""
    outcomes = about.outcomes
    tested, base = {outcome.key for outcome in outcomes}, base_of(rows, about.score)
    metrics = dict.fromkeys(metric for row in rows for metric in row.values if metric not in tested)
    parts = [
        _records_of_rows(rows, about),
        *(_records_of_steps(contrasts.get(outcome.key, ())) for outcome in (STEPS, FLOPS)),
        *(_records_of_outcome(contrasts[outcome.key], about) for outcome in outcomes),
        [_record_of_printed(row, about.printed, about.score.key) for row in rows if about.printed],
        *([_record_of_metric(row, metric, base) for row in rows] for metric in metrics),
    ]
    return [reduce(or_, of_row) for of_row in zip(*filter(None, parts), strict=True)]


def _records_of_rows(rows: Sequence[Row], about: About) -> list[Record]:
    """Names and settings, what a training was, and how it ended."""
    if not about.shows_settings:
        return [{"name": row.name} for row in rows]
    keys = differing_keys([row.settings for row in rows])
    have_starts = any(row.flops_before != 0 for row in rows)
    return [
        {"name": row.name, "row": row.label}
        | ({"flops_to_date": row.flops_to_date} if have_starts else {})
        | {key: row.settings.get(key) for key in keys}
        | (_record_of_training(row) if about.loss else {})
        for row in rows
    ]


def _record_of_training(row: Row) -> Record:
    counts = {state: row.states.count(state) for state in ("done", "failed", "diverged", "refused")}
    cost = {"params": row.params, "flops": row.flops, "scored_step": row.scored_step}
    return cost | {"seeds": len(row.states)} | counts | {"exempt": "; ".join(row.exempt) or None} | dict(row.more)


def _records_of_steps(of_rows: Sequence[Contrast]) -> list[Record]:
    """Ratios by steps, whose contrasts are of logarithms; nothing where they are known of no row."""
    if all(contrast.difference is None for contrast in of_rows):
        return []
    logarithms = [(contrast.outcome.key, contrast.difference, *_ends(contrast.estimate)) for contrast in of_rows]
    ends = ("", ".low", ".high")
    return [
        {f"{key}{end}": None if value is None else math.exp(value) for end, value in zip(ends, values, strict=True)}
        for key, *values in logarithms
    ]


def _records_of_outcome(of_rows: Sequence[Contrast], about: About) -> list[Record]:
    """The numbers of rows in one outcome."""
    margin, has_runs = about.margins.get(of_rows[0].outcome.key), any(contrast.beside_runs for contrast in of_rows)
    return [_record_of_outcome(contrast, margin, has_runs) for contrast in of_rows]


def _record_of_outcome(contrast: Contrast, margin: float | None, has_runs: bool) -> Record:
    """has_runs: whether some row has one run beside several of base."""
    key, estimate, (low, high) = contrast.outcome.key, contrast.estimate, _ends(contrast.mean)
    verdict = {} if margin is None else {f"{key}.difference.within.{margin:g}": cells.verdict(margin, contrast)}
    runs = {f"{key}.one_run": contrast.beside_runs, f"{key}.one_run.p": contrast.one_run} if has_runs else {}
    return (
        {f"{key}.mean": contrast.score, f"{key}.sd": contrast.spread, f"{key}.low": low, f"{key}.high": high}
        | difference_record(contrast, f"{key}.difference")
        | verdict
        | {f"{key}.difference.detectable": estimate and estimate.detectable, f"{key}.n": len(contrast.scores)}
        | runs
    )


def difference_record(contrast: Contrast, key: str) -> Record:
    """A difference, its interval, which end of it is open, and its p."""
    low, high = _ends(contrast.estimate)
    ends = {f"{key}.low": low, f"{key}.high": high, f"{key}.open": contrast.open_end}
    return {key: contrast.difference} | ends | {f"{key}.p": contrast.p_value}


def _ends(estimate: Estimate | None) -> tuple[float | None, float | None]:
    return estimate.interval() if estimate else (None, None)


def _record_of_printed(row: Row, printed: PrintedTable, key: str) -> Record:
    """The numbers that others have printed for a row. key: of the score."""
    own, metric = row.printed or Printed(), key.partition("/")[2]
    of_set = f"test/{metric}" if printed.split == "test" else metric
    return {
        "paper/ppl": own.ppl,
        "paper/ppl.difference": printed.difference(row.printed, "ppl"),
        f"paper/{of_set}": own.score,
        f"paper/{metric}.difference": printed.difference(row.printed),
        "paper/params": own.params,
        "paper/flops": own.flops,
    }


def _record_of_metric(row: Row, metric: str, base: Row | None) -> Record:
    """What is known of any metric, without a test."""
    numbers = {"mean": row.mean(metric), "sd": row.spread(metric), "n": len(row.scores(metric))}
    numbers["difference"] = difference(row, base, metric)
    return {f"{metric}.{name}": number for name, number in numbers.items()}
