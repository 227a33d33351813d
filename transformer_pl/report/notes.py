"""The notes under a table: at most five, what a reader must know to believe it, and where all else is explained."""

from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import spearmanr

from transformer_pl.config import SIZE_NAMES, Config, nominal_sizes
from transformer_pl.report.cells import EXEMPT, SIGNIFICANT, UNCONVERGED, unmeasured
from transformer_pl.report.published import PublishedTable
from transformer_pl.report.rows import ALPHA, LEARNED, TableRow, dataset_keys
from transformer_pl.report.statistics import MOST_SEEDS, seeds_to_resolve
from transformer_pl.runtime.terminal import counted
from transformer_pl.task import task_of
from transformer_pl.trials.convergence import FALLEN
from transformer_pl.trials.metrics import exemptions

FEWEST_ORDERED = 3  # rows beside the paper's, of which the table says how far they stand in its order
GAP = 1  # the difference from base of which the table says how many seeds show it
# First words of the sentences that explain columns, and a word in the names of these columns
OF_COLUMNS = {"Intervals are": "95 %", "The paper has": "paper", "Spearman's": "paper"}
LEGEND = "What the columns mean, and how they are computed: transformer_pl/report/README.md"


def table_notes(rows: Sequence[TableRow], base: Config | None, paper: PublishedTable | None) -> list[str]:
    """All notes of a table, with the link last; the arguments are those of `build_table`."""
    training = _training_note(rows, base or rows[0].results.config, paper)
    exempt = exemption_note(exemptions(result for row in rows for result in row.results.done))
    notes = [training, _convergence_note(rows), _significance_note(rows), _gaps_note(rows), _stopped_note(rows), exempt]
    return [*filter(None, notes), LEGEND]


def _training_note(rows: Sequence[TableRow], config: Config, paper: PublishedTable | None) -> str:
    """How the rows were trained, how far that is from the paper, and whether the order of rows agrees with it."""
    model, data = config.model, config.data
    papers = nominal_sizes(paper.rows[0].config.model if paper else Config().model)
    ours = nominal_sizes(model)
    sizes = [f"{name} {ours[key]}" for name in SIZE_NAMES if ours[key := f"model.{name}"] != papers[key]]
    factors = [f"{name} {getattr(model, name):g}" for name in ("width", "depth") if getattr(model, name) != 1]
    note = f"Trained for {config.steps:,} steps of {data.batch_tokens:,} tokens on "
    note += f"{data.path or data.hub or task_of(data).text}, with the paper's sizes"
    note += f" but for {', '.join(sizes)}" if sizes else ""
    note += f", times {' and '.join(factors)}" if factors else ""
    note += f"; the last {config.averaged} checkpoints are averaged." if config.averaged > 1 else "."
    if paper is None or not any(row.published for row in rows):
        return note
    other = (["data"] if data.hub != paper.hub else []) + (["sizes"] if factors else [])
    if other:
        note += f" The paper has other {' and '.join(other)}: compare differences from base, not values."
    return f"{note} {_order_note(rows, paper)}".rstrip()


def _stopped_note(rows: Sequence[TableRow]) -> str:
    """Which trials a callback has ended before their last step."""
    stopped = [
        f"{result['name']} at step {result['steps']:,} of {row.results.config.steps:,}"
        for row in rows
        for result in row.results.done
        if result.get("stopped_early")  # results of before know no callbacks
    ]
    return f"A callback stopped {', '.join(stopped)}." if stopped else ""


def _order_note(rows: Sequence[TableRow], paper: PublishedTable) -> str:
    """How far our differences from base stand in the paper's order. Nothing of few rows, nor of equal values."""
    known = [
        (ours, printed)
        for row in rows
        if row.published and (ours := row.difference()) is not None
        if (printed := paper.difference(row.published)) is not None
    ]
    if len(known) < FEWEST_ORDERED or any(len(set(values)) == 1 for values in zip(*known, strict=True)):
        return ""
    by = f"{spearmanr(*zip(*known, strict=True)).statistic:+.2f} by {rows[0].results.measure.title}"
    return f"Spearman's rank correlation of our differences with the paper's: {by} ({len(known)} rows)."


def _convergence_note(rows: Sequence[TableRow]) -> str:
    """Which finished rows had converged."""
    known = [converged for row in rows if (converged := row.results.convergence)]
    falls = [converged.share for converged in known if converged.still_falls]
    unknown = sum(bool(row.results.done) for row in rows) - len(known)
    note = f"Whether {counted(unknown, 'row')} had converged is not known: lower trainer.val_every. " if unknown else ""
    if falls:
        fell = " to ".join(dict.fromkeys(f"{share:.1%}" for share in (min(falls), max(falls))))
        note += f"{UNCONVERGED}: {counted(len(falls), 'row')} had not converged; the perplexity still fell by {fell} "
        note += f"over the last {FALLEN:.0%} of the steps. More steps may change every number so marked."
    elif known:
        note += f"{counted(len(known), 'row')} had converged."
    return note.rstrip()


def _significance_note(rows: Sequence[TableRow]) -> str:
    """What the mark, the p-values and the intervals are of."""
    compared = [row.score for row in rows if row.score]
    seeds = sorted({len(row.results.done) for row in rows if row.results.done})
    if not seeds:
        return ""
    several = " or ".join(str(n) for n in seeds if n > 1)
    note = f"± is the standard deviation over {several} seeds. " if several else ""
    if seeds[0] == 1:
        note += "A row with one seed says nothing about other seeds: small differences may be chance. "
    if tested := sum(one.p_value is not None for one in compared):
        note += f"{SIGNIFICANT}: p < {ALPHA:g} by a t-test, with Holm's correction for {counted(tested, 'row')}"
        if several:
            pairs = [(one, S) for row in rows if (one := row.score) and (S := len(row.results.done)) > 1]
            needed = seeds_to_resolve(GAP, pairs) or f"more than {MOST_SEEDS}"
            note += f"; a difference of {GAP} {rows[0].results.measure.title} takes {needed} seeds a row"
        note += ". "
    if compared:
        note += f"Intervals are for other sentences{' and other seeds' if several else ''}."
    return note.rstrip()


def _gaps_note(rows: Sequence[TableRow]) -> str:
    """What is missing or cannot be compared, and how to get it."""
    results = [row.results for row in rows]
    base = next((row.results for row in rows if row.is_base), None)
    said = []
    if len(rows) > 1 and any(row.done for row in results if row is not base) and not (base and base.has_learned):
        if base is None:
            reason = "is not a row; add `base` to variant, or base's value to the values of a key"
        elif base.done:
            reason = f"has a {base.measure.title} below {LEARNED:g}: it has learned next to nothing; train longer"
        else:
            reason = "is not finished" if unmeasured(base) == "-" else unmeasured(base)
        said.append(f"There are no differences, because base {reason}.")
    if diverged := sum(row.states.count("diverged") for row in results):
        said.append(f"{counted(diverged, 'trial')} diverged: means are of the finished seeds, and so look too good.")
    untested = [row for row in rows if row.difference() is not None and row.score and row.score.p_value is None]
    if untested:
        said.append(
            f"{counted(len(untested), 'row')} cannot be tested: this takes several seeds if base has, and else one."
        )
    if len({dataset_keys(row.config) for row in results}) > 1:
        said.append("Rows on different datasets are not compared.")
    elif len({(row.config.data.vocab_size, row.config.data.tokenizer) for row in results}) > 1:
        said.append("Perplexities of different vocabularies cannot be compared.")
    said.append(machines_note([machine for row in results for machine in row.machines]))
    return " ".join(filter(None, said))


def machines_note(machines: Sequence[Mapping[str, Any]]) -> str:
    """In what the trials of a table differ that is no part of their identity. machines: of the trials."""
    differing = []
    for key in machines[0] if machines else ():
        values = dict.fromkeys(str(one[key]) for one in machines if one[key])
        differing += [f"{key} ({' or '.join(values)})"] if len(values) > 1 else []
    what = " and ".join(differing)
    return f"Trials differ in {what}: they round differently, and so differ as with other seeds." if differing else ""


def exemption_note(exempt: str) -> str:
    """What the mark of a row means, from what the rows are exempt from."""
    return f"{EXEMPT}: {exempt}." if exempt else ""
