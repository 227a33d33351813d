"""The notes under a table, which say what a reader must know to believe the table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from transformer_pl.config import SIZE_NAMES, STACKS, Config, nominal_sizes
from transformer_pl.report.cells import (
    EXEMPT,
    SIGNIFICANT,
    UNCONVERGED,
    ScoredRow,
    Shown,
    digits,
    significance_mark,
    unmeasured,
    verdict,
)
from transformer_pl.report.published import PublishedTable
from transformer_pl.report.render import LEGEND
from transformer_pl.report.rows import ALPHA, FEWEST_SENTENCES, LEARNED, TableRow
from transformer_pl.report.statistics import POWER, Estimate, RowComparison, rank_correlation
from transformer_pl.runtime.terminal import counted
from transformer_pl.task import task_of
from transformer_pl.trials.convergence import FALLEN
from transformer_pl.trials.result import exemptions

SETS = {"val": "validation set", "test": "test set"}
FEWEST_ORDERED = 8  # with so many rows beside printed ones, a note compares their order with the paper's


def summary(rows: Sequence[ScoredRow], base: str = "base") -> str:
    """What the table shows: the rows that differ from base, and what the others could have shown. base: its name."""
    tested = [(row.title, row.score, row.score.difference) for row in rows if row.score and row.score.difference]
    if not tested:
        return ""
    measure = rows[0].measure
    title = measure.title
    seeds = {len(row.scores) for row in rows if row.is_base or (row.score and row.score.difference)}
    found = [(name, difference) for name, score, difference in tested if significance_mark(score)]
    undecided = [(name, score, difference) for name, score, difference in tested if not significance_mark(score)]
    sentences = []
    if found:
        found.sort(key=lambda row: row[1].value)
        first, *others = [_difference_in_words(difference, measure) for _, difference in found]
        clauses = [f"{found[0][0]} is {first[0]} {title} {first[1]} than {base} (95 %: {first[2]})"]
        clauses += [
            f"{name} {size} {how} ({ends})" for (name, _), (size, how, ends) in zip(found[1:], others, strict=True)
        ]
        sentences.append(f"{', '.join(clauses)}.")
    if undecided:
        several = f"{len(undecided)} {'tested rows' if len(tested) + 1 < len(rows) else 'rows'}"
        which = f"The other {several} cannot" if found else f"None of the {several} can"
        which = f"{undecided[0][0]} cannot" if len(undecided) == 1 else which
        with_seeds = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else counted(max(seeds), "seed")
        power = "" if seeds == {1} else f"; {_power_in_words(undecided, measure)}"
        sentences.append(f"{which} be told apart from {base} in {title} with {with_seeds}{power}.")
    if seeds == {1}:
        sentences.append("One seed says nothing of other seeds.")
    return " ".join(sentences)


def margin_note(margin: float, rows: Sequence[ScoredRow]) -> str:
    """How many rows are equal to base within a margin, better, worse or undecided."""
    counts = Counter(verdict(margin, row).removesuffix(SIGNIFICANT) for row in rows)
    found = [f"{counts[kind]} {kind}" for kind in ("equal", "better", "worse", "undecided") if counts[kind]]
    within = f"Within a margin of {margin:g} {rows[0].measure.title}"
    if not found:
        return f"{within} nothing can be said: this takes several seeds."
    return f"{within}, which must have been chosen before the results were seen: {', '.join(found)}."


def _difference_in_words(difference: Estimate, measure: Shown) -> tuple[str, str, str]:
    """The size of a difference, its direction, and its interval."""
    form = f".{digits(difference, measure)}f"
    low, high = sorted(abs(end) for end in difference.interval())
    return (
        f"{abs(difference.value):{form}}",
        "lower" if difference.value < 0 else "higher",
        f"{low:{form}} to {high:{form}}",
    )


def _power_in_words(undecided: Sequence[tuple[str, RowComparison, Estimate]], measure: Shown) -> str:
    """Which true difference would have been found in the undecided rows, and in outliers that find less.

    undecided: for each row its title, its comparison with base, and its difference from base.
    """
    usual = [difference.detectable for _, score, difference in undecided if not score.is_outlier]
    usual = usual or [difference.detectable for _, _, difference in undecided]
    form = f".{measure.digits}f"
    size = f"{max(usual):{form}}"
    if max(usual) > 2 * min(usual):
        size = f"{min(usual):{form}} to {max(usual):{form}}, depending on the row,"
    weak = [
        f", one of {difference.detectable:{form}} in {name}"
        for name, score, difference in undecided
        if score.is_outlier and difference.detectable > max(usual)
    ]
    return f"a difference of {size} would have been found in {POWER:.0%} of cases{''.join(weak)}"


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


def table_notes(
    rows: Sequence[TableRow], base: Config | None, paper: PublishedTable | None, added: Sequence[str] = ()
) -> list[str]:
    """How the rows were trained, what marks mean, what had not converged, and what is missing or was changed.

    The arguments are those of `build_table`.
    """
    order = _order_note(rows, paper) if paper else ""
    exempt = exemption_note(exemptions(result for row in rows for result in row.results.done))
    notes = (
        (_training_note(rows, base or rows[0].results.config, paper), order, _speed_note(rows)),
        (significance_note(rows, _units(rows)), exempt, LEGEND),
        (_convergence_note(rows),),
        (_gaps_note(rows), _stopped_note(rows), _watching_note(rows), *added),
    )
    return [note for sentences in notes if (note := " ".join(filter(None, sentences)))]


def _training_note(rows: Sequence[TableRow], config: Config, paper: PublishedTable | None) -> str:
    """How the rows were trained, and how far that is from the paper."""
    model, data = config.model, config.data
    papers = nominal_sizes(paper.rows[0].config.model if paper else Config().model)
    ours = nominal_sizes(model)
    sizes = [f"{name} {ours[key]}" for name in (*SIZE_NAMES, *STACKS) if ours[key := f"model.{name}"] != papers[key]]
    factors = [f"{name} {getattr(model, name):g}" for name in ("width", "depth") if getattr(model, name) != 1]
    note = f"Trained for {config.steps:,} steps of {data.batch_tokens:,} tokens on "
    note += f"{data.path or data.hub or task_of(data).text}, with the paper's sizes"
    note += f" but for {', '.join(sizes)}" if sizes else ""
    note += f", times {' and '.join(factors)}" if factors else ""
    note += f"; the last {config.averaged} checkpoints are averaged." if config.averaged > 1 else "."
    if paper is None or not any(row.published for row in rows):
        return note
    if paper.hub == "":  # of a file of row names, which does not say on which data its numbers were measured
        note += f" Printed numbers: {paper.source}. Compare differences from base, not values."
        return note if paper.base else f"{note} Base has none, and so there are no differences between them."
    other = (["data"] if data.hub != paper.hub else []) + (["sizes"] if factors else [])
    if other:
        note += f" The paper has other {' and '.join(other)}: compare differences from base, not values."
    return note


def _speed_note(rows: Sequence[TableRow]) -> str:
    """How fast the first row was trained, if the peak of its GPU is known."""
    known = [result for row in rows[:1] for result in row.results.done if result.of_peak and result.tokens_per_s]
    if not known:
        return ""
    speed, share = (fmean(getattr(one, key) or 0.0 for one in known) for key in ("tokens_per_s", "of_peak"))
    return f"{rows[0].title} was trained on {speed:,.0f} target tokens a second, {share:.0%} of the peak of its GPU."


def _stopped_note(rows: Sequence[TableRow]) -> str:
    """Which trials a callback has ended before their last step."""
    stopped = [
        f"{result.name} at step {result.steps:,} of {row.results.config.steps:,}"
        for row in rows
        for result in row.results.done
        if result.stopped_early
    ]
    return f"A callback stopped {', '.join(stopped)}." if stopped else ""


def _watching_note(rows: Sequence[TableRow]) -> str:
    """Which callbacks the user has declared to change no result."""
    callbacks = [callback for row in rows for callback in row.results.config.trainer.callbacks]
    watching = dict.fromkeys(callback.path for callback in callbacks if not callback.in_identity)
    return f"Declared to change no result (in_identity: false): {', '.join(watching)}." if watching else ""


def _order_note(rows: Sequence[TableRow], paper: PublishedTable) -> str:
    """How far our differences from base are in the order of the paper's; empty for few rows or equal values."""
    known = [
        (ours, printed)
        for row in rows
        if row.published and (ours := row.difference()) is not None
        if (printed := paper.difference(row.published, row.printed_base)) is not None
    ]
    if len(known) < FEWEST_ORDERED or min(len(set(values)) for values in zip(*known, strict=True)) == 1:
        return ""
    correlation, (low, high) = rank_correlation(*zip(*known, strict=True))
    return (
        f"Spearman's rank correlation with the paper's differences: {correlation:+.2f} "
        f"({len(known)} rows; 95 % interval: {low:+.2f} to {high:+.2f})."
    )


def _convergence_note(rows: Sequence[TableRow]) -> str:
    """Which finished rows had converged."""
    known = [converged for row in rows if (converged := row.results.convergence)]
    falls = [converged.share for converged in known if converged.still_falls]
    unknown = sum(bool(row.results.done) for row in rows) - len(known)
    note = f"Whether {counted(unknown, 'row')} had converged is not known: lower trainer.val_every. " if unknown else ""
    if falls:
        fell = " to ".join(dict.fromkeys(f"{share:.1%}" for share in (min(falls), max(falls))))
        note += f"{UNCONVERGED} training had not converged, in {counted(len(falls), 'row')}: validation loss was still "
        note += f"falling at the last step (perplexity by {fell} over the last {FALLEN:.0%} of the steps). "
    elif known:
        finished = "rows" if all(row.results.done for row in rows) else "finished rows"
        note += f"All {finished} had converged. " if not unknown else f"{counted(len(known), 'row')} had converged. "
    return note.rstrip()


def significance_note(rows: Sequence[ScoredRow], units: str = "") -> str:
    """What the mark and the p-values mean, and what the intervals cover.

    units: what the evaluation set consists of, such as sentences; empty: not known.
    """
    compared = [row.score for row in rows if row.score]
    seeds = sorted({len(row.scores) for row in rows if row.scores})
    if not seeds:
        return ""
    several = " or ".join(str(n) for n in seeds if n > 1)
    note = f"± is the standard deviation over {several} seeds. " if several else ""
    if seeds[0] == 1:
        note += "A row with one seed says nothing about other seeds: small differences may be chance. "
    if tested := sum(comparison.p_value is not None for comparison in compared):
        note += f"{SIGNIFICANT}: p < {ALPHA:g} by a t-test, corrected for {counted(tested, 'row')}. "
    if compared:
        over = " and ".join(filter(None, (units, "seeds" if several else "")))
        note += f"Intervals cover the variation over {over}{'' if units else ', and nothing else'}. "
    if shared := sum(comparison.shares_weights for comparison in compared):
        note += f"{counted(shared, 'row')} {'share' if shared > 1 else 'shares'} the trained weights of base: "
        note += f"{'they are' if shared > 1 else 'it is'} compared with it within each seed. "
    if outliers := [row.title for row in rows if row.score and row.score.is_outlier]:
        note += f"The seeds of {', '.join(outliers)} spread unlike those of the other rows. "
    if equal := [row.title for row in rows if row.score and row.score.is_rounding]:
        note += f"Equal to base in every seed, but for rounding: {', '.join(equal)}. "
    if constant := [row.title for row in rows if row.score and row.score.is_constant]:
        note += f"All seeds of {', '.join(constant)} give the same score: make sure that they change something. "
    return note.rstrip()


def _units(rows: Sequence[TableRow]) -> str:
    """What the evaluation set consists of: sentences, or a unit such as documents."""
    task = task_of(rows[0].results.config.data)
    return "sentences" if task.has_source else f"{task.unit}s"


def no_differences(rows: Sequence[TableRow]) -> str:
    """Why no row is compared with base."""
    results, base = [row.results for row in rows], next((row.results for row in rows if row.is_base), None)
    if len(rows) == 1 or not any(row.done for row in results if row is not base) or (base and base.has_learned):
        return ""
    if base is None:
        reason = "is not a row; add base to variant, or base's value to the values of a key"
    elif base.done:
        reason = f"has a {base.measure.title} below {LEARNED:g}: it has learned next to nothing; train longer"
    else:
        reason = "is not finished" if unmeasured(base) == "-" else unmeasured(base)
    return f"There are no differences, because base {reason}."


def _gaps_note(rows: Sequence[TableRow]) -> str:
    """What is missing or cannot be compared, and how to get it."""
    results, sentences = [row.results for row in rows], []
    if diverged := sum(row.states.count("diverged") for row in results):
        sentences.append(
            f"{counted(diverged, 'trial')} diverged. Rows with missing seeds are averaged over the seeds that finished."
        )
    untested = [row for row in rows if row.difference() is not None and row.score and row.score.p_value is None]
    untested = [row for row in untested if row.score and not (row.score.is_rounding or row.score.is_constant)]
    if untested:
        sentences.append(
            f"{counted(len(untested), 'row')} cannot be tested: a row needs several seeds if base has them, else one."
        )
    if any(row.dataset != results[0].dataset for row in results):
        sentences.append("Rows on different datasets are not compared.")
    elif len({(row.config.data.vocab_size, row.config.data.tokenizer) for row in results}) > 1 or not all(
        row.has_tokens_of(results[0]) for row in results
    ):
        sentences.append("Perplexities of different vocabularies cannot be compared.")
    sizes = [row.sentences.shape[1] for row in results if row.sentences is not None]
    if sizes and min(sizes) < FEWEST_SENTENCES:
        few = f"A {SETS[rows[0].results.split]} of {min(sizes)} {_units(rows)} is too small for intervals and tests"
        sentences.append(f"{few}: at least {FEWEST_SENTENCES} are needed; add lines, or divide long ones.")
    sentences.append(machines_note([machine for row in results for machine in row.machines]))
    return " ".join(filter(None, sentences))


def machines_note(machines: Sequence[Mapping[str, Any]]) -> str:
    """How the machines of trials differ, which is no part of an identity. machines: `Trial.machine` of each trial."""
    differing = []
    for key in machines[0] if machines else ():
        values = dict.fromkeys(str(machine[key]) for machine in machines if machine[key])
        differing += [f"{key} ({' or '.join(values)})"] if len(values) > 1 else []
    what = " and ".join(differing)
    return f"Trials differ in {what}: rounding acts like another seed." if differing else ""


def exemption_note(exempt: str) -> str:
    """What the mark of a row means, from what the rows are exempt from."""
    return f"{EXEMPT}: {exempt}." if exempt else ""
