"""The server that processes are forked from: each is what `python -m` would have made, and none outlives its parent."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
from helpers import ROOT, descendants, processes, wait_for

from transformer_pl.runtime import fork_server
from transformer_pl.runtime.files import try_lock
from transformer_pl.runtime.fork_server import ForkServer

DESCRIBES = """
import atexit, json, os, signal, sys, threading
import heavy
if __name__ == "__main__":
    import __main__
    descriptors = {int(name) for name in os.listdir("/proc/self/fd")}
    atexit.register(print, "atexit", flush=True)
    print("error", file=sys.stderr)
    threading.Timer(0.2, print, ["thread"]).start()  # the process ends after it
    print(json.dumps({
        "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "spec": __main__.__spec__.name, "file": __file__,
        "environment": {key: value for key, value in os.environ.items() if key not in ("FILE", "_")},
        "file_of_parent": os.path.realpath(f"/proc/self/fd/{os.environ['FILE']}"),
        "descriptors": len([number for number in descriptors if os.path.exists(f"/proc/self/fd/{number}")]),
        "session": os.getsid(0) == os.getpgrp() == os.getpid(), "umask": os.umask(0),
        "handlers": [str(signal.getsignal(one)) for one in (2, 15, signal.SIGHUP, signal.SIGCHLD)],
        "stdin": sys.stdin.read(), "streams": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.write_through],
    }))
"""
RUNS = """
import heavy, sys
if __name__ == "__main__":
    exec(sys.argv[1])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules, of which `heavy` notes each process that imports it."""
    (tmp_path / "heavy.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('once ')")
    (tmp_path / "describes.py").write_text(DESCRIBES)
    (tmp_path / "runs.py").write_text(RUNS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    return tmp_path


def ready(module, *also):
    server = ForkServer(module, also)
    wait_for(server.is_ready)
    return server


@pytest.fixture
def server(folder):
    with closing(ready("runs")) as server:
        yield server


@pytest.fixture
def run(server, folder):
    """Start a process that runs a line of Python."""
    started = []

    def begin(program, **files):
        with (folder / "printed").open("ab") as output:
            started.append(server.start([program], os.environ, output, files))
        return started[-1]

    yield begin
    for process in started:
        process.stdin.close()
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(10)


def test_a_fork_is_what_a_new_process_would_be(folder):
    """But for how often the libraries are imported."""
    argv, environment = ["--key=ü", "a b"], os.environ | {"ADDED": "for this one"}
    with (folder / "kept").open("w") as kept:
        words, pipes = [sys.executable, "-m", "describes", *argv], {"stdin": subprocess.PIPE, "start_new_session": True}
        with (folder / "new").open("wb") as output:
            new = environment | {"FILE": str(kept.fileno())}
            process = subprocess.Popen(words, env=new, stdout=output, stderr=output, pass_fds=[kept.fileno()], **pipes)
            process.communicate(b"typed")
        with closing(ready("describes")) as server:
            for _ in range(2):
                with (folder / "forked").open("wb") as output:
                    fork = server.start(argv, environment, output, {"FILE": kept})
                fork.stdin.write(b"typed")
                fork.stdin.close()
                assert fork.wait(20) == process.returncode == 0, (folder / "forked").read_text()
    lines, expected = ((folder / name).read_text().splitlines() for name in ("forked", "new"))
    said, wanted = json.loads(lines.pop(1)), json.loads(expected.pop(1))
    assert said == wanted and lines == expected == ["error", "thread", "atexit"]
    assert said["argv"][1:] == argv and said["spec"] == "describes" and said["environment"]["ADDED"]
    assert said["file_of_parent"] == str(folder / "kept")
    assert (folder / "imported").read_text() == "once once "  # by the new process and by the server


# A command that a shell starts in the background ignores Ctrl-C, and so do its processes.
INTERRUPTIBLE = "import os, signal; signal.signal(2, signal.default_int_handler)"


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('in words')", 1, "in words"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os._exit(70)", 70, ""),
        ("import os; os.kill(os.getpid(), 15)", -15, ""),
        (f"{INTERRUPTIBLE}; os.kill(os.getpid(), 2)", -2, "KeyboardInterrupt"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_how_a_process_ends_is_seen(run, folder, program, code, words):
    process = run(program)
    wait_for(lambda: process.poll() is not None)
    assert process.poll() == process.wait() == process.returncode == code
    assert words in (folder / "printed").read_text()


def test_a_process_shows_its_own_command_line(run, server):
    program = "import time; time.sleep(60)"
    process = run(program)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    with open(f"/proc/{process.pid}/cmdline") as file:
        assert file.read().split("\0") == [f"{sys.executable} -m runs {program}", ""]
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(10) == -9
    long = run(f"import time; time.sleep(60)  # {'x' * 9000}")
    with open(f"/proc/{long.pid}/cmdline") as file:
        assert file.read().startswith(f"{sys.executable} -m runs import time; time.sleep(60)  # xxx")


def test_processes_do_not_keep_the_files_of_each_other(run, folder):
    with (folder / "lock").open("w") as lock, (folder / "lock").open("w") as other:
        assert try_lock(lock, fcntl.LOCK_EX)
        first = run("sys.stdin.read()", LOCK=lock)
        lock.close()
        second = run("sys.stdin.read()")
        assert not try_lock(other, fcntl.LOCK_EX)
        first.stdin.close()  # the second's stays open
        assert first.wait(10) == 0
        assert try_lock(other, fcntl.LOCK_EX) and second.poll() is None
    second.stdin.close()
    assert second.wait(10) == 0


def test_a_server_that_is_killed_serves_no_more_and_its_processes_count_as_killed(run, server):
    both = [run("sys.stdin.read()") for _ in range(2)]
    os.kill(server._process.pid, signal.SIGKILL)
    assert [process.wait(10) for process in both] == [-9, -9]
    with pytest.raises(OSError):
        run("pass")
    for process in both:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_stops_everything_leaves_the_server_to_report_how_its_processes_end(run, server, signum):
    """As where a scheduler signals every process of a job."""
    process = run("sys.stdin.read(); sys.exit(5)")
    os.kill(server._process.pid, signum)
    time.sleep(0.1)
    process.stdin.close()
    assert process.wait(10) == 5 and run("pass").wait(10) == 0


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()"


@pytest.mark.parametrize("text", ["import nosuch", THREAD])
def test_what_cannot_be_forked_is_not(folder, text):
    """Because an import fails, or has started a thread, which a fork would not have."""
    (folder / "bad.py").write_text(text)
    with closing(ready("runs", "bad")) as server, (folder / "printed").open("ab") as output, pytest.raises(OSError):
        server.start(["pass"], os.environ, output, {})
    assert not (folder / "printed").read_text()


def test_a_start_that_a_signal_breaks_off_leaves_no_process(run, server, folder, monkeypatch):
    """Whether it comes before the process knows what to do, or while it is waited for."""

    class Stops(Exception):
        pass

    def stop(*_):
        raise Stops

    with monkeypatch.context() as patch:
        patch.setattr(fork_server.json, "dumps", stop)
        with pytest.raises(Stops):
            run("print('ran')")
    with monkeypatch.context() as patch:
        patch.setattr(fork_server.socket.socket, "recv", stop)
        os.kill(server._process.pid, signal.SIGSTOP)
        with pytest.raises(Stops):
            run("print('ran')")
        os.kill(server._process.pid, signal.SIGCONT)
    assert run("print('later')").wait(10) == 0
    wait_for(lambda: not descendants(server._process.pid), 10)
    assert (folder / "printed").read_text() == "later\n"


def test_a_server_ends_with_its_parent(folder):
    """SIGKILL gives the parent no chance to say so."""
    program = (
        "import os, time; from transformer_pl.runtime.fork_server import ForkServer\n"
        "server = ForkServer('runs')\n"
        "while not server.is_ready(): time.sleep(0.01)\n"
        "process = server.start(['sys.stdin.read()'], os.environ, open(os.devnull, 'wb'), {})\n"
        "print(server._process.pid, process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        both = set(map(int, parent.stdout.readline().split()))
        assert len(both) == 2
        parent.kill()
    wait_for(lambda: not both & {process.pid for process in processes()}, 10)
