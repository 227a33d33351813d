"""A sweep whose processes are killed and stopped at random moments ends as if nothing had been. See chaos.py."""

import pytest
from chaos import ROWS, chaos


@pytest.mark.slow
def test_a_sweep_in_a_storm(tmp_path):
    keys = {"optim.max_steps": 60, "trainer.val_every": 20, "trainer.checkpoint_minutes": 0.01}
    print(chaos(tmp_path, ROWS[:3], seeds=1, signals=6, seed=949, keys=keys))  # SIGKILLs of the sweep and a trial, too
