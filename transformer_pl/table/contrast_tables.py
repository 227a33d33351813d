"""Two other tables of a sweep: every pair of rows (`--pairs`), and the effects of factors (`--factors`)."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted
from transformer_pl.table import cells
from transformer_pl.table.columns import DIFFERENCE, column, differing_keys, for_programs
from transformer_pl.table.formats import Column, Table
from transformer_pl.table.notes import FEWEST_SENTENCES
from transformer_pl.table.rows import ALPHA, Contrast, Measure, Row
from transformer_pl.table.statistics import Sample, contrasts, seed_prior

MOST_ROWS = 40  # the most rows that --pairs compares
MISSING = "without a number"  # the state of a run that does not count


def effects_of(rows: Sequence[Row], measure: Measure, weights: Mapping[str, np.ndarray]) -> list[Contrast]:
    """The sums of the rows' means with these weights, by name, with one correction for all of them.

    Raises an InputError that names the rows that cannot be compared.
    """
    samples = _samples(rows, measure)
    most = measure.highest - measure.lowest
    found = contrasts(samples, np.array(list(weights.values())), seed_prior(samples), most)
    return [
        Contrast(Row(name=name), measure, estimate.value, None, None if p is None else estimate, p)
        for name, (estimate, p) in zip(weights, found, strict=True)
    ]


def _samples(rows: Sequence[Row], measure: Measure) -> list[Sample]:
    found = [row.samples.get(measure.key) for row in rows]
    first = next((sample for sample in found if sample), None)
    wrong = [
        row.name
        for row, sample in zip(rows, found, strict=True)
        if sample is None
        or not set(row.states) <= {"done", MISSING}
        or len(sample.scores) < 2
        or (first and not sample.has_sentences_of(first))
    ]
    if wrong:
        rule = f"must have finished with several seeds, on the same {FEWEST_SENTENCES} or more sentences as the others"
        raise InputError(f"rows `{'`, `'.join(wrong)}`: {rule}; train them, or leave them out of the file")
    return [sample for sample in found if sample]


def pairs_table(rows: Sequence[Row], measure: Measure, as_records: bool = False) -> Table:
    """Every row against every other, with one correction for all pairs.

    The table is a triangle; with `as_records` it has a line for each pair.
    """
    if not 2 <= len(rows) <= MOST_ROWS:
        raise InputError(f"--pairs: must be of 2 to {MOST_ROWS} rows, not {len(rows)}")
    names, pairs = [row.name for row in rows], [(i, j) for i in range(len(rows)) for j in range(i)]
    places = np.eye(len(rows))
    effects = effects_of(rows, measure, {f"{i} {j}": places[i] - places[j] for i, j in pairs})
    found, tested = sum(one.is_found for one in effects), sum(one.p_value is not None for one in effects)
    said = f"A difference in {measure.title} is found for {found} of {counted(tested, 'pair')} of rows."
    if untested := len(pairs) - tested:
        said += f" {counted(untested, 'more pair')} cannot be tested: there the difference does not vary."
    if as_records:
        ends = [
            Column(key=key, values=[names[i] for i in of])
            for key, of in zip(("row", "other"), zip(*pairs, strict=True), strict=True)
        ]
        return Table([*ends, *for_programs(effects, "difference", DIFFERENCE)], summary=said)
    of_pair = dict(zip(pairs, effects, strict=True))
    columns = [Column("row", [f"{place} {name}" for place, name in enumerate(names, start=1)])]
    for j in range(len(names) - 1):
        texts = [cells.difference(of_pair[i, j]) if i > j else "" for i in range(len(names))]
        columns.append(Column(str(j + 1), texts))
    note = f"Each cell: row minus column. {cells.SIGNIFICANT}: p < {ALPHA:g}, corrected for {counted(tested, 'pair')}."
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


def factors_table(rows: Sequence[Row], measure: Measure, margin: float | None = None) -> Table:
    """The effects of two or three factors whose combinations are the rows, and the interactions of these factors.

    Levels are compared with those of base, or else of the first row. Raises an InputError for rows that are not all
    combinations.
    """
    base = next((place for place, row in enumerate(rows) if row.is_base), 0)
    factors = find_factors([row.settings for row in rows], base)
    mains, interactions = (effects_of(rows, measure, _weights(factors, len(rows), of)) for of in (1, 2))
    effects, kinds = [*mains, *interactions], ["main effect"] * len(mains) + ["interaction"] * len(interactions)
    columns = [
        column(effects, "effect", "effect", "row.name"),
        Column("kind", kinds, "kind", kinds),
        Column(f"Δ {measure.title}", [*map(cells.difference, effects)]),
        Column("Δ 95 %", [*map(cells.difference_interval, effects)]),
        Column("p", [*map(cells.p_value, effects)]),
        *for_programs(effects, "difference", DIFFERENCE),
    ]
    note = "A main effect is a mean over the levels of the other factors; an interaction is by how much one level "
    note += "changes the effect of another one. p is corrected for all effects of one kind."
    return Table(columns, [note], summary=_said(interactions, margin))


def _said(interactions: Sequence[Contrast], margin: float | None) -> str:
    """A sentence on what the interactions show."""
    measure, estimates = interactions[0].measure, [one.estimate for one in interactions if one.estimate]
    widest = max((abs(one.value) + one.half_width(one.level) for one in estimates), default=0.0)
    if found := sum(one.is_found for one in interactions):
        return f"{found} of {len(interactions)} interactions differ from zero: read no main effect by itself."
    if margin is not None and widest <= margin:
        return f"The effects add up within {margin:g} {measure.title}: all intervals of interactions are within it."
    size = cells.number(widest, f".{measure.digits}f")
    return f"No interaction is found; one of up to {size} {measure.title} cannot be excluded."


def find_factors(settings: Sequence[Mapping[str, Any]], base: int) -> list[Factor]:
    """The two or three factors of which the rows are all combinations. Raises an InputError where they are not."""
    factors, rule = _varying_factors(settings, base), "the rows must be all combinations of two or three factors"
    if not 2 <= len(factors) <= 3:
        raise InputError(f"--factors: {rule}, but {len(factors)} vary; leave rows out")
    wanted = list(itertools.product(*(range(len(factor.levels)) for factor in factors)))
    combined = list(zip(*(factor.of_rows for factor in factors), strict=True))
    if sorted(combined) != wanted:
        absent = [zip(factors, levels, strict=True) for levels in wanted if levels not in combined]
        missing = [" ".join(f"{factor.name}={factor.levels[level]}" for factor, level in pairs) for pairs in absent]
        lacks = f"lack {', '.join(missing[:5])}; add them" if missing else "have one twice; leave it out"
        raise InputError(f"--factors: {rule}, but {lacks}")
    return factors


def _varying_factors(settings: Sequence[Mapping[str, Any]], base: int) -> list[Factor]:
    """The keys that differ from row to row; of several that vary together the first."""
    factors: dict[tuple[int, ...], Factor] = {}
    for key in differing_keys(settings):
        texts = [str(values.get(key)) for values in settings]
        levels = list(dict.fromkeys([texts[base], *texts]))
        of_rows = tuple(map(levels.index, texts))
        factors.setdefault(of_rows, Factor(key, _shorter(levels, cells.setting), of_rows))
    names = _shorter([factor.name for factor in factors.values()], lambda key: key.partition(".")[2] or key)
    return [factor._replace(name=name) for factor, name in zip(factors.values(), names, strict=True)]


def _shorter(names: Sequence[str], shorten: Callable[[str], str]) -> list[str]:
    """Different names, shortened if they stay different."""
    short = [*map(shorten, names)]
    return short if len(set(short)) == len(short) else [*names]


def _weights(factors: Sequence[Factor], rows: int, of: int) -> dict[str, np.ndarray]:
    """By name, the weights of each effect: of one factor, its mean over all other levels minus that of base's level; of
    two, the interaction of two of their levels, as a mean over the levels of a third factor."""
    effects = {}
    for combined in itertools.combinations(factors, of):
        for levels in itertools.product(*(range(1, len(factor.levels)) for factor in combined)):
            pairs = [*zip(combined, levels, strict=True)]
            name = " with ".join(f"{factor.name}={factor.levels[level]}" for factor, level in pairs)
            shares = [factor.against_base(level) * len(factor.levels) for factor, level in pairs]
            effects[name] = np.prod(shares, axis=0) / rows
    return effects
