"""The command: a trial that was killed or stopped goes on bit for bit; trials may share their weights."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked
import pytest
import torch
from helpers import shared_text, wait_for

from transformer_pl.trials.trial import Trial

SMALL = ["--model.width=0.0625", "--model.N=2", "--optim.max_steps=60", "--trainer.val_every=15"]
SMALL += ["--trainer.log_every=5", "--decode.beam=8", f"--data.path={shared_text()}", "--data.vocab_size=400"]


@contextmanager
def train(runs: Path, *argv: str, **environment: str) -> Iterator[forked.Command]:
    with (
        (runs / "output.txt").open("w") as file,
        forked.running("train", f"--runs={runs}", *SMALL, *argv, output=file, **environment) as process,
    ):
        yield process


def train_on(runs: Path, *argv: str, **environment: str) -> str:
    """To the end, whatever is there already; returns what the command said."""
    completed = forked.command("train", f"--runs={runs}", *SMALL, *argv, WANDB_MODE="disabled", **environment)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def outcome(runs: Path):
    (folder,) = (runs / "trials").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k not in ("time", "tokens_per_s")} for line in lines]
    return kept, json.loads((folder / "result.json").read_text())["metrics"], Trial(folder).weights()


def same(runs: Path, others: Path) -> None:
    (lines, metrics, weights), (expected_lines, expected_metrics, expected) = outcome(runs), outcome(others)
    assert lines == expected_lines and metrics == expected_metrics
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    runs = tmp_path_factory.mktemp("whole")
    train_on(runs, "--trainer.threads=1")
    return runs


@pytest.mark.parametrize(
    ("signum", "when"),
    [
        pytest.param(signal.SIGTERM, "checkpoints/last.ckpt", id="asked to stop", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "checkpoints/last.ckpt", id="Ctrl-C"),
        pytest.param(signal.SIGHUP, "checkpoints/last.ckpt", id="terminal closed", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "weights.safetensors", id="killed after its last step", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_trial_goes_on_bit_for_bit(uninterrupted, tmp_path, signum, when):
    """It begins with one thread, and is resumed where it would have all cores: sums depend on their number."""
    (tmp_path / "data").symlink_to(uninterrupted / "data")
    with train(tmp_path, OMP_NUM_THREADS="1", WANDB_MODE="disabled") as process:
        wait_for(lambda: any(tmp_path.glob(f"trials/*/{when}")), every=0.005)
        os.kill(process.pid, signum)
        exit_code = process.wait(60)
    assert exit_code == (-9 if signum == signal.SIGKILL else 128 + signum), (tmp_path / "output.txt").read_text()
    (folder,) = (tmp_path / "trials").iterdir()
    assert not any(tmp_path.glob("trials/*/result.json"))
    train_on(tmp_path, OMP_NUM_THREADS=str(len(os.sched_getaffinity(0))))
    same(tmp_path, uninterrupted)
    assert json.loads((folder / "env.json").read_text())["threads"] == 1


def test_trials_that_differ_in_decoding_share_their_weights(uninterrupted):
    runs = uninterrupted
    (first,) = (runs / "trials").iterdir()
    train_on(runs, "--decode.alpha=0.1")
    (second,) = set((runs / "trials").iterdir()) - {first}
    assert (first / "weights.safetensors").samefile(second / "weights.safetensors")
    results = [json.loads((folder / "result.json").read_text()) for folder in (first, second)]
    assert results[1]["weights_of"] == results[0]["id"] != results[1]["id"]
    assert results[0]["metrics"]["val/ppl"] == results[1]["metrics"]["val/ppl"]
    assert results[0]["convergence"] == results[1]["convergence"] is not None
    for folder in (first, second):  # each has a final evaluation of its own
        assert (folder / "metrics.jsonl").read_text().count('"val/bleu"') == 1
    train_on(runs, "--decode.alpha=0.1", "--rerun")
    assert not (first / "weights.safetensors").samefile(second / "weights.safetensors")
