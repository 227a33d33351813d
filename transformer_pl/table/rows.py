"""A row of a table, which is made once, and what the table states of it beside base.

A row holds arrays and names alone. Whoever has some can make a table of them: see `make_table`.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from transformer_pl.runtime.errors import InputError, shown, suggestion

if TYPE_CHECKING:
    from transformer_pl.table.looks import LookedAt
    from transformer_pl.table.statistics import Estimate, Sample

ALPHA = 0.05  # level of significance
SETS = {"val": "validation set", "test": "test set"}


class Measure(NamedTuple):
    """A number that rows are compared by."""

    key: str  # in CSV and JSON, such as val/bleu
    title: str  # in tables, such as BLEU
    digits: int = 1  # behind the point, at least
    lower_is_better: bool = False
    lowest: float = -math.inf  # of all values that it can have
    highest: float = math.inf
    learned: float = -math.inf  # a base with a worse mean has learned next to nothing: no row is compared with it
    of_tokens: bool = False  # whether it depends on the tokens, so that rows are compared on equal ones
    meaning: str = ""  # for a reader of the table


class Printed(NamedTuple):
    """The numbers that others have printed for a row."""

    label: str = ""  # their name for it: `base`, or a letter such as A
    score: float | None = None
    ppl: float | None = None
    params: int | None = None
    flops: float | None = None
    source: str = ""  # where they were printed, if the rows of a table are from several places


class PrintedTable(NamedTuple):
    """Where printed numbers are from, and what their differences are to."""

    source: str  # with semicolons between several
    base: Printed | None = None  # None: there are no differences
    split: str = "val"  # the set that its scores are of
    decimals: int = 1  # that its scores have
    others: Sequence[Printed] = ()  # systems that are no row
    is_paper: bool = True  # "Attention Is All You Need"; else numbers that a user has collected
    differs_in: Sequence[str] = ()  # such as `data`: only differences can be compared with ours
    has_base: bool = True  # whether a number of base is printed

    def difference(self, row: Printed | None, number: str = "score") -> float | None:
        """The row's number minus base's; None for base itself, and where one is missing or is from another source.

        number: score or ppl.
        """
        base = self.base
        if row is None or base is None or row is base or row.source != base.source:
            return None
        value, of_base = getattr(row, number), getattr(base, number)
        digits = self.decimals if number == "score" else 2
        return None if value is None or of_base is None else round(value - of_base, digits)

    @property
    def name(self) -> str:
        """What its columns are called after: the paper, or else where the numbers are from, if that is one place."""
        first, *others = {source.partition(",")[0] for source in self.source.split("; ")}
        return "paper" if self.is_paper else "published" if others else first


def decimals_of(numbers: Iterable[Printed]) -> int:
    """How many decimals their scores are printed with."""
    return max((len(f"{one.score}".partition(".")[2]) for one in numbers if one.score is not None), default=1)


class Ending(Protocol):
    """How far the loss of a row still fell when its training ended."""

    @property
    def fall(self) -> float: ...  # nats per token
    @property
    def noise(self) -> float | None: ...  # the standard error of the fall
    @property
    def still_falls(self) -> bool: ...
    @property
    def share(self) -> float: ...  # the fall as a share of the perplexity


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """What is known of a row. Columns, notes and figures are made from it."""

    name: str  # what differs from base: `h=4`
    own_name: str = ""  # the user's own name for it; empty: none
    settings: Mapping[str, Any] = field(default_factory=dict)  # by key
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by metric, one value for each finished seed
    samples: "Mapping[str, Sample]" = field(default_factory=dict)  # by metric; none: too little is known for statistics
    states: Sequence[str] = ()  # by seed: done, failed, diverged, ...
    refused: str = ""  # why it was not trained
    is_base: bool = False
    is_reference: bool = False  # whether it is the base because the user says so, in place of the table's own
    identity: str = ""  # equal for rows of two tables that are the same row; empty: its name
    dataset: Any = None  # rows are compared if they were evaluated on the same sentences
    vocabulary: Any = None  # by name, so far as it is known; perplexities are compared on equal tokens
    token_digests: frozenset[str] = frozenset()
    params: int | None = None
    flops: float | None = None  # of a training
    step_flops: float | None = None  # of a step
    scored_steps: Sequence[int] = ()  # by seed: after which the weights are scored
    is_selected: bool = False  # whether that is the step of the best validation
    ending: Ending | None = None  # None: not known
    losses: Sequence[Mapping[int, float]] = ()  # by seed: of its validations, by step; an empty one is not known
    ends_anywhere: bool = False  # whether a shorter training is the beginning of a longer one, as by equation (3)
    exempt: Sequence[str] = ()  # laws that its components break on purpose, with the reasons
    printed: Printed | None = None
    sentences: int | None = None  # how many it was evaluated on
    signatures: Sequence[str] = ()  # how its score was computed
    machines: Sequence[Mapping[str, Any]] = ()  # of its seeds
    ended_early: Sequence[int] = ()  # after how many steps a callback has ended a trial
    watching: Sequence[str] = ()  # callbacks that the user has declared to change no result
    speed: tuple[float, float] | None = None  # target tokens a second, and the share of the peak of its GPU
    trials: Sequence[Any] = ()  # what stands behind it, handed on to the page

    @classmethod
    def of_values(cls, name: str, values: Mapping[str, Sequence[float]], **more: Any) -> "Row":
        """A row of which only values by metric and seed are known."""
        from transformer_pl.table.statistics import sample_of_seeds  # scipy takes half a second

        samples = {key: sample for key, scores in values.items() if (sample := sample_of_seeds(scores))}
        return cls(name=name, values=values, samples=samples, **more)

    @property
    def done(self) -> int:
        """How many seeds are finished."""
        return self.states.count("done")

    @property
    def shown_name(self) -> str:
        """The user's own name for it, or else what differs from base."""
        return self.own_name or self.name

    @property
    def label(self) -> str:
        """The paper's label as the paper prints it, such as (A). Base is always `base`."""
        label = self.printed.label if self.printed else ""
        letter = f"({label})" if len(label) == 1 else label
        return f"base {letter}".strip() if self.is_base and not self.is_reference and label != "base" else letter

    @property
    def title(self) -> str:
        """The name of the row, after its letter in the paper's table: `(A) h=4`; or the paper's word for it: `big`."""
        label = self.label
        if self.own_name:
            return self.own_name + (" (reference)" if self.is_reference else "")
        if self.is_reference:
            return f"{label if label[:1] == '(' else ''} {self.name} (reference)".strip()
        return label if self.is_base or (label and label[0] != "(") else f"{label} {self.name}".strip()

    @property
    def scored_step(self) -> float | None:
        """The mean of `scored_steps`."""
        return mean(self.scored_steps)

    @property
    def still_falls(self) -> bool:
        """Whether it is known that the row had not converged."""
        return self.ending is not None and self.ending.still_falls

    def scores(self, metric: str) -> Sequence[float]:
        """One value per finished seed."""
        return self.values.get(metric, ())

    def mean(self, metric: str) -> float | None:
        """The mean over the seeds, also where nothing is known of its error."""
        return mean(self.scores(metric))

    def spread(self, metric: str) -> float | None:
        """The standard deviation over the seeds, of n - 1; None of fewer than two, and where one is infinite."""
        values = self.scores(metric)
        return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None

    def has_learned(self, measure: Measure) -> bool:
        """Whether the row is finished, and is good enough that others can be compared with it."""
        value = self.mean(measure.key)
        return value is not None and (measure.lower_is_better or value >= measure.learned)

    def has_tokens_of(self, other: "Row") -> bool:
        """Whether the row has the same tokens as another row, as far as that is known."""
        return len(self.token_digests | other.token_digests) <= 1


@dataclass(frozen=True)
class Contrast:
    """What a table states of a row in one measure: its mean, and how it differs from base or from another row."""

    row: Row
    measure: Measure
    difference: float | None = None  # of the means; None for base, and where one is missing or of other sentences
    mean: "Estimate | None" = None  # of the row alone
    estimate: "Estimate | None" = None  # of the difference
    p_value: float | None = None  # corrected
    is_outlier: bool = False  # its variance from seed to seed is far from those of the other rows
    shares_weights: bool = False  # with base: they are compared within each seed
    is_rounding: bool = False  # in every seed its score is base's, but for rounding
    is_constant: bool = False  # its several seeds all have the same score
    unknown: str = ""  # why nothing is known of the steps to base's loss
    one_run: float | None = None  # corrected p of a row with one run if it were one of base's several

    @property
    def scores(self) -> Sequence[float]:
        """One value per finished seed."""
        return self.row.scores(self.measure.key)

    @property
    def score(self) -> float | None:
        """The mean over the seeds, also where nothing is known of its error."""
        return self.row.mean(self.measure.key)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds."""
        return self.row.spread(self.measure.key)

    @property
    def is_known(self) -> bool:
        """Whether enough is known of the row for statistics."""
        return self.measure.key in self.row.samples

    @property
    def is_found(self) -> bool:
        """Whether the difference is significant."""
        return self.p_value is not None and self.p_value < ALPHA

    @property
    def beside_runs(self) -> str | None:
        """Where the one run of a row lies; None for rows with several runs, and where base has one."""
        if self.one_run is None:
            return None
        return f"{'outside' if self.one_run < ALPHA else 'within'} base's runs"


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of no values."""
    return statistics.fmean(values) if values else None


def base_of(rows: Sequence[Row], measure: Measure) -> Row | None:
    """The row that differences are to; None where no row is base, or where it has not learned enough."""
    return next((row for row in rows if row.is_base and row.has_learned(measure)), None)


def difference(row: Row, base: Row | None, metric: str) -> float | None:
    """Mean minus base's mean; None where one is missing or was measured on another dataset, and for base itself."""
    if base is None or row.is_base or row.dataset != base.dataset:
        return None
    value, of_base = row.mean(metric), base.mean(metric)
    return None if value is None or of_base is None else value - of_base


class Training(NamedTuple):
    """How the rows of a table were trained."""

    steps: int
    batch_tokens: int
    text: str  # the name of the dataset
    sizes: Sequence[str] = ()  # that differ from the paper's: `N 10`
    factors: Sequence[str] = ()  # that the paper's sizes are multiplied by: `width 0.125`
    averaged: int = 1  # how many checkpoints


@dataclass(frozen=True, kw_only=True)
class About:
    """What a table is of, beside its rows."""

    measures: Sequence[Measure]  # each with a test of its own; the first is the main one
    perplexity: str = ""  # the metric of perplexity, if that is shown
    loss: Measure | None = None  # by which perplexities are tested
    others: Mapping[str, str] = field(default_factory=dict)  # the titles of further metrics that are shown
    split: str = "val"  # the set that is reported
    unit: str = ""  # what that set consists of, such as sentences; empty: not known
    trial: str = "seed"  # what a row has several of
    shared: str = "trained weights"  # what a row has of base if the two are compared within each seed
    margins: Mapping[str, float] = field(default_factory=dict)  # by measure: within it a difference counts as none
    printed: PrintedTable | None = None
    training: Training | None = None
    added: Sequence[str] = ()  # further sentences for the notes
    looked_at: "LookedAt | None" = None  # if rows were looked at while they were trained
    headings: Mapping[int, str] = field(default_factory=dict)  # between rows, by the place of the row below
    shows_settings: bool = True
    setting_names: Mapping[str, str] = field(default_factory=dict)  # headings of settings that are not the key's end
    has_page: bool = False  # whether the notes name the page
    how_to_name_base: str = "name one with --base"


# ---------------------------------------------------------------------------------------------------------------------
# Lists of rows


def with_base(rows: Sequence[Row], name: str | None, place: str = "", is_reference: bool = True) -> list[Row]:
    """The rows with the one of this name as base; None, or `base`: they stay as they are.

    place: what the rows are of, for the InputError where no row has the name. is_reference: as that of a row.
    """
    if name is None or (name == "base" and any(row.is_base for row in rows)):
        return list(rows)
    names = [row.name for row in rows]
    if name not in names:
        raise InputError(f"--base {shown(name)}: is no row{place}{suggestion(name, names)}")
    return [replace(row, is_base=row.name == name, is_reference=is_reference and row.name == name) for row in rows]


def in_order(rows: Sequence[Row], sort: str, measure: Measure) -> list[Row]:
    """The rows by their `params`, or by their `score`, the best first; rows without one come last."""
    sign = 1 if sort == "params" or measure.lower_is_better else -1
    values = [row.params if sort == "params" else row.mean(measure.key) for row in rows]
    places = sorted(range(len(rows)), key=lambda i: math.inf if (value := values[i]) is None else sign * value)
    return [rows[place] for place in places]


def together(tables: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The rows of several tables, by name, as those of one; a row that two of them have is one row.

    Raises an InputError for rows that no table can hold together.
    """
    joined: dict[str, Row] = {}
    first, of_first = next(iter(tables.items()))
    for table, rows in tables.items():
        bases = [{row.identity for row in one if row.is_base} for one in (rows, of_first)]
        if not bases[0] or bases[0] != bases[1]:
            rule = "must have the same base as a row, at one scale and with the same data and task"
            raise InputError(f"--together: {first} and {table} {rule}")
        for row in rows:
            if row.identity not in joined and row.name in [other.name for other in joined.values()]:
                raise InputError(f"--together: {table}: another row is named `{row.name}`, too; rename a class")
            joined.setdefault(row.identity, row)
    return list(joined.values())
