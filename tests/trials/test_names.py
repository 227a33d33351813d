"""The names of trials' folders."""

import pytest

from transformer_pl.trials.names import TRIAL_FOLDER, trial_folder, trial_id

ID = "0123456789ab"


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
