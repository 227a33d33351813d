"""What a plan says under its table: of finished rows, whether they have converged."""

from transformer_pl.experiments.plan import Plan
from transformer_pl.trials.convergence import FALLEN, LIMIT, of_seeds, of_trial


def plan_notes(plan: Plan) -> list[str]:
    """The lines under the plan of a sweep."""
    return convergence_notes(plan)


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
