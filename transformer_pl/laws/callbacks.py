"""The laws of callbacks (`trainer.callbacks`), which the trainings of a rehearsal show."""

from lightning.pytorch.callbacks import EarlyStopping

from transformer_pl.config.components import import_component
from transformer_pl.laws.law import HOLDS, Finding, broken, untested
from transformer_pl.laws.small_training import Observer, SmallTraining
from transformer_pl.trials.identity import identity_callbacks


def it_leaves_the_trainer_as_it_is(training: SmallTraining) -> Finding:
    """It leaves the trainer's schedule, `accumulate_grad_batches` and `max_steps` as they are.

    Usual cause: a callback that goes by epochs, because the whole training is one epoch.
    """
    before, after = Observer.of["whole"].settings
    return HOLDS if before == after else broken(f"{before} are {after} at the end")


def what_only_watches_changes_nothing(training: SmallTraining) -> Finding:
    """A callback that says `in_identity: false` changes nothing: a training without it comes to the same end.

    Otherwise the result of the one would be taken for the other's.
    """
    counting = tuple(identity_callbacks(training.config))
    if counting == training.config.trainer.callbacks:
        return untested("none says in_identity: false")
    training.train("unwatched", counting)
    unequal = training.differences("whole", "unwatched")
    return broken(f"it changes {unequal}; leave in_identity out") if unequal else HOLDS


def what_counts_changes_something(training: SmallTraining) -> Finding:
    """A callback without `in_identity: false` makes another trial; one that changes nothing is named in a note."""
    counting = list(identity_callbacks(training.config))
    if not counting:
        return untested("all say in_identity: false")
    if any(issubclass(import_component(callback.path), EarlyStopping) for callback in counting):
        return untested("EarlyStopping stops trainings later than the rehearsal's")
    training.train("alone", ())
    remedy = "write in_identity: false beside the options of one that only watches"
    nothing = f"changed nothing in the few steps of the rehearsal; {remedy}"
    return Finding("holds", "" if training.differences("whole", "alone") else nothing)
