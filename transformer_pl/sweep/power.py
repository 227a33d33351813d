"""What a plan says its table will find: by how many seeds, and at how many looks."""

from transformer_pl.config.levels import resolve, scale_level, scale_measured
from transformer_pl.plan.plan import Plan
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.runtime.terminal import counted
from transformer_pl.task import task_of


def difference_found(plan: Plan) -> str:
    """Which difference from base the planned seeds would find, if they spread as finished trials or the scale's did."""
    sweep, of_base = plan.sweep, plan.sweep.of_base
    bases = {trial.identity.weights for trial in plan.trials if trial.place == sweep.base_row}
    rows = len({trial.place for trial in plan.trials if trial.identity.weights not in bases})
    seeds = max((len(row.configs) for row in sweep.rows if row is not of_base), default=1)
    spread, source = _spread(plan) if seeds > 1 and rows else (None, "")
    if not spread:  # `rows` leaves out those with base's weights: they differ by less than seeds do
        return ""
    from transformer_pl.table.looks import Looks  # scipy takes half a second
    from transformer_pl.table.statistics import found_by_plan

    base_seeds = len(of_base.configs) if of_base else seeds
    level = Looks.of(sweep.looks, base_seeds, rows).level_of_one if sweep.looks else None
    title = task_of(sweep.base.data).measure.title
    more = f" and {base_seeds} of base" if base_seeds != seeds else ""
    line = (
        f"{counted(seeds, 'seed')} a row{more} find a difference of "
        f"{found_by_plan(spread, seeds, rows, base_seeds, level):.2g} {title} from base in 80 % of cases, if the seeds "
        f"of every row spread by {spread:.2g}, {source}"
    )
    if not more:
        line += f"; with --base-seeds {3 * seeds} one of {found_by_plan(spread, seeds, rows, 3 * seeds, level):.2g}"
    return line


def _spread(plan: Plan) -> tuple[float | None, str]:
    """The usual standard deviation from seed to seed, and where it is from; None where it is not known."""
    from transformer_pl.table.moderation import FEWEST_ROWS  # scipy takes half a second
    from transformer_pl.table.statistics import usual_spread

    sweep, scores = plan.sweep, dict[int, list[float]]()
    metric = f"val/{task_of(sweep.base.data).measure.name}"
    for trial in plan.trials:
        if result := trial.result():
            scores.setdefault(trial.place, []).append(result.metrics[metric])
    known = [of_row for of_row in scores.values() if len(of_row) > 1]
    if len(known) >= min(FEWEST_ROWS, len(sweep.rows)) and (spread := usual_spread(known)) is not None:
        return spread, "as in the finished trials"
    own = resolve([scale_level(sweep.scale)])
    is_own = all(getattr(sweep.base, part) == getattr(own, part) for part in ("model", "optim", "data"))
    return (scale_measured(sweep.scale).spread if is_own else None), "as measured at this scale"


def described_looks(sweep: Sweep) -> str:
    """When the rows of a sweep are looked at, and how many trainings that takes; empty for a sweep without looks."""
    if not sweep.looks:
        return ""
    from transformer_pl.report.looks import planned_looks  # scipy takes half a second

    looks = planned_looks(sweep)
    seeds, of_base = (", ".join(map(str, numbers)) for numbers in (looks.seeds, looks.base_seeds))
    return (
        f"looks after {seeds} seeds of each row and {of_base} of base: {looks.most_trainings} trainings at most, about "
        f"{looks.expected_trainings():.0f} if no row differs"
    )
