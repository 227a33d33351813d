"""What a plan says under its table: the regime of its trainings, and which finished rows had not converged."""

from transformer_pl.experiments.plan import Plan
from transformer_pl.experiments.regime import describe_regime, regime
from transformer_pl.trials.convergence import FALLEN, LIMIT, of_seeds, of_trial
from transformer_pl.trials.identity import same_row


def plan_notes(plan: Plan) -> list[str]:
    """The lines under the plan of a sweep."""
    return [regime_note(plan), *convergence_notes(plan)]


def regime_note(plan: Plan) -> str:
    """How the rows are trained, beside the paper. The first row stands for base where base is not among the rows."""
    first = {planned.row: planned for planned in reversed(plan.trials)}
    by_row = {
        row: regime(one.config, one.prepared, plan.estimates[row].cost.params) for row, one in sorted(first.items())
    }
    base = next((row for row in by_row if same_row(first[row].config, plan.sweep.base)), 0)
    return describe_regime(by_row[base], by_row.values())


def convergence_notes(plan: Plan) -> list[str]:
    """The rows whose finished trials had not converged."""
    falls = []
    for index, row in enumerate(plan.sweep.rows):
        ended = of_seeds([of_trial(planned.trial) for planned in plan.trials if planned.row == index])
        if ended and ended.still_falls:
            falls.append(f"{row.name} ({ended.share:.1%})")
    if not falls:
        return []
    return [
        f"not converged: {', '.join(falls)}; the perplexity still fell by more than {LIMIT:.0%} over the last "
        f"{FALLEN:.0%} of the steps"
    ]
