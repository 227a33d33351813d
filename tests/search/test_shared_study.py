"""Several processes at one study: nothing lost, nothing done twice, and no password where others could read it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import yaml
from helpers import ROOT, a_result, command, descendants, wait_for
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from sqlalchemy import NullPool, make_url

from tests.search.test_search import content
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.passwords import PASSWORD
from transformer_pl.search import study as module
from transformer_pl.search.space import read_search
from transformer_pl.search.storage import Unreachable, create_study
from transformer_pl.search.study import SearchQueue, counted_trials
from transformer_pl.trials.runs_folder import finished_results

SECRET = "s3cret:of/no@body%{x}"  # in a URL its @ and % must be written in another way, and nothing else
WRITTEN = SECRET.replace("%", "%25").replace("@", "%40")
SHOWN = "s3cret"  # would be seen of it, whatever its other characters become
TRIALS = 4
SPACE = {"model.p_drop": {"min": 0.0, "max": 0.3}}


@pytest.fixture(scope="module")
def postgres():
    """The URL of a database of its own, on a server of its own that asks for a password."""
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
    call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", listen, "start")
    try:
        yield f"postgresql+psycopg://searcher:{WRITTEN}@127.0.0.1:{port}/postgres"
    finally:
        call("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture
def search_file(tmp_path):
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(content(space=SPACE, run_cap=TRIALS), sort_keys=False))
    return path


def by_worker(study, pid):
    """The folder of the trial that this process is at."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return next(
        (t.user_attrs.get("folder") for t in running if t.user_attrs.get("process", "").endswith(f" {pid}")), None
    )


@pytest.mark.parametrize("kind", ["journal", "postgres"])
def test_workers_share_a_study_and_one_is_killed(kind, search_file, tmp_path, request):
    """Four at once, one of them by SIGKILL in the middle of a trial, which another does again, once."""
    runs = tmp_path / "runs"
    url = request.getfixturevalue("postgres") if kind == "postgres" else None
    storage = ["--storage", url] if url else []
    words = [sys.executable, "-m", "transformer_pl.sweep", str(search_file), "--runs", str(runs), "--parallel", "1"]
    logs = [tmp_path / f"worker{i}.txt" for i in range(4)]
    workers = []
    for log in logs:
        with log.open("wb") as file:
            workers.append(subprocess.Popen([*words, *storage], cwd=ROOT, stdout=file, stderr=file))
    try:
        name = "try@demo"
        journal = runs / "sweeps" / name / "study.journal"

        def study():
            quoted = url and make_url(url).render_as_string(hide_password=False)  # Optuna has a use for { and }
            unpooled = url and RDBStorage(quoted, engine_kwargs={"poolclass": NullPool})  # nothing stays open
            return optuna.load_study(
                study_name=name, storage=unpooled or JournalStorage(JournalFileBackend(str(journal)))
            )

        def begun(pid):
            if url is None and not journal.exists():
                return False
            try:
                folder = by_worker(study(), pid)
            except (KeyError, optuna.exceptions.StorageInternalError):  # not made yet
                return False
            return folder and (runs / "trials" / folder / "metrics.jsonl").exists()

        wait_for(lambda: any(begun(worker.pid) for worker in workers), 120)
        victim = next(worker for worker in workers if begun(worker.pid))
        for worker in workers:  # they may have it in their environment, and nobody else
            for pid in (worker.pid, *descendants(worker.pid)):
                with suppress(OSError):  # it has ended meanwhile
                    assert SHOWN not in Path("/proc", str(pid), "cmdline").read_text()
                    assert pid == worker.pid or SHOWN not in Path("/proc", str(pid), "environ").read_text()
        victim.send_signal(signal.SIGKILL)
        for worker, log in zip(workers, logs, strict=True):
            assert worker.wait(240) == (-9 if worker is victim else 0), log.read_text()
    finally:
        for worker in workers:
            worker.kill()
    trials = study().get_trials()
    assert [t.state for t in counted_trials(study())] == [TrialState.COMPLETE] * TRIALS
    assert not [t for t in trials if t.state in (TrialState.RUNNING, TrialState.WAITING)]
    assert sum("again" in t.user_attrs for t in trials) == 1  # what the victim was at
    assert sum("base" in t.user_attrs for t in counted_trials(study())) == 1 and trials[0].params == {
        "model.p_drop": 0.1
    }
    folders = [t.user_attrs["folder"] for t in counted_trials(study())]
    assert len(set(folders)) == TRIALS and {result["folder"].name for result in finished_results(runs)} == set(folders)
    for log in logs:
        assert SHOWN not in log.read_text()
    for path in runs.rglob("*"):
        assert not path.is_file() or SHOWN.encode() not in path.read_bytes(), path


@pytest.fixture
def alone(search_file, tmp_path):
    """A search with a study whose other trial is of a process on another machine."""
    search = read_search(search_file, yaml.safe_load(search_file.read_text()), None, None, {})
    folder = tmp_path / "runs" / "sweeps" / "try@demo"
    folder.mkdir(parents=True)
    kept = create_study(search, folder, None, optuna.samplers.RandomSampler(), None)
    other = kept.ask(search.space)
    other.set_user_attr("process", "another machine 1")
    return SearchQueue(search, kept, tmp_path / "runs"), other


class Clock:
    """What the study takes for the time: a test need not wait."""

    def __init__(self, monkeypatch):
        self.now = time.monotonic()
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_a_trial_whose_process_gives_signs_of_life_is_left_alone(alone, monkeypatch):
    study, other = alone
    clock = Clock(monkeypatch)
    for beat in range(3):
        other.set_user_attr("beat", beat)
        study._take_over()
        clock.now += module.HEARTBEAT_TIMEOUT_S - 1
        study._take_over()
        assert other.number in {t.number for t in study.study.get_trials(states=(TrialState.RUNNING,))}
    assert "1 trials are at work elsewhere" in study.waits()


def test_a_silent_trial_is_done_again_once(alone, monkeypatch):
    """Even if it fell silent before it said anything; and not twice, for something may be wrong with it."""
    study, other = alone
    clock = Clock(monkeypatch)

    def waiting():
        """After the next look at the others."""
        study._take_over()
        return study.study.get_trials(states=(TrialState.WAITING,))

    assert not waiting()
    clock.now += module.HEARTBEAT_TIMEOUT_S - 1
    assert not waiting()
    clock.now += 2
    for _ in range(2):
        (put_back,) = waiting()
        assert put_back.user_attrs == {"again": other.number, "died": 1}
    assert study.study.get_trials()[other.number].state == TrialState.FAIL
    again = study.study.ask(study.search.space)
    assert again.params == other.params and not waiting()
    clock.now += module.HEARTBEAT_TIMEOUT_S + 1
    assert not waiting()
    assert study.study.get_trials()[again.number].state == TrialState.FAIL
    assert again.number in {trial.number for trial in counted_trials(study.study)}


def test_what_failed_is_tried_again_by_the_next_command(alone):
    study, other = alone

    def waiting():
        """When the next command has begun."""
        SearchQueue(study.search, study.study, study.runs)
        return study.study.get_trials(states=(TrialState.WAITING,))

    study.study.tell(other.number, state=TrialState.FAIL)
    (again,) = waiting()
    assert again.user_attrs == {"again": other.number, "died": 0} and len(waiting()) == 1
    drawn = study.study.ask(study.search.space)
    assert drawn.params == other.params and not counted_trials(study.study)[1:]
    study.study.tell(drawn.number, state=TrialState.FAIL)
    assert [trial.number for trial in counted_trials(study.study)] == [drawn.number]
    assert [trial.user_attrs["again"] for trial in waiting()] == [drawn.number]


def test_a_storage_that_answered_meanwhile_has_all_its_time_again(alone, monkeypatch):
    """Patience is counted from the first failure in a row."""
    study, _ = alone
    study._silent_since = -1e9
    assert study.next(set()) is not None and study._silent_since is None


def test_a_storage_that_can_be_read_and_not_written_is_lost(alone, monkeypatch):
    study, _ = alone

    def full(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(study.study, "ask", full)
    assert study.next(set()) is None and "does not answer" not in str(study.waits())
    study._silent_since -= module.PATIENCE_S
    study._asked_at -= module.RETRY_DRAW_S
    with pytest.raises(Unreachable, match="No space left"):
        study.next(set())


def test_what_another_has_told_is_not_told_again(alone):
    study, other = alone
    study.study.tell(other.number, 1.0)
    study._put_back(other.number, other.params, other.user_attrs)
    assert study.study.get_trials()[other.number].value == 1.0
    assert not study.study.get_trials(states=(TrialState.WAITING,))


def test_a_study_is_of_one_search(search_file, alone, tmp_path):
    changed = content(space=SPACE | {"model.h": {"values": [4, 8]}}, run_cap=9)
    search_file.write_text(yaml.safe_dump(changed, sort_keys=False))
    search = read_search(search_file, changed, None, None, {})
    with pytest.raises(InputError, match=r"parameters.model.h was None, is .*give the file another `name`"):
        create_study(search, tmp_path / "runs" / "sweeps" / "try@demo", None, None, None)


MUST = "--storage: must be a URL that Optuna takes, such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE or sqlite:///"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"postgresql://h/x?user=me&password={SECRET}", MUST),
        (f"postgresql://me:{SECRET}@h/x", MUST),
        (f"postgresql://me:{WRITTEN}@h:54x/x", MUST),
        ("nonsense", MUST),
        (f"postgresql+psycopg://me:{WRITTEN}@127.0.0.1:1/x", "--storage postgresql+psycopg://me@127.0.0.1:1/x: must"),
        (f"POSTGRESQL://me:{WRITTEN}@127.0.0.1:1/x", "--storage POSTGRESQL://me@127.0.0.1:1/x: must be a database"),
        (f"oracle://me:{WRITTEN}@127.0.0.1:1/x", "needs a package that is not here"),
        ("sqlite:////nowhere/at/all.db", "must be a database that answers, but: unable to open"),
    ],
)
def test_a_storage_that_cannot_be_is_told(search_file, tmp_path, url, told):
    said = command("sweep", search_file, "--runs", tmp_path / "runs", f"--storage={url}")
    assert said.returncode == 2 and told in said.stderr and SHOWN not in said.stdout + said.stderr
    assert "Traceback" not in said.stderr


def test_a_password_may_come_from_the_environment(postgres, search_file, tmp_path):
    """Of the sweep and of its report; a wrong one is refused, and not printed."""
    bare = postgres.replace(f":{WRITTEN}@", "@")
    words = (search_file, "--runs", tmp_path / "runs", "--storage", bare)
    (tmp_path / "runs").mkdir()
    for password, why in ((SECRET, "was not; run it first"), (f"{SHOWN}!", "password authentication failed")):
        told = command("report", *words, **{PASSWORD: password})
        assert told.returncode == 2 and why in told.stderr and SHOWN not in told.stdout + told.stderr


def test_what_was_drawn_before_does_not_count_and_ends_in_a_space_that_is_too_small(tmp_path):
    """Two values and no more: both are trials, and every other draw is one of them again."""
    folder = tmp_path / "runs" / "sweeps" / "try@demo"
    folder.mkdir(parents=True)
    said = content(space={"model.h": {"values": [4, 8]}}, run_cap=5)
    search = read_search(tmp_path / "search.yaml", said, None, None, {})
    study = SearchQueue(
        search, create_study(search, folder, None, optuna.samplers.RandomSampler(seed=1), None), tmp_path / "runs"
    )
    while job := study.next(set()):
        job.trial.folder.mkdir(parents=True)
        job.trial.finish(a_result())
        study.ended(job, "done")
    assert sorted(trial.params["model.h"] for trial in counted_trials(study.study)) == [4, 8]
    assert study.waits() is None
    told = [trial for trial in study.study.get_trials() if "repeats" in trial.user_attrs]
    assert len(told) == 10 and all(trial.value == 2.0 for trial in told)


def test_a_config_that_another_is_at_is_waited_for_and_not_trained_twice(tmp_path):
    folder = tmp_path / "runs" / "sweeps" / "try@demo"
    folder.mkdir(parents=True)
    said = content(space={"model.h": {"values": [4, 8]}}, run_cap=2)
    search = read_search(tmp_path / "search.yaml", said, None, None, {})
    one, two = (
        SearchQueue(
            search, create_study(search, folder, None, optuna.samplers.RandomSampler(seed=1), None), tmp_path / "runs"
        )
        for _ in range(2)
    )
    first = one.next(set())
    two.study.enqueue_trial({"model.h": 8})  # as base is
    assert two.next(set()) is None and "another process trains it" in two.waits()
    (held,) = two._mine()
    one.draws[first.identity.trial].trial.set_user_attr("beat", 1)
    first.trial.folder.mkdir(parents=True)
    first.trial.finish(a_result())
    one.ended(first, "done")
    two._asked_at = -module.RETRY_DRAW_S
    second = two.next(set())
    assert second.config.model.h == 4
    told = two.study.get_trials()[held.trial.number]
    assert (told.state, told.value, told.user_attrs["repeats"]) == (TrialState.COMPLETE, 2.0, 0)


def test_one_that_was_taken_over_leaves_the_others_their_signs_of_life(alone):
    study, _ = alone
    one, two = study._draw(), study._draw()
    study.draws = {"one": one, "two": two}
    study.study.tell(one.trial.number, state=TrialState.FAIL)
    study._beat()
    assert "beat" in study.study.get_trials()[two.trial.number].user_attrs


def test_a_process_has_gone_when_it_has_ended_whoever_is_its_parent():
    """Also where that has not asked how it ended, as in a container nobody may."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    where = f"{module._here()} {process.pid}"
    try:
        assert not module._is_gone(where) and not module._is_gone(f"elsewhere {process.pid}")
    finally:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # has ended, and can still be asked
        assert module._is_gone(where)
        process.communicate()
    assert module._is_gone(where)
