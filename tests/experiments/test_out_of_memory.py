"""Trials that run out of a device's memory: each is tried once more, alone, with its batches in more parts."""

import json
import os

import pytest
import tiny_trials
import yaml
from helpers import ROOT, little_text
from scheduled import CRASHED, Training, View, made
from tiny_trials import TINY

from transformer_pl import train
from transformer_pl.experiments import launch
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.experiments.trial_queue import GridQueue
from transformer_pl.launchers import Ended
from transformer_pl.launchers.workers import Workers
from transformer_pl.reporting.table import table_of
from transformer_pl.sweep import argv
from transformer_pl.trials.trial import LEASE

HUNGRY = {"model.ffn": "hungry_ffn.Hungry", "model.ffn.room": 5}


class Here:
    """A launcher that trains in this process; `start` returns when the trial has ended."""

    slots, shares = 1, True

    def __init__(self):
        self.started = []

    def waits(self):
        return None

    def queued(self):
        return None

    def attach(self, planned):
        return None

    def start(self, planned, argv, lease):
        lease.is_given_away = True
        self.started.append(Training(planned, argv))
        with tiny_trials.in_a_command():
            os.environ[LEASE] = lease.given
            self.started[-1].ended = Ended(train.main(argv) == 0, "here")
        return self.started[-1]

    def submit(self):
        pass


def hungry_sweep(tmp_path, **more):
    (tmp_path / "text").mkdir(exist_ok=True)
    little_text(tmp_path / "text", 60, 8, 6)
    keys = TINY | HUNGRY | {"data.path": str(tmp_path / "text")} | more
    content = {"program": "transformer_pl/train.py", "name": "hungry", "method": "grid"}
    content |= {"parameters": {key: {"value": value} for key, value in keys.items()}}
    (tmp_path / "hungry.yaml").write_text(yaml.safe_dump(content))
    return read_sweep(tmp_path / "hungry.yaml")


def trained(sweep, runs):
    planned, launcher, view = plan_trials(sweep, runs), Here(), View()
    launch.launch(GridQueue(planned), lambda one: argv(sweep, one, runs, False), launcher, view)
    return planned, launcher, view


def test_it_is_tried_once_more_and_the_global_batch_stays(tmp_path, monkeypatch):
    """It comes to what a trial comes to that was asked for with so many parts, which is the same trial."""
    monkeypatch.setattr(launch, "POLL_S", 0)
    monkeypatch.setattr(train, "check_model", lambda *model: {})
    sweep = hungry_sweep(tmp_path)
    planned, launcher, view = trained(sweep, tmp_path / "runs")
    first, second = launcher.started
    assert second.argv == [*first.argv, "--trainer.accumulate=2"]
    ((name, ending, _),), ((again, why),) = view.endings, view.again
    assert ending == "done" and name == again and why.endswith("with trainer.accumulate=2; the global batch stays")
    earlier = (planned[0].trial.folder / "log.1.txt").read_text()
    assert "CUDA out of memory" in earlier and "; increase trainer.accumulate, now 1, which splits the batch" in earlier
    (note,) = [note for note in table_of(sweep, planned).notes if "accumulate" in note]
    assert "s1 with 2 for 1" in note

    other = hungry_sweep(tmp_path, **{"trainer.accumulate": 2})
    asked, launcher, _ = trained(other, tmp_path / "others")
    assert len(launcher.started) == 1 and asked[0].identity == planned[0].identity
    tiny_trials.same(planned[0].trial, tiny_trials.outcome(asked[0].trial))
    assert not any("accumulate" in note for note in table_of(other, asked).notes)


@pytest.fixture
def planned(tmp_path):
    return plan_trials(read_sweep(ROOT / "sweeps" / "smoke.yaml"), tmp_path / "runs")


def fails_short(training, accumulate=1):
    training.planned.trial.set_status("failed", out_of_memory=accumulate)
    training.ended = CRASHED


@pytest.mark.parametrize("shares", [True, False])
def test_on_a_device_of_its_own_it_need_not_wait(planned, shares):
    scheduler, queue, launcher, _ = made(planned[:3], slots=2)
    queue.waiting.remove(planned[2])
    launcher.shares = shares
    scheduler.fill_free_slots()
    fails_short(launcher.started[0])
    scheduler.poll()
    assert scheduler.fill_free_slots() and len(launcher.started) == (2 if shares else 3)
    launcher.started[1].finish()
    scheduler.poll()
    assert scheduler.fill_free_slots() and [one.planned for one in launcher.started[2:]] == planned[:1]
    queue.hold(planned[2])  # as one that another command has released
    assert scheduler.fill_free_slots() and len(launcher.started) == (3 if shares else 4)


@pytest.mark.parametrize("last", [2, 1], ids=["out of memory again", "ended before it said anything"])
def test_it_is_tried_no_more_than_that(planned, last):
    scheduler, queue, launcher, view = made(planned[:1])
    for accumulate in (1, last):
        assert not queue.failed and scheduler.fill_free_slots()
        fails_short(launcher.started[-1], accumulate)
        scheduler.poll()
    assert queue.failed == planned[:1] and len(view.again) == 1 and not scheduler.fill_free_slots()


@pytest.mark.parametrize(
    ("details", "again"), [({"out_of_memory": 1}, True), ({"out_of_memory": 4}, False), ({}, False)]
)
def test_another_failure_is_one(planned, details, again):
    """Also one of a trial whose batches were in more parts already, and one of another command."""
    scheduler, queue, launcher, view = made(planned[:1])
    scheduler.fill_free_slots()
    planned[0].trial.set_status("failed", **details)
    assert queue.ended_elsewhere(planned[0]) == (None if again else "failed")
    launcher.started[0].ended = CRASHED
    scheduler.poll()
    assert bool(view.again) == again and bool(queue.failed) != again


def test_an_earlier_shortage_is_none_of_an_attempt_that_never_began(planned):
    """As where SLURM has queued it, and a person cancels it."""
    planned[0].trial.make()
    planned[0].trial.set_status("failed", out_of_memory=1)
    scheduler, queue, launcher, view = made(planned[:1])
    scheduler.fill_free_slots()
    launcher.started[0].ended = CRASHED
    scheduler.poll()
    assert queue.failed == planned[:1] and not view.again


def begun_with(trial, accumulate):
    (trial.folder / "checkpoints").mkdir()
    (trial.folder / "checkpoints" / "last.ckpt").touch()
    (trial.folder / "env.json").write_text(json.dumps({"accumulate": accumulate}))


def test_checkpoints_of_whole_batches_are_dropped(planned):
    """Lightning cannot continue them in other parts."""
    scheduler, _, launcher, _ = made(planned[:1])
    scheduler.fill_free_slots()
    begun_with(planned[0].trial, 1)
    fails_short(launcher.started[0])
    scheduler.poll()
    scheduler.fill_free_slots()
    assert len(launcher.started) == 2 and not (planned[0].trial.folder / "checkpoints").exists()


@pytest.mark.parametrize(("begun", "words"), [(2, ["--trainer.accumulate=2"]), (1, []), (3, [])])
def test_a_second_try_that_was_interrupted_continues_as_it_was(planned, begun, words):
    """By another command. With other parts than that, the trial itself refuses."""
    planned[0].trial.make()
    begun_with(planned[0].trial, begun)
    scheduler, _, launcher, _ = made(planned[:1])
    scheduler.fill_free_slots()
    assert launcher.started[0].argv == [planned[0].name, *words]
    assert (planned[0].trial.folder / "checkpoints" / "last.ckpt").exists()
    fails_short(launcher.started[0], accumulate=begun)
    scheduler.poll()
    assert len(scheduler.short) == (begun == 1)


@pytest.mark.parametrize(
    ("workers", "share"),
    [
        (Workers(1, 1, []), False),
        (Workers(2, 1, []), True),
        (Workers(2, 1, ["0", "1"]), False),
        (Workers(4, 1, ["0", "1", "0", "1"]), True),
        (Workers(2, 1, ["0,1", "2,0"]), True),
    ],
)
def test_which_trials_share_memory(workers, share):
    assert workers.share_memory == share
