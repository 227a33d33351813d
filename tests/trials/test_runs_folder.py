"""Finding a finished trial by what a user calls it."""

import pytest
from helpers import a_result

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.runs_folder import MOST_LISTED, find
from transformer_pl.trials.trial import Trial


@pytest.fixture
def runs(tmp_path):
    for number in range(MOST_LISTED + 3):
        trial = Trial(tmp_path / "trials" / f"demo-base-s{number}-{number:012x}")
        trial.make()
        trial.finish(a_result(id=f"{number:012x}"))
    return tmp_path


@pytest.mark.parametrize("name", ["nothing", "base", "s1", "x" * 5000, "\0"])
def test_a_name_of_no_trial_or_of_several_lists_the_trials(runs, name):
    with pytest.raises(InputError) as caught:
        find(runs, name)
    assert len(caught.value.messages) == 1
    _, *listed = str(caught.value).splitlines()
    assert 1 < len(listed) <= MOST_LISTED + 1 and all("demo-base-s" in line for line in listed[:MOST_LISTED])


def test_a_trial_is_found_by_its_id_its_name_a_part_of_it_or_its_folder(runs, tmp_path):
    name = f"demo-base-s7-{7:012x}"
    for word in (f"{7:012x}", name, "base-s7-", str(runs / "trials" / name)):
        assert find(runs, word)["folder"] == runs / "trials" / name
    assert find(tmp_path / "empty", str(runs / "trials" / name))["id"] == f"{7:012x}"
