"""A training that was interrupted goes on as if it had not been."""

import random
import signal
import tempfile
import time
from contextlib import nullcontext

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from small_trainings import Cut, Power, Signals, config, fit

from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import Stopped
from transformer_pl.train.checkpoint import Checkpoints
from transformer_pl.trials.lock import LockLost


class Random(L.Callback):
    """Draws from every generator before and after a step, as components and callbacks may."""

    def __init__(self):
        self.drawn = {}

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.drawn["before", batch_idx] = torch.rand(1).item(), random.random(), np.random.random()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.drawn["after", batch_idx] = torch.rand(1).item(), random.random(), np.random.random()


def weights_of(module):
    return [weight.detach() for weight in module.parameters()]


def without_rates(lines):
    return [(step, {name: value for name, value in line.items() if name != "tokens_per_s"}) for step, line in lines]


PARTS = config(trainer__accumulate=3, trainer__log_every=2, optim__max_steps=14, model__p_drop=0.2)


@pytest.fixture(scope="module")
def whole(prepared):
    noise = Random()
    module, lines = fit(prepared, PARTS, noise)
    return weights_of(module), without_rates(lines), noise.drawn


@pytest.mark.parametrize(
    ("cuts", "minutes"), [([Cut(part=22)], 0), ([Cut(validation=6)], 9), ([Cut(part=25), Cut(part=29)], 9)]
)
def test_a_training_goes_on_bit_for_bit(prepared, tmp_path, whole, cuts, minutes):
    """Fourteen steps of three parts each, in the middle of an epoch; validations at steps 6 and 12. Also twice."""
    lines, noise = [], Random()
    for cut in [*cuts, Cut()]:
        checkpoints = Checkpoints(tmp_path, 1, minutes)
        checkpoint, step = checkpoints.newest()
        lines = [(at, line) for at, line in lines if at <= step]
        try:
            module, lines = fit(prepared, PARTS, noise, cut, checkpoints, checkpoint=checkpoint, lines=lines)
        except Power:
            assert cut in cuts
    weights, expected, drawn = whole
    assert all(torch.equal(a, b) for a, b in zip(weights_of(module), weights, strict=True))
    assert without_rates(lines) == expected and noise.drawn == drawn
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt"}


@pytest.mark.parametrize(
    ("signum", "step"),
    [(signal.SIGTERM, 5), (signal.SIGINT, 6), (signal.SIGHUP, 8), (signal.SIGUSR1, 14), (signal.SIGXCPU, 5)],
)
def test_a_signal_stops_after_its_step_and_the_training_goes_on(prepared, tmp_path, whole, signum, step):
    """Where a validation comes next, it is done before: a training that is resumed does not validate again."""
    with pytest.raises(Stopped) as stopped:
        fit(prepared, PARTS, Random(), Signals(signum, step), Checkpoints(tmp_path), lines=(lines := []))
    assert stopped.value.exit_code == 128 + signum
    checkpoints = Checkpoints(tmp_path)
    checkpoint, saved = checkpoints.newest()
    assert saved == step
    module, lines = fit(prepared, PARTS, Random(), checkpoints, checkpoint=checkpoint, lines=lines)
    assert 0 < checkpoints.earlier_s < 100  # seconds of the training that was stopped
    assert all(torch.equal(a, b) for a, b in zip(weights_of(module), whole[0], strict=True))
    assert without_rates(lines) == whole[1]


def test_another_number_of_ranks_goes_on_with_the_sums_of_all(prepared, tmp_path):
    """A checkpoint in the middle of a log line, as two ranks write it: each has seen a part of the batches."""
    keys = config(trainer__log_every=12, model__p_drop=0.0)
    _, whole = fit(prepared, keys)
    with pytest.raises(Stopped):
        fit(prepared, keys, Signals(signal.SIGTERM, 5), Checkpoints(tmp_path))
    saved = torch.load(tmp_path / "last.ckpt")
    (sums,) = torch.tensor(saved["trained"]["sums"])
    saved["trained"]["sums"] = [(sums - sums // 3).tolist(), (sums // 3).tolist()]
    torch.save(saved, tmp_path / "last.ckpt")
    _, lines = fit(prepared, keys, Checkpoints(tmp_path), checkpoint=tmp_path / "last.ckpt")
    expected, found = (next(line["train/loss"] for _, line in one if "train/loss" in line) for one in (whole, lines))
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_checkpoint_that_cannot_be_loaded_is_named(prepared, tmp_path):
    assert Checkpoints(tmp_path).newest() == (None, 0)
    fit(prepared, config(), Checkpoints(tmp_path))
    checkpoint = tmp_path / "last.ckpt"
    assert Checkpoints(tmp_path).newest() == (checkpoint, 12)
    content = checkpoint.read_bytes()
    for damaged in (content[: len(content) // 2], b""):
        checkpoint.write_bytes(damaged)
        with pytest.raises(InputError, match=r"last\.ckpt"):
            Checkpoints(tmp_path).newest()


def test_no_checkpoint_passes_through_the_folder_of_temporary_files(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    fit(prepared, config(), Checkpoints(tmp_path / "checkpoints"))
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()


class Minutes(L.Callback):
    """The clock of the process, by which a step takes half a minute; and the steps that are saved."""

    def __init__(self, folder):
        self.now, self.folder, self.saved = 0.0, folder, []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.now += 30
        self.saved += [Checkpoints(self.folder).newest()[1]]


def test_minutes_pass_between_checkpoints(prepared, tmp_path, monkeypatch):
    """Since the last one, which a validation may have made: at step 6."""
    clock = Minutes(tmp_path)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    fit(prepared, config(), clock, Checkpoints(tmp_path, minutes=2))
    assert clock.saved == [0, 0, 0, 0, 4, 4, 6, 6, 6, 6, 10, 10]  # as the next step begins


@pytest.mark.parametrize("average", [1, 2])
def test_whoever_has_lost_the_trial_writes_nothing(prepared, tmp_path, average):
    """Another process trains it now, in the same folder."""

    def check():
        raise LockLost

    with pytest.raises(LockLost):
        fit(prepared, config(decode__average=average), Checkpoints(tmp_path, average, check=check))
    assert not list(tmp_path.iterdir())


def test_the_seconds_of_a_training_are_those_of_all_processes(prepared, tmp_path, monkeypatch):
    """Three, of which two are stopped."""
    clock = Minutes(tmp_path)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    seconds = []
    for last in (5, 8, 12):
        checkpoints = Checkpoints(tmp_path)
        checkpoint, _ = checkpoints.newest()
        stop = [Signals(signal.SIGTERM, last)] if last < 12 else []
        with pytest.raises(Stopped) if stop else nullcontext():
            fit(prepared, config(), clock, *stop, checkpoints, checkpoint=checkpoint)
        seconds.append(checkpoints.earlier_s)
        clock.now += 1000  # between two processes
    assert seconds == [0, 5 * 30, 8 * 30]


def test_a_checkpoint_counts_the_parts_of_a_batch(prepared, tmp_path):
    fit(prepared, config(optim__max_steps=6), Checkpoints(tmp_path))
    with pytest.raises(InputError, match=r"trainer\.accumulate"):
        more = config(trainer__accumulate=2)
        fit(prepared, more, Checkpoints(tmp_path), checkpoint=tmp_path / "last.ckpt")


# The average of the last checkpoints, Section 6.1


class Weights(L.Callback):
    """Remembers the weights before every validation and at the end, and those that are validated."""

    def __init__(self):
        self.seen, self.validated = {}, {}

    def on_validation_start(self, trainer, module):
        self.seen[trainer.global_step] = self.weights(module)

    on_train_end = on_validation_start

    def on_validation_epoch_end(self, trainer, module):
        self.validated[trainer.global_step] = self.weights(module)

    def weights(self, module):
        return {name: value.clone() for name, value in module.model.state_dict().items()}


def same(weights, others):
    return all(torch.equal(value, others[name]) for name, value in weights.items())


@pytest.mark.parametrize(("steps", "average", "kept"), [(24, 2, [18, 24]), (24, 3, [12, 18, 24]), (8, 9, [6, 8])])
def test_the_last_checkpoints_are_averaged(prepared, tmp_path, steps, average, kept):
    """Validations are at every sixth step. The end counts as one, and of fewer all are averaged."""
    weights, checkpoints = Weights(), Checkpoints(tmp_path, average)
    fit(prepared, config(optim__max_steps=steps, decode__average=average), weights, checkpoints)
    assert [int(path.name.split(".")[1]) for path in sorted(tmp_path.glob("weights.*"))] == kept
    for name, value in checkpoints.averaged(steps).items():
        mean = torch.stack([weights.seen[step][name] for step in kept]).mean(0)
        assert torch.allclose(value, mean, atol=1e-6) and not torch.equal(value, weights.seen[kept[-1]][name]), name


def test_a_validation_is_of_the_average_and_the_training_goes_on_from_its_own_weights(prepared, tmp_path):
    plain, averaged, checkpoints = Weights(), Weights(), Checkpoints(tmp_path, 2)
    fit(prepared, config(optim__max_steps=18), plain)
    fit(prepared, config(optim__max_steps=18, decode__average=2), averaged, checkpoints)
    assert all(same(weights, averaged.seen[step]) for step, weights in plain.seen.items())
    assert same(plain.validated[18], plain.seen[18]) and not same(averaged.validated[18], plain.seen[18])
    assert same(averaged.validated[18], checkpoints.averaged(18))


class Worsens(L.Callback):
    """Spoils the weights at every step from the thirteenth."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step >= 12:
            with torch.no_grad():
                module.model.embedding.weight.mul_(1.5)


@pytest.mark.parametrize("stops", [[], [8, 20]])
@pytest.mark.parametrize("average", [1, 2])
def test_the_best_validation_is_kept_as_it_was_measured(prepared, tmp_path, average, stops):
    """Of a training that goes on to a higher loss, whether or not it is stopped on the way."""
    settings, weights, lines = config(optim__max_steps=24, decode__average=average), Weights(), []
    for last in (*stops, 24):
        checkpoints = Checkpoints(tmp_path, average, select="best")
        checkpoint, _ = checkpoints.newest()
        stop = [Signals(signal.SIGTERM, last)] if last < 24 else []
        with pytest.raises(Stopped) if stop else nullcontext():
            fit(prepared, settings, Worsens(), weights, *stop, checkpoints, checkpoint=checkpoint, lines=lines)
    losses = {step: line["val/loss"] for step, line in lines if "val/loss" in line}
    best = min(losses, key=losses.get)
    assert checkpoints.best == best < 24 and len(losses) == 4
    scored = checkpoints.scored(24, weights.seen[24])
    assert same(weights.validated[best], scored) and not same(weights.seen[24], scored)
    assert [path.name for path in tmp_path.glob("best.*")] == [f"best.{best:09d}.pt"]


def test_without_a_validation_the_last_weights_are_the_best(prepared, tmp_path):
    weights, checkpoints = Weights(), Checkpoints(tmp_path, select="best")
    fit(prepared, config(optim__max_steps=4), weights, checkpoints)
    assert same(weights.seen[4], checkpoints.scored(4, weights.seen[4]))


def test_what_is_scored_is_kept_before_its_checkpoint(prepared, tmp_path):
    """A process that dies between the two goes on from the checkpoint before, with its best, and validates again."""

    class Dies(Checkpoints):
        def state_dict(self):
            if self.best == 12:
                raise Power
            return super().state_dict()

    with pytest.raises(Power):
        fit(prepared, config(decode__average=2), Dies(tmp_path, 2, select="best"))
    kept = {f"{kind}.{step:09d}.pt" for kind in ("weights", "best") for step in (6, 12)}
    assert {path.name for path in tmp_path.iterdir() if path.stat().st_size} == {*kept, "last.ckpt"}


def test_whole_numbers_are_not_averaged_but_those_of_the_last(tmp_path):
    for step, count in ((1, 7), (2, 123456789), (3, 4)):  # the last is of a later step than asked for
        state = {"w": torch.tensor([float(step)]), "count": torch.tensor(count), "byte": torch.tensor(200).byte()}
        torch.save(state, tmp_path / f"weights.{step:09d}.pt")
    mean = Checkpoints(tmp_path, 3).averaged(2)
    assert (mean["w"].item(), mean["count"].item(), mean["byte"].item()) == (1.5, 123456789, 200)


class Stops(L.Callback):
    """Ends the training after step 4, or does not."""

    def __init__(self, ends):
        self.ends = ends

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop |= self.ends and trainer.global_step == 4


class DoublesAtTheEnd(L.Callback):
    def __init__(self, dies=False):
        self.dies = dies

    @torch.no_grad()
    def on_train_end(self, trainer, module):
        if self.dies:
            raise Power
        for weight in module.parameters():
            weight.mul_(2)


@pytest.mark.parametrize("stops", [False, True])
def test_what_callbacks_do_at_the_end_is_done_once(prepared, tmp_path, stops):
    """Also if the process dies after it, or before it: then the end is trained again."""

    def fitted(folder, **options):
        checkpoints = Checkpoints(tmp_path / folder, minutes=0)
        checkpoint, _ = checkpoints.newest()
        callbacks = Stops(stops), DoublesAtTheEnd(**options), checkpoints
        return fit(prepared, config(optim__max_steps=6), *callbacks, checkpoint=checkpoint)[0].state_dict()

    whole = fitted("whole")
    with pytest.raises(Power):
        fitted("cut", dies=True)
    assert same(fitted("whole"), whole) and same(fitted("cut"), whole)


def test_a_training_that_a_callback_ends_is_validated_though_it_dies_before(prepared, tmp_path):
    lines = []
    with pytest.raises(Power):
        fit(prepared, config(), Stops(True), Cut(validation=4), Checkpoints(tmp_path, minutes=0), lines=lines)
    fit(prepared, config(), Stops(True), Checkpoints(tmp_path), checkpoint=tmp_path / "last.ckpt", lines=lines)
    assert [step for step, line in lines if "val/loss" in line] == [4]


@pytest.mark.filterwarnings("ignore:Checkpoint directory")  # it has files when the training goes on
def test_what_a_users_checkpoint_has_of_a_validation_is_saved(prepared, tmp_path):
    """Lightning's own comes before ours, so that a signal at a validation does not take it from it."""

    def users():
        return ModelCheckpoint(tmp_path / "best", "{step}", monitor="val/loss", save_top_k=-1)

    with pytest.raises(Stopped):
        fit(prepared, config(), users(), Signals(signal.SIGTERM, 6), Checkpoints(tmp_path))
    fit(prepared, config(), users(), Checkpoints(tmp_path), checkpoint=tmp_path / "last.ckpt")
    assert {path.name for path in (tmp_path / "best").iterdir()} == {"step=6.ckpt", "step=12.ckpt"}


def test_a_training_on_a_cpu_takes_no_gpu_that_is_there(prepared, tmp_path, monkeypatch):
    """Asking for the state of its generator would take memory of it. A state in a checkpoint is not used."""

    def taken(*arguments):
        raise AssertionError("a GPU is used")

    for name in ("get_rng_state", "set_rng_state"):
        monkeypatch.setattr(torch.cuda, name, taken)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fit(prepared, config(), Checkpoints(tmp_path))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    states = saved["callbacks"]["RandomNumbers"]["ranks"]
    assert states[0]["cuda"] is None
    states[0]["cuda"] = torch.zeros(16, dtype=torch.uint8)
    torch.save(saved, tmp_path / "gpu.ckpt")
    fit(prepared, config(), Checkpoints(tmp_path), checkpoint=tmp_path / "gpu.ckpt")
