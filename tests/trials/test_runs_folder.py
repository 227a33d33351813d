"""Finding a finished trial by what a user calls it."""

import pytest
from helpers import a_result

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.runs_folder import MOST_LISTED, find
from transformer_pl.trials.trial import Trial


@pytest.mark.parametrize("name", ["nothing", "base"])
@pytest.mark.parametrize("more", [0, 3])
def test_a_long_list_of_trials_says_how_many_more_there_are(tmp_path, name, more):
    for number in range(MOST_LISTED + more):
        trial = Trial(tmp_path / "trials" / f"demo-base-s{number}-{number:012x}")
        trial.make()
        trial.finish(a_result(id=f"{number:012x}"))
    with pytest.raises(InputError) as caught:
        find(tmp_path, name)
    _, *listed = str(caught.value).splitlines()
    told = [f"  and {more} more; see python -m transformer_pl.sweep --list --runs {tmp_path}"] if more else []
    assert len(listed) == MOST_LISTED + len(told) and listed[MOST_LISTED:] == told
