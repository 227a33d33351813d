"""--retune: every row at its own best values of a few hyperparameters, found by the same small search for each row.

An ablation at one learning rate is conditional on that rate, and rows change their order when each is given its own
(Choi et al. 2019, arXiv:1910.05446). Every row tries the same points: the first has the file's own values, the others
are spread evenly around it on a logarithmic scale (the sequence of Halton 1960). A row whose best value is one of the
two lowest or highest that it tried goes on beyond these, until it is not; the rule is the same for all rows. With one
the luck of a single try would end the search too early (tests/benchmarks/README.md has the figures). The tries have one
seed that is not among the file's, so that the luck of a chosen try does not enter the table. Then the file's seeds are
trained at the best point of each row.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import scipy

from transformer_pl.config import KEYS, Config, is_known_key, without_section
from transformer_pl.config.components import option_value
from transformer_pl.config.levels import Level, read_levels, scale_level
from transformer_pl.plan.queue import ENDED
from transformer_pl.plan.sweep_file import MOST_TRIALS, Sweep, SweepRow
from transformer_pl.runtime.errors import InputError, suggestion
from transformer_pl.task import LOSSES, best_goal, task_of
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_config import mistakes_of_parts, trial_config

DRAWS_PER_POINT = 20  # at most so many draws of the sequence are made for each point
REACH = 3.0  # each key is tried from a third of the file's value to three times that value
BEYOND = math.sqrt(REACH)  # the next value beyond the lowest or the highest one, as a multiple
ENOUGH = 2  # tried values beyond the best one, on either side of it
MOST_BEYOND = 8  # rounds of further tries; the last one is 81 times beyond REACH
Point = Mapping[str, Any]  # values by key


class Retuning(NamedTuple):
    """The points that every row tries, and the metric that decides between them."""

    points: Sequence[Point]  # the first point is the file's own
    seed: int  # the seed of all tries
    metric: str  # a score of the task, or a loss
    beyond: Mapping[int, Sequence[Point]] = {}  # by the place of a row: its further points
    rounds: int = 0  # of further points

    def tries(self, sweep: Sweep) -> Sweep:
        """The sweep of the tries: every row at every point, with one seed; row by row."""
        rows = []
        for place, row in enumerate(sweep.rows):
            for point in self._points_of(place):
                values = " ".join(f"{without_section(key)}={value}" for key, value in point.items())
                rows.append(_row_at(sweep.scale, row, point, [self.seed])._replace(name=f"{row.name} {values}"))
        return replace(sweep, rows=rows)

    def best(self, sweep: Sweep, tries: Sequence[Trial]) -> Sweep:
        """The sweep with each row, base included, at its best point. tries: the trials of `self.tries(sweep)`.

        A try that failed, diverged or has an infinite value is worse than any other; of equal ones the first is best.
        """
        rows = []
        for row, (point, _) in zip(sweep.rows, self._bests(sweep, tries), strict=True):
            rows.append(_row_at(sweep.scale, row, point, [config.seed for config in row.configs]))
        base = sweep.base if sweep.base_row is None else rows[sweep.base_row].configs[0]
        points = [(row.name, point) for place, row in enumerate(sweep.rows) for point in self._points_of(place)]
        results = [attempt.folder.result() for attempt in tries]
        values = [result.metrics[self.metric] if result else math.inf for result in results]
        tried = tuple((*point, value) for point, value in zip(points, values, strict=True))
        return replace(sweep, rows=rows, base=base, tried=tried, notes=(*sweep.notes, self._note(sweep, tries)))

    def further(self, sweep: Sweep, tries: Sequence[Trial]) -> "Retuning | None":
        """The same with one more value for each key at whose lowest or highest tried values a row is best; None where
        there is none, or where no more are tried."""
        beyond = {
            place: [*self.beyond.get(place, ()), *points]
            for place, best in enumerate(self._bests(sweep, tries))
            if (points := self._beyond(sweep.base, place, *best))
        }
        is_last = not beyond or self.rounds == MOST_BEYOND
        return None if is_last else self._replace(beyond={**self.beyond, **beyond}, rounds=self.rounds + 1)

    def as_far_as_known(
        self, sweep: Sweep, plan: Callable[[Sweep], list[Trial]]
    ) -> "tuple[Retuning, list[Trial], list[Trial]]":
        """The same with the further points that finished tries ask for, its tries, and those that are missing.

        plan: makes the trials of a sweep.
        """
        tries = plan(self.tries(sweep))
        missing = [attempt for attempt in tries if attempt.folder.state() not in ENDED]
        further = None if missing else self.further(sweep, tries)
        return further.as_far_as_known(sweep, plan) if further else (self, tries, missing)

    def _points_of(self, place: int) -> list[Point]:
        """Those that a row tries."""
        return [*self.points, *self.beyond.get(place, ())]

    def _bests(self, sweep: Sweep, tries: Sequence[Trial]) -> list[tuple[Point, float]]:
        """The best point of each row, and its score; the file's own where no try has one."""
        left, bests = iter(tries), list[tuple[Point, float]]()
        for place in range(len(sweep.rows)):
            tried = [(point, self.score(next(left))) for point in self._points_of(place)]
            bests.append(max(tried, key=lambda of_point: of_point[1]))
        return bests

    def _beyond(self, base: Config, place: int, best: Point, score: float) -> list[Point]:
        """For each key of which the best point has one of the lowest or highest tried values: the next one."""
        if not math.isfinite(score):
            return []
        tried, found = self._points_of(place), list[Point]()
        for key, value in best.items():
            values = sorted({point[key] for point in tried})
            for ends, factor in ((values[:ENOUGH], 1 / BEYOND), (values[: -ENOUGH - 1 : -1], BEYOND)):
                point = {**best, key: _rounded(value, ends[0] * factor)}
                if value in ends and point not in tried and _is_valid(base, point):
                    found.append(point)
        return found

    def score(self, trial: Trial) -> float:
        """The value of the metric of a try, higher being better."""
        result = trial.folder.result()
        value = result.metrics[self.metric] if result else math.inf
        sign = -1 if best_goal(self.metric, task_of(trial.config.data)) == "minimize" else 1
        return sign * value if math.isfinite(value) else -math.inf

    def _note(self, sweep: Sweep, tries: Sequence[Trial]) -> str:
        """The note under the table."""
        values = {key: [point[key] for point in self.points] for key in self.points[0]}
        spans = " and ".join(f"{key} ({min(tried)} to {max(tried)})" for key, tried in values.items())
        note = (
            f"Every row is at its own best of the same {len(self.points)} points of {spans}, chosen by {self.metric} "
            f"with seed {self.seed}, which is not among the seeds of the table."
        )
        if further := [sweep.rows[place].name for place in sorted(self.beyond)]:
            note += f" Best at one of the two lowest or highest, and so tried beyond it: {', '.join(further)}."
        bests = enumerate(self._bests(sweep, tries))
        if ends := [sweep.rows[place].name for place, best in bests if self._beyond(sweep.base, place, *best)]:
            note += f" Still best at such an end: {', '.join(ends)}."
        if lost := sum(trial.folder.result() is None for trial in tries):
            note += f" Of these {len(tries)} tries {lost} diverged or failed, which counts as the worst result."
        return note


def plan_retuning(sweep: Sweep, keys: Sequence[str], budget: int, metric: Any) -> Retuning:
    """Choose `budget` points over `keys`.

    metric: that of the sweep file, such as `{name: val/bleu}`; None: the score of the task.

    Raises one InputError for every key that cannot be retuned, and for a metric that trials do not have.
    """
    task = task_of(sweep.base.data)
    goals = [*task.metrics, *LOSSES]
    errors = [error for key in keys if (error := _why_not_tunable(key, sweep))]
    if starting := [row.name for row in sweep.planned if row.start is not None]:
        rule = "must not start from a row, which is tried at other points; train that first, and name a trial by its id"
        errors.append(f"--retune: row `{starting[0]}`: {rule}")
    if sweep.looks:
        errors.append("--retune: searches for each row, but looks are for rows as they are; leave one out")
    name = metric["name"] if metric else goals[0]
    if name not in goals:
        errors.append(f"--retune: the file's metric.name = {name}: must be one of {', '.join(goals)}")
    elif metric and metric.get("goal", best_goal(name, task)) != (best := best_goal(name, task)):
        errors.append(f"--retune: the file's metric.goal = {metric['goal']}: must be {best} for {name}")
    if errors:
        raise InputError(*errors)
    if budget * len(sweep.rows) > MOST_TRIALS:
        most = f"at most {MOST_TRIALS // len(sweep.rows):,}, as a grid has at most {MOST_TRIALS:,} trials; lower it"
        raise InputError(f"--budget {budget}: must be {most}")
    seeds = {config.seed for config in sweep.configs}
    unused_seed = next(seed for seed in range(len(seeds) + 1) if seed not in seeds)
    return Retuning(_points(sweep.base, {key: _value(sweep.base, key) for key in keys}, budget), unused_seed, str(name))


def _why_not_tunable(key: str, sweep: Sweep) -> str | None:
    value = _value(sweep.base, key)
    if not is_known_key(key):
        return f"--retune {key}: no such key{suggestion(key, KEYS)}"
    if not key.startswith(("model.", "optim.")):
        return f"--retune {key}: must be a key of model or optim; leave it out"
    if isinstance(value, bool) or not isinstance(value, int | float) or not value:
        return f"--retune {key}: must be a number other than 0 in base, but is {value}; leave it out"
    if varying := [row.name for row in sweep.rows if _value(row.configs[0], key) != value]:
        return f"--retune {key}: must be the same in all rows, but row `{varying[0]}` changes it; leave it out"
    return None


def _value(config: Config, key: str) -> Any:
    """The value of a key. An option that is not given has its default."""
    flat = config.flat()
    return flat[key] if key in flat else option_value(config, key)


def _points(base: Config, center: Mapping[str, Any], budget: int) -> list[dict[str, Any]]:
    """`center`, and budget - 1 points around it: value * REACH^u for each key. A larger budget adds points to these.

    Points that base cannot have, such as a p_drop above 1, are left out.
    """
    points = [dict(center)]
    # Skip the sequence's first point, a corner, and its second, which has the center's value of the first key.
    sequence = scipy.stats.qmc.Halton(len(center), scramble=False).fast_forward(2)
    for position in (2 * sequence.random(DRAWS_PER_POINT * budget) - 1).tolist():
        point = {}
        for (key, value), u in zip(center.items(), position, strict=True):
            point[key] = _rounded(value, value * REACH**u)
        if point not in points and _is_valid(base, point):  # whole numbers may round alike
            points.append(point)
        if len(points) == budget:
            break
    if len(points) < budget:
        raise InputError(f"--budget {budget}: must be at most {len(points)}, as no more points lie around {center}")
    return points


def _rounded(value: Any, tried: float) -> Any:
    """A value to try, in the form of another value of its key."""
    return max(1, round(tried)) if isinstance(value, int) else float(f"{tried:.3g}")


def _is_valid(base: Config, point: Mapping[str, Any]) -> bool:
    set_keys = {key: value for key, value in base.flat().items() if value is not None}
    config, mistakes = read_levels([Level("base", set_keys), Level("--retune", point)])
    return not (mistakes or mistakes_of_parts(config))


def _row_at(scale: str, row: SweepRow, point: Mapping[str, Any], seeds: Sequence[int]) -> SweepRow:
    """The row with the values of a point, for these seeds."""
    keys = {**row.keys, **point}
    levels = [scale_level(scale), Level("--retune", keys)]
    configs = [trial_config([*levels, Level("--retune", {"seed": seed})]) for seed in seeds]
    return row._replace(keys=keys, configs=configs)
