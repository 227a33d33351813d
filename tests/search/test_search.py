"""Searches by real commands: they end at run_cap, resume, prune, and go on where a trial diverges or a process dies."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import optuna
import pytest
from forked import command, running, start
from helpers import descendants, processes, wait_for
from optuna.trial import TrialState
from sqlalchemy import NullPool

from tests.search.searches import DROPOUT, SMALL, SPACE, search_file, study_folder, study_of
from transformer_pl.runtime.errors import InputError
from transformer_pl.search.study import counted_trials, shown_number
from transformer_pl.sweep.__main__ import main
from transformer_pl.trials.runs_folder import RunsFolder
from transformer_pl.trials.trial_folder import TrialFolder, trial_id

SMALLER = {"model.N": 2}  # where nothing has to happen while a trial runs
SECRET = "s3cret"
TRIALS = 4
ENCODES = """
from torch.nn.functional import cross_entropy

class Encodes:
    def __init__(self, config, optim):
        pass

    def of_batch(self, model, batch):
        model.encode(batch.source, batch.source != 0)  # beside the pass
        logits = model(batch.source, batch.target_in)
        return cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=0, reduction="sum")
"""


@pytest.fixture(autouse=True)
def without_wandb(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")


def states_in(page):
    """The state of each trial by its number, as `report --format json` has them."""
    return {row["trial"]: row["state"] for row in json.loads(page, parse_constant=pytest.fail)["rows"]}


@pytest.mark.slow
def test_flops_that_are_not_known_are_no_goal(tmp_path, module):
    module(ENCODES)
    own = {"optim.loss": {"value": "stranger.Encodes"}}
    file = search_file(tmp_path, metric={"name": "flops", "goal": "minimize"}, space=SPACE | own)
    with pytest.raises(InputError, match="goal"):
        main([str(file), "--plan", "--runs", str(tmp_path / "runs")])


def test_a_search_ends_at_run_cap_and_resumes_when_it_is_raised(tmp_path):
    """The base comes first; an invalid config is infeasible; no trial is trained twice, by `train` or by a search."""
    runs, keys = tmp_path / "runs", {"space": SPACE | {"model.h": {"values": [3, 8]}}, "fixed": SMALLER}
    words = [search_file(tmp_path, run_cap=3, **keys), "--runs", runs]
    finished = command("train", *words[1:], *(f"--{key}={value}" for key, value in (SMALL | SMALLER).items()))
    assert finished.returncode == 0, finished.stderr
    (base_result,) = (path.stat().st_mtime_ns for path in runs.glob("trials/*/result.json"))
    finished = command("sweep", *words)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert base_result in [path.stat().st_mtime_ns for path in runs.glob("trials/*/result.json")]
    trials = study_of(tmp_path).get_trials()
    assert trials[0].params == {"model.h": 8, "model.p_drop": 0.1} and len(trials) == 3
    assert {t.state for t in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    for trial in trials:
        assert ("infeasible" in trial.user_attrs) == (trial.params["model.h"] == 3)
        assert "h = 3" in trial.user_attrs.get("infeasible", "h = 3")
    by_folder = {trial.name: result.metrics["val/ppl"] for trial, result in RunsFolder(runs).finished()}
    assert {t.user_attrs["folder"]: t.value for t in trials if t.state == TrialState.COMPLETE} == by_folder
    report = command("report", *words, "--format", "md")
    assert report.returncode == 0 and report.stdout == (study_folder(tmp_path) / "table.md").read_text()
    page = Path(command("report", *words, "--format", "html").stdout.strip()).read_text()
    for trial in trials:
        assert f"#{trial.number}" in page and trial.user_attrs.get("folder", "infeasible") in page
    assert command("sweep", *words).returncode == 0 and len(study_of(tmp_path).get_trials()) == 3
    search_file(tmp_path, run_cap=4, **keys)
    assert command("sweep", *words, "--worker").returncode == 0 and len(study_of(tmp_path).get_trials()) == 4
    assert "4 of 4 trials" in (study_folder(tmp_path) / "table.md").read_text()  # by the last worker


@pytest.mark.slow  # 14 s, and 100 s
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_search_resumes_its_trials(tmp_path, signum):
    """No process is left and no trial is lost: each is drawn again and resumes from its checkpoint."""
    runs = tmp_path / "runs"
    words = [
        "sweep",
        search_file(tmp_path, run_cap=2, space=DROPOUT, fixed=SMALLER | {"optim.max_steps": 200}),
        "--runs",
        runs,
    ]
    with (tmp_path / "out").open("w") as out, running(*words, "--parallel", 2, output=out) as process:
        wait_for(lambda: len(list(runs.glob("trials/*/checkpoints/*.ckpt"))) >= 2, 90)
        assert command("sweep", "--list", "--runs", runs).stdout.count(" running ") == 2
        folders = {path.name for path in (runs / "trials").iterdir()}
        os.kill(process.pid, signum)
        assert process.wait(20) in (143, -9)
        wait_for(lambda: not any(trial.lock.is_held() for trial in map(TrialFolder, (runs / "trials").iterdir())), 15)
    finished = command(*words)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert json.loads((study_folder(tmp_path) / "plan.json").read_text())["trials"]
    study = study_of(tmp_path)
    assert [t.state for t in counted_trials(study)] == [TrialState.COMPLETE] * 2
    assert not study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING))
    assert {path.name for path in (runs / "trials").iterdir()} == folders
    planned = command(*words, "--plan").stdout.splitlines()
    assert [line.split()[0] for line in planned if line.endswith(": done")] == ["#0", "#1"], "each keeps its number"
    assert any("RandomSampler" in line and str(study_folder(tmp_path) / "study.journal") in line for line in planned)
    for trial, result in RunsFolder(runs).finished():
        steps = [json.loads(line)["step"] for line in (trial.path / "metrics.jsonl").read_text().splitlines()]
        assert result.steps == 200 and steps == sorted(steps)


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])  # 32 s
def test_a_pruned_trial_keeps_its_curve_and_leaves_no_process(tmp_path, devices):
    """With a learning rate close to 0 it is worse than base, which is never pruned."""
    runs, rates = tmp_path / "runs", {"optim.lr_scale": {"values": [0.7, 1e-9, 2e-9, 3e-9]}}
    steps = {"optim.max_steps": 100, "trainer.val_every": 10, "trainer.accelerator": "cpu", "trainer.devices": devices}
    words = [search_file(tmp_path, run_cap=2, space=rates, fixed=steps | SMALLER), "--runs", runs, "--parallel", 1]
    options = "--sampler", "random", "seed=1", "--pruner", "median", "n_startup_trials=1"  # draws 1e-9
    finished = command("sweep", *words, *options)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    base, pruned = counted_trials(study_of(tmp_path))
    assert (base.state, pruned.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    kept = runs / "trials" / pruned.user_attrs["folder"]
    lines = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    curve = [line["val/ppl"] for line in lines if "val/ppl" in line]
    assert curve[: len(pruned.intermediate_values)] == list(pruned.intermediate_values.values()) and len(curve) < 10
    assert not (kept / "result.json").exists() and not (kept / "checkpoints").exists()
    assert not any("transformer_pl.train" in p.command and str(runs) in p.command for p in processes())
    rows = command("report", *words[:3], "--format", "json")
    assert states_in(rows.stdout) == {0: "best", pruned.number: "pruned"}
    listed = command("sweep", "--list", "--runs", runs).stdout.splitlines()
    assert [line.split()[2] for line in listed if line.startswith(trial_id(kept.name))] == ["pruned"]


@pytest.fixture
def postgres():
    """A new server that asks for SECRET: the URL of a database, and a function that stops and starts it."""
    found = [shutil.which("initdb"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")))]
    programs = [Path(path).parent for path in found if path]
    if not programs:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    pytest.importorskip("psycopg")
    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    data, word = folder / "data", folder / "password"
    word.write_text(SECRET)
    other = []
    if os.geteuid() == 0:  # which the server refuses to run as
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        for path in (folder, word):
            os.chown(path, 65534, 65534)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(program, *argv):
        words = [*other, str(programs[-1] / program), "-D", str(data), *argv]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=60)

    call("initdb", "-U", "searcher", "--auth=scram-sha-256", f"--pwfile={word}", "--no-sync")
    listen = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='' -c fsync=off"
    start_words = ("-w", "-l", str(folder / "log"), "-o", listen, "start")
    call("pg_ctl", *start_words)
    turns = {"stop": lambda: call("pg_ctl", "-m", "fast", "stop"), "start": lambda: call("pg_ctl", *start_words)}
    try:
        yield f"postgresql+psycopg://searcher@127.0.0.1:{port}/postgres", lambda turn: turns[turn]()
    finally:
        call("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.mark.slow  # 60 s
def test_a_database_that_stops_ends_a_search_which_the_same_command_continues(tmp_path, postgres, monkeypatch):
    """With one message and without a traceback; the trial that was running is continued, and keeps its number."""
    monkeypatch.setenv("PGPASSWORD", SECRET)
    url, turn = postgres
    fixed = {"fixed": SMALLER | {"optim.max_steps": 200}}
    words = ["sweep", search_file(tmp_path, space=DROPOUT, run_cap=2, **fixed), "--runs", tmp_path / "runs"]
    words += ["--storage", url, "--parallel", 1]
    with (tmp_path / "out").open("w") as out, running(*words, output=out) as process:
        wait_for(lambda: list(tmp_path.glob("runs/trials/*/checkpoints/*.ckpt")), 120)
        turn("stop")
        assert process.wait(60) == 1
    for finished in (command(*words), command("report", *words[1:-2])):
        assert finished.returncode == 2 and "--storage" in finished.stderr
        assert "Traceback" not in finished.stderr and SECRET not in finished.stdout + finished.stderr
    printed = (tmp_path / "out").read_text()
    assert printed.count("--storage: must") == 1 and "Traceback" not in printed and SECRET not in printed
    (begun,) = tmp_path.glob("runs/trials/*/")
    turn("start")
    finished = command(*words)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert begun.name in {folder.name for folder, _ in RunsFolder(tmp_path / "runs").finished()}
    assert states_in(command("report", *words[1:-2], "--format", "json").stdout)[0] in ("best", "done")


@pytest.mark.slow  # 100 s each
@pytest.mark.parametrize("kind", ["journal", "postgres"])
def test_workers_share_a_study_and_one_is_killed(kind, tmp_path, request, monkeypatch):
    """Three processes; SIGKILL ends one of them in the middle of a trial, which another process trains again, once."""
    monkeypatch.setenv("PGPASSWORD", SECRET)
    runs, url = tmp_path / "runs", request.getfixturevalue("postgres")[0] if kind == "postgres" else None
    words = ["sweep", search_file(tmp_path, space=DROPOUT, run_cap=TRIALS), "--runs", runs, "--parallel", 1]
    logs = [(tmp_path / f"worker{i}.txt").open("w+") for i in range(3)]  # open until the processes have them
    workers = [start(*words, *(["--storage", url] if url else []), output=log) for log in logs]

    def victims():
        """The workers whose trials have begun."""
        begun = [json.loads(path.with_name("status.json").read_text()) for path in runs.glob("trials/*/metrics.jsonl")]
        training = {status["pid"] for status in begun if status["state"] == "running"}
        return [worker for worker in workers if training.intersection(descendants(worker.pid))]

    try:
        wait_for(victims, 300)
        victim = victims()[0]
        os.kill(victim.pid, signal.SIGKILL)
        for worker, log in zip(workers, logs, strict=True):
            assert worker.wait(600) == (-9 if worker is victim else 0), Path(log.name).read_text()
    finally:
        for worker, log in zip(workers, logs, strict=True):
            worker.kill()
            log.close()
    if url:
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})  # nothing stays open
        study = optuna.load_study(study_name=None, storage=storage)
    else:
        study = study_of(tmp_path)
    counted = counted_trials(study)
    assert [t.state for t in counted] == [TrialState.COMPLETE] * TRIALS
    assert not study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING))
    assert sum(shown_number(t) != t.number for t in study.get_trials()) == 1  # the trial of the killed process
    assert [t.params for t in counted if "base" in t.user_attrs] == [{"model.p_drop": 0.1}]
    folders = [t.user_attrs["folder"] for t in counted]
    assert len(set(folders)) == TRIALS and {folder.name for folder, _ in RunsFolder(runs).finished()} == set(folders)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
