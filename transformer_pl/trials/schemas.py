"""What the files of a trial hold, as far as it is checked when they are read, and the score of a result."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, model_validator

# The numbers of a sentence: those of the task's measure (BLEU has ten), then nats and tokens.
# The last number of each group depends on the reference alone.
SCORE_COLUMNS, LOSS_COLUMNS = slice(0, -2), slice(-2, None)


class Result(BaseModel):
    """result.json, which holds more: see `train`."""

    id: str
    weights_id: str
    name: str
    scale: str
    seed: int
    config: dict[str, Any]
    metrics: dict[str, float | None]  # null: an infinite perplexity
    score: str  # the metric that rows are compared by, such as bleu
    params: int
    steps: int
    flops: float
    finished: str

    @model_validator(mode="after")
    def _has_a_score(self) -> "Result":
        if self.metrics.get(f"val/{self.score}") is None:
            raise ValueError(f"metrics.val/{self.score}: must be a number, but is missing")
        return self


class Record(BaseModel):
    """status.json, env.json, identity.json: any JSON object."""


def main_score(result: Mapping[str, Any]) -> tuple[str, float]:
    """The name and the value of the score on the validation set that rows are compared by, such as val/bleu."""
    name = f"val/{result['score']}"
    return name, result["metrics"][name]
