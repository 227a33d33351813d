"""A running sweep: what it shows, when it expects to end, and how it stops."""

import io
import json
import os
import pty
import re
import select
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import yaml
from forked import start
from helpers import ROOT, a_result, processes, shared_text, write_sweep
from rich.console import Console

from transformer_pl.plan.plan import CostEstimate, plan_trials
from transformer_pl.plan.queue import GridQueue
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.sweep.progress import PRINT_EVERY_S, ProgressView
from transformer_pl.trials.flops import Cost
from transformer_pl.trials.runs_folder import RunsFolder

TABLE = ROOT / "sweeps" / "table3_A.yaml"
LEFT = re.compile(r"about ([\d:]+) left")


@pytest.fixture
def clock(monkeypatch):
    """The clocks of the process, which stand still: `clock(10)` sets them ten seconds on."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])

    def forward(seconds):
        now[0] += seconds

    return forward


@pytest.fixture
def planned(tmp_path):
    """15 trials of five rows, each of 1,500 steps."""
    return plan_trials(read_sweep(TABLE, sets={"optim.max_steps": "1500"}), RunsFolder(tmp_path / "runs"))


def estimates(planned, flops=lambda row: 1e12):
    return {one.place: CostEstimate(Cost(1, flops(one.place)), None) for one in planned}


def plain():
    """A console that is no terminal."""
    return Console(file=io.StringIO(), width=200, get_time=time.monotonic)


def train(planned, *steps):
    """Lines of metrics at these steps, the last of them now."""
    planned.folder.make()
    lines = [
        {"step": step, "kind": "train", "train/loss": 4.25, "tokens_per_s": 1e4, "time": time.time() - ago}
        for ago, step in enumerate(reversed(steps))
    ]
    (planned.folder.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))


def shown(view, clock):
    """The lines that the next refresh prints."""
    clock(PRINT_EVERY_S)
    before = len(view.console.file.getvalue())
    view.refresh()
    return view.console.file.getvalue()[before:].splitlines()


def left(line):
    """The seconds that a line says are left, which rich rounds up."""
    minutes, seconds = LEFT.search(line)[1].split(":")
    return 60 * int(minutes) + int(seconds)


def test_the_time_left_is_by_the_flops_of_what_is_left(planned, clock):
    """Row i costs 5 - i. The first trials of two rows ended a minute after each other: others go on at that speed."""
    view = ProgressView(plain(), GridQueue(planned, estimates(planned, lambda row: (5 - row) * 1e12)), 3)
    for _ in range(2):
        view.started(one := view.queue.next(set()))
        view.ended(one, "done", "val/ppl 2.00")
        (line,) = shown(view, clock)
    assert left(line) == pytest.approx(PRINT_EVERY_S / 4 * (3 * 15 - 5 - 4), abs=1)
    assert "2 done, 3 cached, 13 waiting" in line
    view.started(one := view.queue.next(set()))
    train(one, 750)  # half of its 3: with the second one's 4 these are 5.5 in two minutes
    (line,) = shown(view, clock)
    assert left(line) == pytest.approx(2 * PRINT_EVERY_S / 5.5 * (3 * 15 - 5 - 4 - 1.5), abs=1)
    assert view.bars.tasks[-1].completed == 750 and "loss 4.250" in view.bars.tasks[-1].fields["state"]


def test_after_its_first_fifty_steps_a_sweep_says_once_how_long_it_takes(planned, clock):
    """Long before the next line of its state is due."""
    view = ProgressView(plain(), GridQueue(planned[:2], estimates(planned)), 0)
    view.started(one := view.queue.next(set()))
    printed = []
    for step in (20, 40, 60, 80):
        train(one, step)
        clock(2)
        view.refresh()
        printed.append(view.console.file.getvalue())
    assert printed[1] == "" and printed[2] == printed[3] and "60 steps" in printed[2]
    assert left(printed[2].replace(" of training", "")) == pytest.approx((2 * 1500 - 60) * 2 / 20, abs=1)


def test_a_trial_that_ended_badly_tells_no_speed(planned, clock):
    view = ProgressView(plain(), GridQueue(planned, estimates(planned)), 0)
    for ending in ("diverged", "failed", "pruned"):
        view.started(one := view.queue.next(set()))
        view.ended(one, ending, ending)
        (line,) = shown(view, clock)
    assert all(words in line for words in ("1 diverged", "1 failed", "12 waiting")) and not LEFT.search(line)
    one = view.queue.next(set())
    view.started(one)
    view.queue.hold(one)
    view.ended(one, None, "another command trains it")
    assert "12 waiting" in shown(view, clock)[-1]


def test_a_resumed_trial_is_timed_from_where_it_continues(planned, clock):
    one = planned[0]
    train(one, 1000)
    clock(1)
    view = ProgressView(plain(), GridQueue(planned[:1], estimates(planned)), 0)
    view.started(view.queue.next(set()))
    shown(view, clock)
    assert "1000" not in view.bars.tasks[-1].fields["state"]  # that was an earlier command
    for step in (1100, 1250):
        train(one, step)
        (line,) = shown(view, clock)
    assert "1250/1500" in view.bars.tasks[-1].fields["state"]
    assert left(line) == pytest.approx(PRINT_EVERY_S * 250 / 150, abs=1)


def test_the_steps_of_its_start_are_none_of_a_trial_that_goes_on(tmp_path, clock):
    keys = {"variant": ["base", "model.start=base model.start_with=all optim.max_steps=3000"], "optim.max_steps": 1500}
    trials = plan_trials(read_sweep(write_sweep(tmp_path / "a.yaml", keys)), RunsFolder(tmp_path / "runs"))
    (base,), (branch,) = ([one for one in trials if bool(one.start) == starts] for starts in (False, True))
    base.folder.make()
    base.folder.finish(a_result(id=base.id, weights_id=base.identity.weights, steps=1500))
    view = ProgressView(plain(), GridQueue([branch], estimates(trials)), 0)
    view.started(view.queue.next(set()))
    for step in (1520, 1540, 1560):
        train(branch, step)
        clock(2)
        view.refresh()
    line = view.console.file.getvalue()
    assert "60 steps" in line and left(line.replace(" of training", "")) == pytest.approx((1500 - 60) * 2 / 20, abs=1)


@pytest.mark.parametrize("last", [1500, 600])
def test_an_evaluation_shows_how_many_sentences_are_translated(planned, clock, last):
    """Also where a callback has ended the training early, of which then nothing is left."""
    view = ProgressView(plain(), GridQueue(planned[:1], estimates(planned)), 0)
    view.started(view.queue.next(set()))
    for step in (300, last):
        train(planned[0], step)
        (line,) = shown(view, clock)
    assert bool(LEFT.search(line)) == (last < 1500)
    planned[0].folder.set_status("running", translated="3/10")
    assert not LEFT.search(shown(view, clock)[-1])
    assert "3/10" in view.bars.tasks[-1].fields["state"]


# ---------------------------------------------------------------------------------------------------------------------
# The command in a terminal


@pytest.fixture
def two_rows(tmp_path):
    """A sweep of two short trials."""
    sweep = yaml.safe_load((ROOT / "sweeps" / "smoke.yaml").read_text())
    sweep["parameters"] |= {"data.path": {"value": str(shared_text())}, "data.vocab_size": {"value": 400}}
    sweep["parameters"]["variant"] = {"values": ["base", "model.h=4"]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    return tmp_path


@contextmanager
def terminal(folder: Path, *argv: str):
    """The sweep command in a terminal of its own."""
    ours, theirs = pty.openpty()
    words = [folder / "sweep.yaml", "--runs", folder / "runs", *argv]
    with os.fdopen(theirs, "w") as terminal:
        with mock.patch.dict(os.environ, {"TERM": "xterm-256color"}):
            os.environ.pop("COLUMNS", None)
            process = start("sweep", *words, output=terminal, terminal=terminal)
        try:
            yield process, ours
        finally:
            os.close(ours)
            process.kill()
            process.wait(20)


def read(fd: int, seconds: float) -> bytes:
    """What the terminal was sent within that time, or until it was closed."""
    until, sent = time.monotonic() + seconds, b""
    while time.monotonic() < until:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                sent += os.read(fd, 65536)
            except OSError:  # the other side is closed
                break
    return sent


def trials(folder: Path) -> list[int]:
    """The processes of trials that have begun to train."""
    running = [path.parent for path in folder.glob("runs/trials/*/metrics.jsonl") if "train/loss" in path.read_text()]
    return [json.loads((path / "status.json").read_text())["pid"] for path in running]


def alive(leaders: list[int]) -> list[str]:
    """The processes that are left in the sessions of these trials."""
    return [process.command for process in processes() if process.session in leaders]


@pytest.mark.parametrize(
    "key", [pytest.param(b"\x03", id="Ctrl-C"), pytest.param(None, id="the terminal is closed", marks=pytest.mark.slow)]
)
def test_ctrl_c_saves_the_trials_and_leaves_no_process(two_rows, key):
    argv = ["--set", "optim.max_steps=50000", "trainer.val_every=50000"]
    with terminal(two_rows, *argv) as (process, fd):
        deadline = time.monotonic() + 120
        while len(trials(two_rows)) < 2:
            read(fd, 0.5)
            assert time.monotonic() < deadline and process.poll() is None
        leaders, began, sent = trials(two_rows), time.monotonic(), b""
        if key:
            os.write(fd, key)
        else:
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        while process.poll() is None or alive(leaders):
            sent += read(fd, 0.2)
            assert time.monotonic() - began < 20, (alive(leaders), sent.decode())
        sent += read(fd, 0.5)
    assert process.returncode == (130 if key else 129)
    states = [json.loads(path.read_text())["state"] for path in two_rows.glob("runs/trials/*/status.json")]
    assert states == ["stopped", "stopped"]
