"""What the tests of rehearsals share: the config of a row on a little text."""

import pytest
import tiny_trials
from helpers import little_text

from transformer_pl.config.levels import Level
from transformer_pl.trials.trial_config import trial_config


@pytest.fixture(scope="session")
def row(tmp_path_factory):
    """Make the config of a row of 40 steps with these keys."""
    small = tiny_trials.TINY | {"optim.max_steps": 40, "trainer.val_every": 10, "trainer.log_every": 5}
    small |= {"data.path": str(little_text(tmp_path_factory.mktemp("text")))}
    return lambda keys: trial_config([Level("test", small | keys)])
