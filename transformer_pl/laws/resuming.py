"""The law of every training that was stopped, whatever parts it has."""

from transformer_pl.laws.law import HOLDS, Finding, broken, untested
from transformer_pl.laws.small_training import SmallTraining


def a_stopped_training_comes_to_the_same_end(training: SmallTraining) -> Finding:
    """A training that is stopped, and continued in another process, comes to the same weights and scores.

    Usual cause: a state that is neither saved (`state_dict` and `load_state_dict`, or a buffer) nor computed from the
    step.
    """
    if not training.trial("stopped").path.exists():
        return untested("the training ends at its first step")
    training.train("stopped")
    if training.device == "cuda":
        return untested("sums on a GPU may round differently each time")
    unequal = training.differences("whole", "stopped")
    return broken(f"it differs in {unequal}") if unequal else HOLDS
