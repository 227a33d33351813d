"""Where metrics go: metrics.jsonl, and a W&B run whose service may hang or be away."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Pipe
from pathlib import Path

import pytest
import tiny_trials
from helpers import ROOT, descendants, processes, read_back, wait_for
from made_rows import ABOUT, measured_sentences, open_ended, sampled
from shipped_components import seldom

from transformer_pl.runtime.environment import WAITED_FOR
from transformer_pl.table.table import make_table
from transformer_pl.train import wandb_run
from transformer_pl.train.logger import TrialLogger
from transformer_pl.train.wandb_run import SEND_S, WandbRun, link_runs, send_report

WRITER = ("transformer_pl/train/wandb_run.py",)
ANSWERS = {
    "viewer": {"id": "1", "entity": "e", "username": "u", "flags": "{}", "teams": {"edges": []}},
    "serverInfo": {"cliVersionInfo": {"max_cli_version": "0.99.0"}, "latestLocalVersionInfo": None, "features": []},
    "upsertBucket": {
        "bucket": {"id": "b", "name": "n", "displayName": "d", "config": "{}", "sweepName": None, "historyLineCount": 0}
        | {"project": {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}},
        "inserted": True,
    },
}


class Handler(BaseHTTPRequestHandler):
    """What W&B's server says as a run is opened and sent."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.hangs.is_set():
            self.server.released.wait()
        elif self.server.refuses:
            self.send_error(401)
        else:
            self.server.asked += 1
            answer = json.dumps({"data": ANSWERS}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    do_GET = do_HEAD = do_POST


KEY = "k3y" + "0123456789" * 4


@pytest.fixture
def server(monkeypatch):
    """A server on loopback that W&B has a key for. It answers, hangs, or refuses the key."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hangs, server.released, server.refuses, server.asked = threading.Event(), threading.Event(), False, 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def a_run(folder, **changes):
    config = {"model.h": 4, "row": "h=4", "sweep": "table3-A@demo"}
    return WandbRun(**{"folder": str(folder), "name": "h=4 s1", "tags": ["demo", "h=4"], "config": config} | changes)


def offline(folder):
    return sorted(folder.glob("wandb/offline-run-*"))


def test_a_file_goes_on_where_its_checkpoint_was(tmp_path):
    """Without the lines after it, of a final evaluation, and one that a killed process had not written to its end."""
    for begin, steps in ((0, (10, 20, 30)), (20, (30, 40))):
        file = TrialLogger(tmp_path, 40)
        file.start(begin)
        for step in steps:
            file.log_metrics({"train/loss": float(begin)}, step)
        file.log_metrics({"val/bleu": 2.0, "val/ppl": float("inf")}, steps[-1])
        file.close()
        with (tmp_path / "metrics.jsonl").open("a") as broken:
            broken.write('{"step": 15, "train/l')
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()[:-1]]
    assert [line["step"] for line in lines] == [10, 20, 30, 40, 40]
    assert [line.get("train/loss") for line in lines] == [0, 0, 20, 20, None] and lines[-1]["val/ppl"] is None


# W&B


@pytest.fixture
def told(monkeypatch):
    """What the W&B run of a trial is told, message after message, and the exit code with which it ends."""
    messages = []
    monkeypatch.setattr(WandbRun, "send", lambda run, **message: messages.append(message))
    monkeypatch.setattr(WandbRun, "finish", lambda run, exit_code=0: messages.append({"finish": exit_code}))
    return messages


def test_a_run_is_told_every_line_and_what_the_table_of_runs_shows(tmp_path, told):
    _, trial = tiny_trials.train(tmp_path / "runs", {})
    lines = [{name: value for name, value in line.items() if name not in ("kind", "time")} for line in trial.metrics()]
    assert [message["log"] for message in told if "log" in message] == lines
    result = trial.result()
    shown = result.model_dump(include={"params", "flops", "tokens_per_s", "of_peak", "wall_s"})
    assert {"summary": shown | {"val/loss.fall": result.convergence["fall"]}} in told
    assert told[-1] == {"finish": 0}


def test_a_run_is_told_at_which_step_its_trial_has_diverged(tmp_path, told):
    _, trial = tiny_trials.train(tmp_path / "runs", {"optim.lr_scale": 1e30})
    assert told[-2:] == [{"summary": {"diverged_at_step": trial.diverged_at()}}, {"finish": 1}]


def writers():
    """W&B's processes that this one has started."""
    return [one for one in processes() if one.parent == os.getpid() and "train.wandb_run" in one.command]


def test_the_report_of_a_sweep_says_in_numbers_what_its_table_says(tmp_path, told, monkeypatch):
    """And it names no folder of this machine."""
    monkeypatch.setattr(WandbRun, "__init__", lambda run, **about: told.append(about))  # starts no process
    monkeypatch.setattr(os, "environ", os.environ.copy())
    gaps = [0.0, 0.3, 0.0001]
    rows = [sampled(name, own) for name, own in zip(("base", "h=4", "N=2"), measured_sentences(gaps), strict=True)]
    for margin, verdicts in ((None, ["higher", "undecided"]), (50.0, ["equal*", "equal"])):
        table = make_table(rows, replace(ABOUT, margins={"val/bleu": margin} if margin else {}))
        plan = {"command": f"python -m transformer_pl.sweep a.yaml --runs {tmp_path} --set data.path={tmp_path}/text"}
        send_report(tmp_path, "a", "project", table, plan)
        (summary,) = [message["summary"] for message in told if "summary" in message]
        assert summary.pop("found") == table.summary
        for contrast, verdict in zip(table.contrasts[1:], verdicts, strict=True):
            ends = contrast.estimate.low, contrast.estimate.high
            numbers = {"delta": contrast.difference, "low": ends[0], "high": ends[1], "p": contrast.p_value}
            for key, value in (numbers | {"verdict": verdict}).items():
                assert summary.pop(f"{contrast.row.name}/{key}") == value
        assert not summary
        assert str(tmp_path.parent) not in told[0]["config"]["command"]
        told.clear()
    send_report(tmp_path, "a", "project", open_ended(), plan)
    (summary,) = [message["summary"] for message in told if "summary" in message]
    assert {key: end for key, end in summary.items() if key.endswith("/open")} == {"b/open": "low"}


# On a slow machine W&B's process outlives the wait for it, as it may.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_offline_run_says_everything_and_goes_on_under_its_id(tmp_path, monkeypatch):
    """Its sweep's folder has a link to the last part, for W&B's own viewer."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    trial, links = tmp_path / "trials" / "h=4-s1-0123456789ab", tmp_path / "sweeps" / "table3-A@demo" / "wandb"
    for folder in (trial, links.parent):
        folder.mkdir(parents=True)
    for count, (exit_code, step) in enumerate([(143, 10), (0, 20)], 1):
        run = a_run(trial, name=f"(A) größe={'x' * 60} s4294967295")
        run.send(log={"step": step, "train/loss": 5 - step / 10})
        run.send(translations=[{"source": "a", "translation": "b"}])
        run.send(summary={"params": 7})
        wait_for(lambda count=count: len([*trial.glob("wandb/offline-run-*")]) == count, 60)  # it is open
        run.finish(exit_code)
        wait_for(lambda: not writers(), 60)
    stopped, ended = offline(trial)
    run_id = (trial / "wandb" / "run-id").read_text()
    assert stopped.name.split("-", 3)[3] == ended.name.split("-", 3)[3] == run_id
    assert re.fullmatch(r"A-gr-e-x+-s4294967295-[\w-]+-0123456789ab", run_id, re.ASCII) and len(run_id) <= 64
    (link,) = links.iterdir()
    assert link.resolve() == ended and read_back(link, "--summary") == read_back(ended, "--summary")
    record = json.loads(read_back(ended, "--summary"))
    assert record["config"].items() >= {"model.h": 4, "row": "h=4", "sweep": "table3-A@demo"}.items()
    assert record["tags"] == ["demo", "h=4"]
    assert record["summary"].items() >= {"params": 7, "train/loss": 3.0, "step": 20}.items()
    for folder, code in ((stopped, 143), (ended, 0)):
        records = [json.loads(line) for line in read_back(folder).splitlines()]
        axes = {one["metric"].get("glob_name"): one["metric"].get("step_metric") for one in records if "metric" in one}
        assert axes["*"] == "step"
        assert [record["exit"].get("exit_code", 0) for record in records if record["type"] == "exit"] == [code]
        assert any("preempting" in record["type"] for record in records) == (code == 143)


def test_a_sweep_links_the_newest_run_of_each_trial(tmp_path):
    """Whatever lies there already, and again when there are newer ones."""
    names = ["h=4-s1-0123456789ab", "base-s1-ba9876543210", "untrained-s1-aaaaaaaaaaaa"]
    *trials, untrained = (tmp_path / "trials" / name for name in names)
    links = tmp_path / "sweeps" / "smoke@demo" / "wandb"
    untrained.mkdir(parents=True)
    (links / "run-20261128_000000-report-smoke").mkdir(parents=True)
    for kind, time_ in (("offline-run", "20261128_095959"), ("run", "20261128_100000"), ("offline-run", "20261129_0")):
        newest = {trial / "wandb" / f"{kind}-{time_}-{trial.name[-12:]}" for trial in trials}
        for folder in newest:
            folder.mkdir(parents=True)
            (folder.parent / "latest-run").touch()
        for again in (trials, [*trials, untrained], [untrained]):
            link_runs(again, links)
            assert {link.resolve() for link in links.iterdir() if link.is_symlink()} == newest
        assert len([*links.iterdir()]) == 3
        assert {link.name[: len("run-base-s1 ")] for link in links.iterdir()} >= {"run-base-s1 ", "run-h=4-s1 r"}
    for trial in trials:  # as --rerun does
        shutil.rmtree(trial / "wandb")
    link_runs(trials, links)
    assert [link.name for link in links.iterdir()] == ["run-20261128_000000-report-smoke"]


@seldom(*WRITER)
@pytest.mark.parametrize("why", ["refused", pytest.param("away", marks=pytest.mark.slow)])
def test_a_run_that_cannot_be_online_is_kept_offline(server, tmp_path, capfd, why):
    """And the key is in no file and no line."""
    server.refuses = True
    if why == "away":
        server.shutdown()
        server.server_close()
    run = a_run(tmp_path)
    run.send(log={"step": 1})
    wait_for(lambda: offline(tmp_path))  # a trial takes longer than that
    run.finish()
    said = capfd.readouterr()
    assert "wandb sync" in said.out and KEY not in said.out + said.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert json.loads(read_back(offline(tmp_path)[0], "--summary"))["summary"]["step"] == 1


@seldom(*WRITER)
@pytest.mark.parametrize("said", ["disabled", "offline"])
def test_what_wandb_disabled_or_offline_has_said_in_this_folder_is_obeyed(server, tmp_path, monkeypatch, capfd, said):
    """Though there is a key, and a server that answers. WANDB_MODE wins."""
    for name in ("here", "trial", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run([Path(sys.executable).with_name("wandb"), said], check=True, capture_output=True)
    run = a_run(tmp_path / "trial")
    run.send(log={"step": 1})
    run.finish()
    wait_for(lambda: not writers(), 60)
    printed = capfd.readouterr()
    assert server.asked == 0 and not printed.err
    if said == "offline":
        assert len(offline(tmp_path / "trial")) == 1 and "wandb sync" in printed.out
        monkeypatch.setenv("WANDB_MODE", "disabled")
        a_run(tmp_path / "other").finish()
        assert not any((tmp_path / "other").iterdir())
    else:
        assert not any((tmp_path / "trial").iterdir()) and not printed.out


def family(parent):
    """The W&B process that a process has started, and all that it has started, W&B's service first."""
    found = []

    def has_service():
        alive = processes()
        ours = [one.pid for one in alive if one.parent == parent and "train.wandb_run" in one.command]
        found[:] = [
            (own, one.pid) for own in ours for one in alive if one.parent == own and "wandb-core" in one.command
        ]
        return found

    wait_for(has_service, 120)
    ((own, service),) = found
    return own, [service, *descendants(service)]


def are_gone(pids):
    return not set(pids) & {process.pid for process in processes()}


@pytest.mark.parametrize("since", ["its opening", pytest.param("its middle", marks=pytest.mark.slow)])
def test_a_server_that_hangs_delays_no_step_and_the_end_by_five_seconds(server, tmp_path, since):
    """The trial logs more than a pipe holds. No process is left behind."""
    if since == "its opening":
        server.hangs.set()
    run = a_run(tmp_path)
    own, others = family(os.getpid())
    if since == "its middle":
        wait_for(lambda: server.asked > 3 and list(tmp_path.glob("wandb/run-*/*.wandb")))
        server.hangs.set()
    metrics = {f"train/loss{i}": 1.0 for i in range(40)}
    began = time.monotonic()
    for step in range(2000):
        run.send(log={"step": step, **metrics})
    assert time.monotonic() - began < 5
    began = time.monotonic()
    run.finish()
    assert time.monotonic() - began < 5.5  # and a little for a machine that is busy
    wait_for(lambda: are_gone([own, *others]), 10)


def test_a_w_and_b_process_that_stands_still_delays_no_step_and_ends(tmp_path, monkeypatch, capfd):
    """What it could not take is in a line, and the rest of the run is whole."""
    monkeypatch.setattr(wandb_run, "MOST_WAITING", 500)
    run = a_run(tmp_path)
    (process,) = writers()
    os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    for step in range(2000):  # more than a pipe holds
        run.send(log={"step": step, "train/loss": 1.0})
    run.send(summary={"params": 7})
    assert time.monotonic() - began < 5
    run.finish()
    wait_for(lambda: not writers(), 60)
    (dropped,) = re.findall(r"(\S+) lines of metrics", capfd.readouterr().out)
    summary = json.loads(read_back(*offline(tmp_path), "--summary"))["summary"]
    assert summary["params"] == 7 and summary["step"] + 1 + int(dropped.replace(",", "")) == 2000


@seldom(*WRITER)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody waits for the process here
def test_a_trial_of_a_sweep_leaves_the_waiting_for_w_and_b_to_the_sweep(server, tmp_path, monkeypatch):
    """The sweep's end of a pipe tells when all W&B processes have ended."""
    server.hangs.set()  # the process takes END_S to end
    ends, waited_for = Pipe(duplex=False)
    monkeypatch.setenv(WAITED_FOR, str(waited_for.fileno()))
    run = a_run(tmp_path)
    waited_for.close()
    wait_for(lambda: [*tmp_path.glob("wandb/run-id")])  # it reads
    run.finish()
    assert writers() and not ends.poll(0)
    assert ends.poll(SEND_S) and not writers()


@pytest.mark.slow
def test_w_and_b_ends_where_it_hangs_and_its_trial_was_killed(server, tmp_path):
    program = f"""if True:
        import time
        from transformer_pl.train.wandb_run import WandbRun
        run = WandbRun(folder={str(tmp_path)!r}, name="name", tags=["tag"], config={{}})
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as trial:
        own, others = family(trial.pid)
        server.hangs.set()
        trial.kill()
    wait_for(lambda: are_gone([own, *others]), SEND_S + 15)
