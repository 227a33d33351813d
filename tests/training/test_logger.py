"""Where metrics go: when W&B is online, and what a resumed trial keeps of its lines."""

import base64
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tiny_trials
import wandb
import yaml
from forked import running
from helpers import GRIDS, ROOT, command, descendants, little_text, processes, read_back, wait_for
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from transformer_pl.experiments.sweep_file import read_sweep
from transformer_pl.launchers.local import LocalTraining
from transformer_pl.levels import resolve
from transformer_pl.runtime.signals import Stopped
from transformer_pl.train import read_argv
from transformer_pl.training import wandb_process
from transformer_pl.training.logger import TrialLogger
from transformer_pl.training.wandb_process import wandb_mode


@pytest.fixture
def server(monkeypatch):
    """An address on loopback where something listens, as W&B's own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        use(monkeypatch, f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield listener
    wandb.teardown()


def use(monkeypatch, url):
    wandb.teardown()  # its settings are read once
    monkeypatch.setenv("WANDB_BASE_URL", url)


def test_no_key_means_offline(server):
    assert wandb_mode() == ("offline", "no API key")


def test_a_key_and_a_server_mean_online(server, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert wandb_mode()[0] == "online"


def test_a_key_in_netrc_counts(server, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login user password {'x' * 40}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_mode()[0] == "online"


def test_a_key_without_a_server_is_reported_at_once(server, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    server.close()
    began = time.monotonic()
    mode, why = wandb_mode()
    assert mode == "offline" and "no answer" in why
    assert time.monotonic() - began < 5


def test_the_user_has_the_last_word(server, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode()[0] == "disabled"


def test_w_and_b_has_no_process_where_it_is_turned_off(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    before = set(descendants(os.getpid()))
    run = wandb_process.WandbRun(folder=str(tmp_path), name="name", tags=["tag"], config={})
    assert set(descendants(os.getpid())) <= before
    run.tell(log={"step": 1})
    run.finish(0)
    assert not (tmp_path / "wandb").exists()


def test_what_a_trial_resulted_in_is_reported_once(tmp_path, monkeypatch):
    """Also where its process died after it had logged that, and before it wrote the result."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for bleu in (1.0, 2.0):
        tracker = TrialLogger(tmp_path, 40, "name", ["tag"], {"seed": 1})
        tracker.start(40)
        tracker.log_metrics({"val/bleu": bleu, "val/ppl": 2.0}, 40)
        tracker.finish()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["val/bleu"] == 2.0


def test_a_resumed_trial_drops_the_lines_after_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for begin, steps in ((0, (10, 20, 30)), (20, (30, 40))):
        tracker = TrialLogger(tmp_path, 40, "name", ["tag"], {"seed": 1})
        tracker.start(begin)
        for step in steps:
            tracker.log_metrics({"train/loss": float(begin)}, step)
        tracker.finish()
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 35, "train/l')  # the process was killed while it wrote
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()[:-1]
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30, 40]
    assert [json.loads(line)["train/loss"] for line in lines] == [0, 0, 20, 20]


# ---------------------------------------------------------------------------------------------------------------------
# W&B in trouble


@pytest.fixture
def w_and_b_of():
    """The process that a trial talks to W&B by, and all that it has started, W&B's service first."""
    started = []

    def find(parent, words):
        return [p.pid for p in processes() if p.parent == parent and words in p.command]

    def of(pid):
        wait_for(
            lambda: any(find(own, "wandb-core") for own in find(pid, "transformer_pl.training.wandb_process")),
            seconds=120,
        )
        (own,) = find(pid, "transformer_pl.training.wandb_process")
        started.extend([own, *descendants(own)])
        return own, descendants(own)

    yield of
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def are_gone(pids):
    return not set(pids) & {process.pid for process in processes()}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "hanging"])
@pytest.mark.parametrize("victim", ["core", "own"])
def test_a_training_does_not_notice_that_w_and_b_is_gone(w_and_b_of, tmp_path, capfd, victim, signum):
    """It logs more than the pipe to W&B holds, and waits for nothing, not even at its end."""
    tracker = TrialLogger(tmp_path, 2000, "name", ["tag"], {"seed": 1})
    tracker.start(0)
    tracker.log_metrics({"train/loss": 1.0}, 0)
    own, (service, *others) = w_and_b_of(os.getpid())
    os.kill(service if victim == "core" else own, signum)
    metrics = {f"train/loss{i}": 1.0 for i in range(40)}
    assert 2000 * len(json.dumps(metrics)) > 1.5 * wandb_process.PIPE_BYTES
    began = time.monotonic()
    for step in range(1, 2000):
        tracker.log_metrics(metrics, step)
    assert time.monotonic() - began < 5
    tracker.finish(0)
    assert time.monotonic() - began < 10
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(2000))
    wait_for(lambda: are_gone([own, service, *others]), seconds=10)
    if victim == "core" or signum == signal.SIGSTOP:
        assert "W&B: logging stopped" in capfd.readouterr().out


@pytest.mark.parametrize("exit_code", [0, 143])
@pytest.mark.parametrize("victim", ["core", "own"])
def test_the_end_of_a_trial_waits_five_seconds_for_w_and_b_that_hangs(w_and_b_of, tmp_path, capfd, victim, exit_code):
    tracker = TrialLogger(tmp_path, 10, "name", ["tag"], {"seed": 1})
    tracker.start(0)
    own, (service, *others) = w_and_b_of(os.getpid())
    os.kill({"core": service, "own": own}[victim], signal.SIGSTOP)
    tracker.log_metrics({"train/loss": 1.0}, 10)
    began = time.monotonic()
    tracker.finish(exit_code)
    assert time.monotonic() - began < 5.2  # and a little for a machine that is busy
    wait_for(lambda: are_gone([own, service, *others]), seconds=1)
    assert "W&B: logging stopped (it has not ended in time); all metrics are in metrics.jsonl" in capfd.readouterr().out


@pytest.mark.parametrize("end", ["stop", pytest.param("done", marks=pytest.mark.slow)])  # 32 s
def test_a_trial_ends_within_ten_seconds_where_w_and_b_hangs(w_and_b_of, tmp_path, end):
    """From the signal, or from its result. It leaves no process behind.

    Three at once: W&B is well, its service hangs, our process that talks to it hangs. On a machine so busy that the
    first takes seconds too, the others may take ten more: five for W&B, and five for chance.
    """
    runs = tmp_path / "runs"
    keys = {"model.width": 0.0625, "decode.beam": 1, "decode.extra": 2, "trainer.log_every": 1, "trainer.threads": 1}
    keys |= {"data.path": little_text(tmp_path, 400, 30, 20), "data.vocab_size": 400}
    keys |= {"optim.max_steps": 10**6, "trainer.val_every": 10**6} if end == "stop" else {"optim.max_steps": 40}
    words = ["train", *(f"--{key}={value}" for key, value in keys.items())]
    trials, started = {}, {}
    with ExitStack() as stack:
        for seed, victim in enumerate(("none", "core", "own"), 1):
            log = stack.enter_context((tmp_path / victim).open("wb"))
            seeded = [*words, f"--runs={runs}", f"--seed={seed}"]
            trials[victim] = stack.enter_context(running(*seeded, output=log))
        for victim, trial in trials.items():
            own, (service, *others) = w_and_b_of(trial.pid)
            if victim != "none":
                os.kill({"core": service, "own": own}[victim], signal.SIGSTOP)
            started[victim] = [own, service, *others]
        if end == "stop":
            wait_for(lambda: sum(path.stat().st_size > 0 for path in runs.glob("trials/*/metrics.jsonl")) == 3, 120)
            began = dict.fromkeys(trials, time.time())
            for trial in trials.values():
                os.kill(trial.pid, signal.SIGTERM)
        took, waiting = {}, dict(trials)
        deadline = time.monotonic() + 240
        while waiting and time.monotonic() < deadline:
            for victim in [victim for victim, trial in waiting.items() if trial.poll() is not None]:
                del waiting[victim]
                took[victim] = time.time()
            time.sleep(0.02)
    assert not waiting
    wait_for(lambda: are_gone(itertools.chain.from_iterable(started.values())), 5)
    if end == "done":
        results = sorted(runs.glob("trials/*/result.json"), key=lambda path: path.parent.name.split("-s")[1])
        began = {victim: path.stat().st_mtime for victim, path in zip(trials, results, strict=True)}
    took = {victim: at - began[victim] for victim, at in took.items()}
    for victim, trial in trials.items():
        assert trial.returncode == (143 if end == "stop" else 0), (tmp_path / victim).read_text()
        assert took[victim] < max(10, took["none"] + 10), took
        assert ("W&B: logging stopped" in (tmp_path / victim).read_text()) == (victim != "none")


def test_what_w_and_b_has_started_ends_with_a_trial_that_is_killed(tmp_path):
    """Its service has a session of its own, and does not notice that its parent is gone where it hangs."""
    program = """if True:
        import subprocess, sys, time
        service = [sys.executable, "-c", "import time; time.sleep(600)"]
        if sys.argv[1] == "trial":
            subprocess.Popen([sys.executable, __file__, "own"])
        else:
            subprocess.Popen(service, start_new_session=True)
        time.sleep(600)
    """
    (tmp_path / "tree.py").write_text(program)
    words = [sys.executable, str(tmp_path / "tree.py"), "trial"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as trial:
        wait_for(lambda: len(descendants(trial.pid)) == 2, 30)
        own, service = descendants(trial.pid)
        os.kill(service, signal.SIGSTOP)
        trial.kill()
        trial.wait()
        assert not are_gone([own]) and not are_gone([service])
        LocalTraining(trial).clear_session()
        wait_for(lambda: are_gone([own, service]), 10)


def test_a_signal_ends_the_wait_for_w_and_b_and_w_and_b(w_and_b_of, tmp_path):
    """A report may wait for longer than a trial does, but not against its user's will."""
    run = wandb_process.WandbRun(folder=str(tmp_path), name="name", tags=["tag"], config={}, job_type="report")
    own, (service, *others) = w_and_b_of(os.getpid())
    os.kill(service, signal.SIGSTOP)

    def stop(signum, frame):
        raise Stopped(signum)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Stopped):
            run.finish(0, wait=wandb_process.SEND_S)
    finally:
        signal.signal(signal.SIGALRM, before)
    wait_for(lambda: are_gone([own, service, *others]), 10)


@pytest.mark.slow  # it waits for as long as W&B may take to send a report
def test_w_and_b_ends_where_it_hangs_and_its_trial_was_killed(w_and_b_of, tmp_path):
    program = f"""if True:
        import time
        from transformer_pl.training.wandb_process import WandbRun
        WandbRun(folder={str(tmp_path)!r}, name="name", tags=["tag"], config={{}})
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as trial:
        own, (service, *others) = w_and_b_of(trial.pid)
        os.kill(service, signal.SIGSTOP)
        trial.kill()
    wait_for(lambda: are_gone([own, service, *others]), wandb_process.SEND_S + 10)


def test_a_wrong_key_is_reported_and_the_run_kept_offline(tmp_path, monkeypatch, capfd):
    """And it is nowhere: in no file, title or line. The server here knows nobody: it answers every request with 401."""
    key = "k3y" + "0123456789" * 4
    handler = type("Nobody", (BaseHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler.do_POST = handler.do_GET = lambda self: self.send_error(401)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", key)
    tracker = TrialLogger(tmp_path, 10, "name", ["tag"], {"seed": 1})
    tracker.start(0)
    tracker.log_metrics({"train/loss": 1.0}, 10)
    wait_for(lambda: list(tmp_path.glob("wandb/offline-run-*/*.wandb")))
    titles = [process.command for process in processes()]
    tracker.finish(0)
    server.shutdown()
    server.server_close()
    said = capfd.readouterr()
    assert "W&B: offline (" in said.out
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {".wandb", ".log", ".jsonl"} <= {path.suffix for path in files}
    assert any("wandb-core" in title for title in titles) and key not in "".join([said.out, said.err, *titles])
    assert not [path for path in files if key.encode() in path.read_bytes()]


# ---------------------------------------------------------------------------------------------------------------------
# Under W&B's agent


def agents(sweep, **args):
    """The command line that W&B's agent makes of a sweep and the values its server has chosen."""
    completed = create_sweep_command_args({"args": {key: {"value": value} for key, value in args.items()}})
    completed |= {"env": ["/usr/bin/env"], "interpreter": [sys.executable], "program": [sweep["program"]]}
    words = create_sweep_command(list(sweep["command"]))
    return [word for part in words for word in (completed[part[2:-1]] if part.startswith("${") else [part])]


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_trial_of_a_sweep_is_the_same_under_the_agent(path):
    sweep = yaml.safe_load(path.read_text())
    printed = {key: completed.get("values", [completed.get("value")]) for key, completed in sweep["parameters"].items()}
    configs = []
    for values in itertools.product(*printed.values()):
        words = agents(sweep, **dict(zip(printed, values, strict=True)))
        assert words[:3] == ["/usr/bin/env", sys.executable, "-m"]
        configs.append(resolve(read_argv(words[4:])[1]))
    assert sorted(map(str, configs)) == sorted(map(str, read_sweep(path).configs))


def test_a_finished_trial_tells_the_agent_s_run_what_it_resulted_in(smoke, tmp_path):
    runs = shutil.copytree(smoke[0], tmp_path / "runs", symlinks=True)  # the agent adds a W&B run
    sweep = yaml.safe_load((ROOT / "sweeps" / "smoke.yaml").read_text())
    values = {key: completed["value"] for key, completed in sweep["parameters"].items() if "value" in completed}
    words = [*agents(sweep, **values, variant="model.h=4"), f"--runs={runs}"]
    environment = os.environ | {"WANDB_SWEEP_ID": "abc12345", "WANDB_RUN_ID": "run4agent", "WANDB_DIR": str(tmp_path)}
    before = {path: path.stat().st_mtime_ns for path in runs.glob("trials/*/result.json")}
    completed = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0 and "finished already" in completed.stdout, completed.stdout + completed.stderr
    assert before == {path: path.stat().st_mtime_ns for path in before}
    (folder,) = runs.glob("trials/*/wandb/offline-run-*-run4agent")
    record = json.loads(read_back(folder, "--summary"))
    result = json.loads((folder.parents[1] / "result.json").read_text())
    assert record["summary"]["val/bleu"] == pytest.approx(result["metrics"]["val/bleu"])
    assert record["summary"]["params"] == result["params"]
    assert record["config"]["row"] == result["tags"][-1] and record["config"]["sweep"] == "none"


# ---------------------------------------------------------------------------------------------------------------------
# Online


@pytest.fixture
def compatible_server(tmp_path, monkeypatch):
    """A W&B-compatible server on loopback; `OPENWANDB` names its program, in an environment of its own."""
    program = os.environ.get("OPENWANDB")
    if not program:
        pytest.skip("no W&B-compatible server: pip install openwandb elsewhere and name its program by OPENWANDB")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [program, "serve", "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(tmp_path / "server")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(150):
                with suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                time.sleep(0.2)
            monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
            monkeypatch.setenv("WANDB_API_KEY", "local" + "0" * 40)
            yield f"http://127.0.0.1:{port}/api/v2"
        finally:
            process.terminate()


def test_a_run_is_seen_online(compatible_server, tmp_path, monkeypatch):
    def read(path):
        request = urllib.request.Request(compatible_server + path)
        key = base64.b64encode(f"api:{os.environ['WANDB_API_KEY']}".encode()).decode()
        request.add_header("Authorization", f"Basic {key}")
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    trial = tmp_path / "demo-h-4-0123456789ab"
    trial.mkdir()
    tracker = TrialLogger(trial, 30, "h=4 s1", ["demo", "h=4"], {"model.h": 4, "seed": 1})
    tracker.start(0)
    for step in (10, 20, 30):
        tracker.log_metrics({"train/loss": 5 - step / 10}, step)
    tracker.log_metrics({"val/bleu": 31.5, "val/ppl": 4.25}, 30)
    tracker.log_translations([{"source": "a", "reference": "b", "translation": "c"}])
    tracker.finish(0, {"params": 7, "flops": 2.0, "tokens_per_s": 3.0, "wall_s": 4.0})
    (run,) = read("/projects/default/transformer-pl/runs")["runs"]
    assert run["display_name"] == "h=4 s1" and run["state"] == "finished"
    assert json.loads(run["tags_json"]) == ["demo", "h=4"]
    assert json.loads(run["config_json"])["model.h"] == {"value": 4}
    completed = {"train/loss": 2, "val/bleu": 31.5, "val/ppl": 4.25, "params": 7, "step": 30}
    assert json.loads(run["summary_json"]).items() >= completed.items()


def test_a_sweep_and_its_report_are_seen_in_a_browser(compatible_server, browser, tmp_path):
    """Every trial in the project's list, and the report's figures as pictures that load."""
    assert command("sweep", "sweeps/smoke.yaml", "--runs", tmp_path / "runs").returncode == 0
    key = base64.b64encode(f"api:{os.environ['WANDB_API_KEY']}".encode()).decode()
    page = browser.new_page(extra_http_headers={"Authorization": f"Basic {key}"})
    page.goto(compatible_server.removesuffix("/api/v2") + "/projects/default/transformer-pl")
    for name in ("base s1", "h=1 p_drop=0.0 s1", "smoke@demo"):
        page.get_by_text(name, exact=True).first.wait_for()
    page.get_by_text("smoke@demo", exact=True).first.click()
    page.get_by_text("Media", exact=True).first.click()
    page.get_by_text("Differences from base").first.wait_for()
    page.wait_for_function("Array.from(document.images).filter(one => one.naturalWidth > 0).length >= 3")


def test_each_validation_is_printed_in_one_line(tmp_path, capfd):
    """However quick they come, and where the output is no terminal. With BLEU of a sample where it is measured."""
    code, trial = tiny_trials.train(tmp_path / "runs", {"trainer.bleu_sample": 3})
    assert code == 0
    printed = [line for line in capfd.readouterr().out.splitlines() if "val/loss" in line and line.startswith("step ")]
    by_step: dict[int, dict] = {}
    for line in trial.metrics():
        if line["kind"] == "validation":
            by_step.setdefault(line["step"], {}).update(line)
    names = ("val/loss", "val/ppl", "val/bleu_sample")
    assert list(by_step) == [2, 4] and printed == [
        f"step {step}/4  " + "  ".join(f"{name} {line[name]:.4g}" for name in names) for step, line in by_step.items()
    ]
