"""The sentences above and below a table, which say what a reader must know to believe it.

A new note is a sentence that a function of a paragraph yields; `table_notes` lists the paragraphs. Blanks join what the
functions yield.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from transformer_pl.runtime.terminal import counted
from transformer_pl.table.cells import EXEMPT, SIGNIFICANT, UNLIKE, number, number_form, unmeasured, verdict
from transformer_pl.table.formats import LEGEND
from transformer_pl.table.row import ALPHA, SAME_BUDGET, About, Contrast, Outcome, PrintedTable, Row
from transformer_pl.table.statistics import POWER, Estimate, rank_correlation
from transformer_pl.table.steps import STEPS

FEWEST_ORDERED = 8  # with so many rows beside printed ones, a note compares their order with the paper's
FEWEST_SENTENCES = 20  # for intervals and tests: the mean of fewer pseudo-values may be far from normal
NAMED = 3  # rows that a summary names on each side of base
# How a summary begins: size, title, direction, base
FIRST_DIFFERENCE, FIRST_RATIO = "is {0} {1} {2} than {3}", "has {0} times the {1} of {3}"
Known = tuple[Contrast, Estimate]  # a tested row, and its difference from base


# ---------------------------------------------------------------------------------------------------------------------
# Above the table


def summary_of(rows: Sequence[Row], contrasts: Mapping[str, Sequence[Contrast]], about: About) -> list[str]:
    """What the table shows, or why it compares nothing: sentences."""
    base, otherwise = name_of_base(rows), no_differences(rows, about)
    said = [text for outcome in about.outcomes for text in summary(contrasts[outcome.key], base, about.trial)]
    return [*filter(None, [_counts(contrasts, about), *said])] or [*filter(None, [otherwise])]


def _counts(contrasts: Mapping[str, Sequence[Contrast]], about: About) -> str:
    """How many rows differ by each of several outcomes that are tested."""
    of_each = [contrasts[outcome.key] for outcome in about.outcomes]
    tested = [of for of in of_each if any(contrast.estimate for contrast in of)]
    counts = [f"{sum(one.is_found for one in of)} by {of[0].outcome.title}" for of in tested]
    return f"Rows that differ significantly: {', '.join(counts)}." if about.loss and len(tested) > 1 else ""


def summary(contrasts: Sequence[Contrast], base: str, trial: str) -> list[str]:
    """What the table shows: the rows that differ from base, and what the others could have shown.

    base: its name. trial: what a row has several of.
    """
    tested = [(contrast, contrast.estimate) for contrast in contrasts if contrast.estimate]
    found = sorted((pair for pair in tested if pair[0].is_found), key=lambda pair: pair[1].value)
    undecided = [pair for pair in tested if not pair[0].is_found]
    sentences, outcome = list[str](), contrasts[0].outcome
    of_base = next((contrast.row for contrast in contrasts if contrast.row.is_base), None)
    if found:
        sentences.append(f"{', '.join(_found_in_words(found, base, of_base))}.")
    if undecided:
        rows = f"{len(undecided)} {'tested rows' if len(tested) + 1 < len(contrasts) else 'rows'}"
        which = f"The other {rows} cannot" if found else f"None of the {rows} can"
        which = f"{undecided[0][0].row.title} cannot" if len(undecided) == 1 else which
        power = _power_in_words(undecided, contrasts, trial)
        sentences.append(f"{which} be told apart from {base} in {outcome.title} with {power}.")
    if tested and all(len(contrast.scores) == 1 for contrast, _ in tested):
        sentences.append(f"One {trial} says nothing of other {trial}s.")
    return sentences


def _found_in_words(found: Sequence[Known], base: str, of_base: Row | None) -> list[str]:
    """The rows that differ from base, in the order of their differences: on each side the largest NAMED by their names,
    and how many more there are."""
    lower = [known for known in found if known[1].value < 0]
    higher = found[len(lower) :]
    named = [*lower[:NAMED], *higher[-NAMED:]]
    clauses = [_clause(*known, of_base, "" if place else base) for place, known in enumerate(named)]
    for side, how in ((lower, "lower"), (higher, "higher")):
        if (more := len(side) - NAMED) > 0:
            clauses.append(f"{counted(more, 'more row')} {'are' if more > 1 else 'is'} {how}")
    return clauses


def _clause(contrast: Contrast, difference: Estimate, of_base: Row | None, base: str) -> str:
    """How a row differs from base. base: its name; empty: the clause before has it."""
    size, how, ends = _in_words(contrast, difference)
    ends += _budget_in_words(contrast.row.budget(of_base))
    if not base:
        return f"{contrast.row.title} {size} {how} ({ends})"
    whole = FIRST_RATIO if contrast.outcome.is_logarithm else FIRST_DIFFERENCE
    return f"{contrast.row.title} {whole.format(size, contrast.outcome.title, how, base)} (95 %: {ends})"


def _budget_in_words(budget: float | None) -> str:
    """How much longer or shorter than base's a training was; empty for about as long."""
    is_known_other = budget is not None and not 1 / SAME_BUDGET <= budget <= SAME_BUDGET
    return f", with {budget:.2g} times base's training" if is_known_other else ""


def _in_words(contrast: Contrast, difference: Estimate) -> tuple[str, str, str]:
    """The size of a difference, its direction, and its interval in this direction."""
    form, outcome = number_form(difference, contrast.outcome), contrast.outcome
    if outcome.is_logarithm:
        low, high = (number(outcome.shown(end), form) for end in difference.interval())
        open_ends = {"low": f"more than 1, at most {high}", "high": f"at least {low}, less than 1"}
        ends = open_ends[contrast.open_end] if contrast.open_end else f"{low} to {high}"
        return number(outcome.shown(difference.value), form), "times", ends
    how, sign = ("lower", -1) if difference.value < 0 else ("higher", 1)
    low, high = (number(end, form) for end in sorted(sign * end for end in difference.interval()))
    ends = f"more than 0, at most {high}" if contrast.open_end else f"{low} to {high}"
    return number(abs(difference.value), form), how, ends


def _power_in_words(undecided: Sequence[Known], contrasts: Sequence[Contrast], trial: str) -> str:
    """How many seeds rows have, and which true difference these would have found in the undecided rows, and in outliers
    that find less."""
    seeds = sorted({len(contrast.scores) for contrast in contrasts if contrast.row.is_base or contrast.estimate})
    if seeds == [1]:
        return f"1 {trial}"
    outcome = contrasts[0].outcome
    sizes = [(contrast, outcome.shown(estimate.detectable)) for contrast, estimate in undecided]
    usual = [size for contrast, size in sizes if not contrast.is_outlier] or [size for _, size in sizes]
    least, most, form = min(usual), max(usual), f".{outcome.digits}f"
    size = number(most, form)
    if most > 2 * least:
        size = f"{number(least, form)} to {size}, depending on the row,"
    wild = [(contrast.row.title, number(size, form)) for contrast, size in sizes if contrast.is_outlier and size > most]
    weak = [f", one of {largest} in {title}" for title, largest in wild]
    with_seeds = f"{seeds[0]} to {seeds[-1]} {trial}s" if len(seeds) > 1 else f"{seeds[0]} {trial}s"
    kind = "ratio" if outcome.is_logarithm else "difference"
    return f"{with_seeds}; a {kind} of {size} would have been found in {POWER:.0%} of cases{''.join(weak)}"


def name_of_base(rows: Sequence[Row]) -> str:
    """What a sentence calls the row that differences are to."""
    base = next((row for row in rows if row.is_base), None)
    if base and base.is_reference:
        return base.shown_name
    return f"base ({base.own_name})" if base and base.own_name else "base"


def no_differences(rows: Sequence[Row], about: About) -> str:
    """Why no row is compared with base."""
    outcome, base = about.score, next((row for row in rows if row.is_base), None)
    is_known = any(row.values for row in rows if row is not base)
    if len(rows) == 1 or not is_known or (base and base.has_learned(outcome)):
        return ""
    if base is None:
        reason = f"is not a row; {about.how_to_name_base}"
    elif base.values:
        reason = f"has a {outcome.title} below {outcome.learned:g}: it has learned next to nothing; train longer"
    else:
        reason = "is not finished" if unmeasured(base) == "-" else unmeasured(base)
    return f"There are no differences, because base {reason}."


# ---------------------------------------------------------------------------------------------------------------------
# Below the table


def table_notes(rows: Sequence[Row], contrasts: Mapping[str, Sequence[Contrast]], about: About) -> list[str]:
    """How the rows were trained, what marks mean, what had not converged, and what is missing or was changed."""
    main = contrasts[about.outcomes[0].key]
    of_each = partial(_of_each, contrasts, about.outcomes)
    margins = [margin_note(margin, contrasts[key], about.trial) for key, margin in about.margins.items()]
    paragraphs: tuple[Sequence[str], ...] = (
        (*about.facts.training, *_beside_printed(rows, main, about.printed), *_costs(rows)),
        of_each(lambda of: (*_spread(of, about.trial), *_tests(of, about), *_marks(rows, of, about))),
        (*of_each(lambda of: _corrections(of, about)), *_looks(main, about)),
        (*about.facts.convergence, *_steps(contrasts.get(STEPS.key, ()))),
        (*of_each(lambda of: _gaps(rows, of, about)), *_datasets(rows), *about.facts.others, *margins),
    )
    return [note for sentences in paragraphs if (note := " ".join(filter(None, sentences)))]


def _of_each(
    contrasts: Mapping[str, Sequence[Contrast]],
    outcomes: Sequence[Outcome],
    sentences: Callable[[Sequence[Contrast]], Iterable[str]],
) -> list[str]:
    """The sentences on each outcome; one that is not said of all begins with the names of its outcomes."""
    titles: dict[str, list[str]] = {}
    for outcome in outcomes:
        for sentence in filter(None, sentences(contrasts[outcome.key])):
            titles.setdefault(sentence, []).append(outcome.title)
    return [text if len(of) == len(outcomes) else f"For {', '.join(of)}: {text}" for text, of in titles.items()]


def _beside_printed(rows: Sequence[Row], contrasts: Sequence[Contrast], printed: PrintedTable | None) -> Iterator[str]:
    """How printed numbers are to be read, and how far our differences from base are in their order, for enough rows
    that differ. contrasts: in the main outcome."""
    if not printed or not any(row.printed for row in rows):
        return
    yield printed.note
    both = [(contrast.difference, printed.change(contrast.row.printed, contrast.outcome)) for contrast in contrasts]
    known = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
    if len(known) >= FEWEST_ORDERED and min(len(set(values)) for values in zip(*known, strict=True)) > 1:
        correlation, (low, high) = rank_correlation(*zip(*known, strict=True))
        whose, title = "the paper's" if printed.is_paper else "the printed", contrasts[0].outcome.title
        yield f"Spearman's rank correlation with {whose} differences in {title}: {correlation:+.2f}"
        yield f"({len(known)} rows; 95 % interval: {low:+.2f} to {high:+.2f})."


def _costs(rows: Sequence[Row]) -> Iterator[str]:
    """Of which rows the FLOPs are not known."""
    if unknown := [row.title for row in rows if row.params is not None and row.flops is None]:
        why = "a loss or a callback there calls the model otherwise than in whole passes"
        yield f"FLOPs of {', '.join(unknown)} are not known: {why}."


def _spread(contrasts: Sequence[Contrast], trial: str) -> Iterator[str]:
    """Over how many seeds rows vary."""
    seeds = sorted({len(contrast.scores) for contrast in contrasts if contrast.scores})
    if several := " or ".join(str(n) for n in seeds if n > 1):
        yield f"± is the standard deviation over {several} {trial}s."
    if seeds[:1] == [1]:
        yield f"A row with one {trial} says nothing about other {trial}s: small differences may be chance."


def star_meaning(contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """What the mark of a row means; nothing where no row is tested."""
    if tested := sum(contrast.is_counted for contrast in contrasts):
        count = counted(tested, "row")
        if _are_asked_once(contrasts, about):
            count = "none, as each row waits for those above it"
        if any(contrast.row.is_reference for contrast in contrasts):
            count = f"all pairs of {tested + 1} rows, as the sweep has another base"
        yield f"{SIGNIFICANT}: p < {ALPHA:g} by a t-test, corrected for {count}."


def _tests(contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """What the mark and the p-values mean, what the intervals cover, and which rows are compared within each seed."""
    yield from star_meaning(contrasts, about)
    if any(contrast.mean for contrast in contrasts):
        several = any(len(contrast.scores) > 1 for contrast in contrasts)
        over = " and ".join(filter(None, (f"{about.trial}s" if several else "", about.unit)))
        yield f"Intervals cover the variation over {over}{'' if about.unit else ', and nothing else'}."
        if branches := [contrast.row.title for contrast in contrasts if contrast.row.trunks]:
            rows = "each row" if len(branches) == len(contrasts) else ", ".join(branches)
            yield f"All {about.trial}s of {rows} begin with one trial: intervals are for branches of it alone."
    yield from _prior_of_scale(contrasts, about)
    if shared := sum(contrast.shares_weights for contrast in contrasts):
        share, they = ("share", "they are") if shared > 1 else ("shares", "it is")
        how = f"{they} compared with it within each {about.within}"
        yield f"{counted(shared, 'row')} {share} the {about.shared} of base: {how}."


def _prior_of_scale(contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """What a few rows take from the file of their scale."""
    if any(contrast.is_by_scale for contrast in contrasts):
        outcome = contrasts[0].outcome
        prior = about.priors[outcome.key].of_base
        spread = f"{prior.variance**0.5:.2g} {'nats' if outcome.is_logarithm else outcome.title}"
        says = f"by {spread}, with {prior.freedom:g} degrees of freedom for base and half of them for other rows"
        yield f"So few rows say little of how their {about.trial}s spread. The scale's file says: {says}."


def _marks(rows: Sequence[Row], contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """Which rows spread unlike the others, or not at all, and which are exempt from a law."""
    kinds = {
        "is_outlier": "The {1}s of {0} spread unlike those of the other rows.",
        "is_wide": "The {1}s of {0} spread more than those of other rows, and its error is in every difference.",
        "is_rounding": "Equal to base in every {1}, but for rounding: {0}.",
        "is_flattered": "No test of {0}: the better of row and base has lost {1}s, and the others may be lucky.",
        "is_apart": "No test of {0}: all {1}s of the row or of base begin with one trial, and the other's do not.",
        "is_constant": "All {1}s of {0} give the same score: make sure that they change something.",
        "is_by_digits": "The digits do not carry the * of {0}: other numbers that print the same have none.",
    }
    for kind, note in kinds.items():
        if names := ", ".join(contrast.row.title for contrast in contrasts if getattr(contrast, kind)):
            yield note.format(names, about.trial)
    yield from _of_means(contrasts)
    if unlike := [contrast.row.title for contrast in contrasts if contrast.is_unlike]:
        why = "means something else than base's: another loss was trained for, or the tokens are others"
        yield f"{UNLIKE} {contrasts[0].outcome.title} of {', '.join(unlike)} {why}."
    yield exemption_note({reason for row in rows for reason in row.exempt})
    yield LEGEND if about.has_page else ""


def _of_means(contrasts: Sequence[Contrast]) -> Iterator[str]:
    """What it would mean if printed deviations were those of n; nothing where rows are made of runs."""
    times = 0.0
    for of in contrasts:
        if (change := of.estimate) and not of.row.samples[of.outcome.key].has_seeds:
            limit = change.half_width(change.level) * math.sqrt(1 - 1 / len(of.scores))  # of the deviations of n
            times = max(times, (change._replace(value=limit).p_value or 0.0) / (1 - change.level))
    if times:
        yield "If deviations are those of n, not of n - 1, intervals are too narrow by sqrt(n / (n - 1)), and in such"
        yield f"a table a false {SIGNIFICANT} is about {times:.1f} times as frequent."


def _corrections(contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """What p is corrected for, and what is known of rows with one run beside a base with several."""
    if len(about.outcomes) > 1:
        yield "Each metric has a test of its own: p is corrected for the rows, not for the metrics."
    if count := sum(contrast.one_run is not None for contrast in contrasts):
        note = f"Outside base's runs: p < {ALPHA:g} by a t-test of whether a row's one run could be one of base's, "
        note += f"corrected for {counted(count, 'such row')}. It is no test of the row: one with base's mean that "
        yield note + "spreads three times as far is outside five runs of base in 37 % of cases."


def _looks(contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """When rows were looked at, what that saved, and what holds for rows that stopped."""
    if not (looked_at := about.looked_at):
        return
    looks, trained = looked_at.looks, sum(len(contrast.row.states) for contrast in contrasts)
    seeds, of_base = (", ".join(map(str, numbers)) for numbers in (looks.seeds, looks.base_seeds))
    yield f"Looked at after {seeds} seeds of each row and {of_base} of base; {looked_at.decided} of {len(looks.seeds)}"
    yield "looks are decided."
    if trained < looks.most_trainings:
        yield "Rows that were decided were not trained on:"
        yield f"{trained} trainings in place of {looks.most_trainings}."
    if is_last := _are_asked_once(contrasts, about):
        yield "The test set is asked once, for the rows that were found, in the order of the table, each at the full"
        yield "level until one is not found."
    if not (_are_others(contrasts, about) or is_last):
        if any(len(seen) < looked_at.decided for seen in looked_at.contrasts.values()):
            yield "A row that stopped is compared with the seeds that base had then, whose mean is not shown."
        yield "p and the intervals hold for all looks together."
        yield "A difference that ended the training of its row is too large on average, but its interval holds."
    if left_out := [contrast.row.title for contrast in contrasts if contrast.row.name in looked_at.left_out]:
        yield f"Left out, as a trial had failed or diverged when a look was decided: {', '.join(left_out)}."
    if _are_others(contrasts, about):
        yield f"The looks are for differences from base in {looked_at.metric}: others have no tests."


def _are_others(contrasts: Sequence[Contrast], about: About) -> bool:
    """Whether these differences are others than those that the looks were at."""
    metric = about.looked_at and about.looked_at.metric
    others = bool(metric) and any(one.outcome.key != metric or one.row.is_reference for one in contrasts)
    return others and not _are_asked_once(contrasts, about)


def _are_asked_once(contrasts: Sequence[Contrast], about: About) -> bool:
    """Whether these are the differences on the test set after looks."""
    looked_at = about.looked_at
    return looked_at is not None and all(looked_at.asks(one.outcome, one.row) for one in contrasts)


def _steps(contrasts: Sequence[Contrast]) -> Iterator[str]:
    """Why the steps to base's loss of some rows are not known; nothing if those of base are not."""
    others = [contrast for contrast in contrasts if contrast.row.values and not contrast.row.is_base]
    for why in dict.fromkeys(contrast.unknown for contrast in others if contrast.unknown):
        titles = [contrast.row.title for contrast in others if contrast.unknown == why]
        yield f"No {STEPS.title} for {'any row' if len(titles) == len(others) else ', '.join(titles)}: {why}."


def _gaps(rows: Sequence[Row], contrasts: Sequence[Contrast], about: About) -> Iterator[str]:
    """Which trials and tests are missing."""
    if diverged := sum(row.states.count("diverged") for row in rows):
        yield f"{counted(diverged, 'trial')} diverged."
    known = [contrast for contrast in contrasts if contrast.difference is not None and contrast.is_known]
    explained = about.looked_at.left_out if about.looked_at else ()
    untested = [contrast for contrast in known if contrast.p_value is None and contrast.row.name not in explained]
    count = sum(not contrast.is_explained for contrast in untested)
    if count and not (_are_others(contrasts, about) or _are_asked_once(contrasts, about)):
        rule = f"a row needs several {about.trial}s if base has them, else one, and a difference that varies"
        yield f"{counted(count, 'row')} cannot be tested: {rule}."


def _datasets(rows: Sequence[Row]) -> Iterator[str]:
    """How datasets differ."""
    base = next((row for row in rows if row.is_base), rows[0])
    if others := [row.shown_name for row in rows if row.dataset != base.dataset]:
        yield f"Rows on different datasets are not compared: {', '.join(others)} with {base.shown_name}."
    elif any(row.vocabulary != rows[0].vocabulary or not row.has_tokens_of(rows[0]) for row in rows):
        yield "Perplexities of different vocabularies cannot be compared."


def margin_note(margin: float, contrasts: Sequence[Contrast], trial: str) -> str:
    """How many rows are equal to base within a margin, better, worse or undecided."""
    counts = Counter(verdict(margin, contrast).removesuffix(SIGNIFICANT) for contrast in contrasts)
    found = [f"{counts[kind]} {kind}" for kind in ("equal", "better", "worse", "undecided") if counts[kind]]
    within = f"Within a margin of {margin:g} {contrasts[0].outcome.title}"
    if not found:
        return f"{within} nothing can be said: no row is tested over several {trial}s."
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
    """How the machines of trials differ, which is no part of an identity. machines: `TrialFolder.machine` of each."""
    keys = machines[0] if machines else ()
    values = {key: dict.fromkeys(str(machine[key]) for machine in machines if machine[key]) for key in keys}
    differing = " and ".join(f"{key} ({' or '.join(of_key)})" for key, of_key in values.items() if len(of_key) > 1)
    return f"Trials differ in {differing}: rounding acts like another seed." if differing else ""


def signature_note(signatures: Iterable[str]) -> str:
    """How scores were computed in different ways, of which no difference says anything."""
    different = dict.fromkeys(filter(None, signatures))
    return f"Scores with different signatures cannot be compared: {', '.join(different)}." if len(different) > 1 else ""


def exemption_note(exempt: Collection[str]) -> str:
    """What the mark of a row means, from what the rows are exempt from."""
    return f"{EXEMPT}: {'; '.join(sorted(exempt))}." if exempt else ""
