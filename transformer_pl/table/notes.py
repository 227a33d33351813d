"""The sentences above and below a table, which say what a reader must know to believe it.

A new note is a sentence that a function of a paragraph yields; `table_notes` lists the paragraphs. Blanks join what the
functions yield.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from transformer_pl.runtime.terminal import counted
from transformer_pl.table.cells import EXEMPT, SIGNIFICANT, UNCONVERGED, number, number_form, unmeasured, verdict
from transformer_pl.table.formats import LEGEND
from transformer_pl.table.rows import ALPHA, SETS, About, Contrast, Measure, Row
from transformer_pl.table.statistics import POWER, Estimate, rank_correlation
from transformer_pl.table.steps import STEPS

FEWEST_ORDERED = 8  # with so many rows beside printed ones, a note compares their order with the paper's
FEWEST_SENTENCES = 20  # for intervals and tests: the mean of fewer pseudo-values may be far from normal
OF_TEST_SET = "Scores and differences are of the test set."
Known = tuple[Contrast, Estimate]  # a tested row, and its difference from base


# ---------------------------------------------------------------------------------------------------------------------
# Above the table


def summary(contrasts: Sequence[Contrast], base: str = "base") -> str:
    """What the table shows: the rows that differ from base, and what the others could have shown. base: its name."""
    tested = [(one, one.estimate) for one in contrasts if one.estimate]
    found = sorted((pair for pair in tested if pair[0].is_found), key=lambda pair: pair[1].value)
    undecided = [pair for pair in tested if not pair[0].is_found]
    clauses, sentences, measure = list[str](), list[str](), contrasts[0].measure
    for one, difference in found:
        size, how, ends = _in_words(difference, measure)
        of_first = f"{one.row.title} is {size} {measure.title} {how} than {base} (95 %: {ends})"
        clauses.append(f"{one.row.title} {size} {how} ({ends})" if clauses else of_first)
    if found:
        sentences.append(f"{', '.join(clauses)}.")
    if undecided:
        rows = f"{len(undecided)} {'tested rows' if len(tested) + 1 < len(contrasts) else 'rows'}"
        which = f"The other {rows} cannot" if found else f"None of the {rows} can"
        which = f"{undecided[0][0].row.title} cannot" if len(undecided) == 1 else which
        power = _power_in_words(undecided, contrasts)
        sentences.append(f"{which} be told apart from {base} in {measure.title} with {power}.")
    if tested and all(len(one.scores) == 1 for one, _ in tested):
        sentences.append("One seed says nothing of other seeds.")
    return " ".join(sentences)


def _in_words(difference: Estimate, measure: Measure) -> tuple[str, str, str]:
    """The size of a difference, its direction, and its interval in this direction."""
    form = number_form(difference, measure)
    how, sign = ("lower", -1) if difference.value < 0 else ("higher", 1)
    low, high = sorted(sign * end for end in difference.interval())
    return number(abs(difference.value), form), how, f"{number(low, form)} to {number(high, form)}"


def _power_in_words(undecided: Sequence[Known], contrasts: Sequence[Contrast]) -> str:
    """How many seeds rows have, and which true difference these would have found in the undecided rows, and in outliers
    that find less."""
    seeds = sorted({len(one.scores) for one in contrasts if one.row.is_base or one.estimate})
    if seeds == [1]:
        return "1 seed"
    sizes = [(one, estimate.detectable) for one, estimate in undecided]
    usual = [size for one, size in sizes if not one.is_outlier] or [size for _, size in sizes]
    least, most, form = min(usual), max(usual), f".{contrasts[0].measure.digits}f"
    size = number(most, form)
    if most > 2 * least:
        size = f"{number(least, form)} to {size}, depending on the row,"
    wild = [(one.row.title, number(size, form)) for one, size in sizes if one.is_outlier and size > most]
    weak = [f", one of {largest} in {title}" for title, largest in wild]
    with_seeds = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seeds"
    return f"{with_seeds}; a difference of {size} would have been found in {POWER:.0%} of cases{''.join(weak)}"


def name_of_base(rows: Sequence[Row]) -> str:
    """What a sentence calls the row that differences are to."""
    base = next((row for row in rows if row.is_base), None)
    if base and base.is_reference:
        return base.shown_name
    return f"base ({base.own_name})" if base and base.own_name else "base"


def no_differences(rows: Sequence[Row], about: About) -> str:
    """Why no row is compared with base."""
    measure, base = about.measures[0], next((row for row in rows if row.is_base), None)
    is_known = any(row.values for row in rows if row is not base)
    if len(rows) == 1 or not is_known or (base and base.has_learned(measure)):
        return ""
    if base is None:
        reason = f"is not a row; {about.how_to_name_base}"
    elif base.values:
        reason = f"has a {measure.title} below {measure.learned:g}: it has learned next to nothing; train longer"
    else:
        reason = "is not finished" if unmeasured(base) == "-" else unmeasured(base)
    return f"There are no differences, because base {reason}."


# ---------------------------------------------------------------------------------------------------------------------
# Below the table


def table_notes(rows: Sequence[Row], contrasts: Mapping[str, Sequence[Contrast]], about: About) -> list[str]:
    """How the rows were trained, what marks mean, what had not converged, and what is missing or was changed."""
    main = contrasts[about.measures[0].key]
    of_each = partial(_of_each, contrasts, about.measures)
    added = [*added_notes(about), *(margin_note(margin, contrasts[key]) for key, margin in about.margins.items())]
    paragraphs: tuple[Sequence[str], ...] = (
        (*_training(rows, about), *_beside_paper(rows, main, about)),
        of_each(lambda of: (*_spread(of), *_tests(of, about), *_marks(rows, of, about))),
        (*of_each(lambda of: _corrections(of, about)), *_looks(main, about)),
        (*_convergence(rows, about), *_steps(contrasts.get(STEPS.key, ()))),
        (*of_each(lambda of: _gaps(rows, of, about)), *_datasets(rows, about), *_trials(rows), *added),
    )
    return [note for sentences in paragraphs if (note := " ".join(filter(None, sentences)))]


def _of_each(
    contrasts: Mapping[str, Sequence[Contrast]],
    measures: Sequence[Measure],
    sentences: Callable[[Sequence[Contrast]], Iterable[str]],
) -> list[str]:
    """The sentences on each measure; one that is not said of all begins with the names of its measures."""
    titles: dict[str, list[str]] = {}
    for measure in measures:
        for sentence in filter(None, sentences(contrasts[measure.key])):
            titles.setdefault(sentence, []).append(measure.title)
    return [one if len(of) == len(measures) else f"For {', '.join(of)}: {one}" for one, of in titles.items()]


def added_notes(about: About) -> list[str]:
    """What any table of the rows says: how they came about, and of which set they are."""
    return [*about.added, *([OF_TEST_SET] if about.split == "test" else [])]


def _training(rows: Sequence[Row], about: About) -> Iterator[str]:
    """How the rows were trained, which of them a callback has ended early, and how far that is from the paper."""
    training, printed = about.training, about.printed
    if not training:
        return
    note = f"Trained for {training.steps:,} steps of {training.batch_tokens:,} tokens on {training.text}, "
    note += f"with the paper's sizes{' but for ' if training.sizes else ''}{', '.join(training.sizes)}"
    note += f", times {' and '.join(training.factors)}" if training.factors else ""
    yield note + (f"; the last {training.averaged} checkpoints are averaged." if training.averaged > 1 else ".")
    if steps := sorted(step for row in rows for step in row.ended_early):
        when = " to ".join(dict.fromkeys(f"{step:,}" for step in (steps[0], steps[-1])))
        trained = sum(len(row.scored_steps) for row in rows)
        yield f"A callback ended {len(steps)} of {counted(trained, 'trial')} early, after {when} steps."
    if printed is None or not any(row.printed for row in rows):
        return
    if not printed.is_paper:  # a user's file does not say on which data its numbers were measured
        yield f"Printed numbers: {printed.source}. Compare differences from base, not values."
        yield "" if printed.has_base else "Base has none, and so there are no differences between them."
    elif printed.differs_in:
        yield f"The paper has other {' and '.join(printed.differs_in)}: compare differences from base, not values."


def _beside_paper(rows: Sequence[Row], contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """How far our differences from base are in the order of the paper's, for enough rows that differ; and how fast the
    first row was trained, if the peak of its GPU is known."""
    both = [(one.difference, about.printed and about.printed.difference(one.row.printed)) for one in contrasts]
    known = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
    if len(known) >= FEWEST_ORDERED and min(len(set(values)) for values in zip(*known, strict=True)) > 1:
        correlation, (low, high) = rank_correlation(*zip(*known, strict=True))
        yield f"Spearman's rank correlation with the paper's differences: {correlation:+.2f}"
        yield f"({len(known)} rows; 95 % interval: {low:+.2f} to {high:+.2f})."
    if rows[0].speed:
        speed, share = rows[0].speed
        yield f"{rows[0].title} was trained on {speed:,.0f} target tokens a second, {share:.0%} of the peak of its GPU."


def _spread(contrasts: Sequence[Contrast]) -> Iterator[str]:
    """Over how many seeds rows vary."""
    seeds = sorted({len(one.scores) for one in contrasts if one.scores})
    if several := " or ".join(str(n) for n in seeds if n > 1):
        yield f"± is the standard deviation over {several} seeds."
    of_base = max((len(one.scores) for one in contrasts if one.row.is_base), default=0)
    if seeds and of_base > max((len(one.scores) for one in contrasts if not one.row.is_base), default=of_base):
        yield f"Base has more seeds, {of_base}, because every difference has its error."
    if seeds[:1] == [1]:
        yield "A row with one seed says nothing about other seeds: small differences may be chance."


def _tests(contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """What the mark and the p-values mean, what the intervals cover, and which rows are compared within each seed."""
    if tested := sum(one.p_value is not None for one in contrasts):
        yield f"{SIGNIFICANT}: p < {ALPHA:g} by a t-test, corrected for {counted(tested, 'row')}."
    if any(one.mean for one in contrasts):
        several = any(len(one.scores) > 1 for one in contrasts)
        over = " and ".join(filter(None, (about.unit, "seeds" if several else "")))
        yield f"Intervals cover the variation over {over}{'' if about.unit else ', and nothing else'}."
    if shared := sum(one.shares_weights for one in contrasts):
        share, they = ("share", "they are") if shared > 1 else ("shares", "it is")
        yield f"{counted(shared, 'row')} {share} the {about.shared} of base: {they} compared with it within each seed."


def _marks(rows: Sequence[Row], contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """Which rows spread unlike the others, or not at all, and which are exempt from a law."""
    kinds = {
        "is_outlier": "The seeds of {} spread unlike those of the other rows.",
        "is_rounding": "Equal to base in every seed, but for rounding: {}.",
        "is_constant": "All seeds of {} give the same score: make sure that they change something.",
    }
    for kind, note in kinds.items():
        if names := ", ".join(one.row.title for one in contrasts if getattr(one, kind)):
            yield note.format(names)
    yield exemption_note({reason for row in rows for reason in row.exempt})
    yield LEGEND if about.has_page else ""


def _corrections(contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """What p is corrected for, and what is known of rows with one run beside a base with several."""
    if len(about.measures) > 1:
        yield "Each metric has a test of its own: p is corrected for the rows, not for the metrics."
    if count := sum(one.one_run is not None for one in contrasts):
        note = f"Outside base's runs: p < {ALPHA:g} by a t-test of whether a row's one run could be one of base's, "
        note += f"corrected for {counted(count, 'such row')}. It is no test of the row: one with base's mean that "
        yield note + "spreads three times as far is outside five runs of base in 37 % of cases."


def _looks(contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """When rows were looked at, what that saved, and what holds for rows that stopped."""
    if not (looked_at := about.looked_at):
        return
    looks, trained = looked_at.looks, sum(len(one.row.states) for one in contrasts)
    seeds, of_base = (", ".join(map(str, numbers)) for numbers in (looks.seeds, looks.base_seeds))
    yield f"Looked at after {seeds} seeds of each row and {of_base} of base; {looked_at.decided} of {len(looks.seeds)}"
    yield "looks are decided."
    if trained < looks.most_trainings:
        yield "Rows that were decided were not trained on:"
        yield f"{trained} trainings in place of {looks.most_trainings}."
    if not _are_others(contrasts, about):
        if any(len(p_values) < looked_at.decided for p_values in looked_at.p_values.values()):
            yield "A row that stopped is compared with the seeds that base had then, whose mean is not shown."
        yield "p and the intervals hold for all looks together."
        yield "A difference that ended the training of its row is too large on average, but its interval holds."
    if left_out := [one.row.title for one in contrasts if one.row.name in looked_at.left_out]:
        yield f"Left out, as a trial had failed or diverged when a look was decided: {', '.join(left_out)}."
    if _are_others(contrasts, about):
        yield f"The looks are for differences from base in {looked_at.metric}: others have no tests."


def _are_others(contrasts: Sequence[Contrast], about: About) -> bool:
    """Whether these differences are others than those that the looks were at."""
    metric = about.looked_at and about.looked_at.metric
    return bool(metric) and any(one.measure.key != metric or one.row.is_reference for one in contrasts)


def _convergence(rows: Sequence[Row], about: About) -> Iterator[str]:
    """Which finished rows had converged, and how the step was chosen whose weights are scored."""
    finished = [row for row in rows if row.values and about.loss]
    known = [row.ending for row in finished if row.ending]
    falls, unknown = [ending.share for ending in known if ending.still_falls], len(finished) - len(known)
    if unknown:
        yield f"Whether {counted(unknown, 'row')} had converged is not known: lower trainer.val_every."
    if falls:
        fell = " to ".join(dict.fromkeys(f"{share:.1%}" for share in (min(falls), max(falls))))
        yield f"{UNCONVERGED} training had not converged, in {counted(len(falls), 'row')}: validation loss was still"
        yield f"falling at the last step (perplexity by {fell} over the last 20% of the steps)."
    elif known:
        whole = "All rows" if len(finished) == len(rows) else "All finished rows"
        yield f"{counted(len(known), 'row') if unknown else whole} had converged."
    if any(row.is_selected for row in rows):
        yield "Where decode.select is best, the validation with the lowest loss is scored, and a row has also converged"
        yield "if it lies before the last 10% of the steps."
        if about.split == "test":
            yield "The sentences of the validation set have chosen the step; those of the test set have not."
        else:
            yield "The same sentences have chosen the step and are scored: --split test scores others."


def _steps(contrasts: Sequence[Contrast]) -> Iterator[str]:
    """Why the steps to base's loss of some rows are not known; nothing if those of base are not."""
    others = [one for one in contrasts if one.row.values and not one.row.is_base]
    for why in dict.fromkeys(one.unknown for one in others if one.unknown):
        titles = [one.row.title for one in others if one.unknown == why]
        yield f"No {STEPS.title} for {'any row' if len(titles) == len(others) else ', '.join(titles)}: {why}."


def _gaps(rows: Sequence[Row], contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """Which trials and tests are missing."""
    if diverged := sum(row.states.count("diverged") for row in rows):
        yield f"{counted(diverged, 'trial')} diverged."
        yield "Rows with missing seeds are averaged over the seeds that finished."
    yield from (f"{row.shown_name} was refused: {row.refused}." for row in rows if row.refused)
    untested = [one for one in contrasts if one.difference is not None and one.is_known and one.p_value is None]
    explained = about.looked_at.left_out if about.looked_at else ()
    count = sum(not (one.is_rounding or one.is_constant or one.row.name in explained) for one in untested)
    if count and not _are_others(contrasts, about):
        rule = "a row needs several seeds if base has them, else one, and a difference that varies"
        yield f"{counted(count, 'row')} cannot be tested: {rule}."


def _datasets(rows: Sequence[Row], about: About) -> Iterator[str]:
    """How datasets differ, and why nothing is known of the sentences of an evaluation set."""
    if any(row.dataset != rows[0].dataset for row in rows):
        yield "Rows on different datasets are not compared."
    elif any(row.vocabulary != rows[0].vocabulary or not row.has_tokens_of(rows[0]) for row in rows):
        yield "Perplexities of different vocabularies cannot be compared."
    sizes, name = [row.sentences for row in rows if row.sentences is not None], SETS[about.split]
    if about.loss and not sizes and any(row.values for row in rows):
        yield f"There are no tests and no intervals: the scores of the sentences of the {name} are not here."
    if sizes and min(sizes) < FEWEST_SENTENCES:
        yield f"A {name} of {min(sizes)} {about.unit} is too small for intervals and tests: at least"
        yield f"{FEWEST_SENTENCES} are needed; add lines, or divide long ones."


def _trials(rows: Sequence[Row]) -> Iterator[str]:
    """How machines differ, and which callbacks the user has declared to change no result."""
    yield machines_note([machine for row in rows for machine in row.machines])
    if watching := dict.fromkeys(callback for row in rows for callback in row.watching):
        yield f"Declared to change no result (in_identity: false): {', '.join(watching)}."


def margin_note(margin: float, contrasts: Sequence[Contrast]) -> str:
    """How many rows are equal to base within a margin, better, worse or undecided."""
    counts = Counter(verdict(margin, one).removesuffix(SIGNIFICANT) for one in contrasts)
    found = [f"{counts[kind]} {kind}" for kind in ("equal", "better", "worse", "undecided") if counts[kind]]
    within = f"Within a margin of {margin:g} {contrasts[0].measure.title}"
    if not found:
        return f"{within} nothing can be said: no row is tested over several seeds."
    return f"{within}, which must have been chosen before the results were seen: {', '.join(found)}."


# ---------------------------------------------------------------------------------------------------------------------
# Of other tables, too


def change_note(tested: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    """What was added to the table or left out since its training started.

    tested, now: what the table tested at that time and tests now, as `plan.tested_by` returns it.
    """
    if not tested:
        return ""
    changes = [
        f"{change} {kind}: {', '.join(map(str, values))}"
        for kind in now
        for change, these, others in (("added", now, tested), ("left out", tested, now))
        if (values := [value for value in these[kind] if value not in others[kind]])
    ]
    if not changes:
        return ""
    note = (
        f"Changed after training had started: {'; '.join(changes)}. If the results decided this change, p is too small"
    )
    if not set(now["seeds"]) <= set(tested["seeds"]):
        note += ": adding seeds until a row is significant finds differences that are not there"
    return f"{note}."


def machines_note(machines: Sequence[Mapping[str, Any]]) -> str:
    """How the machines of trials differ, which is no part of an identity. machines: `Trial.machine` of each trial."""
    keys = machines[0] if machines else ()
    values = {key: dict.fromkeys(str(machine[key]) for machine in machines if machine[key]) for key in keys}
    differing = " and ".join(f"{key} ({' or '.join(of_key)})" for key, of_key in values.items() if len(of_key) > 1)
    return f"Trials differ in {differing}: rounding acts like another seed." if differing else ""


def exemption_note(exempt: Collection[str]) -> str:
    """What the mark of a row means, from what the rows are exempt from."""
    return f"{EXEMPT}: {'; '.join(sorted(exempt))}." if exempt else ""
