"""A little text for the trainings of several tests."""

import pytest
from helpers import little_text
from small_trainings import config

from transformer_pl.data.prepare import prepare


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Sentences of several lengths, and rules simple enough to learn."""
    folder = little_text(tmp_path_factory.mktemp("text"), 400, 30, 20)
    return prepare(config(data__path=str(folder)).data, folder / "runs")
