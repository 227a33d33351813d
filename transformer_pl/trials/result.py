"""The result of a trial, which `result.json` holds."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator

from transformer_pl.trials.records import HUGE, Amount, ConvergenceRecord, Id, Natural, finite_or_none

FILE = "result.json"


def _not_huge(value: float) -> float:
    if not (abs(value) < HUGE or value == math.inf):
        raise ValueError(f"must be a number below {HUGE:g}, or null")
    return value


Metric = Annotated[
    float,  # null is read as infinity
    BeforeValidator(lambda value: math.inf if value is None else value),
    AfterValidator(_not_huge),
    PlainSerializer(finite_or_none),
]


class Checked(NamedTuple):
    """What the checks before a training have found of the parts of its model, which its result states."""

    exempt: Mapping[str, dict[str, str]] = MappingProxyType({})  # by a component's path: what it breaks, and why
    passes: float | None = 1.0  # that a batch costs: an optimizer may need two for a step; None: not known beforehand


class Result(BaseModel):
    """The result of a finished trial. Keys that it does not name are kept."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    version: str = ""  # the version of the project
    id: Id
    weights_id: Id  # shared by trials that differ in evaluation alone, as ids were made when it finished
    weights_of: Id | None = None  # the trial that has trained the weights; None: this one
    name: str  # row and seed: `h=4 s1`
    tags: list[str] = []
    scale: str
    seed: Natural
    config: dict[str, Any]  # by dotted keys, with effective sizes
    metrics: dict[str, Metric]  # val/* and test/*: loss (nats per token), ppl, and the task's metrics
    score: str  # the metric by which the task compares rows, such as bleu
    signature: str  # how the score was computed
    params: Natural  # the parameters of the trained model
    steps: Natural
    best_step: Natural | None = None  # whose weights are scored, by decode.select; None: the last one's
    stopped_early: bool = False
    flops: Amount | None  # None: not known
    flops_before: Amount | None = 0.0  # of the trainings that its start has had; None: not known
    steps_before: Natural = 0  # of `steps`, those of its start, from whose last state it went on
    starts: list[Id] = []  # the ids of the weights that it began with, and before that its start, and so on
    tokens_per_s: Amount | None  # target tokens that were trained on
    of_peak: Amount | None = None  # the speed as a share of the peak of its GPUs; None: not known
    wall_s: Amount
    exempt: dict[str, dict[str, str]] = {}  # by the path of a component: the properties that it breaks, and why
    convergence: ConvergenceRecord | None = None  # None: not known
    losses: dict[Natural, Metric] = {}  # of each validation during the training, by step; empty: not known
    vocabulary: str = ""  # a digest of the tokens: only perplexities of the same ones can be compared; empty: not known
    finished: str = ""  # date and time

    @model_validator(mode="after")
    def _is_complete(self) -> "Result":
        for name in ("val/ppl", self.main_metric):
            if name not in self.metrics:
                raise ValueError(f"metrics must hold {name}")
        for key in ("trainer.devices", "trainer.num_nodes"):
            if not isinstance(self.config.get(key, 1), int):
                raise ValueError(f"config must have a whole number as {key}")
        return self

    @property
    def scored_step(self) -> int:
        """The step whose weights are scored."""
        return self.steps if self.best_step is None else self.best_step

    @property
    def main_metric(self) -> str:
        """The score on the validation set that rows are compared by, such as val/bleu."""
        return f"val/{self.score}"

    @property
    def main_score(self) -> float:
        """The value of `main_metric`."""
        return self.metrics[self.main_metric]


def exemptions(results: Iterable[Result]) -> list[str]:
    """The properties that components break on purpose, each once and with the reason."""
    broken = {
        (path, name, reason)
        for result in results
        for path, reasons in result.exempt.items()
        for name, reason in reasons.items()
    }
    return [f"{path} does not keep the property {name}: {reason}" for path, name, reason in sorted(broken)]
