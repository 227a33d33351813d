"""The names of trials' folders, and finding a finished trial by what a user calls it."""

import pytest
from helpers import a_result

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.runs_folder import MOST_LISTED, find
from transformer_pl.trials.trial import TRIAL_FOLDER, Trial, trial_folder, trial_id

ID = "0123456789ab"


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
    assert 1 < str(caught.value).count("demo-base-s") <= MOST_LISTED


def test_a_trial_is_found_by_its_id_its_name_a_part_of_it_or_its_folder(runs, tmp_path):
    name = f"demo-base-s7-{7:012x}"
    for word in (f"{7:012x}", name, "base-s7-", str(runs / "trials" / name)):
        assert find(runs, word)["folder"] == runs / "trials" / name
    assert find(tmp_path / "empty", str(runs / "trials" / name))["id"] == f"{7:012x}"


@pytest.mark.parametrize("seed", [1, 4_294_967_295])
@pytest.mark.parametrize("length", [1, 50, 60, 61, 200])
def test_a_name_keeps_its_seed_and_its_id_however_long_it_is(length, seed):
    for difference in ("x" * length, "-x" * length, "a-s1 " * length):
        name = trial_folder(f"demo-{difference}-s{seed}", ID)
        assert name.endswith(f"-s{seed}-{ID}") and len(name) <= 60 + 1 + len(ID)
        assert TRIAL_FOLDER.fullmatch(name) and trial_id(name) == ID and "--" not in name


def test_a_short_name_is_whole():
    assert trial_folder("demo-h=1 p_drop=0.0-s12", ID) == f"demo-h-1-p-drop-0.0-s12-{ID}"
    assert trial_folder("missing", ID) == f"missing-{ID}"
