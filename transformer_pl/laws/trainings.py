"""The law of every training, whatever parts it has."""

from transformer_pl.laws.law import HOLDS, Finding, broken, untested
from transformer_pl.laws.small_training import STEPS, SmallTraining
from transformer_pl.train.divergence import Diverged


def it_is_trained_and_scored(training: SmallTraining) -> Finding:
    """It is trained, validated, saved, evaluated, decoded and scored."""
    try:
        return HOLDS if training.train("whole").steps else broken("no step is trained")
    except Diverged as error:
        return untested(f"it diverges at step {error.step} of the {STEPS} of a rehearsal")
