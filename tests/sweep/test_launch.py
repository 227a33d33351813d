"""How a sweep trains its trials: together, stopped, killed, and shared with other commands."""

import io
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from forked import command, running
from grids import small_grid, table
from helpers import ROOT, descendants, wait_for
from rich.console import Console

from transformer_pl.plan.plan import CostEstimate, plan_trials
from transformer_pl.plan.queue import GridQueue
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.runtime import children
from transformer_pl.sweep.launch import Launch
from transformer_pl.sweep.progress import ProgressView
from transformer_pl.trials.flops import Cost
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_folder import TrialFolder

LONG = {"optim__max_steps": 150, "trainer__val_every": 75}  # a second or two


@pytest.fixture(autouse=True)
def without_wandb(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A grid, and its table by a command that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("grid")
    grid = small_grid(folder, **LONG)
    done = command("sweep", grid, "--runs", folder / "runs", WANDB_MODE="disabled")
    assert done.returncode == 0, done.stdout + done.stderr
    return grid, table(folder / "runs")


def trials(runs):
    return [TrialFolder(path) for path in sorted((runs / "trials").iterdir())]


def logged(runs):
    """How many lines of metrics the trials have."""
    return sum(path.read_bytes().count(b"\n") for path in runs.glob("trials/*/metrics.jsonl"))


@contextmanager
def sweeping(grid, runs, *words):
    runs.parent.mkdir(exist_ok=True)
    log = runs.parent / f"{len(list(runs.parent.iterdir()))}.txt"
    with log.open("w") as output, running("sweep", grid, "--runs", runs, *words, output=output) as process:
        process.printed = log.read_text
        yield process


def stop(grid, runs, signum, code):
    """Start a sweep, and stop it by a signal once it trains."""
    before = logged(runs)
    with sweeping(grid, runs) as sweep:
        wait_for(lambda: logged(runs) > before)
        started = descendants(sweep.pid)
        os.kill(sweep.pid, signum)
        assert sweep.wait(60) == code, sweep.printed()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started), 20)
    assert not all(trial.result() for trial in trials(runs))


def finish(grid, runs):
    done = command("sweep", grid, "--runs", runs)
    assert done.returncode == 0, done.stdout + done.stderr
    return table(runs)


def test_a_stopped_sweep_leaves_nothing_running_and_the_same_command_continues(undisturbed, tmp_path):
    grid, expected = undisturbed
    runs = tmp_path / "runs"
    stop(grid, runs, signal.SIGTERM, 143)
    stop(grid, runs, signal.SIGKILL, -9)
    assert finish(grid, runs) == expected


def test_of_a_trial_that_the_system_kills_the_message_names_an_option(undisturbed, tmp_path):
    runs = tmp_path / "runs"
    with sweeping(undisturbed[0], runs) as sweep:
        wait_for(lambda: logged(runs))
        (pid,) = re.findall(r"pid=(\d+)", next(runs.glob("trials/*/lock")).read_text())
        os.kill(int(pid), signal.SIGKILL)
        assert sweep.wait(60) == 1
        assert "--parallel" in sweep.printed()


def test_a_sweep_waits_at_its_end_alone_for_what_its_trials_have_started(tmp_path):
    """The second trial starts while the W&B process of the first, here `sleep`, still runs."""
    writers = []

    class Workers:
        count = 1

        def start(self, trial, worker, same, waited_for):
            assert all(writer.poll() is None for writer in writers)
            process = children.context().Process(target=int)
            children.start(process)  # the first takes seconds
            writers.append(subprocess.Popen(["sleep", "4"], pass_fds=[waited_for.fileno()]))
            return process

    runs = RunsFolder(tmp_path / "runs")
    planned = plan_trials(read_sweep(small_grid(tmp_path)), runs)[:2]
    queue = GridQueue(planned, {trial.place: CostEstimate(Cost(1, 1.0), None) for trial in planned})
    Launch(queue, Workers(), ProgressView(Console(file=io.StringIO()), queue, 0), runs, waits=False).run()
    assert [writer.poll() for writer in writers] == [0, 0]


def server_of(sweep):
    """The process that starts the trials of a sweep, once it is there."""
    with suppress(FileNotFoundError):  # a process has ended meanwhile
        for place in (Path(f"/proc/{pid}") for pid in descendants(sweep.pid)):
            is_child = f"\nPPid:\t{sweep.pid}\n" in (place / "status").read_text()
            if is_child and b"forkserver" in (place / "cmdline").read_bytes():
                return int(place.name)
    return None


@pytest.mark.slow  # 10 s each
@pytest.mark.parametrize("trains", [False, True])
def test_the_death_of_the_server_of_processes_costs_one_trial_that_it_starts_and_none_that_trains(
    undisturbed, tmp_path, trains
):
    """The sweep is a new process here: one that is forked from the server of the tests shares that server."""
    grid, expected = undisturbed
    runs, log = tmp_path / "runs", tmp_path / "log.txt"
    words = [sys.executable, "-m", "transformer_pl.sweep", grid, "--runs", runs, "--parallel", "2"]
    with log.open("w") as output, subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=output) as sweep:
        wait_for(lambda: server_of(sweep) and (logged(runs) or not trains))
        os.kill(server_of(sweep), signal.SIGKILL)
        assert sweep.wait(120) == (0 if trains else 1), log.read_text()
    assert "Traceback" not in log.read_text()
    assert sum(trial.result() is not None for trial in trials(runs)) == (2 if trains else 1)
    assert finish(grid, runs) == expected


def test_two_commands_share_a_grid(undisturbed, tmp_path):
    """Every trial is trained once, and both print the same table."""
    grid, expected = undisturbed
    runs = tmp_path / "runs"
    with ExitStack() as stack:
        sweeps = [stack.enter_context(sweeping(grid, runs, "--parallel", "1")) for _ in range(2)]
        printed = [(sweep.wait(120), sweep.printed())[1] for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], printed
    assert table(runs) == expected
    logs = "".join(trial.log.read_text() for trial in trials(runs))
    assert logs.count("step 75/150  val/") == 2, logs  # a slow trial may print the loss of that step, too


@pytest.mark.slow  # 11 s
def test_a_worker_ends_when_nothing_is_left_that_nobody_trains(undisturbed, tmp_path):
    grid, expected = undisturbed
    runs = tmp_path / "runs"
    with sweeping(grid, runs) as sweep:  # trains both trials at once
        wait_for(lambda: runs.exists() and sum(trial.lock.is_held() for trial in trials(runs)) == 2)
        worker = command("sweep", grid, "--runs", runs, "--worker")
        assert worker.returncode == 0 and sweep.poll() is None, worker.stdout
        assert not list(runs.glob("sweeps/*/results.csv"))
    assert table(runs) == expected


@pytest.mark.slow
def test_the_trials_of_a_command_that_stands_still_are_taken_over(undisturbed, tmp_path):
    """And when it goes on, it drops what it has of them."""
    grid, expected = undisturbed
    runs = tmp_path / "runs"
    with ExitStack() as stack:
        first = stack.enter_context(sweeping(grid, runs))
        wait_for(lambda: logged(runs))
        stopped = [first.pid, *descendants(first.pid)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert finish(grid, runs) == expected
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert first.wait(120) == 0, first.printed()
    assert table(runs) == expected
