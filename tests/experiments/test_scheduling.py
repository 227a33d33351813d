"""The scheduling loop of launch.py, with a launcher whose trials end when and how a test says."""

import json
import signal
import socket

import pytest
from helpers import ROOT, a_result
from scheduled import CRASHED, DONE, Training, made

from transformer_pl.experiments import launch
from transformer_pl.experiments.plan import plan_trials
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.experiments.trial_queue import GridQueue
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.signals import Stopped

SMOKE = read_sweep(ROOT / "sweeps" / "smoke.yaml")  # four trials


@pytest.fixture
def planned(tmp_path):
    return plan_trials(SMOKE, tmp_path / "runs")


def test_as_many_trials_run_as_there_are_slots(planned):
    """A slot that becomes free is filled, in the order of the trials, until there is none left."""
    scheduler, queue, launcher, view = made(planned, slots=3)
    assert scheduler.fill_free_slots() and scheduler.fill_free_slots()
    names = [one.name for one in planned]
    assert [training.planned.name for training in launcher.started] == names[:3] == view.shown
    assert launcher.submitted == 2 and queue.waiting == planned[3:] and view.waits is None
    scheduler.poll()
    assert not view.endings and len(scheduler.running) == 3
    launcher.started[1].finish()
    scheduler.poll()
    assert view.endings == [(names[1], "done", "val/ppl 2.00  val/bleu 30.00")]
    assert scheduler.fill_free_slots() and view.shown == names and len(scheduler.running) == 3
    for training in launcher.started:
        assert training.argv == [training.planned.name]
        training.finish()
    assert scheduler.fill_free_slots()  # nothing is left to start, but these still run
    scheduler.poll()
    assert not scheduler.fill_free_slots() and not scheduler.running and not scheduler.shown
    assert sorted(name for name, *_ in view.endings) == sorted(names) and not queue.failed


@pytest.mark.parametrize(
    ("ended", "result", "state", "ending", "words"),
    [
        (DONE, True, "running", "done", "val/ppl 2.00  val/bleu 30.00"),
        (DONE, False, "running", "failed", "failed with exit code 0, without a result; the end of {log}:\n    | last"),
        (CRASHED, False, "running", "failed", "failed with exit code 1; the end of {log}:\n    | last"),
        (CRASHED, True, "running", "failed", "failed with exit code 1; the end of {log}:\n    | last"),
        (CRASHED, False, "diverged", "diverged", "diverged at step 7"),
    ],
)
def test_how_a_trial_has_ended(planned, ended, result, state, ending, words):
    scheduler, queue, launcher, view = made(planned[:1])
    scheduler.fill_free_slots()
    trial = planned[0].trial
    trial.log.write_text("last\n")
    trial.set_status(state, step=7)
    if result:
        launcher.started[0].finish()
    launcher.started[0].ended = ended
    scheduler.poll()
    assert view.endings == [(planned[0].name, ending, words.format(log=trial.log))]
    assert queue.failed == (planned if ending == "failed" else [])[:1]
    assert not scheduler.fill_free_slots()


class Pruning(GridQueue):
    heartbeats = 0

    def give_heartbeat(self):
        self.heartbeats += 1

    def watch(self, planned):
        return True


def test_a_trial_that_is_pruned_is_asked_to_end_and_killed_if_it_does_not(planned, monkeypatch):
    scheduler, queue, launcher, view = made(planned[:1])
    assert not queue.watch(planned[0])
    scheduler.queue = Pruning(planned[:1])
    scheduler.fill_free_slots()
    (training,) = launcher.started
    for _ in range(3):
        scheduler.poll()
    assert training.asked == ["terminate"]  # and is given time
    running = scheduler.running[planned[0].identity.trial]
    scheduler.running[planned[0].identity.trial] = running._replace(deadline=running.deadline - launch.GRACE_S - 1)
    scheduler.poll()
    assert training.asked == ["terminate", "kill"]
    training.ended = CRASHED
    scheduler.poll()
    assert view.endings == [(planned[0].name, "pruned", "pruned")]


def test_a_queued_trial_is_not_shown_as_running(planned, monkeypatch):
    """Nor can it be pruned: it has reported nothing. It has heartbeats all the same. One that ends at once is shown."""
    monkeypatch.setattr(Training, "begun", lambda self: self.runs is not True)
    scheduler, _, launcher, view = made(planned[:2], slots=2)
    scheduler.queue = Pruning(planned[:2])
    scheduler.fill_free_slots()
    scheduler.poll()
    first, second = launcher.started
    assert not view.shown and not first.asked and len(scheduler.running) == 2
    assert scheduler.queue.heartbeats == 1
    first.runs, second.ended = "on a node", CRASHED
    scheduler.poll()
    assert view.shown == [one.name for one in planned[:2]]
    assert first.asked == ["terminate"] and [name for name, *_ in view.endings] == [planned[1].name]


def test_a_trial_that_is_queued_again_is_no_longer_shown_as_running(planned, monkeypatch):
    """As SLURM does with one that it preempts."""
    monkeypatch.setattr(Training, "begun", lambda self: self.runs)
    scheduler, _, launcher, view = made(planned[:1])
    scheduler.fill_free_slots()
    launcher.started[0].runs, launcher.queue_reason = False, "queued (Priority)"
    for _ in range(2):
        scheduler.poll()
    assert scheduler.fill_free_slots() and view.waits == "queued (Priority)"
    assert view.again == [(planned[0].name, "queued again, and will continue")] and scheduler.running
    launcher.started[0].runs = True
    scheduler.poll()
    launcher.started[0].finish()
    scheduler.poll()
    assert view.shown == [planned[0].name] * 2 and [ending for _, ending, _ in view.endings] == ["done"]


def test_nothing_is_started_while_the_launcher_waits(planned):
    scheduler, queue, launcher, view = made(planned)
    launcher.waiting = "waiting for SLURM"
    assert scheduler.fill_free_slots() and view.waits == "waiting for SLURM" and queue.waiting == planned
    launcher.waiting = None
    assert scheduler.fill_free_slots() and view.waits is None and len(launcher.started) == 1


@pytest.mark.parametrize("error", [OSError("no space"), InputError("no space")])
def test_what_cannot_be_started_has_failed_and_the_next_is_tried(planned, error):
    scheduler, queue, launcher, view = made(planned[:2])
    launcher.error = error
    assert scheduler.fill_free_slots() and view.waits is None
    launcher.error = None
    assert scheduler.fill_free_slots() and launcher.started[0].planned is planned[1]
    assert view.endings == [(planned[0].name, "failed", "could not be started: no space")]
    assert queue.failed == planned[:1] and view.shown == [one.name for one in planned[:2]]


def test_the_runs_folder_is_what_must_be_writable(planned, tmp_path, monkeypatch):
    """A failure on a full disk says so, as the log may lack it."""
    asked = []
    monkeypatch.setattr(launch, "check_writable", asked.append)
    monkeypatch.setattr(launch, "why_unwritable", lambda runs: f"{runs.name} is full")
    scheduler, _, launcher, view = made(planned[:1])
    scheduler.fill_free_slots()
    assert asked == [tmp_path / "runs"]
    launcher.started[0].ended = CRASHED
    scheduler.poll()
    assert view.endings[0][2].endswith("\n    runs is full")


def test_what_an_earlier_command_has_started_is_attached_to(planned):
    """Though its lock is taken: its own process has it."""
    one = planned[0]
    earlier = Training(one)
    with one.trial.lock():
        scheduler, queue, launcher, view = made(planned[:1], attached=planned[:1])
        launcher.attached[one.name] = earlier
        assert scheduler.fill_free_slots() and not launcher.started and view.shown == [one.name]
    assert scheduler.running[one.identity.trial].training is earlier and not queue.waiting


def test_the_loop_ends_when_everything_is_done(planned, monkeypatch):
    monkeypatch.setattr(launch, "POLL_S", 0)
    _, queue, launcher, view = made(planned, slots=2)
    monkeypatch.setattr(view, "refresh", lambda: [one.finish() for one in launcher.started if not one.ended])
    launch.launch(queue, lambda one: [one.name], launcher, view)
    assert [ending for _, ending, _ in view.endings] == ["done"] * 4
    assert len(launcher.started) == 4 and not launcher.stopped and not view.said


@pytest.mark.parametrize(
    ("error", "asked"),
    [(Stopped(signal.SIGINT), True), (Stopped(signal.SIGTERM), False), (OSError("no space"), False)],
)
def test_what_runs_is_stopped_where_the_command_ends(planned, monkeypatch, error, asked):
    """The launcher may ask whoever has pressed Ctrl-C: this view's answer is yes."""
    _, queue, launcher, view = made(planned, slots=2)

    def interrupted():
        raise error

    monkeypatch.setattr(view, "refresh", interrupted)
    with pytest.raises(type(error)):
        launch.launch(queue, lambda one: [one.name], launcher, view)
    assert launcher.stopped == launcher.started and len(launcher.started) == 2 and view.said == ["stopping"]
    assert launcher.cancelled == asked


def test_trials_of_weights_that_are_trained_here_wait(planned):
    queue = GridQueue(planned)
    first, second = planned[0].identity.weights, planned[1].identity.weights
    assert queue.next({first}) is planned[1] and queue.next(set()) is planned[0]
    queue.hold(planned[0])
    assert queue.waiting == [*planned[2:], planned[0]]
    assert queue.waits() == "waiting for another command, which trains 3 of these"
    assert queue.next({one.identity.weights for one in planned if one.identity.weights != second}) is None
    for one in list(queue.waiting):
        queue.next(set())
        queue.ended(one, "diverged")
    assert queue.waits() is None and not queue.failed


# ---------------------------------------------------------------------------------------------------------------------
# Several commands on one grid


def finish(trial):
    trial.make()
    (trial.folder / "result.json").write_text(json.dumps(a_result()))
    trial.set_status("done")


def test_commands_on_one_grid_take_different_trials(planned):
    first, second = (GridQueue(planned) for _ in range(2))
    one = first.next(set())
    with one.trial.lock():
        other = second.next(set())
        assert other.name != one.name and not other.trial.locked()
    assert second.next({other.identity.weights}).name == one.name  # its command was stopped: this one continues it


def test_trials_of_the_same_weights_are_trained_by_one_command(planned, tmp_path):
    greedy = planned[0]._replace(trial=plan_trials(SMOKE, tmp_path / "greedy")[0].trial)  # a folder of its own
    with planned[0].trial.lock():
        assert GridQueue([planned[0], greedy]).next(set()) is None


@pytest.mark.parametrize("state", ["done", "failed", "diverged", "stopped"])
def test_how_another_command_ended_a_trial_counts_here_too(planned, state):
    """One that it stopped does not: it is continued."""
    queue = GridQueue(planned)
    one = queue.next(set())
    if state == "done":
        finish(one.trial)
    else:
        one.trial.make()
        one.trial.set_status(state)
    assert queue.ended_elsewhere(one) == (None if state == "stopped" else state)


def test_what_ended_before_the_command_is_trained_again(planned):
    """A failed trial by the same command, a finished one with --rerun."""
    finish(planned[0].trial)
    planned[1].trial.make()
    planned[1].trial.set_status("failed")
    queue = GridQueue(planned)
    assert [queue.ended_elsewhere(one) for one in planned] == [None] * 4


def test_a_trial_that_another_command_begins_first_is_taken_back_and_its_result_read(planned, monkeypatch):
    scheduler, queue, launcher, view = made(planned[:1])
    found = queue.next
    with planned[0].trial.lock():
        monkeypatch.setattr(queue, "next", lambda taken: queue.waiting.pop())  # it looked just before
        assert scheduler.fill_free_slots() and queue.waiting == planned[:1] and not launcher.started
        here = f"{planned[0].name} on {socket.gethostname()}"
        assert view.waits == f"waiting for another command, which trains 1 of these: {here}"
        finish(planned[0].trial)
    monkeypatch.setattr(queue, "next", found)
    assert scheduler.fill_free_slots() and not scheduler.fill_free_slots() and not launcher.started
    assert view.endings == [(planned[0].name, "done", "val/ppl 2.00  val/bleu 30.00 (by another command)")]
