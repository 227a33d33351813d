"""The table of rows: their comparison, columns, notes and summary. Whoever has arrays of scores can make one:

    from transformer_pl.table.rows import About, Measure, Row
    from transformer_pl.table.table import make_table

    accuracy = Measure("accuracy", "accuracy", digits=3)
    rows = [
        Row.of_values("base", {"accuracy": [0.912, 0.915, 0.909]}, is_base=True),
        Row.of_values("wide", {"accuracy": [0.926, 0.921, 0.928]}),
    ]
    print(make_table(rows, About(measures=[accuracy])).markdown())

The values of a row are those of its seeds, or of other repetitions that are independent of each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from transformer_pl.table import statistics as stats
from transformer_pl.table.columns import all_columns
from transformer_pl.table.formats import Table
from transformer_pl.table.looks import LookedAt, Looks
from transformer_pl.table.moderation import Prior, holm
from transformer_pl.table.notes import name_of_base, no_differences, summary, table_notes
from transformer_pl.table.rows import About, Contrast, Measure, Row, base_of, difference
from transformer_pl.table.statistics import LEVEL, Estimate, Sample
from transformer_pl.table.steps import steps_contrasts


def compare(rows: Sequence[Row], measure: Measure, base: Row | None, level: float = LEVEL) -> list[Contrast]:
    """Each row beside base, with one correction for all of them.

    base: one of the rows; None: there are no tests. level: of all intervals together.

    Differences are tested by t, with variances that are moderated over the rows if these are enough (see
    moderation.py). If each row has one seed, the test is of these very trainings on other sentences. p-values and
    intervals hold for all rows together (see `correct`).

    A row has no estimate of its difference from base if it was measured on other sentences, or on other tokens where
    the measure depends on them. It has none either if one of the two has one seed and the other several, because one
    seed does not show how far a row spreads; if it equals base to rounding in every seed (`is_rounding`); or if the
    difference has no variance at all.

    Rows that share the weights of base are compared with it within each seed. Their trainings are those of base, so
    they do not count once more for the other rows' variances.

    A row with one run has no test beside a base with several: `one_run` says whether its run could be one of base's.
    """
    samples: dict[Row | None, Sample] = {row: one for row in rows if (one := row.samples.get(measure.key))}
    of_base, most = samples.get(base), measure.highest - measure.lowest
    sharing = {
        row for row, one in samples.items() if of_base and row is not base and stats.shares_weights(one, of_base)
    }
    prior = stats.seed_prior([one for row, one in samples.items() if row not in sharing])
    tested = [row for row in rows if row in samples and _are_comparable(row, base, measure)]
    found = stats.correct([samples[row] for row in tested], of_base, prior, most, level) if of_base else []
    changes, one_run = dict(zip(tested, found, strict=True)), _beside_runs(rows, measure, of_base, prior)
    contrasts = []
    for row in rows:
        contrast = Contrast(row, measure, difference(row, base, measure.key), one_run=one_run.get(row))
        if own := samples.get(row):
            contrast = _with_statistics(contrast, own, of_base, prior, *changes.get(row, (None, None)))
        contrasts.append(contrast)
    return contrasts


def _with_statistics(
    contrast: Contrast,
    own: Sample,
    of_base: Sample | None,
    prior: Prior | None,
    change: Estimate | None,
    p_value: float | None,
) -> Contrast:
    """The contrast with what its samples tell. change: the difference from base; None for a row that is not tested."""
    mean, measure = stats.estimate(own, prior), contrast.measure
    is_paired = bool(of_base and change and stats.shares_weights(own, of_base))
    return replace(
        contrast,
        difference=change.value if change else contrast.difference,  # if paired, of the seeds that both have
        mean=mean._replace(lowest=measure.lowest, highest=measure.highest) if mean.standard_error else None,
        estimate=None if p_value is None else change,
        p_value=p_value,
        is_outlier=stats.is_outlier(own, prior),
        shares_weights=is_paired and p_value is not None,
        is_rounding=bool(of_base and change and stats.is_rounding([(1, own), (-1, of_base)])),
        is_constant=len(own.scores) > 1 and not np.ptp(own.scores),
    )


def _beside_runs(
    rows: Sequence[Row], measure: Measure, of_base: Sample | None, prior: Prior | None
) -> dict[Row, float]:
    """Of each row with one run beside several of base: p if that run were one of base's, corrected for these rows.

    Only rows of which nothing but their runs is known have it.
    """
    if of_base is None or len(of_base.references):  # in a sweep a row's other seeds may have failed
        return {}
    known = {row: row.values.get(measure.key, ()) for row in rows if len(row.states) <= 1}
    beside = {row: stats.run_beside(values[0], of_base, prior) for row, values in known.items() if len(values) == 1}
    p_values = {row: p for row, one in beside.items() if (p := one.p_value) is not None}  # None: base does not vary
    return dict(zip(p_values, holm([*p_values.values()]).tolist(), strict=True))


def _are_comparable(row: Row, base: Row | None, measure: Measure) -> bool:
    """Whether a row of which enough is known is tested against base."""
    if base is None or row is base or measure.key not in base.samples or row.dataset != base.dataset:
        return False
    own, of_base = row.samples[measure.key], base.samples[measure.key]
    has_tokens = not measure.of_tokens or row.has_tokens_of(base)
    return has_tokens and own.has_sentences_of(of_base) and (len(own.scores) == 1) == (len(of_base.scores) == 1)


def compare_at(
    looks: Looks, look: int, rows: Sequence[Row], measure: Measure, base: Row, last: Mapping[str, int]
) -> list[Contrast]:
    """Each row beside base at a look, with intervals that hold at all looks.

    last: by row, the last look that it was trained for. A row that stopped before this look stays among the tested ones
    with the seeds that it has, and so it counts in the correction of the others.
    """
    seen = [
        _with_first_seeds(row, looks.base_seeds[look] if row is base else looks.seeds[min(look, last[row.name])])
        for row in rows
    ]
    contrasts = compare(seen, measure, seen[rows.index(base)], level=1 - looks.levels[look])
    return [replace(one, row=row) for row, one in zip(rows, contrasts, strict=True)]


def _with_first_seeds(row: Row, count: int) -> Row:
    """What is known of a row by its first seeds."""
    samples = {key: stats.first_seeds(sample, count) for key, sample in row.samples.items()}
    return replace(row, samples=samples, values={key: values[:count] for key, values in row.values.items()})


def _compare_as_seen(rows: Sequence[Row], measure: Measure, base: Row | None, looked_at: LookedAt) -> list[Contrast]:
    """Each row beside base as the last look saw it that it was trained for. Levels of looks are for one base and one
    metric, so other differences have no tests."""
    if base is None or base.is_reference or measure.key != looked_at.metric:
        return [replace(one, estimate=None, p_value=None) for one in compare(rows, measure, base)]
    last = {row.name: max(0, len(looked_at.p_values.get(row.name, ())) - 1) for row in rows}
    seen = [compare_at(looked_at.looks, look, rows, measure, base, last) for look in range(looked_at.decided)]
    contrasts = []
    for i, row in enumerate(rows):
        contrast = seen[last[row.name] if row is not base else -1][i] if seen else Contrast(row, measure)
        p_values = [p for p in looked_at.p_values.get(row.name, ()) if p is not None]
        p = looked_at.looks.p_value(p_values) if contrast.estimate and p_values else None
        contrasts.append(replace(contrast, p_value=p))
    return contrasts


def make_table(rows: Sequence[Row], about: About) -> Table:
    """The table of at least one row. Differences are to the row that is base."""
    base = base_of(rows, about.measures[0])
    measures = [*about.measures, *([about.loss] if about.loss else [])]
    looked_at = about.looked_at
    contrasts = {
        measure.key: _compare_as_seen(rows, measure, base, looked_at) if looked_at else compare(rows, measure, base)
        for measure in measures
    }
    contrasts |= steps_contrasts(rows, base) if about.loss else {}
    said = [summary(contrasts[measure.key], name_of_base(rows)) for measure in about.measures]
    return Table(
        all_columns(rows, contrasts, about),
        table_notes(rows, contrasts, about),
        contrasts[about.measures[0].key],
        " ".join(filter(None, said)) or no_differences(rows, about),
        about.headings,
        about.printed,
    )
