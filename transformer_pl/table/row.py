"""A row of a table, which is made once, and what the table states of it beside base.

A row holds arrays and names alone. Whoever has some can make a table of them: see `make_table`.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.table.looks import Looks
from transformer_pl.table.moderation import Prior
from transformer_pl.table.statistics import Estimate, Sample, sample_of_seeds

ALPHA = 0.05  # level of significance
MISSING = "without a number"  # the state of a run that does not count
LOST = ("diverged", "failed", MISSING)  # the states of trainings that ended without a score
HIGHEST_LOGARITHM = 700.0  # of which exp is a float
SAME_BUDGET = 1.05  # the highest ratio of the FLOPs of trainings that count as equally long
SETS = {"val": "validation set", "test": "test set"}


class Outcome(NamedTuple):
    """A number that rows are compared by."""

    key: str  # in CSV and JSON, such as val/bleu
    title: str  # in tables, such as BLEU
    digits: int = 1  # behind the point, at least
    lower_is_better: bool = False
    lowest: float = -math.inf  # of all values that it can have
    highest: float = math.inf
    learned: float = -math.inf  # a base with a worse mean has learned next to nothing: no row is compared with it
    is_logarithm: bool = False  # whether its values are logarithms: tables show exp of them, and ratios to base
    of_tokens: bool = False  # whether it depends on the tokens, so that rows are compared on equal ones
    meaning: str = ""  # for a reader of the table

    def shown(self, value: float) -> float:
        """The value as a table shows it; of a difference the ratio, where values are logarithms."""
        if not self.is_logarithm:
            return value
        return math.exp(value) if value < HIGHEST_LOGARITHM else math.inf


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
    note: str = ""  # what must be known to compare them with ours

    def difference(self, row: Printed | None, number: str = "score") -> float | None:
        """The row's number minus base's; None for base itself, and where one is missing or is from another source.

        number: score or ppl.
        """
        both = self._both(row, number)
        return round(both[0] - both[1], self.decimals if number == "score" else 2) if both else None

    def change(self, row: Printed | None, outcome: Outcome) -> float | None:
        """The `difference` in an outcome; where values are logarithms, that of the logarithms of the perplexities."""
        if not outcome.is_logarithm:
            return self.difference(row)
        both = self._both(row, "ppl")
        return math.log(both[0] / both[1]) if both else None

    def _both(self, row: Printed | None, number: str) -> tuple[float, float] | None:
        """The number of a row and that of base, where they can be compared."""
        base = self.base
        if row is None or base is None or row is base or row.source != base.source:
            return None
        value, of_base = getattr(row, number), getattr(base, number)
        return None if value is None or of_base is None else (value, of_base)

    @property
    def name(self) -> str:
        """What its columns are called after: the paper, or else where the numbers are from, if that is one place."""
        first, *others = {source.partition(",")[0] for source in self.source.split("; ")}
        return "paper" if self.is_paper else "published" if others else first


def decimals_of(numbers: Iterable[Printed]) -> int:
    """How many decimals their scores are printed with."""
    scores = (f"{printed.score}" for printed in numbers if printed.score is not None)
    return max((len(score.partition(".")[2]) for score in scores), default=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """What is known of a row. Columns, notes and figures are made from it."""

    name: str  # what differs from base: `h=4`
    own_name: str = ""  # the user's own name for it; empty: none
    settings: Mapping[str, Any] = field(default_factory=dict)  # by key
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by metric, one value for each finished seed
    samples: Mapping[str, Sample] = field(default_factory=dict)  # by metric; none: too little is known for statistics
    states: Sequence[str] = ()  # by seed: done, failed, diverged, ...
    is_base: bool = False
    is_reference: bool = False  # whether it is the base because the user says so, in place of the table's own
    dataset: Any = None  # rows are compared if they were evaluated on the same sentences
    vocabulary: Any = None  # by name, so far as it is known; perplexities are compared on equal tokens
    token_digests: frozenset[str] = frozenset()
    objective: Any = None  # what it was trained for; the losses of rows with another one mean something else
    params: int | None = None
    flops: float | None = None  # of a training
    flops_before: float | None = 0.0  # of the trainings before it, from whose weights it starts
    steps_before: float = 0  # of `scored_steps`, those of the training that it goes on with
    trunks: frozenset[str] = frozenset()  # the weights that all of its several seeds have begun with
    step_flops: float | None = None  # of a step
    scored_steps: Sequence[int] = ()  # by seed: after which the weights are scored
    still_falls: bool = False  # whether it is known that it had not converged
    losses: Sequence[Mapping[int, float]] = ()  # by seed: of its validations, by step; an empty one is not known
    ends_anywhere: bool = False  # whether a shorter training is the beginning of a longer one, as by equation (3)
    exempt: Sequence[str] = ()  # laws that its components break on purpose, with the reasons
    printed: Printed | None = None
    more: Mapping[str, Any] = field(default_factory=dict)  # that its record has, with the same keys for all rows

    @classmethod
    def of_values(cls, name: str, values: Mapping[str, Sequence[float]], **more: Any) -> "Row":
        """A row of which only values by metric and seed are known.

        Raises an InputError for a value that is not finite.
        """
        values = {key: [float(value) for value in scores] for key, scores in values.items()}
        if wrong := [key for key, scores in values.items() if not all(map(math.isfinite, scores))]:
            raise InputError(f"row {shown(name)}: {wrong[0]}: must be finite numbers; leave out seeds without one")
        more = {"states": ["done"] * max(map(len, values.values()), default=0)} | more
        samples = {key: sample for key, scores in values.items() if (sample := sample_of_seeds(scores))}
        return cls(name=name, values=values, samples=samples, **more)

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
    def scored_flops(self) -> float | None:
        """Until the step whose weights are scored, with those of the trainings before; None where it is not known."""
        step, before = self.scored_step, self.flops_before
        if not self.step_flops or not step or before is None:
            return None
        return before + self.step_flops * (step - self.steps_before)

    def budget(self, base: "Row | None") -> float | None:
        """`scored_flops` as a multiple of base's; None where one is not known."""
        own, of_base = self.scored_flops, base.scored_flops if base else None
        return own / of_base if own and of_base else None

    def scores(self, metric: str) -> Sequence[float]:
        """One value per finished seed."""
        return self.values.get(metric, ())

    @property
    def flops_to_date(self) -> float | None:
        """The FLOPs of its training and of those before it; None where they are not known."""
        return None if self.flops is None or self.flops_before is None else self.flops + self.flops_before

    def mean(self, metric: str) -> float | None:
        """The mean over the seeds, also where nothing is known of its error."""
        return mean(self.scores(metric))

    def spread(self, metric: str) -> float | None:
        """The standard deviation over the seeds, of n - 1; None of fewer than two, and where one is infinite."""
        values = self.scores(metric)
        return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None

    def lost(self, metric: str) -> int:
        """How many of its trainings have ended without a value, where enough is known of the others for statistics."""
        ended = sum(state in ("done", *LOST) for state in self.states)
        return max(0, ended - len(self.samples[metric].scores))

    def has_learned(self, outcome: Outcome) -> bool:
        """Whether the row is finished, and is good enough that others can be compared with it."""
        value = self.mean(outcome.key)
        return value is not None and (outcome.lower_is_better or value >= outcome.learned)

    def has_tokens_of(self, other: "Row") -> bool:
        """Whether the row has the same tokens as another row, as far as that is known."""
        return len(self.token_digests | other.token_digests) <= 1


@dataclass(frozen=True)
class Contrast:
    """What a table states of a row in one outcome: its mean, and how it differs from base or from another row."""

    row: Row
    outcome: Outcome
    difference: float | None = None  # of the means; None for base, and where one is missing or of other sentences
    mean: Estimate | None = None  # of the row alone
    estimate: Estimate | None = None  # of the difference
    p_value: float | None = None  # corrected
    is_outlier: bool = False  # its variance from seed to seed is far from those of the other rows
    shares_weights: bool = False  # with base: they are compared within each seed
    is_rounding: bool = False  # in every seed its score is base's, but for rounding
    is_by_scale: bool = False  # its variance from seed to seed is moderated by the prior of the scale
    is_wide: bool = False  # it is base, and spreads more from seed to seed than the others
    is_flattered: bool = False  # it is not tested, as the better one of row and base has lost seeds
    is_apart: bool = False  # its seeds have begun with one training and base's have not, or with another one
    is_unlike: bool = False  # its loss means something else than base's, by its objective or its tokens
    is_constant: bool = False  # its several seeds all have the same score
    is_by_digits: bool = False  # it is found, but would not be with other numbers that print the same
    unknown: str = ""  # why nothing is known of the steps to base's loss
    one_run: float | None = None  # corrected p of a row with one run if it were one of base's several

    @property
    def scores(self) -> Sequence[float]:
        """One value per finished seed."""
        return self.row.scores(self.outcome.key)

    @property
    def score(self) -> float | None:
        """The mean over the seeds, also where nothing is known of its error."""
        return self.row.mean(self.outcome.key)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds."""
        return self.row.spread(self.outcome.key)

    @property
    def is_known(self) -> bool:
        """Whether enough is known of the row for statistics."""
        return self.outcome.key in self.row.samples

    @property
    def is_counted(self) -> bool:
        """Whether p is corrected for the row, which is so as well where it is not told."""
        return self.p_value is not None or self.is_flattered

    @property
    def is_explained(self) -> bool:
        """Whether a note of its own says why it is not tested."""
        return self.is_rounding or self.is_constant or self.is_flattered or self.is_apart

    @property
    def is_found(self) -> bool:
        """Whether the difference is significant."""
        return self.p_value is not None and self.p_value < ALPHA

    @property
    def open_end(self) -> Literal["low", "high"] | None:
        """The end of the interval of a difference that the test has set to zero, which is no value that it may have."""
        if self.estimate is None or not self.is_found or 0 not in self.estimate.interval():
            return None
        return "low" if self.estimate.value > 0 else "high"

    @property
    def beside_runs(self) -> str | None:
        """Where the one run of a row lies; None for rows with several runs, and where base has one."""
        if self.one_run is None:
            return None
        return f"{'outside' if self.one_run < ALPHA else 'within'} base's runs"


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of no values."""
    return statistics.fmean(values) if values else None


class Facts(NamedTuple):
    """Sentences on rows that these do not tell themselves, by the paragraph of the notes that they stand in."""

    training: Sequence[str] = ()  # how the rows were trained
    convergence: Sequence[str] = ()  # which of them had converged
    others: Sequence[str] = ()  # what is missing or was changed, and where the numbers are from


class LookedAt(NamedTuple):
    """A table that was looked at while it was trained."""

    looks: Looks
    metric: str  # which the looks decided by
    contrasts: Mapping[str, Sequence[Contrast]]  # by row, of the looks that decided it; of base, of all decided ones
    left_out: Sequence[str] = ()  # rows of which a trial has failed or diverged, so that they are not decided

    @property
    def decided(self) -> int:
        """How many looks are decided."""
        return max(map(len, self.contrasts.values()), default=0)

    def asks(self, outcome: Outcome, base: Row) -> bool:
        """Whether an outcome is that of the looks, on the test set, from the sweep's own base."""
        return outcome.key == f"test/{self.metric.partition('/')[2]}" and not base.is_reference

    def as_seen(self, contrast: Contrast) -> Contrast:
        """What a table states of a row, as the last look saw it that decided it, with the p of all its looks.

        contrast: the row beside base without looks.
        """
        row, seen = contrast.row, self.contrasts.get(contrast.row.name)
        if not seen:
            return Contrast(row, contrast.outcome, contrast.difference if row.name in self.left_out else None)
        p_values = [look.p_value for look in seen if look.p_value is not None]
        p = self.looks.p_value(p_values) if seen[-1].estimate and p_values else None
        return replace(seen[-1], row=row, outcome=contrast.outcome, p_value=p)


@dataclass(frozen=True, kw_only=True)
class About:
    """What a table is of, beside its rows."""

    outcomes: Sequence[Outcome]  # each with a test of its own; the first is the main one
    others: Mapping[str, str] = field(default_factory=dict)  # the titles of further metrics that are shown
    split: str = "val"  # the set that is reported
    unit: str = ""  # what intervals cover beside seeds, such as sentences; empty: nothing
    trial: str = "seed"  # what a row has several of
    shared: str = "trained weights"  # what a row has of base if the two are compared in pairs
    within: str = "seed"  # what a pair is of
    priors: Mapping[str, Prior] = field(default_factory=dict)  # by outcome: of a scale, for fewer rows than make one
    margins: Mapping[str, float] = field(default_factory=dict)  # by outcome: within it a difference counts as none
    printed: PrintedTable | None = None
    facts: Facts = Facts()
    has_steps: bool = False  # whether the step is shown whose weights are scored
    looked_at: LookedAt | None = None  # if rows were looked at while they were trained
    headings: Mapping[int, str] = field(default_factory=dict)  # between rows, by the place of the row below
    shows_settings: bool = True
    setting_names: Mapping[str, str] = field(default_factory=dict)  # headings of settings that are not the key's end
    has_page: bool = False  # whether the notes name the page
    how_to_name_base: str = "name one with --base"

    @property
    def loss(self) -> Outcome | None:
        """That of perplexity; None where the rows are no trainings of models."""
        return next((outcome for outcome in self.outcomes if outcome.is_logarithm), None)

    @property
    def score(self) -> Outcome:
        """The first one that is no perplexity: others print it, and a base must have learned by it."""
        return next((outcome for outcome in self.outcomes if not outcome.is_logarithm), self.outcomes[0])


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
