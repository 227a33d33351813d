"""What a plan says of the rows that begin from the weights of others (`model.start`)."""

from collections.abc import Sequence

from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.trials.trial import Trial

MOST_NAMED = 3  # weights in a line


def described_starts(missing: Sequence[Trial]) -> list[str]:
    """A line for each row with a start that is to be trained: which of its weights are new, and which unused.

    Raises an InputError for trials that cannot begin where they are to.
    """
    starting = [trial for trial in missing if trial.start]
    first = {*{(trial.place, trial.origin.row): trial for trial in reversed(starting)}.values()}  # of each row
    lines = collect_errors(lambda trial: _described(trial, trial in first), starting)
    return [line for line in lines.values() if line]


def _described(trial: Trial, is_first: bool) -> str:
    """The line of a trial, if it is the first one of its row: the weights of other seeds have the same names."""
    from transformer_pl.train.start import check_state, compare, config_of_start  # imports torch

    assert trial.start
    try:
        start = config_of_start(trial)
        check_state(trial, start)
        new, unused = compare(trial, start) if is_first else ([], [])
    except InputError as error:
        raise InputError(*(f"row `{trial.origin.row}`: {message}" for message in error.messages)) from None
    line = f"{trial.name}: begins from {trial.trunk.name if trial.trunk else trial.start.name}"
    return f"{line}{_named('new', new)}{_named('unused', unused)}" if is_first else ""


def _named(what: str, weights: Sequence[str]) -> str:
    """Some weights by name, such as `; new: ffn.gate.weight and 5 more`."""
    more = f" and {len(weights) - MOST_NAMED} more" if len(weights) > MOST_NAMED else ""
    return f"; {what}: {shown(', '.join(weights[:MOST_NAMED]))}{more}" if weights else ""
