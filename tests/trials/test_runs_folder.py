"""The names of trials' folders, and finding a finished trial by what a user calls it."""

import json
from pathlib import Path

import pytest
from helpers import a_result

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.runs_folder import MOST_LISTED, find
from transformer_pl.trials.trial import TRIAL_FOLDER, Trial, trial_folder, trial_id

ID = "0123456789ab"


@pytest.fixture
def runs(tmp_path):
    for number in range(MOST_LISTED + 3):
        trial = Trial(tmp_path / "trials" / f"base-s{number}-{number:012x}")
        trial.make()
        trial.finish(a_result(id=f"{number:012x}"))
    return tmp_path


@pytest.mark.parametrize("name", ["nothing", "base", "s1", "x" * 5000, "\0"])
def test_a_name_of_no_trial_or_of_several_lists_the_trials(runs, name):
    with pytest.raises(InputError) as caught:
        find(runs, name)
    assert len(caught.value.messages) == 1
    assert 1 < str(caught.value).count("base-s") <= MOST_LISTED


def test_a_trial_is_found_by_its_id_its_name_a_part_of_it_or_its_folder(runs, tmp_path):
    name = f"base-s7-{7:012x}"
    for word in (f"{7:012x}", name, "base-s7-", str(runs / "trials" / name)):
        assert find(runs, word).folder == runs / "trials" / name
    assert find(tmp_path / "empty", str(runs / "trials" / name)).id == f"{7:012x}"


@pytest.fixture
def planned(runs):
    """Two sweeps that share trials: table3-A at two scales, its second scale with other trials."""
    for scale, first in (("demo", 0), ("multi30k", 5)):
        rows = [{"row": row, "seed": seed, "id": f"{first + n:012x}"} for n, (row, seed) in enumerate(ROWS)]
        folder = runs / "sweeps" / f"table3-A@{scale}"
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps({"name": "table3-A", "trials": rows}))
    return runs


ROWS = [("base", 1), ("base", 2), ("N=2 h=4", 1)]


def test_a_trial_is_found_by_its_sweep_its_row_and_its_seed(planned):
    assert find(planned, "table3-A@demo/base/s2").id == f"{1:012x}"
    assert find(planned, "table3-A@multi30k/N=2 h=4/s1").id == f"{7:012x}"
    assert find(planned, "table3-A@multi30k/N=2 h=4").id == f"{7:012x}"  # its only seed
    for several in ("table3-A/base/s1", "table3-A@demo/base"):  # two scales, two seeds
        with pytest.raises(InputError, match="but 2 match"):
            find(planned, several)


@pytest.mark.parametrize("seed", [1, 4_294_967_295])
@pytest.mark.parametrize("row", ["base", "x" * 200, "-x" * 90, "a-s1 " * 40, "h=4 " + "y" * 60, "a/b ..", "é ☃"])
def test_a_folder_has_whole_words_of_its_row_and_its_seed_and_id(row, seed):
    name = trial_folder(row, seed, ID)
    assert TRIAL_FOLDER.fullmatch(name) and trial_id(name) == ID and name.endswith(f"s{seed}-{ID}")
    assert len(name) < 80 and Path(name).name == name and name.isascii()


def test_a_folder_is_called_like_its_row():
    assert trial_folder("base", 3, ID) == f"base-s3-{ID}"
    assert trial_folder("h=1 p_drop=0.0", 12, ID) == f"h=1-p_drop=0.0-s12-{ID}"
    assert trial_folder("N=2 " + "y" * 60, 1, ID) == f"N=2-s1-{ID}"


def test_a_trial_that_was_found_keeps_its_config_while_another_command_trains_it_again(runs):
    trial = Trial(runs / "trials" / f"base-s1-{1:012x}")
    trial.finish(a_result(id=f"{1:012x}", config={"model.h": 4, "decode.beam": 3}))
    found = find(runs, trial.id)
    trial.clear()
    assert (found.config.model.h, found.config_with({"decode.alpha": 0.5}).decode.beam) == (4, 3)
    with pytest.raises(InputError, match="must be a finished trial"):
        _ = trial.config  # and not the defaults
