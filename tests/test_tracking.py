"""Where metrics go: when W&B is online, and what a resumed trial keeps of its lines."""

import json
import socket
import time

import pytest
import wandb

from transformer_pl.tracking import Tracker
from transformer_pl.wandb_run import wandb_mode


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


def test_a_key_without_a_server_is_told_at_once(server, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    server.close()
    began = time.monotonic()
    mode, why = wandb_mode()
    assert mode == "offline" and "no answer" in why
    assert time.monotonic() - began < 5


def test_the_user_has_the_last_word(server, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode()[0] == "disabled"


def test_a_resumed_trial_drops_the_lines_after_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for begin, steps in ((0, (10, 20, 30)), (20, (30, 40))):
        tracker = Tracker(tmp_path, 40, "name", ["tag"], {"seed": 1})
        tracker.start(begin)
        for step in steps:
            tracker.log_metrics({"train/loss": float(begin)}, step)
        tracker.finish()
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 35, "train/l')  # the process was killed while it wrote
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()[:-1]
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30, 40]
    assert [json.loads(line)["train/loss"] for line in lines] == [0, 0, 20, 20]
