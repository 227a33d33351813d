"""The laws of tasks (`data.task`)."""

from transformer_pl.laws.law import HOLDS, Finding, broken
from transformer_pl.laws.small_training import SmallTraining
from transformer_pl.task import checked_scores


class Subject:
    """A task, by the config that names it, and what it says of right lines, of those of others, and of longer ones."""

    def __init__(self, training: SmallTraining):
        self.config, sets = training.config, training.config.data.evaluated
        lines = [line for name in sets for line in training.prepared.text(name)[1]]
        self.references, self.hypotheses = lines, [lines, lines[::-1], [f"{line} {line}" for line in lines]]


def its_score_is_that_of_the_sums(subject: Subject) -> Finding:
    """Its metrics are finite, and its score is that of the sums of the numbers of lines."""
    for lines in subject.hypotheses:
        checked_scores(lines, subject.references, subject.config)  # raises an InputError with what `score` returns
    return HOLDS


def the_last_number_of_a_line_depends_on_its_reference_alone(subject: Subject) -> Finding:
    """The last number of a line depends on its reference alone, which the statistics assume.

    Usual cause: the length of the hypothesis stands last in place of that of the reference.
    """
    scores = [checked_scores(lines, subject.references, subject.config).statistics for lines in subject.hypotheses]
    for right, *others in zip(*([row[-1] for row in score] for score in scores), strict=True):
        if wrong := [other for other in others if other != right]:
            return broken(f"it is {right} for a right line, and {wrong[0]} for another with the same reference")
    return HOLDS
