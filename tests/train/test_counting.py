"""The FLOPs of a training whose parts are a user's own: what was computed, or nothing."""

import pytest
import tiny_trials

from tests.train import counted_parts as parts
from transformer_pl.runtime.signals import Stopped

pytestmark = pytest.mark.usefixtures("unrehearsed")


def path(part):
    return f"{part.__module__}.{part.__name__}"


def flops(runs, **keys):
    return tiny_trials.train(runs, keys)[1].result().flops


@pytest.fixture(scope="module")
def of_base(tmp_path_factory):
    with tiny_trials.unrehearsed():
        return flops(tmp_path_factory.mktemp("base") / "runs")


@pytest.mark.parametrize("kind", parts.LOSSES)
def test_the_passes_of_a_loss_are_counted_by_their_size_with_gradient_and_without(tmp_path, of_base, kind):
    """A backward pass costs two forward passes."""
    keys = {"optim.loss": path(parts.Loss), "optim.loss.kind": kind, "trainer.accumulate": 2}
    passes = parts.LOSSES[kind][1]
    assert flops(tmp_path / "runs", **keys) == (passes and pytest.approx(passes * of_base))


def test_a_stopped_training_has_computed_as_much(tmp_path, monkeypatch):
    monkeypatch.setenv("STOPPED", str(tmp_path / "stopped"))
    (tmp_path / "whole").mkdir()
    keys = {"optim.loss": path(parts.StoppedLoss), "data.batches": path(parts.Half)}
    with pytest.raises(Stopped):
        tiny_trials.train(tmp_path / "runs", keys)
    found = flops(tmp_path / "runs", **keys)  # continued
    assert found == flops(tmp_path / "whole" / "runs", **keys)


@pytest.mark.parametrize(("batches", "share"), [(parts.Renamed, 1.0), (parts.Half, 0.5)])
def test_batches_cost_as_much_as_they_hold(tmp_path, batches, share):
    """Each time a little more or less than a mean batch, and more than half where the number of sentences is odd."""
    small = {"data.batch_tokens": 128, "optim.max_steps": 8}
    (tmp_path / "base").mkdir()
    whole = flops(tmp_path / "base" / "runs", **small)
    keys = {"data.batches": path(batches), "optim.loss": path(parts.Loss)} | small
    assert flops(tmp_path / "runs", **keys) == pytest.approx(2 * share * whole, rel=0.1)
