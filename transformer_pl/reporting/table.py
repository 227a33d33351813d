"""The table of a sweep, in the columns of the paper's Table 3 and beside the numbers that the paper printed.

A row shows what differs from base, in the paper's numbers whatever the scale. What was not measured is never a number:
it reads `diverged` where a training diverged, `failed` where a trial failed, and `-` where it is not finished.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from transformer_pl.config import (
    SIZE_NAMES,
    SLOTS,
    Config,
    Level,
    Section,
    effective_sizes,
    nominal_sizes,
    read_yaml,
    resolve,
    without_section,
)
from transformer_pl.experiments.cost import short_number
from transformer_pl.reporting.render import Column, Table
from transformer_pl.trials.identity import RESULT_TRAINER_KEYS, same_row

if TYPE_CHECKING:
    import numpy as np

    from transformer_pl.reporting.stats import Estimate, RowComparison

PUBLISHED = Path(__file__).parent / "published"
GAPS = (0.5, 1.0, 2.0)  # BLEU: how many seeds would resolve so much
ALPHA = 0.05
PAPERS_ORDER = (*(f"model.{name}" for name in SIZE_NAMES), "model.p_drop", "optim.eps_ls")


class RowResults(NamedTuple):
    """One configuration, and its trials, one a seed: what result.json says (None without one), and their states."""

    config: Config  # whatever its seed
    results: list[dict[str, Any] | None]
    states: list[str]
    sentences: "np.ndarray | None" = None  # (finished seeds, sentences, 12): BLEU's integers, nats, pieces
    unread: Sequence[str] = ()  # why the sentences of a finished seed cannot be used, so that those of none are

    @property
    def done(self) -> list[dict[str, Any]]:
        return [result for result in self.results if result]

    @property
    def params(self) -> int | None:
        return self.done[0]["params"] if self.done else None

    def values(self, metric: str) -> list[float]:
        """One number a finished seed."""
        return [result["metrics"][metric] for result in self.done if metric in result["metrics"]]


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def standard_deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1 in the denominator); a single value has none, an infinite one no number."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


# ---------------------------------------------------------------------------------------------------------------------
# What others printed


class PublishedRow(Section):
    """A row of a published table, stated as its difference from the paper's base."""

    label: str
    differs: dict[str, Any] = {}
    ppl: float | None = None
    bleu: float | None = None
    params: float | None = Field(None, description="in millions")

    @cached_property
    def config(self) -> Config:
        return resolve([Level(f"published row {self.label}", self.differs)])


class Published(Section):
    """A file of `published/`. Its differences are to the row labelled `base`."""

    source: str
    rows: list[PublishedRow]

    def find(self, config: Config) -> PublishedRow | None:
        return next((row for row in self.rows if _matched_by(row.config) == _matched_by(config)), None)

    def bleu_difference(self, row: PublishedRow) -> float | None:
        base = next((row for row in self.rows if row.label == "base"), row)
        if row is base or row.bleu is None or base.bleu is None:
            return None
        return round(row.bleu - base.bleu, 2)


@cache
def read_published(name: str = "table3") -> Published:
    return Published.model_validate(read_yaml(PUBLISHED / f"{name}.yaml"))


def published(config: Config, name: str = "table3") -> PublishedRow | None:
    """The published row that this config is, whatever its scale; None if nobody printed it."""
    return read_published(name).find(config)


def _matched_by(config: Config) -> dict[str, Any]:
    return nominal_sizes(config.model) | {"optim.eps_ls": config.optim.eps_ls}


# ---------------------------------------------------------------------------------------------------------------------
# The table


def build_table(
    rows: Sequence[RowResults], base: Config | None = None, beside: str = "table3", randomise: bool = False
) -> Table:
    """The table of at least one row, beside a published one. Differences are to `base`, if that is among the rows.

    Their p-values are by t, of seeds and sentences; or by randomisation, of sentences alone.
    """
    paper = read_published(beside)
    settings = [_settings(row.config) for row in rows]
    is_base = [base is not None and same_row(row.config, base) for row in rows]
    base_row = next((row for row, is_it in zip(rows, is_base, strict=True) if is_it), None)
    judged = _judge(rows, base_row, randomise)
    printed = [paper.find(row.config) for row in rows]
    of_base = base_row and paper.find(base_row.config)  # not of another that differs from base in its training alone
    printed = [None if p is of_base and not is_it else p for p, is_it in zip(printed, is_base, strict=True)]
    lines = [
        _Line(row, values, theirs, is_it, base_row, *verdicts)
        for row, values, theirs, is_it, verdicts in zip(rows, settings, printed, is_base, judged, strict=True)
    ]
    keys = _differing(settings)
    columns = [column for column in _columns(lines, keys, paper) if any(column.cells)]
    return Table(columns, _records(lines, keys, paper), _notes(lines, paper, randomise))


def compare_folders(
    names: Sequence[str],
    rows: Sequence[RowResults],
    others: Sequence[RowResults],
    places: tuple[str, str],
    randomise: bool = False,
) -> Table:
    """Each row as it came out in one runs folder and in another, whose names are `places`; differences are to that.

    Their p-values are as those of `build`.
    """
    from transformer_pl.reporting.stats import holm

    pairs = list(zip(rows, others, strict=True))
    judged = [list(_judge([other, one], other, randomise))[1] for one, other in pairs]
    p_values = {i: bleu.p_value for i, (bleu, _) in enumerate(judged) if bleu and bleu.p_value is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    verdicts = [bleu and bleu._replace(p_value=corrected.get(i)) for i, (bleu, _) in enumerate(judged)]
    lines = [_Line(one, {}, None, False, other, verdict) for (one, other), verdict in zip(pairs, verdicts, strict=True)]
    columns, records = [Column("row", list(names))], [{"row": name} for name in names]
    for metric, heading, form in (("val/ppl", "PPL", ".2f"), ("val/bleu", "BLEU", ".1f")):
        for place, side in zip(places, zip(*pairs, strict=True), strict=True):
            told = [_with_spread(row.values(metric), form) or _unmeasured(row) for row in side]
            columns.append(Column(f"{heading} {place}", told))
            for record, row in zip(records, side, strict=True):
                record |= {f"{place}/{metric}.mean": mean(row.values(metric)), f"{place}/{metric}.n": len(row.done)}
    differences = [_fixed(line.difference("val/bleu"), "+z.1f") + _mark(line.bleu) for line in lines]
    columns.append(Column("Δ BLEU", differences))
    columns.append(Column("Δ 95 %", [_interval(v and v.difference, "+z.1f") for v in verdicts]))
    columns.append(Column("p", [_p_value(verdict) for verdict in verdicts]))
    for record, line in zip(records, lines, strict=True):
        record |= {"val/bleu.difference": line.difference("val/bleu")} | _judged("val/bleu", line.bleu)
    by = " by approximate randomisation" if randomise else ""
    notes = [f"{places[0]} less {places[1]}; p{by} after Holm's correction for {len(p_values)} rows."]
    notes += _unread([*rows, *others])
    return Table([column for column in columns if any(column.cells)], records, notes)


class _Line(NamedTuple):
    """All that a line of the table is told from."""

    row: RowResults
    settings: dict[str, Any]
    printed: PublishedRow | None
    is_base: bool
    base: RowResults | None
    bleu: "RowComparison | None" = None
    loss: "RowComparison | None" = None

    @property
    def label(self) -> str:
        """The paper's letter, as it prints it; what differences are to is `base`, whatever else it is."""
        name = self.printed.label if self.printed else ""
        letter = f"({name})" if len(name) == 1 else name
        return f"base {letter}".strip() if self.is_base and name != "base" else letter

    def difference(self, metric: str) -> float | None:
        """To base, where both were measured on the same text."""
        if self.is_base or self.base is None or not self.row.values(metric) or not self.base.values(metric):
            return None
        if _text(self.row.config) != _text(self.base.config):
            return None
        return mean(self.row.values(metric)) - mean(self.base.values(metric))


def _judge(
    rows: Sequence[RowResults], base: RowResults | None, randomise: bool
) -> Iterable[tuple["RowComparison | None", "RowComparison | None"]]:
    """What is known of every row's BLEU, and of its loss."""
    if all(row.sentences is None for row in rows):
        return [(None, None)] * len(rows)
    from transformer_pl.reporting import stats  # takes half a second

    at = next((i for i, row in enumerate(rows) if row is base), None)
    sentences = [row.sentences for row in rows]
    return zip(
        *(stats.compare_rows(sentences, at, metric, randomise) for metric in (stats.BLEU, stats.LOSS)), strict=True
    )


def _columns(lines: list[_Line], keys: list[str], paper: Published) -> list[Column]:
    def ours(tell: Callable[[_Line], str]) -> list[str]:
        return [tell(line) or _unmeasured(line.row) for line in lines]

    def theirs(tell: Callable[[PublishedRow], str]) -> list[str]:
        return [tell(line.printed) if line.printed else "" for line in lines]

    differences = [""] * len(lines)
    if any(line.difference("val/bleu") is not None for line in lines):
        differences = ["" if line.is_base else _fixed(line.difference("val/bleu"), "+z.1f") or "-" for line in lines]
    return [
        Column("row", [line.label for line in lines]),
        *(Column(_short(key), _cells(key, lines), setting=True) for key in keys),
        Column("params", [short_number(line.row.params) if line.row.params else "-" for line in lines]),
        Column("PPL", ours(lambda line: _fixed(mean(line.row.values("val/ppl")), ".2f") + _mark(line.loss))),
        Column("chrF", ours(lambda line: _fixed(mean(line.row.values("val/chrf")), ".1f"))),
        Column("BLEU", ours(lambda line: _with_spread(line.row.values("val/bleu")))),
        Column("BLEU 95 %", [_interval(line.bleu and line.bleu.own, ".1f") for line in lines]),
        Column("Δ BLEU", [cell + _mark(line.bleu) for cell, line in zip(differences, lines, strict=True)]),
        Column("Δ 95 %", [_interval(line.bleu and line.bleu.difference, "+z.1f") for line in lines]),
        Column("p", [_p_value(line.bleu) for line in lines]),
        Column("P(better)", [_fixed(_better(line.bleu), ".2f") for line in lines]),
        Column("seeds", [_seeds(line.row) for line in lines]),
        Column("paper PPL", theirs(lambda row: _fixed(row.ppl, ".2f"))),
        Column("paper BLEU", theirs(lambda row: _fixed(row.bleu, ".1f"))),
        Column("paper Δ BLEU", theirs(lambda row: _fixed(paper.bleu_difference(row), "+z.1f"))),
        Column("paper params", theirs(lambda row: short_number(row.params * 1e6) if row.params else "")),
    ]


def _records(lines: list[_Line], keys: list[str], paper: Published) -> list[dict[str, Any]]:
    metrics = dict.fromkeys(["val/ppl", "val/bleu"])
    metrics |= dict.fromkeys(metric for line in lines for result in line.row.done for metric in result["metrics"])
    records = []
    for line in lines:
        row, printed = line.row, line.printed
        record = {"row": line.label} | {key: line.settings.get(key) for key in keys}
        record |= {"seeds": len(row.results), "done": len(row.done), "failed": row.states.count("failed")}
        record |= {"diverged": row.states.count("diverged")}
        record |= {"params": row.params}
        for metric in metrics:
            values = row.values(metric)
            record |= {
                f"{metric}.mean": mean(values),
                f"{metric}.sd": standard_deviation(values),
                f"{metric}.n": len(values),
            }
            record |= {f"{metric}.difference": line.difference(metric)}
        record |= _judged("val/bleu", line.bleu) | _judged("val/loss", line.loss)
        record |= {f"paper/{name}": getattr(printed, name, None) for name in ("ppl", "bleu")}
        record |= {"paper/bleu.difference": printed and paper.bleu_difference(printed)}
        record |= {"paper/params": round(printed.params * 1e6) if printed and printed.params else None}
        records.append(record)
    return records


def _judged(metric: str, verdict: "RowComparison | None") -> dict[str, Any]:
    """The columns of a metric's verdict, empty where there is none."""
    own, difference = (verdict.own, verdict.difference) if verdict else (None, None)
    low, high = own.interval() if own else (None, None)
    d_low, d_high = difference.interval() if difference else (None, None)
    return {
        f"{metric}.low": low,
        f"{metric}.high": high,
        f"{metric}.difference.low": d_low,
        f"{metric}.difference.high": d_high,
        f"{metric}.difference.p": verdict and verdict.p_value,
        f"{metric}.difference.above": difference and difference.above,
    }


def _notes(lines: list[_Line], paper: Published, randomise: bool) -> list[str]:
    """What a reader must know before comparing: the scale, the measure, and how many seeds stand behind a number."""
    done = [result for line in lines for result in line.row.done]
    first = next((line.row.config for line in lines if line.is_base), lines[0].row.config)
    notes = [_scale(first)]
    if any(line.printed for line in lines):
        notes.append(f"Paper: {paper.source}. Its scale and its BLEU are not ours: compare differences, not values.")
        if any(line.is_base and line.label == "base" for line in lines):
            notes += _agreement(lines, paper)
    signatures = list(dict.fromkeys(result["signature"] for result in done))
    if len(signatures) == 1:
        notes.append(f"BLEU: sacreBLEU {signatures[0]}, on the validation set; PPL per piece.")
    elif signatures:
        notes.append(f"BLEU is not comparable throughout: sacreBLEU {' and '.join(signatures)}; PPL per piece.")
    if len({_text(line.row.config) for line in lines}) > 1:
        notes.append("Rows are of different text: they are not held against each other.")
    elif len({line.row.config.data.vocab_size for line in lines}) > 1:
        notes.append("Rows have different vocabularies: a perplexity per piece says nothing of another's.")
    steps = sorted({result["steps"] for result in done})
    if len(steps) > 1:
        notes.append(f"Rows were trained for different numbers of steps: {', '.join(f'{n:,}' for n in steps)}.")
    counts = sorted({len(line.row.done) for line in lines if line.row.done})
    if counts == [1]:
        notes.append("One seed a row: seeds were not sampled, and small differences may be chance.")
    elif counts:
        over = f"{counts[0]} seeds" if len(counts) == 1 else "the finished seeds of a row"
        notes.append(f"± is the sample standard deviation over {over}.")
    if diverged := sum(line.row.states.count("diverged") for line in lines):
        trials = "1 trial" if diverged == 1 else f"{diverged} trials"
        notes.append(
            f"{trials} diverged: a mean is of the finished seeds of a row alone, and flatters a row that diverges."
        )
    return notes + _on_chance(lines, randomise) + _unread([line.row for line in lines])


def _unread(rows: Sequence[RowResults]) -> list[str]:
    return [f"No interval and no test of a row: {why}." for row in rows for why in row.unread]


def _on_chance(lines: list[_Line], randomise: bool) -> list[str]:
    """What the intervals and marks mean; and how many seeds would decide what is open."""
    own = [line.bleu.own for line in lines if line.bleu]
    held = [line.bleu for line in lines if line.bleu and line.bleu.difference]
    if not own:
        return []
    several = any(one.by_seeds is not None for one in own)
    notes = [f"95 %: for {'other seeds and' if several else 'the same seed and'} other sentences, each row for itself."]
    if several and any(one.by_seeds is None for one in own):
        notes.append("Of a row with one finished seed, 95 % is of sentences alone, and nothing is tested.")
    if not held:
        return notes
    sampled = [verdict.difference for verdict in held if verdict.difference.by_seeds is not None]
    test = "t-test" if sampled and not randomise else "approximate randomisation"
    notes[0] += f" *: differs from base, p below {ALPHA:g} by {test} after Holm's correction for {len(held)} rows."
    undecided = [verdict for verdict in held if verdict.p_value >= ALPHA]
    if undecided and sampled:
        from transformer_pl.reporting.stats import seeds_to_resolve

        spreads = [standard_deviation(line.row.values("val/bleu")) for line in lines if len(line.row.done) > 1]
        of_seeds = math.sqrt(statistics.fmean(value**2 for value in spreads))
        of_sentences = statistics.median(math.sqrt(one.by_sentences) for one in sampled)
        needed = {gap: seeds_to_resolve(gap, of_seeds, of_sentences) for gap in GAPS}
        told = ", ".join(f"{gap:g} BLEU takes {n or 'more text, not more seeds'}" for gap, n in needed.items())
        notes.append(
            f"Undecided rows: {len(undecided)}. Seeds a row to find a true difference four times in five, with their "
            f"spread of {of_seeds:.1f} BLEU: {told}."
        )
    return notes


def _text(config: Config) -> tuple:
    """What a row is measured on."""
    data = config.data
    return data.path, data.hub, data.subset, data.revision, data.source, data.target, data.val


def _agreement(lines: list[_Line], paper: Published) -> list[str]:
    """How far our rows stand in the paper's order, by their differences to base."""
    from scipy.stats import spearmanr  # takes half a second

    told = []
    for name, metric, theirs in (
        ("BLEU", "val/bleu", paper.bleu_difference),
        ("PPL", "val/ppl", lambda row: row.ppl),  # its rank is that of its difference
    ):
        pairs = [(line.difference(metric), theirs(line.printed)) for line in lines if line.printed]
        pairs = [pair for pair in pairs if None not in pair and all(map(math.isfinite, pair))]
        if len(pairs) > 2 and all(len(set(values)) > 1 for values in zip(*pairs, strict=True)):
            told.append(f"{spearmanr(*zip(*pairs, strict=True)).statistic:+.2f} by {name} ({len(pairs)} rows)")
    return [f"Rank correlation (Spearman) with the paper's differences to base: {', '.join(told)}."] if told else []


def _scale(config: Config) -> str:
    """How far this is from the paper: sizes, steps, batches, text."""
    model, data, real = config.model, config.data, effective_sizes(config)
    shrunk = [
        f"{name} {getattr(model, name):g} ({key} {getattr(model, key)} is {real[f'effective.{key}']})"
        for name, key in (("width", "d_model"), ("depth", "N"))
        if getattr(model, name) != 1
    ]
    sizes = f"Sizes are the paper's, run at {', '.join(shrunk)}; " if shrunk else "Run at the paper's sizes; "
    text = data.path or data.hub or "the embedded corpus"
    return (
        f"{sizes}{config.steps:,} steps of {data.batch_tokens:,} pieces a side, vocabulary {data.vocab_size:,}, {text}."
    )


# ---------------------------------------------------------------------------------------------------------------------
# Settings: what differs


def _settings(config: Config) -> dict[str, Any]:
    """The keys that make a row, in the paper's order and numbers, d_k and d_v filled in."""
    flat = config.flat() | nominal_sizes(config.model)
    keys = dict.fromkeys([*PAPERS_ORDER, *flat])
    return {key: flat[key] for key in keys if key in RESULT_TRAINER_KEYS or not key.startswith(("seed", "trainer."))}


def _differing(settings: list[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if any(values.get(key, ...) != settings[0].get(key, ...) for values in settings)]


def _cells(key: str, lines: list[_Line]) -> list[str]:
    """A column as the paper prints it: base in full, other rows only where they differ; all of them without a base."""
    base = next((line for line in lines if line.is_base), None)
    return [
        _told(key, line.settings[key])
        if key in line.settings and (base in (None, line) or line.settings[key] != base.settings.get(key, ...))
        else ""
        for line in lines
    ]


def _told(key: str, value: object) -> str:
    return str(value).rpartition(".")[2] if key.removeprefix("model.") in SLOTS else str(value)


def _short(key: str) -> str:
    """The paper's spelling."""
    name = without_section(key)
    return "P_drop" if name == "p_drop" else name


# ---------------------------------------------------------------------------------------------------------------------
# Cells


def _fixed(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _with_spread(values: Sequence[float], form: str = ".1f") -> str:
    middle, deviation = mean(values), standard_deviation(values)
    if deviation is not None and math.isnan(deviation):  # of values that are not all finite
        deviation = None
    return " ± ".join(filter(None, [_fixed(middle, form), _fixed(deviation, form)]))


def _interval(estimate: "Estimate | None", form: str) -> str:
    if estimate is None:
        return ""
    low, high = estimate.interval()
    return f"{low:{form}} to {high:{form}}"


def _mark(verdict: "RowComparison | None") -> str:
    return "*" if verdict and verdict.p_value is not None and verdict.p_value < ALPHA else ""


def _p_value(verdict: "RowComparison | None") -> str:
    if verdict is None or verdict.p_value is None:
        return ""
    return "<0.001" if verdict.p_value < 0.001 else f"{verdict.p_value:.3f}"


def _better(verdict: "RowComparison | None") -> float | None:
    return verdict.difference.above if verdict and verdict.difference else None


def _unmeasured(row: RowResults) -> str:
    return next((state for state in ("diverged", "failed") if state in row.states), "-")


def _seeds(row: RowResults) -> str:
    """How many are finished, of how many, and how many of the others diverged."""
    done, asked, diverged = len(row.done), len(row.results), row.states.count("diverged")
    counts = f"{done}" if done == asked else f"{done}/{asked}"
    return f"{counts}, {diverged} diverged" if diverged else counts
