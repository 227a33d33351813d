"""Two other tables of a sweep: every pair of rows (`--pairs`), and the effects of factors (`--factors`)."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from transformer_pl.config import without_section
from transformer_pl.report import cells
from transformer_pl.report.cells import ScoredRow, Shown
from transformer_pl.report.render import Column, Table
from transformer_pl.report.rows import ALPHA, RowResults, row_settings
from transformer_pl.report.statistics import (
    Estimate,
    RowComparison,
    Sample,
    contrasts,
    of_measure,
    sample_of_seeds,
    samples_of,
    seed_prior,
)
from transformer_pl.runtime.errors import InputError

MOST_ROWS = 40  # the most rows that --pairs compares


@dataclass(frozen=True)
class Effect:
    """An effect, which is a difference of scores, in the form that cells show."""

    title: str
    measure: Shown
    estimate: Estimate
    p_value: float | None  # corrected; None where only rounding differs, or nothing varies
    is_base: bool = False
    still_falls: bool = False
    scores: Sequence[float] = ()

    @property
    def score(self) -> RowComparison:
        return RowComparison(None, None if self.p_value is None else self.estimate, self.p_value)

    def difference(self) -> float:
        return self.estimate.value

    def record(self) -> dict[str, Any]:
        """The numbers of the effect for programs."""
        low, high = (None, None) if self.p_value is None else self.estimate.interval()
        found = {"difference": self.estimate.value, "difference.low": low, "difference.high": high}
        return found | {"difference.p": self.p_value}


class Compared(NamedTuple):
    """Rows with several seeds, which were measured on the same sentences."""

    names: Sequence[str]
    samples: Sequence[Sample]
    measure: Shown
    most: float  # the largest difference that is possible


def compared_rows(rows: Sequence[RowResults]) -> Compared:
    """The rows of a sweep that are to be compared. Raises an InputError that names those that cannot be."""
    metric = of_measure(rows[0].measure)
    samples = samples_of([row.sentences for row in rows], metric)
    complete = [len(row.done) == len(row.results) for row in rows]
    return _checked([row.name for row in rows], samples, complete, rows[0].measure, metric.highest - metric.lowest)


def compared_runs(rows: Sequence[ScoredRow]) -> Compared:
    """The rows of a file of runs. Raises an InputError that names those with fewer than two runs."""
    samples = [sample_of_seeds(row.scores) for row in rows]
    return _checked([row.title for row in rows], samples, [True] * len(rows), rows[0].measure, math.inf)


def _checked(
    names: Sequence[str], samples: Sequence[Sample | None], complete: Sequence[bool], measure: Shown, most: float
) -> Compared:
    first = next((sample for sample in samples if sample), None)
    wrong = [
        name
        for name, sample, is_complete in zip(names, samples, complete, strict=True)
        if sample is None
        or not is_complete
        or len(sample.scores) < 2
        or (first and not np.array_equal(first.references, sample.references))
    ]
    if wrong:
        rule = "must have finished with several seeds, on the same sentences as the others"
        raise InputError(f"rows `{'`, `'.join(wrong)}`: {rule}; train them, or leave them out of the file")
    return Compared(names, [sample for sample in samples if sample], measure, most)


def pairs_table(compared: Compared, as_records: bool = False) -> Table:
    """Every row against every other, with one correction for all pairs.

    The table is a triangle; with `as_records` it has a line for each pair.
    """
    names, samples, measure, most = compared
    if not 2 <= len(names) <= MOST_ROWS:
        raise InputError(f"--pairs: must be of 2 to {MOST_ROWS} rows, not {len(names)}")
    pairs = [(i, j) for i in range(len(names)) for j in range(i)]
    weights = np.zeros((len(pairs), len(names)))
    for line, (i, j) in zip(weights, pairs, strict=True):
        line[[i, j]] = 1, -1
    found = contrasts(samples, weights, seed_prior(samples), most)
    effects = {pair: Effect("", measure, *effect) for pair, effect in zip(pairs, found, strict=True)}
    if as_records:
        records = [{"row": names[i], "other": names[j]} | effect.record() for (i, j), effect in effects.items()]
        return Table.of_records(records)
    columns = [Column("row", [f"{place} {name}" for place, name in enumerate(names, start=1)])]
    for j in range(len(names) - 1):
        texts = [cells.score_difference(effects[i, j]) if i > j else "" for i in range(len(names))]
        columns.append(Column(str(j + 1), texts))
    found_in = sum(map(_is_found, effects.values()))
    said = f"A difference in {measure.title} is found for {found_in} of {len(pairs)} pairs of rows."
    note = f"Each cell: row minus column. {cells.SIGNIFICANT}: p < {ALPHA:g}, corrected for all {len(pairs)} pairs."
    return Table(columns, [note], summary=said)


class Factor(NamedTuple):
    """Keys that vary together over the rows of a sweep."""

    name: str
    levels: Sequence[str]  # the first is base's
    of_rows: Sequence[int]  # the level of each row

    def against_base(self, level: int) -> np.ndarray:
        """By row: 1 at this level, -1 at base's, and 0 at others."""
        of_rows = np.array(self.of_rows)
        return (of_rows == level).astype(float) - (of_rows == 0)


def factors_table(rows: Sequence[RowResults], base: int | None, margin: float | None = None) -> Table:
    """The effects of two or three factors whose combinations are the rows, and the interactions of these factors.

    base: the row whose levels others are compared with; None: the first. Raises an InputError for rows that are not all
    combinations.
    """
    factors = find_factors([row_settings(row.config) for row in rows], base or 0)
    compared = compared_rows(rows)
    prior = seed_prior(compared.samples)
    mains, interactions = _main_effects(factors, len(rows)), _interactions(factors, len(rows))
    effects: dict[str, list[Effect]] = {}
    for kind, named in (("main effect", mains), ("interaction", interactions)):
        found = contrasts(compared.samples, np.array(list(named.values())), prior, compared.most)
        effects[kind] = [Effect(name, compared.measure, *effect) for name, effect in zip(named, found, strict=True)]
    rows_of = [(kind, effect) for kind, of_kind in effects.items() for effect in of_kind]
    every, kinds = [effect for _, effect in rows_of], [kind for kind, _ in rows_of]
    names = [effect.title for effect in every]
    columns = [
        Column("effect", names, "effect", names),
        Column("kind", kinds, "kind", kinds),
        Column(f"Δ {compared.measure.title}", [*map(cells.score_difference, every)]),
        Column("Δ 95 %", [*map(cells.difference_interval, every)]),
        Column("p", [*map(cells.p_value, every)]),
    ]
    columns += [Column(key=key, values=[effect.record()[key] for effect in every]) for key in every[0].record()]
    note = "A main effect is a mean over the levels of the other factors; an interaction is by how much one level "
    note += "changes the effect of another one. p is corrected for all effects of one kind."
    return Table(columns, [note], summary=_said(effects["interaction"], margin))


def _is_found(effect: Effect) -> bool:
    return effect.p_value is not None and effect.p_value < ALPHA


def _said(interactions: Sequence[Effect], margin: float | None) -> str:
    """A sentence on what the interactions show."""
    measure = interactions[0].measure
    widest = max(abs(one.estimate.value) + one.estimate.half_width(one.estimate.level) for one in interactions)
    if found := sum(map(_is_found, interactions)):
        return f"{found} of {len(interactions)} interactions differ from zero: read no main effect by itself."
    if margin is not None and widest <= margin:
        return f"The effects add up within {margin:g} {measure.title}: all intervals of interactions are within it."
    return f"No interaction is found; one of up to {widest:.{measure.digits}f} {measure.title} cannot be excluded."


def find_factors(settings: Sequence[Mapping[str, Any]], base: int) -> list[Factor]:
    """The two or three factors of which the rows are all combinations. Raises an InputError where they are not."""
    by_levels: dict[tuple[int, ...], list[str]] = {}
    for key in dict.fromkeys(key for values in settings for key in values):
        texts = [str(values.get(key)) for values in settings]
        if len(set(texts)) > 1:
            order = list(dict.fromkeys([texts[base], *texts]))
            by_levels.setdefault(tuple(map(order.index, texts)), []).append(key)
    factors = []
    for of_rows, keys in by_levels.items():
        values = [str(settings[of_rows.index(level)].get(keys[0])) for level in range(max(of_rows) + 1)]
        factors.append(
            Factor(
                without_section(keys[0]),
                [value.rpartition(".")[2] if value[:1].isalpha() else value for value in values],
                of_rows,
            )
        )
    combined = list(zip(*(factor.of_rows for factor in factors), strict=True))
    if (
        len(factors) not in (2, 3)
        or len(set(combined)) < len(combined)
        or len(combined) != prod(len(f.levels) for f in factors)
    ):
        missing = sorted(set(itertools.product(*(range(len(f.levels)) for f in factors))) - set(combined))
        names = [
            " ".join(f"{f.name}={f.levels[i]}" for f, i in zip(factors, cell, strict=True)) for cell in missing[:5]
        ]
        lacks = f"; missing: {', '.join(names)}" if 2 <= len(factors) <= 3 and names else ""
        raise InputError(f"--factors: the rows must be all combinations of two or three factors, but are not{lacks}")
    return factors


def _main_effects(factors: Sequence[Factor], rows: int) -> dict[str, np.ndarray]:
    """By name, the weights of each level's effect: its mean over all other levels minus that of base's level."""
    effects = {}
    for factor in factors:
        for level in range(1, len(factor.levels)):
            name = f"{factor.name}={factor.levels[level]}"
            effects[name] = factor.against_base(level) * len(factor.levels) / rows
    return effects


def _interactions(factors: Sequence[Factor], rows: int) -> dict[str, np.ndarray]:
    """By name, the weights of each interaction of two levels, as a mean over the levels of a third factor."""
    effects = {}
    for one, other in itertools.combinations(factors, 2):
        for i, j in itertools.product(range(1, len(one.levels)), range(1, len(other.levels))):
            name = f"{one.name}={one.levels[i]} with {other.name}={other.levels[j]}"
            weights = one.against_base(i) * other.against_base(j)
            effects[name] = weights * len(one.levels) * len(other.levels) / rows
    return effects
