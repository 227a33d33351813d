"""Options are the same as a command line, and as values of Python."""

import pytest

from transformer_pl.runtime.command_line import words_of
from transformer_pl.sweep.sweep_options import read_options

LINES = [
    "grid.yaml",
    "a/grid.yaml --scale multi30k --seeds 1,2 --set model.h=4 optim.warmup=1e2 --runs other --paper --plan",
    "grid.yaml --retune optim.lr_scale,optim.warmup --budget 3 --no-paper --parallel 2 --rerun --worker",
    "grid.yaml --launcher slurm --slurm options.yaml --parallel 5 --devices 2 --per-device 16",
    "search.yaml --devices 3 --per-device 2 --sampler tpe n_startup_trials=5 --pruner none --storage sqlite:///a.db",
]


@pytest.mark.core
@pytest.mark.parametrize("line", LINES)
def test_options_and_their_command_line_are_the_same(line):
    """That of plan.json, and of SLURM's workers."""
    options = read_options(line.split())
    assert read_options(words_of(options)) == options and sorted(words_of(options)) == sorted(line.split())
