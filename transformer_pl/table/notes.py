"""The sentences above and below a table, which say what a reader must know to believe it.

A new note is a function of the rows or their contrasts here, in `table_notes`: each inner tuple there becomes one
paragraph.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_pl.runtime.terminal import counted
from transformer_pl.table.cells import EXEMPT, SIGNIFICANT, UNCONVERGED, digits, number, unmeasured, verdict
from transformer_pl.table.formats import LEGEND
from transformer_pl.table.rows import ALPHA, SETS, About, Contrast, Measure, PrintedTable, Row, base_of
from transformer_pl.table.statistics import POWER, Estimate, rank_correlation
from transformer_pl.table.steps import STEPS, why_unknown

FEWEST_ORDERED = 8  # with so many rows beside printed ones, a note compares their order with the paper's
FEWEST_SENTENCES = 20  # for intervals and tests: the mean of fewer pseudo-values may be far from normal


def summary(contrasts: Sequence[Contrast], base: str = "base") -> str:
    """What the table shows: the rows that differ from base, and what the others could have shown. base: its name."""
    tested = [one for one in contrasts if one.estimate]
    found, undecided = ([one for one in tested if one.is_found == is_found] for is_found in (True, False))
    sentences = []
    if found:
        found.sort(key=lambda one: one.estimate.value if one.estimate else 0.0)
        first, *others = [(one.row.title, *_in_words(one.estimate, one.measure)) for one in found if one.estimate]
        clauses = [f"{first[0]} is {first[1]} {found[0].measure.title} {first[2]} than {base} (95 %: {first[3]})"]
        clauses += [f"{name} {size} {how} ({ends})" for name, size, how, ends in others]
        sentences.append(f"{', '.join(clauses)}.")
    if undecided:
        sentences.append(_undecided_in_words(undecided, tested, contrasts, base))
    if tested and all(len(one.scores) == 1 for one in tested):
        sentences.append("One seed says nothing of other seeds.")
    return " ".join(sentences)


def _undecided_in_words(
    undecided: Sequence[Contrast], tested: Sequence[Contrast], contrasts: Sequence[Contrast], base: str
) -> str:
    """How many rows cannot be told apart from base, and which difference their seeds would have shown."""
    measure, several = undecided[0].measure, "tested rows" if len(tested) + 1 < len(contrasts) else "rows"
    which = f"None of the {len(undecided)} {several} can"
    if len(undecided) == 1:
        which = f"{undecided[0].row.title} cannot"
    elif len(undecided) < len(tested):
        which = f"The other {len(undecided)} {several} cannot"
    seeds = sorted({len(one.scores) for one in contrasts if one.row.is_base or one.estimate})
    with_seeds = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else counted(seeds[0], "seed")
    power = "" if seeds == [1] else f"; {_power_in_words(undecided, measure)}"
    return f"{which} be told apart from {base} in {measure.title} with {with_seeds}{power}."


def _in_words(difference: Estimate, measure: Measure) -> tuple[str, str, str]:
    """The size of a difference, its direction, and its interval."""
    form = f".{digits(difference, measure)}f"
    low, high = sorted(abs(end) for end in difference.interval())
    how = "lower" if difference.value < 0 else "higher"
    return number(abs(difference.value), form), how, f"{number(low, form)} to {number(high, form)}"


def _power_in_words(undecided: Sequence[Contrast], measure: Measure) -> str:
    """Which true difference would have been found in the undecided rows, and in outliers that find less."""
    found = [(one, one.estimate.detectable) for one in undecided if one.estimate]
    usual = [size for one, size in found if not one.is_outlier] or [size for _, size in found]
    form = f".{measure.digits}f"
    size = number(max(usual), form)
    if max(usual) > 2 * min(usual):
        size = f"{number(min(usual), form)} to {size}, depending on the row,"
    weak = [
        f", one of {number(size, form)} in {one.row.title}"
        for one, size in found
        if one.is_outlier and size > max(usual)
    ]
    return f"a difference of {size} would have been found in {POWER:.0%} of cases{''.join(weak)}"


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


def table_notes(rows: Sequence[Row], contrasts: Mapping[str, Sequence[Contrast]], about: About) -> list[str]:
    """How the rows were trained, what marks mean, what had not converged, and what is missing or was changed."""
    main = contrasts[about.measures[0].key]
    exempt = exemption_note(sorted({reason for row in rows for reason in row.exempt}))
    several = "Each metric has a test of its own: p is corrected for the rows, not for the metrics."
    refused = [f"{row.shown_name} was refused: {row.refused}." for row in rows if row.refused]
    gaps = (_diverged_note(rows), *refused, _untested_note(main, about), _comparable_note(rows))
    text = _sentences_note(rows, about)
    machines = machines_note([machine for row in rows for machine in row.machines])
    test = "Scores, differences and tests are of the test set." if about.split == "test" else ""
    margins = [margin_note(about.margins[key], contrasts[key]) for key in about.margins]
    legend = LEGEND if about.has_page else ""
    notes: tuple[Sequence[str], ...] = (
        (_training_note(rows, about), _order_note(rows, main, about.printed), _speed_note(rows)),
        (
            _spread_note(main),
            _test_note(main, about.unit),
            _shared_note(main, about),
            _unlike_note(main),
            exempt,
            legend,
        ),
        (several if len(about.measures) > 1 else "", _one_run_note(main), _looks_note(main, about)),
        (
            _convergence_note(rows) if about.loss else "",
            _selected_note(rows, about.split),
            _steps_note(contrasts.get(STEPS.key, ()), base_of(rows, about.measures[0])),
        ),
        (*gaps, text, machines, _stopped_note(rows), _watching_note(rows), *about.added, test, *margins),
    )
    return [note for sentences in notes if (note := " ".join(filter(None, sentences)))]


def _training_note(rows: Sequence[Row], about: About) -> str:
    """How the rows were trained, and how far that is from the paper."""
    training, printed = about.training, about.printed
    if not training:
        return ""
    note = f"Trained for {training.steps:,} steps of {training.batch_tokens:,} tokens on {training.text}, "
    note += f"with the paper's sizes{' but for ' if training.sizes else ''}{', '.join(training.sizes)}"
    note += f", times {' and '.join(training.factors)}" if training.factors else ""
    note += f"; the last {training.averaged} checkpoints are averaged." if training.averaged > 1 else "."
    if printed is None or not any(row.printed for row in rows):
        return note
    if not printed.is_paper:  # a user's file does not say on which data its numbers were measured
        note += f" Printed numbers: {printed.source}. Compare differences from base, not values."
        return note if printed.has_base else f"{note} Base has none, and so there are no differences between them."
    if printed.differs_in:
        note += f" The paper has other {' and '.join(printed.differs_in)}: compare differences from base, not values."
    return note


def _speed_note(rows: Sequence[Row]) -> str:
    """How fast the first row was trained, if the peak of its GPU is known."""
    if not rows[0].speed:
        return ""
    speed, share = rows[0].speed
    return f"{rows[0].title} was trained on {speed:,.0f} target tokens a second, {share:.0%} of the peak of its GPU."


def _stopped_note(rows: Sequence[Row]) -> str:
    """Which trials a callback has ended before their last step."""
    stopped = [trial for row in rows for trial in row.stopped]
    return f"A callback stopped {', '.join(stopped)}." if stopped else ""


def _watching_note(rows: Sequence[Row]) -> str:
    """Which callbacks the user has declared to change no result."""
    watching = dict.fromkeys(callback for row in rows for callback in row.watching)
    return f"Declared to change no result (in_identity: false): {', '.join(watching)}." if watching else ""


def _selected_note(rows: Sequence[Row], split: str) -> str:
    """How the step was chosen whose weights are scored; empty where it is the last one in all rows."""
    if not any(row.is_selected for row in rows):
        return ""
    note = "Where decode.select is best, the validation with the lowest loss is scored, and a row has also converged "
    note += "if it lies before the last 10% of the steps. "
    if split == "test":
        return f"{note}The sentences of the validation set have chosen the step; those of the test set have not."
    return f"{note}The same sentences have chosen the step and are scored: --split test scores others."


def _order_note(rows: Sequence[Row], contrasts: Sequence[Contrast], printed: PrintedTable | None) -> str:
    """How far our differences from base are in the order of the paper's; empty for few rows or equal values."""
    known = [
        (one.difference, theirs)
        for one in contrasts
        if one.difference is not None and printed and (theirs := printed.difference(one.row.printed)) is not None
    ]
    if len(known) < FEWEST_ORDERED or min(len(set(values)) for values in zip(*known, strict=True)) == 1:
        return ""
    correlation, (low, high) = rank_correlation(*zip(*known, strict=True))
    return (
        f"Spearman's rank correlation with the paper's differences: {correlation:+.2f} "
        f"({len(known)} rows; 95 % interval: {low:+.2f} to {high:+.2f})."
    )


def _convergence_note(rows: Sequence[Row]) -> str:
    """Which finished rows had converged."""
    finished = [row for row in rows if row.values]
    known = [row.ending for row in finished if row.ending]
    falls, unknown = [ending.share for ending in known if ending.still_falls], len(finished) - len(known)
    note = f"Whether {counted(unknown, 'row')} had converged is not known: lower trainer.val_every. " if unknown else ""
    if falls:
        fell = " to ".join(dict.fromkeys(f"{share:.1%}" for share in (min(falls), max(falls))))
        note += f"{UNCONVERGED} training had not converged, in {counted(len(falls), 'row')}: validation loss was still "
        note += f"falling at the last step (perplexity by {fell} over the last 20% of the steps)."
    elif known and unknown:
        note += f"{counted(len(known), 'row')} had converged."
    elif known:
        note += f"All {'rows' if len(finished) == len(rows) else 'finished rows'} had converged."
    return note.rstrip()


def _steps_note(contrasts: Sequence[Contrast], base: Row | None) -> str:
    """Why the steps to base's loss of some rows are not known; empty if those of base are not."""
    if base is None or not any(base.losses):
        return ""
    others = [one for one in contrasts if one.row is not base and one.row.values]
    reasons: dict[str, list[str]] = {}
    for one in others:
        if one.difference is None:
            why = why_unknown(one.row, base) or "the losses do not meet between two validations"
            reasons.setdefault(why, []).append(one.row.title)
    named = {why: "any row" if len(rows) == len(others) else ", ".join(rows) for why, rows in reasons.items()}
    return " ".join(f"No {STEPS.title} for {rows}: {why}." for why, rows in named.items())


def _spread_note(contrasts: Sequence[Contrast]) -> str:
    """Over how many seeds rows vary."""
    seeds = sorted({len(one.scores) for one in contrasts if one.scores})
    several = " or ".join(str(n) for n in seeds if n > 1)
    note = f"± is the standard deviation over {several} seeds. " if several else ""
    of_base = max((len(one.scores) for one in contrasts if one.row.is_base), default=0)
    if seeds and of_base > max((len(one.scores) for one in contrasts if not one.row.is_base), default=of_base):
        note += f"Base has more seeds, {of_base}, because every difference has its error. "
    if seeds[:1] == [1]:
        note += "A row with one seed says nothing about other seeds: small differences may be chance."
    return note.rstrip()


def _test_note(contrasts: Sequence[Contrast], unit: str) -> str:
    """What the mark and the p-values mean, and what the intervals cover. unit: of what the set consists."""
    tested, note = sum(one.p_value is not None for one in contrasts), ""
    if tested:
        note = f"{SIGNIFICANT}: p < {ALPHA:g} by a t-test, corrected for {counted(tested, 'row')}. "
    if any(one.mean for one in contrasts):
        several = any(len(one.scores) > 1 for one in contrasts)
        over = " and ".join(filter(None, (unit, "seeds" if several else "")))
        note += f"Intervals cover the variation over {over}{'' if unit else ', and nothing else'}."
    return note.rstrip()


def _one_run_note(contrasts: Sequence[Contrast]) -> str:
    """What is known of rows with one run beside a base with several."""
    count = sum(one.one_run is not None for one in contrasts)
    note = f"Outside base's runs: p < {ALPHA:g} by a t-test of whether a row's one run could be one of base's, "
    note += f"corrected for {counted(count, 'such row')}. It is no test of the row: one with base's mean that spreads "
    note += "three times as far is outside five runs of base in 37 % of cases."
    return note if count else ""


def _looks_note(contrasts: Sequence[Contrast], about: About) -> str:
    """When rows were looked at, what that saved, and what holds for rows that stopped."""
    if not (looked_at := about.looked_at):
        return ""
    looks, decided = looked_at.looks, looked_at.decided
    trained = sum(len(one.row.states) for one in contrasts)
    most = looks.rows * looks.seeds[-1] + looks.base_seeds[-1]
    seeds, of_base = (", ".join(map(str, numbers)) for numbers in (looks.seeds, looks.base_seeds))
    note = (
        f"Looked at after {seeds} seeds of each row and {of_base} of base; {decided} of {len(looks.seeds)} looks are "
    )
    note += f"decided. Rows that were decided were not trained on: {trained} trainings in place of {most}. p and the "
    note += "intervals hold for all looks together. A difference that ended the training of its row is too large on "
    note += "average, but its interval holds."
    if left_out := [one.row.shown_name for one in contrasts if one.row.name in looked_at.left_out]:
        note += f" Left out, as a trial had failed or diverged when a look was decided: {', '.join(left_out)}."
    if _are_others(contrasts, about):
        note += f" The looks are for differences from base in {looked_at.metric}: others have no tests."
    return note


def _are_others(contrasts: Sequence[Contrast], about: About) -> bool:
    """Whether these differences are others than those that the looks were at."""
    metric = about.looked_at and about.looked_at.metric
    return bool(metric) and any(one.measure.key != metric or one.row.is_reference for one in contrasts)


def _shared_note(contrasts: Sequence[Contrast], about: About) -> str:
    """Which rows are compared within each seed."""
    shared = sum(one.shares_weights for one in contrasts)
    share, they = ("share", "they are") if shared > 1 else ("shares", "it is")
    note = f"{counted(shared, 'row')} {share} the {about.shared} of base: {they} compared with it within each seed."
    return note if shared else ""


def _unlike_note(contrasts: Sequence[Contrast]) -> str:
    """Which rows spread unlike the others, or not at all."""
    kinds = {
        "is_outlier": "The seeds of {} spread unlike those of the other rows.",
        "is_rounding": "Equal to base in every seed, but for rounding: {}.",
        "is_constant": "All seeds of {} give the same score: make sure that they change something.",
    }
    rows = {kind: ", ".join(one.row.title for one in contrasts if getattr(one, kind)) for kind in kinds}
    return " ".join(note.format(rows[kind]) for kind, note in kinds.items() if rows[kind])


def margin_note(margin: float, contrasts: Sequence[Contrast]) -> str:
    """How many rows are equal to base within a margin, better, worse or undecided."""
    counts = Counter(verdict(margin, one).removesuffix(SIGNIFICANT) for one in contrasts)
    found = [f"{counts[kind]} {kind}" for kind in ("equal", "better", "worse", "undecided") if counts[kind]]
    within = f"Within a margin of {margin:g} {contrasts[0].measure.title}"
    if not found:
        return f"{within} nothing can be said: this takes several seeds."
    return f"{within}, which must have been chosen before the results were seen: {', '.join(found)}."


def change_note(tested: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    """What was added to the table or left out since its training started.

    tested, now: what the table tested at that time and tests now, as `plan.tested_by` returns it.
    """
    if not tested:
        return ""
    changes = []
    for kind in now:
        if added := [value for value in now[kind] if value not in tested[kind]]:
            changes.append(f"added {kind}: {', '.join(map(str, added))}")
        if missing := [value for value in tested[kind] if value not in now[kind]]:
            changes.append(f"left out {kind}: {', '.join(map(str, missing))}")
    if not changes:
        return ""
    note = (
        f"Changed after training had started: {'; '.join(changes)}. If the results decided this change, p is too small"
    )
    if not set(now["seeds"]) <= set(tested["seeds"]):
        note += ": adding seeds until a row is significant finds differences that are not there"
    return f"{note}."


def _diverged_note(rows: Sequence[Row]) -> str:
    diverged = sum(row.states.count("diverged") for row in rows)
    rest = "Rows with missing seeds are averaged over the seeds that finished."
    return f"{counted(diverged, 'trial')} diverged. {rest}" if diverged else ""


def _untested_note(contrasts: Sequence[Contrast], about: About) -> str:
    if _are_others(contrasts, about):
        return ""
    left_out = about.looked_at.left_out if about.looked_at else ()
    untested = [one for one in contrasts if one.difference is not None and one.is_known and one.p_value is None]
    count = sum(not (one.is_rounding or one.is_constant or one.row.name in left_out) for one in untested)
    rule = "a row needs several seeds if base has them, else one, and a difference that varies"
    return f"{counted(count, 'row')} cannot be tested: {rule}." if count else ""


def _comparable_note(rows: Sequence[Row]) -> str:
    if any(row.dataset != rows[0].dataset for row in rows):
        return "Rows on different datasets are not compared."
    if any(row.vocabulary != rows[0].vocabulary or not row.has_tokens_of(rows[0]) for row in rows):
        return "Perplexities of different vocabularies cannot be compared."
    return ""


def _sentences_note(rows: Sequence[Row], about: About) -> str:
    """Why nothing is known of the sentences of an evaluation set."""
    sizes, name = [row.sentences for row in rows if row.sentences is not None], SETS[about.split]
    if about.loss and not sizes and any(row.values for row in rows):
        return f"There are no tests and no intervals: the scores of the sentences of the {name} are not here."
    if sizes and min(sizes) < FEWEST_SENTENCES:
        few = f"A {name} of {min(sizes)} {about.unit} is too small for intervals and tests"
        return f"{few}: at least {FEWEST_SENTENCES} are needed; add lines, or divide long ones."
    return ""


def machines_note(machines: Sequence[Mapping[str, Any]]) -> str:
    """How the machines of trials differ, which is no part of an identity. machines: `Trial.machine` of each trial."""
    differing = []
    for key in machines[0] if machines else ():
        values = dict.fromkeys(str(machine[key]) for machine in machines if machine[key])
        differing += [f"{key} ({' or '.join(values)})"] if len(values) > 1 else []
    what = " and ".join(differing)
    return f"Trials differ in {what}: rounding acts like another seed." if differing else ""


def exemption_note(exempt: Sequence[str]) -> str:
    """What the mark of a row means, from what the rows are exempt from."""
    return f"{EXEMPT}: {'; '.join(exempt)}." if exempt else ""
