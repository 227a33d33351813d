"""What a plan says its table will find: by how many seeds, and at how many looks."""

import math

from transformer_pl.plan.plan import Plan, main_metric
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.decisions import planned_looks
from transformer_pl.report.sweep_table import priors_of
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.looks import Looks
from transformer_pl.table.moderation import FEWEST_ROWS, Prior
from transformer_pl.table.statistics import found_by_plan, usual_spread
from transformer_pl.task import task_of


def difference_found(plan: Plan) -> str:
    """Which difference from base the planned seeds would find, if they spread as finished trials or the scale's did."""
    sweep, of_base = plan.sweep, plan.sweep.of_base
    if of_base is None:
        return ""
    bases = {trial.identity.weights for trial in plan.trials if trial.place == sweep.base_row}
    rows = len({trial.place for trial in plan.trials if trial.identity.weights not in bases})
    seeds = max((len(row.configs) for row in sweep.rows if row is not of_base), default=1)
    known = _spread(plan) if seeds > 1 and rows else None
    if not known:  # `rows` leaves out those with base's weights: they differ by less than seeds do
        return ""
    base_seeds = len(of_base.configs)
    level = Looks.of(sweep.looks, base_seeds, rows).level_of_one if sweep.looks else None
    spread, prior, source = known
    is_loss = main_metric(sweep) == "val/loss"

    def found(base_seeds: int) -> str:
        """In 80 % of cases."""
        size = found_by_plan(spread, seeds, rows, base_seeds, level, prior)
        return f"{math.exp(size):.3g}" if is_loss else f"{size:.2g}"

    more = f" and {base_seeds} of base" if base_seeds != seeds else ""
    what = f"a difference of {found(base_seeds)} {task_of(sweep.base.data).measure.title} from base"
    what = f"a ratio of {found(base_seeds)} to base's PPL" if is_loss else what
    line = f"{counted(seeds, 'seed')} a row{more} find {what} in 80 % of cases, if the seeds of every row spread by "
    line += f"{spread:.2g}{' nats' if is_loss else ''}, {source}"
    if not more:
        line += f"; with --base-seeds {3 * seeds} one of {found(3 * seeds)}"
    return line


def _spread(plan: Plan) -> tuple[float, Prior | None, str] | None:
    """The usual standard deviation from seed to seed, the prior of so few rows, and where the first is from; None where
    it is not known."""
    sweep, scores = plan.sweep, dict[int, list[float]]()
    metric = main_metric(sweep)
    prior = priors_of(sweep).get(metric)
    of_few = prior if len(sweep.rows) < FEWEST_ROWS else None
    for trial in plan.trials:
        if result := trial.folder.result():
            scores.setdefault(trial.place, []).append(result.metrics[metric])
    known = [of_row for of_row in scores.values() if len(of_row) > 1]
    if len(known) >= min(FEWEST_ROWS, len(sweep.rows)) and (spread := usual_spread(known)) is not None:
        return spread, of_few, "as in the finished trials"
    return (math.sqrt(prior.variance), of_few, "as measured at this scale") if prior else None


def described_looks(sweep: Sweep) -> str:
    """When the rows of a sweep are looked at, and how many trainings that takes; empty for a sweep without looks."""
    if not sweep.looks:
        return ""
    looks = planned_looks(sweep)
    seeds, of_base = (", ".join(map(str, numbers)) for numbers in (looks.seeds, looks.base_seeds))
    return (
        f"looks after {seeds} seeds of each row and {of_base} of base: {looks.most_trainings} trainings at most, about "
        f"{looks.expected_trainings():.0f} if no row differs"
    )
