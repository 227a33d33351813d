"""Several processes share a study: no trial is lost or trained twice, and no password is where others can read it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import optuna
import pytest
import yaml
from forked import start
from helpers import ROOT, a_result, command, descendants, wait_for
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from sqlalchemy import NullPool, make_url

from tests.search.test_search import content
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.lease import LEASE_S
from transformer_pl.runtime.passwords import PASSWORD
from transformer_pl.runtime.processes import is_dead, process_id
from transformer_pl.search import storage
from transformer_pl.search.space import read_search
from transformer_pl.search.states import counted_trials, trials_left
from transformer_pl.search.storage import Unreachable, create_study, find_study
from transformer_pl.search.study import MOST_HELD, RETRY_DRAW_S, SearchQueue
from transformer_pl.trials.runs_folder import finished_results

SECRET = "s3cret:of/no@body%{x}"  # in a URL its @ and % must be written in another way, and nothing else
WRITTEN = SECRET.replace("%", "%25").replace("@", "%40")
SHOWN = "s3cret"  # would be seen of it, whatever its other characters become
TRIALS = 4
SPACE = {"model.p_drop": {"min": 0.0, "max": 0.3}}


@pytest.fixture(scope="module")
def postgres():
    """The URL of a database on a new server that asks for a password."""
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
    """The folder of the trial that this process trains."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return next(
        (t.user_attrs.get("folder") for t in running if t.user_attrs.get("process", "").endswith(f" {pid}")), None
    )


@pytest.mark.parametrize("kind", ["journal", pytest.param("postgres", marks=pytest.mark.slow)])  # 70 s
def test_workers_share_a_study_and_one_is_killed(kind, search_file, tmp_path, request):
    """Four processes; SIGKILL ends one of them in the middle of a trial, which another process trains again, once."""
    runs = tmp_path / "runs"
    url = request.getfixturevalue("postgres") if kind == "postgres" else None
    words = [str(search_file), "--runs", str(runs), "--parallel", "1"]
    python = [sys.executable, "-m", "transformer_pl.sweep"]
    logs = [tmp_path / f"worker{i}.txt" for i in range(4)]
    workers = []
    for log in logs:
        with log.open("wb") as file:
            if url:  # a new process, which has to hide the password
                new = subprocess.Popen([*python, *words, "--storage", url], cwd=ROOT, stdout=file, stderr=file)
            workers.append(new if url else start("sweep", *words, output=file))
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
        os.kill(victim.pid, signal.SIGKILL)
        for worker, log in zip(workers, logs, strict=True):
            assert worker.wait(240) == (-9 if worker is victim else 0), log.read_text()
    finally:
        for worker in workers:
            if worker.poll() is None:
                os.kill(worker.pid, signal.SIGKILL)
            if worker.stdin:
                worker.stdin.close()
    trials = study().get_trials()
    assert [t.state for t in counted_trials(study())] == [TrialState.COMPLETE] * TRIALS
    assert not [t for t in trials if t.state in (TrialState.RUNNING, TrialState.WAITING)]
    assert sum("again" in t.user_attrs for t in trials) == 1  # the trial of the killed process
    assert sum("base" in t.user_attrs for t in counted_trials(study())) == 1 and trials[0].params == {
        "model.p_drop": 0.1
    }
    folders = [t.user_attrs["folder"] for t in counted_trials(study())]
    assert len(set(folders)) == TRIALS and {result["folder"].name for result in finished_results(runs)} == set(folders)
    for log in logs:
        assert SHOWN not in log.read_text()
    for path in runs.rglob("*"):
        assert not path.is_file() or SHOWN.encode() not in path.read_bytes(), path


class Clock:
    """The time of a queue: it moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def alone(search_file, tmp_path, clock):
    """The queue of a search, and a trial of its study that a process on another machine trains."""
    search = read_search(search_file, yaml.safe_load(search_file.read_text()), None, None, {})
    folder = tmp_path / "runs" / "sweeps" / "try@demo"
    folder.mkdir(parents=True)
    kept = create_study(search, folder, None, optuna.samplers.RandomSampler(), None)
    other = kept.ask(search.space)
    other.set_user_attr("process", "another machine 1")
    return SearchQueue(search, kept, tmp_path / "runs", clock=clock), other


def with_state(queue, state):
    return queue.study.get_trials(states=(state,))


def test_a_trial_with_heartbeats_is_not_retried(alone, clock):
    queue, other = alone
    for heartbeat_number in range(3):
        other.set_user_attr("beat", heartbeat_number)
        queue.retry_orphans()
        clock.now += LEASE_S - 1
        queue.retry_orphans()
        assert other.number in {trial.number for trial in with_state(queue, TrialState.RUNNING)}
    assert "waiting for 1 trial of other processes" in queue.waits()


def test_a_trial_without_heartbeats_is_retried_once(alone, clock):
    """Even if it never gave one; and only once, for the trial itself may kill its process."""
    queue, other = alone

    def waiting():
        queue.retry_orphans()
        return with_state(queue, TrialState.WAITING)

    assert not waiting()
    clock.now += LEASE_S - 1
    assert not waiting()
    clock.now += 2
    for _ in range(2):
        (retry,) = waiting()
        assert retry.user_attrs == {"again": other.number, "first": other.number, "died": 1}
    assert queue.study.get_trials()[other.number].state == TrialState.FAIL
    again = queue.study.ask(queue.search.space)
    assert again.params == other.params and not waiting()
    clock.now += LEASE_S + 1
    assert not waiting()
    assert queue.study.get_trials()[again.number].state == TrialState.FAIL
    assert again.number in {trial.number for trial in counted_trials(queue.study)}


def test_the_next_command_retries_failed_trials(alone):
    queue, other = alone

    def waiting():
        """The trials that wait when the next command has begun."""
        SearchQueue(queue.search, queue.study, queue.runs)
        return with_state(queue, TrialState.WAITING)

    queue.study.tell(other.number, state=TrialState.FAIL)
    (retry,) = waiting()
    assert retry.user_attrs == {"again": other.number, "first": other.number, "died": 0} and len(waiting()) == 1
    drawn = queue.study.ask(queue.search.space)
    assert drawn.params == other.params and not counted_trials(queue.study)[1:]
    queue.study.tell(drawn.number, state=TrialState.FAIL)
    assert [trial.number for trial in counted_trials(queue.study)] == [drawn.number]
    assert [trial.user_attrs["again"] for trial in waiting()] == [drawn.number]


def test_patience_starts_anew_when_the_storage_answers(alone, clock):
    """Patience is counted from the first failure in a row."""
    queue, _ = alone
    queue.patience.unanswered(OSError())
    clock.now += storage.PATIENCE_S + 1
    assert queue.next(set()) is not None
    queue.patience.unanswered(OSError())


def test_a_storage_that_can_be_read_but_not_written_is_unreachable(alone, clock, monkeypatch):
    queue, _ = alone

    def full(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(queue.study, "ask", full)
    assert queue.next(set()) is None and "does not answer" not in str(queue.waits())
    clock.now += storage.PATIENCE_S + 1
    with pytest.raises(Unreachable, match="No space left"):
        queue.next(set())


def test_a_trial_that_another_process_has_ended_is_not_put_back(alone):
    queue, other = alone
    queue.study.tell(other.number, 1.0)
    queue.put_back(other)
    assert queue.study.get_trials()[other.number].value == 1.0
    assert not with_state(queue, TrialState.WAITING)


def test_a_study_is_of_one_search(search_file, alone, tmp_path):
    changed = content(space=SPACE | {"model.h": {"values": [4, 8]}}, run_cap=9)
    search_file.write_text(yaml.safe_dump(changed, sort_keys=False))
    search = read_search(search_file, changed, None, None, {})
    with pytest.raises(InputError, match=r"parameters.model.h was None, is .*give the file another `name`"):
        create_study(search, tmp_path / "runs" / "sweeps" / "try@demo", None, None, None)
    with pytest.raises(InputError, match=r"parameters.model.h was None, is .*give the file another `name`"):
        find_study(search, tmp_path / "runs" / "sweeps" / "try@demo", None)


MUST = "--storage: must be a URL that Optuna takes, such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE or sqlite:///"


@pytest.mark.parametrize(
    ("url", "message"),
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
def test_an_invalid_storage_is_refused(search_file, tmp_path, url, message):
    finished = command("sweep", search_file, "--runs", tmp_path / "runs", f"--storage={url}")
    assert finished.returncode == 2 and message in finished.stderr
    assert SHOWN not in finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_password_may_come_from_the_environment(postgres, search_file, tmp_path):
    """A wrong password is refused, and not printed."""
    bare = postgres.replace(f":{WRITTEN}@", "@")
    search_file.write_text(yaml.safe_dump(content() | {"name": "never searched"}, sort_keys=False))
    words = (search_file, "--runs", tmp_path / "runs", "--storage", bare)
    (tmp_path / "runs").mkdir()
    for password, reason in ((SECRET, "was not; run it first"), (f"{SHOWN}!", "password authentication failed")):
        finished = command("report", *words, **{PASSWORD: password})
        assert finished.returncode == 2 and reason in finished.stderr
        assert SHOWN not in finished.stdout + finished.stderr


def queue_of(folder, clock=time.monotonic, **keys):
    """The queue of a search in a runs folder, as the next process has it."""
    study_folder = folder / "runs" / "sweeps" / "try@demo"
    study_folder.mkdir(parents=True, exist_ok=True)
    search = read_search(folder / "search.yaml", content(**keys), None, None, {})
    study = create_study(search, study_folder, None, optuna.samplers.RandomSampler(seed=1), None)
    return SearchQueue(search, study, folder / "runs", clock=clock)


def finish(queue, planned):
    planned.trial.folder.mkdir(parents=True)
    planned.trial.finish(a_result())
    queue.ended(planned, "done")


def test_repeated_draws_do_not_count_and_end_the_search_in_a_space_that_is_too_small(tmp_path):
    """Of two values both become trials, and every other draw repeats one of them."""
    queue = queue_of(tmp_path, space={"model.h": {"values": [4, 8]}}, run_cap=5)
    while planned := queue.next(set()):
        finish(queue, planned)
    assert sorted(trial.params["model.h"] for trial in counted_trials(queue.study)) == [4, 8]
    assert queue.waits() is None
    repeats = [trial for trial in queue.study.get_trials() if "repeats" in trial.user_attrs]
    assert len(repeats) == 10 and all(trial.value == 2.0 for trial in repeats)


def test_the_trials_that_are_left_are_counted(tmp_path):
    """Failed ones are trained again, whatever the cap."""
    space = {"model.p_drop": {"min": 0.0, "max": 0.3}}
    queue = queue_of(tmp_path, space=space, run_cap=4)

    def count(run_cap):
        return trials_left(queue.study.get_trials(), run_cap)

    assert count(4) == 4
    finish(queue, queue.next(set()))
    queue.ended(queue.next(set()), "failed")
    finish(queue, queue.next(set()))
    assert [count(4), count(3), count(2), count(1)] == [2, 1, 1, 1]
    again = queue_of(tmp_path, space=space, run_cap=2)  # enqueues the failed one
    assert [count(4), count(2)] == [2, 1]
    again.ended(again.next(set()), "failed")
    assert [count(4), count(2)] == [2, 1]


def test_trials_of_a_process_that_died_are_left(tmp_path):
    """It may train each of them once more; the sampler draws others in place of the rest."""
    queue = queue_of(tmp_path, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, run_cap=3)
    for deaths in (0, 1):
        queue.next(set())
        queue.own_draws()[-1].trial.set_user_attr("died", deaths)
    assert trials_left(queue.study.get_trials(), 3) == 1
    dead = subprocess.Popen(["true"])
    name = process_id(dead.pid)
    dead.wait()
    for draw in queue.own_draws():
        draw.trial.set_user_attr("process", name)
    assert trials_left(queue.study.get_trials(), 3) == 2


def test_a_search_goes_on_while_another_command_trains_what_it_has_drawn(tmp_path, clock):
    """As a grid that trains base."""
    queue = queue_of(tmp_path, clock, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, run_cap=9)
    base = queue.draw()
    queue.put_back(base.trial)
    with closing(base.planned.trial.take_lease()):
        planned = queue.next(set())
        assert planned is not None and planned.trial.folder != base.planned.trial.folder
        assert [draw.planned.trial.folder for draw in queue.held] == [base.planned.trial.folder]
    assert queue.next(set()).trial.folder == base.planned.trial.folder and not queue.held


def test_a_search_draws_few_trials_that_have_to_wait(tmp_path, clock):
    queue = queue_of(tmp_path, clock, space={"model.p_drop": {"min": 0.0, "max": 0.3}}, run_cap=9)
    queue._has_to_wait = lambda draw, taken: True
    for _ in range(3):
        assert queue.next(set()) is None
        clock.now += RETRY_DRAW_S
    assert len(queue.held) == MOST_HELD


def test_a_job_that_an_earlier_command_started_is_attached(tmp_path):
    queue = queue_of(tmp_path, run_cap=9)
    queue._is_attached = lambda planned: True
    base = queue.draw()
    queue.put_back(base.trial)
    with closing(base.planned.trial.take_lease()):
        planned = queue.next(set())
        assert planned is not None and planned.trial.locked()


def test_a_config_that_another_process_trains_is_waited_for_and_not_trained_twice(tmp_path, clock):
    one, two = (queue_of(tmp_path, clock, space={"model.h": {"values": [4, 8]}}, run_cap=2) for _ in range(2))
    first = one.next(set())
    two.study.enqueue_trial({"model.h": 8})  # as the base has
    assert two.next(set()) is None and "another process, which trains it" in two.waits()
    (held,) = two.own_draws()
    one.give_heartbeat()
    finish(one, first)
    clock.now += RETRY_DRAW_S
    second = two.next(set())
    assert second.config.model.h == 4
    repeated = two.study.get_trials()[held.trial.number]
    assert (repeated.state, repeated.value, repeated.user_attrs["repeats"]) == (TrialState.COMPLETE, 2.0, 0)


def test_a_held_trial_that_another_process_has_ended_is_dropped(tmp_path, clock):
    """As that process took this one for dead, while it was suspended."""
    one, two = (queue_of(tmp_path, clock, space={"model.h": {"values": [4, 8]}}, run_cap=2) for _ in range(2))
    first = one.next(set())
    two.study.enqueue_trial({"model.h": 8})  # as the base has
    assert two.next(set()) is None
    (held,) = two.own_draws()
    one.study.tell(held.trial.number, state=TrialState.FAIL)
    finish(one, first)
    clock.now += RETRY_DRAW_S
    two.next(set())
    assert held not in two.own_draws()
    assert two.study.get_trials()[held.trial.number].state == TrialState.FAIL


def test_trials_keep_their_heartbeats_when_one_of_them_was_taken_over(alone):
    queue, _ = alone
    one, two = queue.draw(), queue.draw()
    queue.draws = {"one": one, "two": two}
    queue.study.tell(one.trial.number, state=TrialState.FAIL)
    queue.give_heartbeat()
    assert "beat" in queue.study.get_trials()[two.trial.number].user_attrs


def test_a_process_is_dead_when_it_has_ended_even_if_its_parent_has_not_waited():
    """In a container the parent may never wait for it."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = process_id(process.pid)
    earlier = name.replace(name.split()[-2], "1")  # a process that had its number before
    try:
        assert not is_dead(name) and not is_dead(f"elsewhere {process.pid}") and is_dead(earlier)
    finally:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # has ended, and can still be waited for
        assert is_dead(name)
        process.communicate()
    assert is_dead(name)
