"""Which checkpoints are saved when, and which one a trial goes on from: step by step, without a model.

test_training.py and test_crashes.py do the same with real trainings.
"""

import random
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import flip
from lightning.pytorch.utilities import rank_zero_only

from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import sha256
from transformer_pl.runtime.signals import Stopped
from transformer_pl.training import checkpoint
from transformer_pl.training.checkpoint import Checkpoints
from transformer_pl.training.logger import TrialLogger


class Run:
    """A training: so many steps of so many parts, with a validation every `val_every` steps. It notes what is saved."""

    is_global_zero, world_size, global_rank, logger = True, 1, 0, None

    def __init__(self, checkpoints, max_steps=12, val_every=6, parts=2):
        self.checkpoints, self.max_steps, self.accumulate_grad_batches = checkpoints, max_steps, parts
        self.val_check_batch, self.global_step, self.batches = val_every * parts, 0, 0
        self.strategy = SimpleNamespace(reduce_boolean_decision=lambda value, all: value)
        self.lightning_module = SimpleNamespace(stop_if_diverged=self.check, weights=self.weights)
        self.saved, self.checked = [], []
        checkpoints.setup(self, None, "fit")
        checkpoints.on_train_start(self, None)

    def check(self):
        self.checked.append(self.global_step)

    def weights(self):
        return {"w": torch.full((2,), float(self.global_step))}

    def save_checkpoint(self, path):
        self.saved.append(self.global_step)
        torch.save({"step": self.global_step}, path)

    def part(self):
        self.checkpoints.on_train_batch_start(self, None, None, self.batches)
        self.batches += 1
        self.global_step = self.batches // self.accumulate_grad_batches
        self.checkpoints.on_train_batch_end(self, None, None, None, self.batches - 1)
        if self.batches % self.val_check_batch == 0:
            self.checkpoints.on_validation_end(self, None)

    def to_the_end(self):
        while self.global_step < self.max_steps:
            self.part()
        self.checkpoints.on_train_end(self, None)
        return self.saved


@pytest.fixture(autouse=True)
def handlers():
    """Those of the process, as they were."""
    before = [(signum, signal.getsignal(signum)) for signum in (signal.SIGINT, signal.SIGTERM)]
    yield
    for signum, handler in before:
        signal.signal(signum, handler)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("steps", "saved"), [(12, [6, 12]), (8, [6, 8]), (3, [3])])
def test_a_checkpoint_at_every_validation_and_at_the_end(tmp_path, steps, saved, parts):
    run = Run(Checkpoints(tmp_path / "new", 1), max_steps=steps, parts=parts)
    assert run.to_the_end() == saved and run.checked == [steps]
    names = {f"{kept}.{kind}" for kept in ("last", "previous")[: len(saved)] for kind in ("ckpt", "sha256")}
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    kept = [torch.load(tmp_path / "new" / f"{name}.ckpt")["step"] for name in ("last", "previous")[: len(saved)]]
    assert kept == saved[::-1]


@pytest.mark.parametrize(
    ("minutes", "saved"),
    [(2.0, [2, 4, 6, 8, 10, 12]), (2.01, [3, 6, 9, 12]), (1.0, list(range(1, 13))), (9.0, [6, 12])],
)
def test_a_checkpoint_so_many_minutes_after_the_last(tmp_path, monkeypatch, minutes, saved):
    """Steps of a minute here. A validation's counts as one; a checkpoint of a state that has diverged is not saved."""
    checkpoints = Checkpoints(tmp_path, 1, minutes)
    run = Run(checkpoints)
    began = checkpoints._saved
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: began + 60 * run.global_step)
    assert run.to_the_end() == saved
    assert run.checked == [step for step in saved if step % 6] + [12]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("step", "saved"), [(5, [5]), (6, [6]), (12, [6, 12])])
def test_who_is_asked_to_stop_saves_after_the_step(tmp_path, step, saved, signum):
    """Where a validation comes next, it is done before. A second signal ends the process at once."""
    run = Run(Checkpoints(tmp_path, 1))
    while run.batches < 2 * step - 1:  # up to the middle of the step
        run.part()
    signal.raise_signal(signum)
    assert signal.getsignal(signum) == signal.SIG_DFL
    with pytest.raises(Stopped) as stopped:
        run.to_the_end()
    assert stopped.value.exit_code == 128 + signum and run.saved == saved


def test_a_training_that_ends_between_validations_stops_after_its_last_checkpoint(tmp_path):
    run = Run(Checkpoints(tmp_path, 1), max_steps=8)
    while run.batches < 15:
        run.part()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped):
        run.to_the_end()
    assert run.saved == [6, 8]


def test_another_rank_s_signal_stops_this_one_too(tmp_path):
    run = Run(Checkpoints(tmp_path, 1))
    run.strategy.reduce_boolean_decision = lambda value, all: run.global_step == 3 and not all
    with pytest.raises(Stopped) as stopped:
        run.to_the_end()
    assert run.saved == [3] and stopped.value.exit_code == 143


def test_a_rank_that_is_not_the_first_writes_nothing(tmp_path):
    run = Run(Checkpoints(tmp_path, 2))
    run.is_global_zero, run.save_checkpoint = False, run.saved.append
    run.to_the_end()
    assert len(run.saved) == 2 and not list(tmp_path.iterdir())


def test_a_folder_that_has_vanished_is_not_made_anew(tmp_path):
    run = Run(Checkpoints(tmp_path / "checkpoints", 1))
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(FileNotFoundError):
        run.to_the_end()
    assert not run.saved


@pytest.mark.parametrize(("average", "kept"), [(1, []), (2, [12, 18]), (3, [6, 12, 18])])
def test_the_weights_of_the_last_validations_are_kept(tmp_path, average, kept):
    checkpoints = Checkpoints(tmp_path, average)
    Run(checkpoints, max_steps=18).to_the_end()
    names = {f"weights.{step:09d}.{kind}" for step in kept for kind in ("pt", "sha256")}
    assert {path.name for path in tmp_path.glob("*weights*")} == names
    mean = checkpoints.averaged()
    assert mean is None if average == 1 else torch.equal(mean["w"], torch.full((2,), float(np.mean(kept))))


def test_of_fewer_weights_all_are_averaged(tmp_path):
    """Also where an older version wrote no digest. Without any there is no average."""
    checkpoints = Checkpoints(tmp_path, 5)
    assert checkpoints.averaged() is None
    for step in (1, 2):
        torch.save({"w": torch.tensor([float(step)])}, tmp_path / f"weights.{step:09d}.pt")
        assert checkpoints.averaged() == {"w": torch.tensor([1 / 2 + step / 2])}


def test_whole_numbers_are_not_averaged_but_those_of_the_last(tmp_path):
    for step, count in ((1, 7), (2, 123456789)):
        state = {"w": torch.tensor([float(step)]), "count": torch.tensor(count), "byte": torch.tensor(200).byte()}
        torch.save(state, tmp_path / f"weights.{step:09d}.pt")
    mean = Checkpoints(tmp_path, 2).averaged()
    assert (mean["w"].item(), mean["count"].item(), mean["byte"].item()) == (1.5, 123456789, 200)


def test_a_checkpoint_of_a_gpu_is_read_without_one(tmp_path, monkeypatch):
    """The tensors are tagged as those of a GPU, and the random state of one is kept."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    run = Run(Checkpoints(tmp_path, 2))
    run.to_the_end()
    torch.save({"global_step": 5, "metrics": {"bytes": 3}, "w": torch.ones(2)}, tmp_path / "tagged.ckpt")
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(tmp_path / "tagged.ckpt", weights_only=True)
    checkpoints = Checkpoints(tmp_path, 2)
    assert checkpoints.logged_until(tmp_path / "tagged.ckpt") == (5, {"bytes": 3})
    assert checkpoints.logged_until(None) == (0, None)
    assert checkpoints.averaged()["w"].device.type == "cpu"
    checkpoint._restore_random_state(checkpoint._random_state() | {"cuda": torch.zeros(16, dtype=torch.uint8)})


def test_weights_that_cannot_be_read_are_set_aside_with_every_checkpoint(tmp_path):
    """No checkpoint can make them again."""
    checkpoints = Checkpoints(tmp_path, 2)
    Run(checkpoints).to_the_end()
    flip(tmp_path / "weights.000000012.pt")
    with pytest.raises(InputError, match=r"000000012\.pt: cannot be averaged: its bytes .* set aside as weights"):
        checkpoints.averaged()
    assert not list(tmp_path.glob("*.ckpt")) and (tmp_path / "weights.000000012.pt.damaged").exists()


def test_the_log_goes_on_where_its_checkpoint_was(tmp_path):
    run = Run(Checkpoints(tmp_path, 1))
    run.logger = TrialLogger(tmp_path, 12, "name", [], {})
    run.logger.lines.append("a line")
    saved = {}
    run.checkpoints.on_save_checkpoint(run, None, saved)
    assert saved == {"metrics": ["a line"]}
    run.logger = None
    run.checkpoints.on_save_checkpoint(run, None, {})


# ---------------------------------------------------------------------------------------------------------------------
# Going on


@pytest.fixture
def folder(tmp_path):
    """With the checkpoints of steps 12 and 6."""
    Run(Checkpoints(tmp_path, 1)).to_the_end()
    return tmp_path


def test_the_newest_whole_checkpoint_is_gone_on_from(folder, capsys):
    checkpoints = Checkpoints(folder, 1)
    assert checkpoints.newest() == folder / "last.ckpt" and not capsys.readouterr().err
    flip(folder / "last.ckpt")
    assert checkpoints.newest() == folder / "previous.ckpt"
    told = capsys.readouterr().err
    assert f"{folder / 'last.ckpt'}: is not whole; continuing from previous.ckpt; it is set aside as last.ckpt" in told
    assert {path.name for path in folder.glob("last*")} >= {"last.ckpt.damaged"}
    assert not (folder / "last.sha256").exists() and checkpoints.newest() == folder / "previous.ckpt"
    (folder / "previous.sha256").unlink()
    assert checkpoints.newest() is None and "continuing from the beginning" in capsys.readouterr().err
    assert Checkpoints(folder / "none", 1).newest() is None and not capsys.readouterr().err


def test_a_checkpoint_is_whole_by_any_digest_of_the_folder(folder, capsys):
    """A process may have died between two renames: the digest is put right."""
    (folder / "last.sha256").rename(folder / "new.sha256")
    assert Checkpoints(folder, 1).newest() == folder / "last.ckpt" and not capsys.readouterr().err
    assert (folder / "last.sha256").read_text() == sha256(folder / "last.ckpt")


def test_only_the_first_rank_sets_aside(folder, monkeypatch, capsys):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    flip(folder / "last.ckpt")
    before = {path.name for path in folder.iterdir()}
    assert Checkpoints(folder, 1).newest() == folder / "previous.ckpt"
    assert {path.name for path in folder.iterdir()} == before and not capsys.readouterr().err


def test_what_is_no_file_is_no_checkpoint(folder):
    for name in ("last.ckpt", "last.sha256"):
        (folder / name).unlink()
        (folder / name).mkdir()
    assert Checkpoints(folder, 1).newest() == folder / "previous.ckpt"


def draws():
    return torch.rand(2).tolist(), random.random(), np.random.random()


def test_random_numbers_go_on_where_they_were(tmp_path):
    """Not before the first batch: Lightning draws some while it starts. Nor with another number of ranks."""
    checkpoints = Checkpoints(tmp_path, 1)
    Run(checkpoints)
    state = checkpoints.state_dict()
    assert len(state["random"]) == 1
    expected = draws()
    for ranks, same in ((1, True), (2, False)):
        later = Checkpoints(tmp_path, 1)
        later.accumulate = 2
        later.load_state_dict(state | {"random": state["random"] * ranks})
        run = Run(later)
        draws()
        run.part()
        found = draws()
        assert (found == expected) == same
        run.part()
        assert draws() != expected


def test_the_seconds_of_earlier_processes_are_added(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(checkpoint.time, "perf_counter", lambda: now)
    first, second = Checkpoints(tmp_path, 1), Checkpoints(tmp_path, 1)
    Run(first)
    now = 130.0
    state = first.state_dict()
    assert state["seconds"] == 30 and state["accumulate"] == 2
    second.accumulate = 2
    second.load_state_dict(state)
    Run(second)
    now = 137.0
    assert second.state_dict()["seconds"] == 37


def test_a_checkpoint_of_an_older_version_does_not_say_its_parts(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.accumulate = 4
    checkpoints.load_state_dict({"seconds": 1.0, "random": []})
    with pytest.raises(InputError, match=r"trainer\.accumulate = 4: must be what this trial was begun with, 1"):
        checkpoints.load_state_dict({"seconds": 1.0, "random": [], "accumulate": 1})
