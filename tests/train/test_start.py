"""Trainings that begin where another has ended: with its weights, or with all of its state."""

import shutil

import pytest
import tiny_trials
import torch
from helpers import command
from tiny_trials import TINY

from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.trial_folder import STATE, TrialFolder

STILL = {"optim.lr_scale": 1e-12}  # nothing moves by more than rounding
LONGER = {"optim.max_steps": 7, "decode.average": 2}


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    """A finished trial that has kept its last state, in a runs folder."""
    folder = tmp_path_factory.mktemp("trunk")
    code, trial = tiny_trials.train(folder / "runs", {"trainer.keep_state": "on"})
    assert code == 0
    return trial


@pytest.fixture
def branch(trunk, tmp_path):
    """Trains a trial that begins with the trunk, in a copy of its runs folder."""

    def train(**keys):
        runs = tmp_path / f"runs{len(list(tmp_path.iterdir()))}"
        return tiny_trials.train_from(trunk, runs, {key.replace("__", "."): value for key, value in keys.items()})

    return train


def equal(weights, others, names=None):
    return all(torch.equal(weights[name], others[name]) for name in names or weights)


def test_a_training_begins_with_the_weights_of_its_start(branch, trunk):
    code, trial = branch(**{"optim.lr_scale": 1e-12})
    assert code == 0
    theirs = trunk.weights()
    assert all(torch.allclose(value, theirs[name], atol=1e-6) for name, value in trial.weights().items())
    assert trial.result().flops_before == trunk.result().flops == trial.result().flops


def test_weights_that_the_start_has_not_are_new_and_the_others_are_its_own(branch, trunk, unrehearsed):
    own = {"model.position": "ablations.learned_position.LearnedPosition"} | STILL
    code, trial = branch(**own)
    assert code == 0
    theirs, ours = trunk.weights(), trial.weights()
    shared = ours.keys() & theirs.keys()
    assert shared < ours.keys() and all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in shared)


def test_frozen_weights_stay_and_the_others_are_trained(branch, trunk):
    code, trial = branch(optim__freeze="encoder.*,embedding.*")
    assert code == 0
    theirs, ours = trunk.weights(), trial.weights()
    frozen = [name for name in ours if name.startswith(("encoder.", "embedding."))]
    assert equal(ours, theirs, frozen) and not any(torch.equal(ours[n], theirs[n]) for n in ours.keys() - {*frozen})


def test_a_training_that_goes_on_is_one_training(branch, trunk, tmp_path):
    """Bit for bit, with the schedule, the batches and the averages of the training that was not interrupted."""
    _, whole = tiny_trials.train(tmp_path / "whole" / "runs", LONGER | {"data.path": trunk.runs.parent / "text"})
    code, trial = branch(model__start_with="all", **LONGER)
    assert code == 0 and equal(trial.weights(), whole.weights())
    lines = {line["step"]: line["train/loss"] for line in whole.metrics() if "train/loss" in line}
    steps = trunk.result().steps
    assert {line["step"]: line["train/loss"] for line in trial.metrics() if "train/loss" in line} == {
        step: loss for step, loss in lines.items() if step > steps
    }
    result = trial.result()
    assert result.flops + result.flops_before == pytest.approx(whole.result().flops)
    assert result.steps_before == trunk.result().steps


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"model.start": "0123456789ab"}, "model.start"),
        ({"model.start": "base"}, "model.start"),
        ({"model.d_ff": 1024}, "shape"),
        ({"data.vocab_size": 200}, "tokens"),
        ({"model.start": None, "model.start_with": "all"}, "model.start_with"),
        ({"optim.freeze": "encodr.*"}, "encoder"),
        ({"optim.freeze": "*"}, "optim.freeze"),
    ],
)
def test_a_start_that_cannot_be_is_refused(branch, keys, named):
    with pytest.raises(InputError, match=named):
        branch(**keys)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"optim.max_steps": 4}, "optim.max_steps"),  # it would change nothing
        ({"optim.beta1": 0.5}, "optim.beta1"),
        ({"optim.optimizer": "torch.optim.SGD"}, "optim.optimizer"),
        ({"optim.freeze": "encoder.*"}, "optim.freeze"),
        ({"trainer.accumulate": 2}, "trainer.accumulate"),
        ({"model.position": "ablations.learned_position.LearnedPosition"}, "weights"),
    ],
)
def test_a_training_goes_on_only_from_a_state_that_is_its_own(branch, unrehearsed, keys, named):
    with pytest.raises(InputError, match=named):
        branch(**{"model.start_with": "all"} | LONGER | keys)


PARTS = """
import torch
from torch import nn

from transformer_pl.data.batches import TrainStream
from transformer_pl.model.loss import SmoothedCrossEntropy

class Renamed(TrainStream):
    pass

class Weighted(SmoothedCrossEntropy, nn.Module):
    def __init__(self, config, optim):
        nn.Module.__init__(self)
        SmoothedCrossEntropy.__init__(self, config, optim)
        self.w = nn.Parameter(torch.zeros(()))

class Auxiliary(SmoothedCrossEntropy):
    def __init__(self, config, optim):
        super().__init__(config, optim)
        self.auxiliary = {"none": torch.zeros(())}
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "parts_of_start.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path / "parts"))
    return "parts_of_start"


def test_what_is_counted_of_a_training_that_goes_on_is_its_own_part(trunk, parts, unrehearsed, tmp_path):
    """The passes of its model are counted where its batches are a user's own; those of the start are the start's."""
    keys = {"data.path": trunk.runs.parent / "text", "data.batches": f"{parts}.Renamed"}
    _, begun = tiny_trials.train(tmp_path / "begun", keys | {"trainer.keep_state": "on"})
    _, trial = tiny_trials.train_from(begun, tmp_path / "on", keys | LONGER | {"model.start_with": "all"})
    _, whole = tiny_trials.train(tmp_path / "whole", keys | LONGER)
    # The mean lengths of the sentences differ by rounding between two parts and a whole.
    assert trial.result().flops + begun.result().flops == pytest.approx(whole.result().flops, rel=0.1)


@pytest.mark.parametrize("loss", ["Weighted", "Auxiliary"])
def test_a_training_goes_on_only_with_a_loss_of_the_same_weights_and_losses(branch, parts, unrehearsed, loss):
    with pytest.raises(InputError, match=r"optim\.loss"):
        branch(model__start_with="all", optim__loss=f"{parts}.{loss}", **LONGER)


def test_a_finished_trial_stays_one_when_its_start_is_removed(branch, capsys):
    """It can be evaluated anew, too. What would have to be trained is refused."""
    _, trial = branch()
    (start,) = (path for path in (trial.runs / "trials").iterdir() if path.is_symlink())
    named = {"data.path": start.resolve().parents[1].parent / "text", "model.start": start.name[-12:]}
    start.unlink()

    def again(**keys):
        words = [f"--{key}={value}" for key, value in (TINY | named | keys).items()]
        with tiny_trials.in_a_command():
            return tiny_trials.main([f"--runs={trial.runs}", *words])

    written = trial.result()
    assert again() == 0 and trial.result() == written
    assert again(**{"decode.beam": 2}) == 0
    (other,) = (path for path in (trial.runs / "trials").iterdir() if path.name != trial.name)
    assert TrialFolder(other).result().weights_of == trial.id
    with pytest.raises(InputError, match=r"model\.start"):
        again(**{"optim.lr_scale": 2})


def test_a_training_does_not_go_on_from_a_state_that_was_not_kept(trunk, tmp_path):
    """It begins nowhere else without a word."""
    copy = tmp_path / "copy" / "trials" / trunk.name
    shutil.copytree(trunk.path, copy, ignore=shutil.ignore_patterns(STATE))
    keys = {"model.start_with": "all", "data.path": trunk.runs.parent / "text"} | LONGER
    with pytest.raises(InputError, match="keep_state"):
        tiny_trials.train_from(TrialFolder(copy), tmp_path / "runs", keys)


def test_a_result_knows_all_that_its_training_began_with(branch, trunk, tmp_path):
    _, first = branch(**STILL)
    _, second = tiny_trials.train_from(first, tmp_path / "second", {"data.path": trunk.runs.parent / "text"})
    assert second.result().starts == [first.weights_id, trunk.weights_id] and trunk.result().starts == []
    assert second.result().flops_before == first.result().flops + trunk.result().flops


@pytest.mark.slow
def test_two_processes_begin_with_the_weights_of_the_start(trunk, tmp_path):
    """Each process has them: the branch of two is that of one."""
    keys = {"data.path": trunk.runs.parent / "text", "model.p_drop": 0, "trainer.accelerator": "cpu"}
    words = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    for with_ in ("weights", "all"):
        for name, more in (("one", []), ("two", words)):
            runs = tmp_path / f"{name} {with_}"
            (runs / "trials").mkdir(parents=True)
            (runs / "trials" / trunk.name).symlink_to(trunk.path)
            begun = {"model.start": trunk.id, "model.start_with": with_, "optim.max_steps": 7}
            argv = [f"--{key}={value}" for key, value in (TINY | keys | begun).items()]
            done = command("train", f"--runs={runs}", *argv, *more, WANDB_MODE="disabled")
            assert done.returncode == 0, done.stdout + done.stderr
        one, two = (
            next(TrialFolder(path) for path in tmp_path.glob(f"{name} {with_}/trials/*") if path.name != trunk.name)
            for name in ("one", "two")
        )
        assert one.id == two.id and one.result().steps == two.result().steps
        for name in ("val/loss", "test/loss"):
            assert two.result().metrics[name] == pytest.approx(one.result().metrics[name], abs=1e-4)
        theirs = trunk.weights()
        assert not any(torch.equal(value, theirs[name]) for name, value in two.weights().items())
