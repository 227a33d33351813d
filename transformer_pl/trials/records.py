"""The forms of the JSON files in a runs folder, which are checked where a file is read.

A file of another form counts as missing, and a warning says what is wrong with it. Keys that a form does not name may
hold anything.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from transformer_pl.config.component_sources import Code

HUGE = 1e100  # all numbers are smaller, so that sums do not overflow; an infinite perplexity is stored as null
OPEN = ConfigDict(strict=True, extra="allow")

Number = Annotated[float, Field(gt=-HUGE, lt=HUGE, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, lt=HUGE, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Id = Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
FileName = Annotated[str, Field(pattern=r"^[^/\x00]+$", max_length=255)]


def finite_or_none(value: Any) -> Any:
    """A value as JSON stores it. Infinity, NaN and numbers from HUGE on become None."""
    return None if isinstance(value, float) and not abs(value) < HUGE else value


def infinite_as_null(metrics: Mapping[Any, Any]) -> dict[Any, Any]:
    """Metrics as JSON stores them."""
    return {name: finite_or_none(value) for name, value in metrics.items()}


def null_as_infinite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Stored metrics with null read as infinity. Only a perplexity can be infinite in a training that goes on."""
    return {name: math.inf if value is None else value for name, value in metrics.items()}


@with_config(ConfigDict(strict=True, extra="forbid"))
class ConvergenceRecord(TypedDict):
    """In result.json: the fields of `Convergence`."""

    fall: Number
    noise: Number | None
    validations: Natural


@with_config(OPEN)
class Status(TypedDict):
    """status.json, see `TrialFolder.status`."""

    state: Literal["running", "stopped", "failed", "diverged", "refused", "done", "pruned"]
    step: NotRequired[Natural]
    translated: NotRequired[str]


@with_config(ConfigDict(strict=True, extra="forbid"))
class LooksPlan(TypedDict):
    """In plan.json and in the file of each look: the looks at a sweep, as they were planned before the training."""

    looks: list[Natural]  # after how many seeds of each row
    levels: list[Amount]
    seeds: list[Natural]  # of base, in their order; a row has the first of them
    rows: list[str]
    metric: str
    margin: Amount | None


@with_config(ConfigDict(strict=True, extra="forbid"))
class LookRecord(TypedDict):
    """look_1.json and so on, in a sweep's folder: what was decided of some rows."""

    plan: LooksPlan
    look: Natural  # from 1 on
    results: dict[str, list[Id]]  # by row, of the trials that it was decided by
    verdicts: dict[str, Literal["found", "within margin", "unlikely", "equal", "open"]]  # by row


class ChecksRecord(TypedDict):
    """In runs/checks: what a check without mistakes has seen, see `Checks`."""

    found: list[tuple[str, str, str, str, str, str]]  # the fields of `Found`
    passes: Amount | None


@with_config(OPEN)
class Environment(TypedDict, total=False):
    """env.json: where a trial ran."""

    data: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    cpu: str
    gpus: list[str]
    threads: Annotated[int, Field(ge=1, le=1024)]
    packages: dict[str, str]


@with_config(OPEN)
class IdentityInputs(TypedDict):
    """identity.json: what an id is a hash of."""

    parts: dict[str, Code]


@with_config(OPEN)
class PlannedRecord(TypedDict, total=False):
    """In plan.json: a trial of a grid or of a search."""

    row: str
    seed: Natural
    id: Id
    folder: FileName


class Tested(TypedDict):
    """In plan.json: what the table tests."""

    rows: list[str]
    seeds: list[int]
    metric: list[str]


@with_config(OPEN)
class SweepPlan(TypedDict, total=False):
    """plan.json: a sweep."""

    name: str
    scale: str
    trials: list[PlannedRecord]
    notes: list[str]
    tested: Tested
    looks: LooksPlan | None
    command: str
    comment: str  # of the sweep file
    differs: str


@with_config(ConfigDict(strict=True))
class MetricsLine(TypedDict, extra_items=Number | None):  # type: ignore[call-arg]
    """A line of metrics.jsonl."""

    step: Natural
    kind: NotRequired[Literal["train", "validation", "final"]]
    time: NotRequired[Amount]
