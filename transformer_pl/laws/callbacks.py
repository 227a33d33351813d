"""The laws of callbacks (`trainer.callbacks`), which the trainings of a rehearsal show."""

from lightning.pytorch.callbacks import EarlyStopping

from transformer_pl.config.components import import_component
from transformer_pl.laws.law import HOLDS, Finding, broken, untested
from transformer_pl.laws.small_training import Observer, SmallTraining
from transformer_pl.task import LOSSES, best_goal, task_of
from transformer_pl.trials.identity import identity_callbacks


def it_leaves_the_trainer_as_it_is(training: SmallTraining) -> Finding:
    """It leaves the trainer's schedule, `accumulate_grad_batches` and `max_steps` as they are.

    Usual cause: a callback that goes by epochs, because the whole training is one epoch.
    """
    before, after = Observer.of["whole"].settings
    return HOLDS if before == after else broken(f"{before} are {after} at the end")


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


def it_goes_by_the_better_values_of_a_score(training: SmallTraining) -> Finding:
    """A callback that goes by a metric, such as EarlyStopping, has the `mode` in which that metric is better."""
    task = task_of(training.config.data)
    for callback in Observer.of["whole"].callbacks:
        metric, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if metric in (*LOSSES, *task.metrics, task.sample_metric) and mode in ("min", "max"):
            better = best_goal(metric, task).removesuffix("imize")
            if mode != better:
                return broken(f"it has mode = {mode} for {metric}; give it mode = {better}")
    return HOLDS


def it_leaves_the_rates_to_the_schedule(training: SmallTraining) -> Finding:
    """It leaves the learning rates to the schedule, which sets them anew for each step; another rate makes a note."""
    rates = Observer.of["whole"].other_rates
    remedy = "which sets it anew for each step; to change later rates, write a schedule"
    return Finding("holds", f"a rate is {rates}, {remedy}" if rates else "")
