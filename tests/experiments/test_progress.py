"""A running sweep: what it shows, when it expects to end, and how it stops."""

import fcntl
import io
import json
import os
import pty
import random
import re
import select
import signal
import struct
import sys
import termios
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pyte
import pytest
import yaml
from forked import start
from helpers import ROOT, processes, read_back, shared_text
from rich.console import Console

from transformer_pl.experiments import progress
from transformer_pl.experiments.cost import Cost
from transformer_pl.experiments.plan import CostEstimate, plan_trials
from transformer_pl.experiments.progress import DRAW_EVERY_S, ProgressView, SearchCounts, format_duration
from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.experiments.texts import shown_stages
from transformer_pl.runtime.terminal import command_console

TABLE = ROOT / "sweeps" / "table3_A.yaml"


class Clock:
    """A clock for progress.py that a test sets."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(progress.time, "time", lambda: self.now)


@pytest.fixture
def planned(tmp_path):
    return plan_trials(read_sweep(TABLE), tmp_path / "runs")


def estimates(planned, flops=lambda row: 1e12):
    return {one.row: CostEstimate(Cost(1, flops(one.row)), False, None, True) for one in planned}


def view(planned, slots, **flops):
    return ProgressView(Console(file=io.StringIO(), width=80), planned, 0, slots, estimates(planned, **flops))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_time_left_is_right_once_a_trial_of_every_row_is_done(planned, monkeypatch, slots, seed):
    """Rows differ in length by a factor of six, seeds of a row by a tenth."""
    rng, clock = random.Random(seed), Clock(monkeypatch)
    lengths = {one.name: (30 + 40 * one.row) * rng.uniform(0.95, 1.05) for one in planned}
    seen = view(planned, slots)
    running, waiting, predicted, began = {}, list(planned), None, clock.now
    while running or waiting:
        while waiting and len(running) < slots:
            one = waiting.pop(0)
            seen.started(one)
            running[one.name] = (one, clock.now + lengths[one.name])
        one, clock.now = min(running.values(), key=lambda pair: pair[1])
        del running[one.name]
        seen.ended(one, "done", "")
        if predicted is None and len(seen.durations) == 5:
            predicted = (clock.now, seen.seconds_left())
    at, left = predicted
    assert at - began + left == pytest.approx(clock.now - began, rel=0.05)


def test_a_row_without_a_finished_trial_is_estimated_by_its_flops(planned, monkeypatch):
    clock = Clock(monkeypatch)
    seen = view(planned, 1, flops=lambda row: (row + 1) * 1e12)
    assert seen.seconds_left() is None  # nothing is known
    seen.started(planned[0])
    clock.now += 10
    seen.ended(planned[0], "done", "")
    assert seen.seconds_left() == pytest.approx(10 * (2 + 3 * (2 + 3 + 4 + 5)))


def test_a_trial_of_another_command_is_no_work_of_this_one(planned, monkeypatch):
    """It ends by its own speed, and its process is a worker that takes the next ones."""
    clock, seen = Clock(monkeypatch), view(planned, 1)
    seen.started(planned[0])
    clock.now += 10
    seen.ended(planned[0], "done", "")
    assert seen.seconds_left() == pytest.approx(14 * 10)
    theirs, *rest = planned[1:]
    with theirs.trial.lock():
        assert seen.seconds_left() == pytest.approx(14 * 10)  # not looked up yet
        clock.now += progress.LOOK_EVERY_S
        assert seen.seconds_left() == pytest.approx(7 * 10)
        assert seen._summary().startswith("1 done, 1 running elsewhere, 13 waiting; ")
        seen.waiting = [theirs]
        line = {"train/loss": 4.0, "tokens_per_s": 1e4}
        lines = [{"step": 500 * i, "time": clock.now - 6 + 2 * i} | line for i in range(1, 3)]
        (theirs.trial.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert seen.seconds_left() == pytest.approx(0)  # of 1,500 steps 500 were left two seconds ago
        clock.now -= 1
        assert seen.seconds_left() == pytest.approx(1)
    assert rest[0].trial.holder() is None


def test_a_diverged_or_failed_trial_is_counted_but_does_not_measure_a_duration(planned, monkeypatch):
    clock, seen = Clock(monkeypatch), view(planned, 1)
    for one, ending in zip(planned, ("done", "diverged", "failed", "pruned"), strict=False):
        seen.started(one)
        clock.now += 10
        seen.ended(one, ending, ending)
    assert seen._summary().startswith("2 done, 1 diverged, 1 failed, 11 waiting")
    assert seen.durations == {planned[0].row: [10], planned[3].row: [10]}
    assert f"[2/15] {planned[1].name}  0:10  diverged" in seen.console.file.getvalue()


def test_a_search_counts_towards_its_cap_and_ends_when_all_of_it_is_drawn(planned, monkeypatch):
    """Two of twelve trials ended before; the others take as long as the first that ends here."""
    clock, counts = Clock(monkeypatch), [SearchCounts(12, 2, 9)]
    console = Console(file=io.StringIO(), width=80)
    seen = ProgressView(console, [], 0, 3, {}, lambda: counts[0])
    assert seen.seconds_left() is None
    seen.estimates = estimates(planned[:1])
    seen.started(planned[0])
    assert seen._summary() == "2 of 12 ended, 1 running; 0:00 so far"
    clock.now += 10
    counts[0] = SearchCounts(12, 3, 9)
    seen.ended(planned[0], "done", "")
    assert f"[3/12] {planned[0].name}  0:10" in console.file.getvalue()
    assert seen.seconds_left() == pytest.approx(30)  # nine trials, three at once
    assert seen._summary() == "3 of 12 ended; 0:10 so far, about 0:30 left"


def test_a_trial_that_begins_says_what_it_does(planned, monkeypatch):
    clock, one = Clock(monkeypatch), planned[0]
    seen = view(planned, 1)

    def shown():
        clock.now += 6
        seen.refresh()
        return seen.console.file.getvalue().splitlines()[-2]

    one.trial.folder.mkdir(parents=True)
    one.trial.set_status("running")  # of an earlier command
    clock.now += 1
    seen.started(one)
    assert shown().endswith("importing torch, 0:06")
    with one.trial.lock():
        one.trial.set_status("running")
        assert shown().endswith("starting, 0:12")
    one.trial.set_status("done")  # such as one that found its weights in another trial
    assert shown().endswith("ending, 0:18")


def test_a_trial_s_line_shows_its_progress_and_fits_the_terminal(planned, monkeypatch):
    clock, one = Clock(monkeypatch), planned[0]
    seen = ProgressView(Console(file=io.StringIO(), width=80, force_terminal=True), planned, 3, 2, estimates(planned))
    seen.started(one)
    one.trial.folder.mkdir(parents=True)
    lines = [{"step": 50 * i, "train/loss": 4.25, "tokens_per_s": 1e4, "time": clock.now + i} for i in range(1, 5)]
    (one.trial.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clock.now += 4
    for width in (80, 50, 120):
        seen.console.width = width
        with seen.console.capture() as capture:
            seen.console.print(seen._drawing())
        screen = pyte.Screen(width, 5)
        pyte.Stream(screen).feed(capture.get().replace("\n", "\r\n"))
        assert "h=1 s1" in screen.display[0] and "3 cached, 1 running, 14 waiting" in screen.display[1]
        assert not screen.display[2].strip()  # nothing was broken into a second line
        if width >= 80:
            assert "200/1500" in screen.display[0] and "loss 4.250" in screen.display[0]
            assert "0:26 left" in screen.display[0]  # 1,300 steps, 50 a second


def test_durations_are_written_as_a_clock():
    assert [format_duration(s) for s in (0, 59.6, 61, 3600, 86399)] == ["0:00", "1:00", "1:01", "1:00:00", "23:59:59"]


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
def terminal(folder: Path, *argv: str, columns: int = 80):
    """The sweep command in a terminal of its own."""
    ours, theirs = pty.openpty()
    resize(ours, columns)
    words = [folder / "sweep.yaml", "--runs", folder / "runs", *argv]
    with mock.patch.dict(os.environ, {"TERM": "xterm-256color"}), os.fdopen(theirs, "w") as terminal:
        os.environ.pop("COLUMNS", None)
        process = start("sweep", *words, output=terminal, terminal=terminal)
    try:
        yield process, ours
    finally:
        os.close(ours)
        process.stdin.close()
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait(20)


def resize(fd: int, columns: int, lines: int = 24) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


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


def test_the_live_view_shows_every_trial_and_leaves_a_tidy_terminal(two_rows):
    longer = ["--set", "optim.max_steps=250", "trainer.val_every=250"]  # than the view takes to be drawn at each width
    with terminal(two_rows, *longer) as (process, fd):
        sent, widths = b"", [60, 100, 80]
        while process.poll() is None:
            if widths and b" running" in sent:
                resize(fd, widths.pop(0))
            sent += read(fd, DRAW_EVERY_S + 0.2)
        sent += read(fd, 0.5)
    assert process.returncode == 0 and not widths
    text = sent.decode()
    assert "1 running" in text or "2 running" in text
    screen = pyte.HistoryScreen(100, 24, history=1000)
    pyte.Stream(screen).feed(text)
    past = ["".join(row[column].data for column in range(100)) for row in screen.history.top]
    final = [line.rstrip() for line in [*past, *screen.display]]
    assert not any(" running" in line or "importing" in line for line in final)
    assert sum("val/bleu" in line for line in final) == 2  # each trial has left its line
    assert any(line.startswith("table and results") for line in final)
    assert not screen.cursor.hidden


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {}], ids=["dumb", "no colour", "colours"])
def test_a_terminal_is_sent_what_it_can_show(planned, monkeypatch, variables):
    """No escape sequence where it is dumb, and no colour where nobody wants one."""
    ours, theirs = pty.openpty()
    resize(ours, 80)
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color"} | variables).items():
        monkeypatch.setenv(name, value)
    clock = Clock(monkeypatch)
    with os.fdopen(theirs, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        console = command_console()
        with shown_stages(console) as on_progress:
            on_progress("reading", 1, 2)
        with ProgressView(console, planned, 0, 2, estimates(planned)) as seen:
            seen.started(planned[0])
            resize(ours, 50)
            clock.now += progress.PRINT_EVERY_S
            seen.refresh()
            seen.ended(planned[0], "done", "val/ppl 2.00")
        monkeypatch.undo()
    sent = read(ours, 0.5)
    os.close(ours)
    assert b"val/ppl 2.00" in sent and b"1 running, 14 waiting" in sent
    assert (b"\x1b" in sent) == (variables.get("TERM") != "dumb")
    assert bool(re.search(rb"\x1b\[[0-9;]*(3[0-7]|38;5)[0-9;]*m", sent)) == (variables == {})


def trials(folder: Path) -> list[int]:
    """The processes of trials that have begun to train."""
    running = [path.parent for path in folder.glob("runs/trials/*/metrics.jsonl") if "train/loss" in path.read_text()]
    return [json.loads((path / "status.json").read_text())["pid"] for path in running]


def alive(leaders: list[int]) -> list[str]:
    """The processes that are left in the sessions of these trials."""
    return [process.command for process in processes() if process.session in leaders]


@pytest.mark.parametrize("how", ["Ctrl-C", "Ctrl-C twice", "SIGTERM", "SIGKILL"])
def test_a_stopped_sweep_saves_its_trials_and_leaves_no_process(two_rows, how):
    argv = ["--set", "optim.max_steps=50000", "trainer.val_every=50000"]
    with terminal(two_rows, *argv) as (process, fd):
        deadline = time.monotonic() + 120
        while len(trials(two_rows)) < 2:
            read(fd, 0.5)
            assert time.monotonic() < deadline and process.poll() is None
        leaders, began, sent = trials(two_rows), time.monotonic(), b""
        if how.startswith("Ctrl-C"):
            os.write(fd, b"\x03")
            if how == "Ctrl-C twice":
                sent += read(fd, 0.3)
                os.write(fd, b"\x03")
        else:
            os.kill(process.pid, getattr(signal, how))
        while process.poll() is None or alive(leaders):
            sent += read(fd, 0.2)
            assert time.monotonic() - began < 10, (alive(leaders), sent.decode())
        sent += read(fd, 0.5)
    assert process.returncode == {"SIGTERM": 143, "SIGKILL": -9}.get(how, 130)
    if how in ("Ctrl-C", "SIGTERM"):
        assert "run the same command again to continue" in sent.decode()
        for run in two_rows.glob("runs/trials/*/wandb/offline-run-*"):
            records = [json.loads(line) for line in read_back(run).splitlines()]
            assert any(record["type"] == "preempting" for record in records)
            assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [143]
    if how != "Ctrl-C twice":  # which saves what it can
        assert len(list(two_rows.glob("runs/trials/*/checkpoints/last.ckpt"))) == 2
        states = [json.loads(path.read_text())["state"] for path in two_rows.glob("runs/trials/*/status.json")]
        assert states == ["stopped", "stopped"]


def test_a_sweep_can_be_stopped_while_its_trials_start(two_rows):
    with terminal(two_rows) as (process, fd):
        sent = b""
        while b"at a time" not in sent:
            sent += read(fd, 0.2)
        sent += read(fd, 1.0)
        began = time.monotonic()
        os.write(fd, b"\x03")
        while process.poll() is None:
            sent += read(fd, 0.2)
    assert process.returncode == 130 and time.monotonic() - began < 10
    assert "Traceback" not in sent.decode()
    assert not [process for process in processes() if str(two_rows) in process.command]
    assert not any("Traceback" in path.read_text() for path in two_rows.glob("runs/trials/*/log.txt"))
