"""Every row at its best: the same small search of nuisance parameters for each row of a sweep.

An ablation at one learning rate is conditional on that rate, and rows change their order when each is given its own
(Choi et al. 2019, arXiv:1910.05446). Every row tries the same points, the first of them what the file says, spread
evenly by Halton (1960); with one seed that is none of the file's, so that no row is measured by the luck it was chosen
for. Then the file's seeds are trained at the best point of each row.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_pl.config import KEYS, Level, scale_level, suggestion, without_section
from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Row, Sweep
from transformer_pl.experiments.trial_config import trial_config
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.identity import row_identity

REACH = 3.0  # each key is tried from a third of what the file says to three times that
GOALS = {"val/bleu": "maximize", "val/chrf": "maximize", "val/ppl": "minimize", "val/loss": "minimize"}


class Retuning(NamedTuple):
    """What every row tries."""

    points: list[dict[str, Any]]  # values by key
    seed: int
    metric: str

    def tries(self, sweep: Sweep) -> Sweep:
        """Every row at every point, in this order."""
        rows = []
        for row in sweep.rows:
            for point in self.points:
                told = " ".join(f"{without_section(key)}={value}" for key, value in point.items())
                rows.append(_at(sweep.scale, row, point, [self.seed])._replace(name=f"{row.name} {told}"))
        return sweep._replace(rows=rows)

    def best(self, sweep: Sweep, tried: Sequence[PlannedTrial]) -> Sweep:
        """The rows at the best of their points; base, too. A row that failed at all of them stays at the first.

        A try that diverged, or has an infinite value, is worse than any other.
        """
        rows, n = [], len(self.points)
        sign = 1 if GOALS[self.metric] == "maximize" else -1
        for i, row in enumerate(sweep.rows):
            values = [
                (sign * result["metrics"][self.metric], -at)  # of equal ones the first
                for at, one in enumerate(tried[i * n : (i + 1) * n])
                if (result := one.trial.result()) and math.isfinite(result["metrics"][self.metric])
            ]
            point = self.points[-max(values)[1] if values else 0]
            rows.append(_at(sweep.scale, row, point, [config.seed for config in row.configs]))
        at_base = [row_identity(row.configs[0]) == row_identity(sweep.base) for row in sweep.rows]
        base = next((row.configs[0] for row, is_it in zip(rows, at_base, strict=True) if is_it), sweep.base)
        return sweep._replace(rows=rows, base=base, notes=(*sweep.notes, self._note(tried)))

    def _note(self, tries: Sequence[PlannedTrial]) -> str:
        tried = {key: [point[key] for point in self.points] for key in self.points[0]}
        spans = [f"{key} ({min(at)} to {max(at)})" for key, at in tried.items()]
        diverged = sum(one.trial.diverged_at() is not None for one in tries)
        return (
            f"Every row at its own best of the same {len(self.points)} points of {' and '.join(spans)}, chosen by "
            f"{self.metric} with seed {self.seed}, which is not among the seeds of the table."
            + (f" Of these {len(tries)} tries {diverged} diverged, which counts as the worst." if diverged else "")
        )


def plan_retuning(sweep: Sweep, keys: Sequence[str], budget: int, metric: Any) -> Retuning:
    """`budget` points over `keys`. `metric` is the sweep file's. Raises an InputError for what cannot be tuned."""
    from scipy.stats import qmc  # takes a second

    mistakes, told = [], sweep.base.flat()
    for key in keys:
        value = told.get(key)
        if key not in KEYS:
            mistakes.append(f"--retune {key}: no such key{suggestion(key, KEYS)}")
        elif not key.startswith(("model.", "optim.")):
            mistakes.append(f"--retune {key}: must be of model or optim; leave it out")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not value:
            mistakes.append(f"--retune {key}: must be a number other than 0 in base, but is {value}; leave it out")
        elif varying := [row.name for row in sweep.rows if row.configs[0].flat()[key] != value]:
            mistakes.append(f"--retune {key}: must be the same in all rows, but row `{varying[0]}` is about it")
    name = metric.get("name") if isinstance(metric, dict) else metric or "val/bleu"
    if name not in GOALS:
        mistakes.append(f"--retune: the file's metric.name = {name}: must be one of {', '.join(GOALS)}")
    if mistakes:
        raise InputError(*mistakes)
    points = [{key: told[key] for key in keys}]
    # Its first two points are a corner, and the middle of the first key, which the file's own value is.
    sequence = qmc.Halton(len(keys), scramble=False).fast_forward(2)
    for at in sequence.random(budget - 1):
        values = {key: told[key] * REACH ** (2 * u - 1) for key, u in zip(keys, at.tolist(), strict=True)}
        points.append({key: _rounded(value, told[key]) for key, value in values.items()})
    seeds = {config.seed for config in sweep.configs}
    return Retuning(points, next(seed for seed in range(len(seeds) + 1) if seed not in seeds), name)


def _rounded(value: float, like: float) -> int | float:
    return max(1, round(value)) if isinstance(like, int) else float(f"{value:.3g}")


def _at(scale: str, row: Row, point: Mapping[str, Any], seeds: Sequence[int]) -> Row:
    keys = row.keys | point
    levels = [scale_level(scale), Level("--retune", keys)]
    return row._replace(
        keys=keys, configs=[trial_config([*levels, Level("--retune", {"seed": seed})]) for seed in seeds]
    )
