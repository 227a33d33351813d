"""Each row beside base: the samples of rows become contrasts, by `compared` of statistics.py."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from transformer_pl.table.moderation import Prior
from transformer_pl.table.row import ALPHA, Contrast, LookedAt, Outcome, Row
from transformer_pl.table.statistics import LEVEL, Compared, Sample, compared, printed_alike, runs_beside, varies


def base_of(rows: Sequence[Row], outcome: Outcome) -> Row | None:
    """The row that differences are to; None where no row is base, or where it has not learned enough."""
    return next((row for row in rows if row.is_base and row.has_learned(outcome)), None)


def difference(row: Row, base: Row | None, metric: str) -> float | None:
    """Mean minus base's mean; None where one is missing or was measured on another dataset, and for base itself."""
    if base is None or row.is_base or row.dataset != base.dataset:
        return None
    value, of_base = row.mean(metric), base.mean(metric)
    return None if value is None or of_base is None else value - of_base


def compare(
    rows: Sequence[Row], outcome: Outcome, base: Row | None, level: float = LEVEL, of_scale: Prior | None = None
) -> list[Contrast]:
    """Each row beside base, with one correction for all of them.

    base: one of the rows; None: there are no tests. level: of all intervals together. of_scale: the prior of rows which
    are too few to make one.

    Differences are tested by t, with variances that are moderated over the rows if these are enough (see
    moderation.py). If each row has one seed, the test is of these very trainings on other sentences. p-values and
    intervals hold for all rows together (see `correct`).

    A row has no estimate of its difference from base if it was measured on other sentences, or on other tokens where
    the outcome depends on them. It has none either if one of the two has one seed and the other several, because one
    seed does not show how far a row spreads; if it equals base to rounding in every seed (`is_rounding`); or if the
    difference has no variance at all.

    Rows that share the weights of base are compared with it within each seed. Their trainings are those of base, so
    they do not count once more for the other rows' variances.

    Rows whose seeds have all begun with one training do not show how far that may vary: they are compared with a base
    that has begun with the same, and their variances are moderated apart from the others.

    A row has no estimate either where seeds have diverged or failed and the others are better than base's, as they may
    be the luckier ones; nor if base has lost seeds and is the better one. If the user has chosen base
    (`Row.is_reference`), all pairs of rows count in the correction.

    A row with one run has no test beside a base with several: `one_run` says whether its run could be one of base's.
    """
    samples = {row: sample for row in rows if (sample := row.samples.get(outcome.key))}
    others = [row for row in samples if _are_comparable(row, base, outcome)]
    most, is_chosen = outcome.highest - outcome.lowest, base is not None and base.is_reference
    found = dict[Row, Compared]()
    for trunks, alike in _by_trunks(samples).items():
        found |= compared(alike, base, others, most, level, is_chosen, None if trunks else of_scale)
    one_run = runs_beside(_single_runs(rows, outcome, base), samples, base) if base and base in samples else {}
    contrasts = []
    for row in rows:
        change = difference(row, base, outcome.key) if _has_tokens(row, base, outcome) else None
        is_apart, is_unlike = _is_apart(row, base), _is_unlike(row, base, outcome)
        contrast = Contrast(row, outcome, change, one_run=one_run.get(row), is_apart=is_apart, is_unlike=is_unlike)
        contrasts.append(_with_statistics(contrast, found[row], samples[row], base) if row in found else contrast)
    undecided = [contrast.row for contrast in contrasts if contrast.p_value is not None and not contrast.is_found]
    return [replace(of, is_by_digits=_is_by_digits(of, samples, base, undecided)) for of in contrasts]


def _by_trunks(samples: Mapping[Row, Sample]) -> dict[frozenset[str], dict[Row, Sample]]:
    """The samples of the rows whose seeds have all begun with the same trainings."""
    found: dict[frozenset[str], dict[Row, Sample]] = {}
    for row, sample in samples.items():
        found.setdefault(row.trunks, {})[row] = sample
    return found


def _is_apart(row: Row, base: Row | None) -> bool:
    """Whether all seeds of one of the two have begun with a training that those of the other have not."""
    return base is not None and bool(row.values) and row.trunks != base.trunks


def _is_by_digits(
    contrast: Contrast, samples: Mapping[Row, Sample], base: Row | None, undecided: Sequence[Row]
) -> bool:
    """Whether a row that is found would not be found with other numbers that print the same, its own and base's.

    It would then be tested after the other rows that are found, together with those that are undecided.
    """
    row = contrast.row
    if base is None or not contrast.is_found or not any(samples[row].half_units):
        return False
    near = printed_alike(samples[row], samples[base])
    alike = {**samples, row: near, base: printed_alike(samples[base], near)}
    for tested in ([row], [row, *undecided]):  # the second takes long: the first decides most rows
        p_value = compared(alike, base, tested)[row].p_value
        if p_value is None or p_value >= ALPHA or p_value * (1 + len(undecided)) < ALPHA:
            break
    return p_value is None or p_value >= ALPHA


def _with_statistics(contrast: Contrast, found: Compared, own: Sample, base: Row | None) -> Contrast:
    """The contrast of a row with what was found of it."""
    mean, change, outcome = found.mean, found.difference, contrast.outcome
    flattered = change is not None and is_flattered(contrast.row, base, outcome, change.value)
    is_tested = found.p_value is not None and not flattered
    return replace(
        contrast,
        difference=change.value if change else contrast.difference,  # if paired, of the seeds that both have
        mean=mean._replace(lowest=outcome.lowest, highest=outcome.highest) if mean.standard_error else None,
        estimate=change if is_tested else None,
        p_value=found.p_value if is_tested else None,
        is_by_scale=found.is_by_scale and len(own.scores) > 1 and mean.standard_error > 0,
        is_wide=found.is_wide,
        is_flattered=flattered,
        is_outlier=found.is_outlier,
        shares_weights=found.is_paired and is_tested,
        is_rounding=found.is_rounding,
        is_constant=len(own.scores) > 1 and not varies(own.scores),
    )


def is_flattered(row: Row, base: Row | None, outcome: Outcome, difference: float) -> bool:
    """Whether the better one of the two has lost seeds, so that its others may be its luckier ones."""
    better = row if (difference > 0) != outcome.lower_is_better else base
    return better is not None and better.lost(outcome.key) > 0


def _single_runs(rows: Sequence[Row], outcome: Outcome, base: Row) -> dict[Row, float]:
    """The runs of rows of which nothing but one run is known; none where base has sentences."""
    if len(base.samples[outcome.key].references):  # in a sweep a row's other seeds may have failed
        return {}
    known = {row: row.scores(outcome.key) for row in rows if len(row.states) <= 1}
    return {row: values[0] for row, values in known.items() if len(values) == 1}


def _are_comparable(row: Row, base: Row | None, outcome: Outcome) -> bool:
    """Whether a row of which enough is known is tested against base."""
    if base is None or row is base or outcome.key not in base.samples or row.dataset != base.dataset:
        return False
    own, of_base = row.samples[outcome.key], base.samples[outcome.key]
    return (
        _has_tokens(row, base, outcome)
        and own.has_sentences_of(of_base)
        and (len(own.scores) == 1) == (len(of_base.scores) == 1)
    )


def _has_tokens(row: Row, base: Row | None, outcome: Outcome) -> bool:
    """Whether the outcome of a row is of the same tokens as that of base, where that matters."""
    return base is None or not outcome.of_tokens or row.has_tokens_of(base)


def _is_unlike(row: Row, base: Row | None, outcome: Outcome) -> bool:
    """Whether the loss of a row means something else than base's."""
    is_other = base is not None and outcome.of_tokens and bool(row.values) and row.objective != base.objective
    return is_other or not _has_tokens(row, base, outcome)


def compare_as_seen(
    rows: Sequence[Row], outcome: Outcome, base: Row | None, looked_at: LookedAt | None, of_scale: Prior | None = None
) -> list[Contrast]:
    """Each row beside base, in a table with looks as the last look saw it that decided it.

    Levels of looks are for one base and one outcome, so that other differences have no tests beside them, but for those
    of the same measure on the test set (`_asked_once`).
    """
    contrasts = compare(rows, outcome, base, of_scale=of_scale)
    if looked_at is None:
        return contrasts
    if base is not None and looked_at.asks(outcome, base):
        return _asked_once(contrasts, looked_at)
    if base is None or base.is_reference or outcome.key != looked_at.metric:
        return [replace(contrast, estimate=None, p_value=None) for contrast in contrasts]
    return [*map(looked_at.as_seen, contrasts)]


def _asked_once(contrasts: Sequence[Contrast], looked_at: LookedAt) -> list[Contrast]:
    """The rows on the test set, after looks at the validation set.

    It is asked once, for the rows that were found, in the order of the table, each at the full level until one is not
    found: a fixed sequence of tests needs no other correction (Maurer, Hothorn and Lehmacher 1995). The intervals are
    Bonferroni's for all rows that were found.
    """
    seen = [contrast.estimate is not None and looked_at.as_seen(contrast).is_found for contrast in contrasts]
    asked, p, most = list[Contrast](), 0.0, contrasts[0].outcome.highest - contrasts[0].outcome.lowest
    for contrast, was_found in zip(contrasts, seen, strict=True):
        if not (was_found and contrast.estimate and p < ALPHA):
            asked.append(replace(contrast, estimate=None, p_value=None))
            continue
        lowest, highest, p = -most, most, max(p, contrast.estimate.p_value or 0.0)
        if p < ALPHA:
            lowest, highest = (0.0, most) if contrast.estimate.value > 0 else (-most, 0.0)
        own = contrast.estimate._replace(level=1 - ALPHA / sum(seen), lowest=lowest, highest=highest)
        asked.append(replace(contrast, estimate=own, p_value=p))
    return asked
