"""The notes under a table: what a reader must know before comparing its rows."""

import math
import statistics
from collections.abc import Sequence

from transformer_pl.config import SIZE_NAMES, Config, effective_sizes, nominal_sizes
from transformer_pl.experiments.regime import describe_regime
from transformer_pl.reporting.agreement import describe_agreement
from transformer_pl.reporting.cells import SIGNIFICANT, UNCONVERGED
from transformer_pl.reporting.published import Beside, PublishedTable, is_own_text, read_published
from transformer_pl.reporting.rows import (
    ALPHA,
    LEARNED,
    RowResults,
    TableRow,
    published_table,
    standard_deviation,
    text_settings,
)
from transformer_pl.runtime.terminal import counted
from transformer_pl.task import task_of
from transformer_pl.trials.convergence import FALLEN, FITTED, LIMIT, NOISES

GAPS = (0.5, 1.0, 2.0)  # differences for which a note says how many seeds would detect them


def table_notes(
    rows: Sequence[TableRow], base: Config | None, randomise: bool, beside: Beside | None = None
) -> list[str]:
    """All notes of a table, one thought each. base, randomise, beside: as in `build_table`."""
    return [
        *scale_notes(base or rows[0].results.config),
        *_regime_notes(rows),
        *_paper_notes(rows, beside),
        *_base_notes(rows),
        *_metric_notes(rows),
        *_seed_notes(rows),
        *_memory_notes(rows),
        *_average_notes(rows),
        *convergence_notes([row.results for row in rows]),
        *untrained_notes([row for row in rows if row.is_untrained]),
        *_significance_notes(rows, randomise),
        *_untested_notes([row for row in rows if not row.is_untrained], randomise),
        *_exemption_notes(rows),
        *read_error_notes([row.results for row in rows]),
    ]


def read_error_notes(rows: Sequence[RowResults]) -> list[str]:
    """Why a row has neither an interval nor a test although it is finished."""
    return [f"A row has no confidence interval and no test: {error}." for row in rows for error in row.read_errors]


def _exemption_notes(rows: Sequence[TableRow]) -> list[str]:
    """The properties of components that a component breaks on purpose, with its reason."""
    exempt = [result.get("exempt", {}) for row in rows for result in row.results.done]
    notes = [
        f"{component} does not keep the property {name}: {reason}."
        for components in exempt
        for component, reasons in components.items()
        for name, reason in reasons.items()
    ]
    return list(dict.fromkeys(notes))


def scale_notes(config: Config) -> list[str]:
    """How far the table is from the paper: sizes, steps, batches, text."""
    model, data, effective = config.model, config.data, effective_sizes(config)
    factors = [
        f"{factor} {getattr(model, factor):g} ({size} {getattr(model, size)} is {effective[f'effective.{size}']})"
        for factor, size in (("width", "d_model"), ("depth", "N"))
        if getattr(model, factor) != 1
    ]
    paper = read_published(task_of(data).published)
    ours, theirs = nominal_sizes(model), nominal_sizes(paper.rows[0].config.model if paper else Config().model)
    others = [
        f"{name} {ours[key]} (not {theirs[key]})" for name in SIZE_NAMES if ours[key := f"model.{name}"] != theirs[key]
    ]
    but = f", but for {', '.join(others)}" if others else ""
    times = f", multiplied by {' and '.join(factors)}" if factors else ""
    text = data.path or data.hub or task_of(data).text
    averaged = f"; the last {config.averaged} checkpoints averaged" if config.averaged > 1 else ""
    return [
        f"Model sizes are the paper's{but}{times}.",
        f"Training: {config.steps:,} steps; {data.batch_tokens:,} source and as many target tokens in a batch; "
        f"vocabulary {data.vocab_size:,}; text: {text}{averaged}.",
    ]


def _regime_notes(rows: Sequence[TableRow]) -> list[str]:
    """How the rows were trained, beside the paper's base."""
    known = [(row.is_base, row.results.regime) for row in rows if row.results.regime]
    if not known:
        return []
    base = next((one for is_base, one in known if is_base), known[0][1])
    return [f"{describe_regime(base, (one for _, one in known))}."]


def _paper_notes(rows: Sequence[TableRow], beside: Beside | None) -> list[str]:
    paper = published_table([row.results for row in rows])
    if not any(row.published for row in rows):
        own = next((row.results.config.data for row in rows if is_own_text(row.results.config.data)), None)
        if own is None or beside or not (paper and any(paper.find(row.results.config) for row in rows)):
            return []
        return [
            "Without the paper's numbers: the text, or its languages, are your own "
            f"({own.path or own.hub or task_of(own).text}, {own.source} to {own.target}). --beside paper shows them."
        ]
    assert paper is not None
    others = ", ".join(f"{row.label} {row.score:.1f}" for row in paper.others if row.score is not None)
    notes = [
        f"Columns `paper`: {paper.source}.",
        *([f"Also printed there: {others}."] if others else []),
        *_other_than_paper(rows, paper),
    ]
    if any(row.is_base and row.label == "base" for row in rows):
        notes += describe_agreement(rows)
    return notes


def _other_than_paper(rows: Sequence[TableRow], paper: PublishedTable) -> list[str]:
    """What makes the paper's values other than those of a table."""
    configs = [row.results.config for row in rows if row.published]
    other = [
        *(["text"] if any(config.data.hub != paper.hub for config in configs) else []),
        *(["model sizes"] if any((config.model.width, config.model.depth) != (1, 1) for config in configs) else []),
    ]
    if not other:
        return []
    differences = any(row.published and paper.difference(row.published) is not None for row in rows)
    remedy = "compare differences from base, not values" if differences else "the values are not comparable"
    return [f"The paper used other {' and '.join(other)}: {remedy}."]


def _base_notes(rows: Sequence[TableRow]) -> list[str]:
    """Why there are no differences, and how to get them, where other rows have results and base has none."""
    if not any(row.results.done for row in rows if not row.is_base) or len(rows) < 2:
        return []
    base = next((row.results for row in rows if row.is_base), None)
    if base is None:
        remedy = "In the sweep file add `base` to variant, or base's value to the values of a key."
        return [f"No differences, because base is not a row of this table. {remedy}"]
    if base.done:
        return []
    if set(base.states) == {"diverged"}:
        return ["No differences, because base diverged. A lower optim.lr_scale may help."]
    how = "failed, see its log" if "failed" in base.states else "is not finished"
    return [f"No differences, because base {how}. The same sweep command trains it."]


def _metric_notes(rows: Sequence[TableRow]) -> list[str]:
    """What the score and PPL are, and which rows cannot be compared."""
    results = [result for row in rows for result in row.results.done]
    configs = [row.results.config for row in rows]
    title = rows[0].results.measure.title
    signatures = list(dict.fromkeys(result["signature"] for result in results))
    notes = []
    if len(signatures) == 1:
        notes.append(f"{task_of(configs[0].data).described} on the validation set; its signature is {signatures[0]}.")
    elif signatures:
        notes.append(f"{title} is not comparable between all rows: its signatures are {' and '.join(signatures)}.")
    if any("val/bleu_tokenised" in result["metrics"] for result in results):
        notes.append(
            "BLEU tok. is BLEU of Moses tokens with compounds split at their hyphens, as the paper's authors computed "
            "it: compare this one with the paper's."
        )
    if signatures:
        notes.append("PPL is the validation perplexity per token (subword).")
    if len({text_settings(config) for config in configs}) > 1:
        notes.append("Rows are evaluated on different text, so they are not compared with each other.")
    elif len({config.data.vocab_size for config in configs}) > 1:
        notes.append("Rows have different vocabularies, so their perplexities per token are not comparable.")
    steps = sorted({result["steps"] for result in results})
    if len(steps) > 1:
        notes.append(f"Rows were trained for different numbers of steps: {', '.join(f'{n:,}' for n in steps)}.")
    return notes


def _seed_notes(rows: Sequence[TableRow]) -> list[str]:
    """How many seeds stand behind a number, and how many diverged."""
    notes = []
    counts = sorted({len(row.results.done) for row in rows if row.results.done})
    if counts == [1]:
        notes.append("Each row has one seed: the variation between seeds is unknown, small differences may be chance.")
    elif counts:
        seeds = f"{counts[0]} seeds" if len(counts) == 1 else "the finished seeds of a row"
        notes.append(f"± is the sample standard deviation over {seeds}.")
    if any(row.results.done and len(row.results.done) < len(row.results.results) for row in rows):
        notes.append("Of a row that lacks seeds, the difference is that of its finished seeds' mean from base's mean.")
    return notes + diverged_notes([row.results for row in rows])


def diverged_notes(rows: Sequence[RowResults]) -> list[str]:
    """How many trials diverged."""
    if not (diverged := sum(row.states.count("diverged") for row in rows)):
        return []
    return [
        f"{counted(diverged, 'trial')} diverged. Means are over the finished seeds alone, so a row with diverged seeds "
        "looks better than it is."
    ]


def _memory_notes(rows: Sequence[TableRow]) -> list[str]:
    """Which trials were trained with their batches in more parts than the sweep says."""
    split = [
        f"{result['name']} with {parts} for {planned}"
        for row in rows
        for planned in [row.results.config.trainer.accumulate]
        for result in row.results.done
        if (parts := result.get("config", {}).get("trainer.accumulate", 1)) > planned
    ]
    if not split:
        return []
    return [
        "Because a device ran out of memory, these trials split each batch into more parts (trainer.accumulate) than "
        f"the sweep says: {', '.join(split)}. The batches are the same; rounding and dropout masks differ."
    ]


def _average_notes(rows: Sequence[TableRow]) -> list[str]:
    """Which rows had fewer validations than checkpoints to average."""
    configs = [row.results.config for row in rows if row.results.done]
    few = [f"{one.averaged} of {one.decode.average}" for one in configs if one.averaged < one.decode.average]
    if not few:
        return []
    return [
        f"Averaged fewer checkpoints than decode.average says, as there is one for each validation: "
        f"{counted(len(few), 'row')} ({', '.join(dict.fromkeys(few))}). Lower trainer.val_every."
    ]


def convergence_notes(rows: Sequence[RowResults], place: str = "") -> list[str]:
    """Which finished rows had converged, and by which rule. place: such as ` in runs`, where rows of others follow."""
    known = [row.convergence for row in rows if row.convergence]
    falls = [converged.share for converged in known if converged.still_falls]
    notes = []
    if falls:
        notes += [
            f"{UNCONVERGED}: not converged{place}: {counted(len(falls), 'row')}. More steps may change these rows, and "
            "every difference from or to them, so all of these are marked. Their validation perplexity still fell by "
            f"{_range_of_shares(falls)} over the last {FALLEN:.0%} of the steps."
        ]
    elif known:
        notes += [f"All rows have converged{place}, as far as this was measured ({counted(len(known), 'row')})."]
    if known:
        notes += [
            f"Converged: over the last {FALLEN:.0%} of the steps the validation perplexity, on the mean of the seeds, "
            f"fell by at most {LIMIT:.0%} ({LIMIT:g} nats per token), or by at most {NOISES} standard errors. The fall "
            f"is that of a line through the validations of the last {FITTED:.0%}, over the logarithm of the step."
        ]
    if unknown := sum(bool(row.done) and row.convergence is None for row in rows):
        notes += [
            f"Whether they have converged{place} is not known: {counted(unknown, 'row')}, with fewer than two "
            f"validations in the last {FITTED:.0%} of the steps. Lower trainer.val_every."
        ]
    return notes


def _range_of_shares(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.1%}", f"{max(shares):.1%}"
    return low if low == high else f"{low} to {high}"


def untrained_notes(rows: Sequence[TableRow], other: str = "base") -> list[str]:
    """rows: those that are not compared. other: what with."""
    if not rows:
        return []
    title = rows[0].results.measure.title
    return [
        f"Not compared with {other}: {counted(len(rows), 'row')}. Both are below {LEARNED:g} {title}: trained too "
        "little to compare. Train longer."
    ]


def _significance_notes(rows: Sequence[TableRow], randomise: bool) -> list[str]:
    """What intervals, marks and p-values mean."""
    row_means = [row.score.row_mean for row in rows if row.score]
    differences = [row.score.difference for row in rows if row.score and row.score.difference]
    if not row_means:
        return []
    several_seeds = any(row_mean.variance_by_seeds is not None for row_mean in row_means)
    drawn = "other seeds and other sentences" if several_seeds else "other sentences, with the same seed"
    notes = [f"95 %: confidence interval for {drawn}, not corrected for the number of rows."]
    if several_seeds and any(row_mean.variance_by_seeds is None for row_mean in row_means):
        notes.append("The intervals of a row that has one finished seed are for other sentences only.")
    if not differences:
        return notes
    by_seeds = any(difference.variance_by_seeds is not None for difference in differences)
    if not (number := sum(row.score is not None and row.score.p_value is not None for row in rows)):
        return notes
    tested = counted(number, "row")
    test = "t-test" if by_seeds and not randomise else "approximate randomisation"
    notes.append(
        f"{SIGNIFICANT}: differs from base with p below {ALPHA:g}, by {test} with Holm's correction for {tested}."
    )
    if by_seeds and randomise:
        notes.append("Randomisation tests these very seeds: others may not show a difference that it finds.")
    if any(difference.parts for difference in differences):
        what, own = ("Intervals", "") if randomise else ("Intervals and p", " p own: by each row's own variance.")
        notes.append(
            f"{what} use the variances of all rows between seeds (moderated variances, after Smyth 2004).{own}"
        )
    others = "" if by_seeds else ", for other sentences with the same seed; other seeds may differ"
    notes.append(f"P(better): probability that the row's true {rows[0].results.measure.title} is above base's{others}.")
    return notes + (_undecided_note(rows) if by_seeds else [])


def _untested_notes(rows: Sequence[TableRow], randomise: bool) -> list[str]:
    """Why rows are not tested although they and base have results."""
    base = next((row for row in rows if row.is_base), None)
    if base is None or not base.results.done:
        return []
    seeds = len(base.results.done)
    others = [len(row.results.done) for row in rows if row.results.done and row.difference() is not None]
    if randomise and (other := sum(count != seeds for count in others)):
        reason = f"randomisation takes as many finished seeds as base's, {seeds}"
    elif other := sum((count == 1) != (seeds == 1) for count in others):
        reason = "a row with one finished seed and a row with several cannot be compared by a test"
    else:
        return []
    return [f"Not tested: {counted(other, 'row')}, as {reason}."]


def _undecided_note(rows: Sequence[TableRow]) -> list[str]:
    """How many seeds would detect a difference, where some rows do not differ significantly from base."""
    from transformer_pl.reporting.stats import seeds_to_resolve  # scipy takes half a second

    p_values = [row.score.p_value for row in rows if row.score]
    undecided = sum(p_value is not None and p_value >= ALPHA for p_value in p_values)
    if not undecided:
        return []
    deviations = [standard_deviation(row.results.scores) for row in rows if len(row.results.done) > 1]
    between_seeds = math.sqrt(statistics.fmean(deviation**2 for deviation in deviations if deviation is not None))
    between_sentences = statistics.median(
        math.sqrt(row.score.difference.variance_by_sentences)
        for row in rows
        if row.score and row.score.difference and row.score.difference.variance_by_seeds is not None
    )
    title = rows[0].results.measure.title
    tests = sum(p_value is not None for p_value in p_values)
    needed = {gap: seeds_to_resolve(gap, between_seeds, between_sentences, tests) for gap in GAPS}
    by_gap = ", ".join(
        f"{seeds} for {gap:g} {title}" if seeds else f"no number for {gap:g} {title} (it takes more sentences)"
        for gap, seeds in needed.items()
    )
    return [
        f"Undecided rows: {undecided} (p is not below {ALPHA:g}).",
        f"Seeds per row with which a true difference gets a {SIGNIFICANT} in 80 % of cases, by each row's own variance "
        f"and with Holm's correction for {counted(tests, 'row')}, if {title}'s standard deviation between seeds is "
        f"{between_seeds:.1f}: {by_gap}.",
    ]
