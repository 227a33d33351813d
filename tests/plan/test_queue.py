"""What a grid trains next: no weights twice, and nothing that another command trains."""

import pytest
from grids import small_grid

from transformer_pl.plan.plan import CostEstimate, plan_trials
from transformer_pl.plan.queue import GridQueue
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.trials.flops import Cost
from transformer_pl.trials.runs_folder import RunsFolder


@pytest.fixture
def trials(tmp_path):
    """Base, a trial that differs from it in decoding alone, and another one; each costs less than the one before."""
    file = small_grid(tmp_path / "grid", ("base", "decode.beam=1", "model.h=4"), (1,))
    trials = plan_trials(read_sweep(file), RunsFolder(tmp_path / "runs"))
    assert trials[0].identity.weights == trials[1].identity.weights != trials[2].identity.weights
    for one in trials:
        one.folder.make()
    return trials


def queue_of(trials):
    return GridQueue(trials, {one.place: CostEstimate(Cost(1, 3.0 - one.place), None) for one in trials})


def test_trials_that_share_weights_are_trained_one_after_the_other(trials):
    base, beam, heads = trials
    queue = queue_of(trials)
    assert queue.next(set()) is base and queue.next({base.identity.weights}) is heads
    assert queue.next({base.identity.weights, heads.identity.weights}) is None and queue.remaining() == (1, 2.0)
    assert queue.next({heads.identity.weights}) is beam and queue.remaining() == (0, 0.0) and queue.waits() is None


def test_what_another_command_trains_waits_with_all_that_shares_its_weights(trials):
    base, beam, heads = trials
    queue = queue_of(trials)
    with beam.folder.lock.hold():
        assert queue.next(set()) is heads and queue.next(set()) is None and queue.waits()
    assert queue.next(set()) is base
    queue.hold(base)
    assert queue.remaining().trials == 2


def test_an_ending_counts_that_another_command_has_brought_about_since(trials):
    """A trial that had failed before is tried again."""
    base, *_ = trials
    base.folder.set_status("failed", why="a full disk")
    queue = queue_of(trials)
    assert queue.ended_elsewhere(base) is None
    base.folder.set_status("failed", why="the disk is still full")
    assert queue.ended_elsewhere(base) == "failed"
