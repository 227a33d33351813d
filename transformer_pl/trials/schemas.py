"""What the files of a trial hold: their schemas, and the score of a result. The files may hold more."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, PositiveInt, model_validator

# The numbers of a sentence: those of the task's measure (BLEU has ten), then nats and tokens.
# The last number of each group depends on the reference alone.
SCORE_COLUMNS, LOSS_COLUMNS = slice(0, -2), slice(-2, None)
OLD_SCORE = "bleu"  # of results of versions that knew translation alone
LARGEST = 10**18  # of any count in a result: beyond it, floats overflow
_Count = Annotated[int, Field(gt=0, le=LARGEST)]


class _Metrics(BaseModel, strict=True, extra="allow"):
    __pydantic_extra__: dict[str, FiniteFloat | None]
    ppl: FiniteFloat | None = Field(alias="val/ppl")  # null: infinite


class _Convergence(BaseModel, strict=True, extra="forbid"):
    fall: FiniteFloat
    noise: FiniteFloat | None
    validations: int


class Result(BaseModel, strict=True):
    id: str
    weights_id: str
    weights_of: str | None = None  # the trial whose weights it took over, and only decoded; older results lack it
    name: str
    tags: list[str]
    scale: str
    seed: int
    config: dict[str, Any]
    metrics: _Metrics
    score: str = OLD_SCORE  # the metric that rows are compared by
    signature: str
    params: _Count
    steps: _Count
    flops: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    dropped: Annotated[int, Field(ge=0, le=LARGEST)]
    tokens_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    wall_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    energy_j: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # null: no device told it
    finished: str
    digests: dict[str, str] = {}  # sha256 by file name; older results have none
    digest: str | None = None  # of the other keys; older results have none
    exempt: dict[str, dict[str, str]] = {}  # see `checks.run.check_model`
    convergence: _Convergence | None = None  # null: not known; older results lack it
    version: str | None = None  # of this project; older results lack it

    @model_validator(mode="before")
    @classmethod
    def _is_what_was_written(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("digest") not in (None, result_digest(content)):
            raise ValueError("its content is not what was written (its digest differs)")
        return content

    @model_validator(mode="after")
    def _has_a_score(self) -> "Result":
        if (self.metrics.model_extra or {}).get(f"val/{self.score}") is None:
            raise ValueError(f"metrics.val/{self.score}: must be a number, but is missing")
        return self


def main_score(result: Mapping[str, Any]) -> tuple[str, float]:
    """The name and the value of the score on the validation set that rows are compared by, such as val/bleu."""
    name = f"val/{result.get('score', OLD_SCORE)}"
    return name, result["metrics"][name]


def result_digest(result: Mapping[str, Any]) -> str:
    """The sha256 of the content of result.json, without the digest in it."""
    others = {key: value for key, value in result.items() if key != "digest"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


class Sentence(BaseModel, strict=True, extra="allow"):
    """A line of scores.*.jsonl: the numbers of a task's measure, by its name, and those in LOSS_COLUMNS."""

    __pydantic_extra__: dict[str, list[NonNegativeInt]]
    nll: FiniteFloat
    pieces: PositiveInt


class Status(BaseModel, strict=True):
    state: str


class Environment(BaseModel, strict=True):
    data: str | None = None
    packages: dict[str, str] = {}
    gpus: list[str] = []  # older versions did not record them
    threads: int | None = None
    accumulate: int | None = None
    changed: bool | None = None


class IdentityInputs(BaseModel, strict=True):
    core: int
    data: dict[str, Any]
    parts: dict[str, str]
