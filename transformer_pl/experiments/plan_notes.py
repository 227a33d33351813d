"""What a plan says under its table: how its rows are trained, whether they differ too much for that, and which finished
rows had not converged."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from transformer_pl.config import is_papers, sizes
from transformer_pl.experiments.cost import short_number
from transformer_pl.experiments.plan import Plan, PlannedTrial
from transformer_pl.experiments.regime import Regime, describe_regime, regime
from transformer_pl.levels import DEFAULT_SCALE
from transformer_pl.runtime.terminal import counted
from transformer_pl.trials.convergence import FALLEN, LIMIT, Convergence, of_seeds, of_trial

MUCH_LARGER, MUCH_FASTER = 1.5, 1.25  # ratios of the largest row to the smallest: of size and depth, of peak rates
WEEK, YEAR = 7 * 86_400.0, 365 * 86_400.0  # seconds
CORE_RATE = 100e9  # FLOP/s of a CPU core, more than any sustains in a training
RETUNE = "--retune optim.lr_scale,optim.warmup"
PRE_NORM = "--set model.residual=ablations.pre_norm.PreNormResidual"


def plan_notes(plan: Plan, retuned: bool) -> list[str]:
    """The lines under the plan of a sweep. retuned: whether each row gets its own best values (--retune)."""
    regimes = _regimes(plan)
    return [
        describe_regime(regimes[plan.sweep.base_row or 0], regimes.values()),
        *warmup_note(plan),
        *average_note(plan),
        *([] if retuned else differing_note(plan, regimes)),
        *convergence_notes(plan),
    ]


def _regimes(plan: Plan) -> dict[int, Regime]:
    """How each row is trained."""
    first = {planned.row: planned for planned in reversed(plan.trials)}
    return {
        row: regime(one.config, one.prepared, plan.estimates[row].cost.params) for row, one in sorted(first.items())
    }


def warmup_note(plan: Plan) -> list[str]:
    """A line that names the rows whose training ends before the learning rate has reached its peak."""
    rows = [row.name for row in plan.sweep.rows if row.configs[0].optim.warmup > row.configs[0].steps]
    remedy = "the learning rate never reaches its peak; lower optim.warmup"
    return [f"the warm-up does not end within the steps of {', '.join(rows)}: {remedy}"] if rows else []


def average_note(plan: Plan) -> list[str]:
    """A line that names the rows with fewer validations than checkpoints to average."""
    configs = [(row.name, row.configs[0]) for row in plan.sweep.rows]
    few = [
        f"{name} ({one.averaged} of {one.decode.average})" for name, one in configs if one.averaged < one.decode.average
    ]
    remedy = "lower trainer.val_every, or decode.average"
    return [f"fewer validations than checkpoints to average: {', '.join(few)}; {remedy}"] if few else []


def long_note(plan: Plan, missing: Iterable[PlannedTrial], cpu_cores: int, at_once: int) -> list[str]:
    """A line where the training left takes longer than a week; none where no CPU of this machine trains.

    missing: the trials left to train, so many of them at once. Where no trial tells the time, it is the least that a
    CPU needs (CORE_RATE).
    """
    if not cpu_cores:
        return []
    estimates = [plan.estimates[planned.row] for planned in missing]
    seconds = sum(
        one.cost.flops / (cpu_cores * CORE_RATE) if one.seconds is None else one.seconds / at_once for one in estimates
    )
    if seconds < WEEK:
        return []
    least = "at least " if any(one.seconds is None for one in estimates) else "about "
    time = f"{seconds / YEAR:.1f} years" if seconds > YEAR else f"{seconds / WEEK:.1f} weeks"
    smaller = "" if Path(plan.sweep.scale).stem == DEFAULT_SCALE else f", such as --scale {DEFAULT_SCALE},"
    return [
        f"too long for this machine: {least}{time} on {counted(cpu_cores, 'CPU core')}; a smaller scale{smaller} takes "
        "less; --plan --measure estimates the time"
    ]


def differing_note(plan: Plan, regimes: Mapping[int, Regime]) -> list[str]:
    """A line where rows differ so much in size or learning rate that one length and one rate may not suit all."""
    models = [row.configs[0].model for row in plan.sweep.rows]
    amounts = (
        ("parameters", [plan.estimates[row].cost.params for row in regimes], MUCH_LARGER, short_number),
        ("N", [sizes(model, 0).N for model in models], MUCH_LARGER, str),
        ("peak learning rate", [one.peak_rate for one in regimes.values()], MUCH_FASTER, "{:.2g}".format),
    )
    differing = [
        f"{name} {form(min(values))} to {form(max(values))}"
        for name, values, ratio, form in amounts
        if max(values) >= ratio * min(values)
    ]
    if not differing:
        return []
    note = (
        f"rows differ much ({', '.join(differing)}), and may need different numbers of steps or learning rates: "
        f"{RETUNE} tunes each row"
    )
    if all(is_papers("residual", model.residual) for model in models):
        note += f"; {PRE_NORM} puts the norm before each sub-layer, with which deep and wide models train more easily"
    return [note]


def convergence_notes(plan: Plan) -> list[str]:
    """The rows whose finished trials had not converged."""
    falls = []
    endings: dict[int, list[Convergence | None]] = {}  # by row
    for planned in plan.trials:
        endings.setdefault(planned.row, []).append(of_trial(planned.trial))
    for index, row in enumerate(plan.sweep.rows):
        ended = of_seeds(endings.get(index, []))
        if ended and ended.still_falls:
            falls.append(f"{row.name} ({ended.share:.1%})")
    if not falls:
        return []
    return [
        f"not converged: {', '.join(falls)}; the perplexity still fell by more than {LIMIT:.0%} over the last "
        f"{FALLEN:.0%} of the steps"
    ]
