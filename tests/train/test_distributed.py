"""Several processes for one trial: what one process would have come to."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from forked import Command, running
from helpers import ROOT, Process, little_text, processes, wait_for

from transformer_pl.trials.result import Result
from transformer_pl.trials.trial_folder import TrialFolder

pytestmark = pytest.mark.slow  # each starts several processes
SMALL = ["--model.N=2", "--model.depth=1", "--model.width=0.0625", "--model.h=2", "--data.vocab_size=400"]
SMALL += ["--data.batch_tokens=256", "--optim.warmup=10", "--trainer.log_every=1"]
SMALL += ["--trainer.eval_tokens=64", "--decode.beam=1"]
PAIR = ["--trainer.devices=2", "--trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Little text: its 31 validation sentences make an odd number of batches."""
    return little_text(tmp_path_factory.mktemp("text"), 800, 31, 21)


@contextmanager
def start(
    text: Path, runs: Path, *argv: str, steps: int = 20, every: int = 10, path: Path = ROOT
) -> Iterator[tuple[Command, Path]]:
    """A trial in a session of its own, as a sweep starts it, and the file that it prints to. `path`: of parts."""
    words = [*SMALL, f"--data.path={text}", f"--runs={runs}", *argv]
    words += [f"--optim.max_steps={steps}", f"--trainer.val_every={every}"]
    words += [] if any("threads" in word for word in argv) else ["--trainer.threads=1"]
    folders = f"{path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with tempfile.NamedTemporaryFile() as file, running("train", *words, output=file, PYTHONPATH=folders) as process:
        yield process, Path(file.name)


def train(text: Path, runs: Path, *argv: str, **schedule: int) -> tuple[Result, list[dict]]:
    with start(text, runs, *argv, **schedule) as (process, printed):
        assert process.wait(120) == 0, printed.read_text()
    (folder,) = (runs / "trials").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return TrialFolder(folder).result(), lines


def in_session(leader: int) -> list[Process]:
    return [process for process in processes() if process.session == leader]


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    return train(text, tmp_path_factory.mktemp("alone"), "--model.p_drop=0")


@pytest.mark.parametrize("how", [["ddp"], ["ddp", "--trainer.accumulate=2"], ["fsdp2"]], ids=" ".join)
def test_two_processes_train_as_one(text, alone, tmp_path, how):
    strategy, *more = how
    result, lines = train(text, tmp_path, "--model.p_drop=0", *PAIR, f"--trainer.strategy={strategy}", *more)
    expected, expected_lines = alone
    assert result.id == expected.id
    assert [line["step"] for line in lines] == [line["step"] for line in expected_lines]
    for line, one in zip(lines, expected_lines, strict=True):
        for name in one.keys() & {"train/loss", "val/loss", "lr"}:
            assert line[name] == pytest.approx(one[name], abs=1e-5), (line["step"], name)
    assert result.metrics["test/loss"] == pytest.approx(expected.metrics["test/loss"], abs=1e-5)


FILE = "ablations.segment_memory"
CARRYING = ["--data.task=transformer_pl.tasks.language_model.LanguageModel", "--model.N_encoder=0", "--model.p_drop=0"]
CARRYING += ["--data.pieces=joined", "--data.max_length=8", f"--data.batches={FILE}.ConsecutiveBatches"]
CARRYING += [f"--model.self_attention={FILE}.SegmentMemory", f"--model.attention={FILE}.TransformerXLAttention"]
CARRYING += ["--model.self_attention.memory=6", "--model.position=ablations.no_position.NoPosition"]


def test_two_processes_carry_what_one_does(text, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SMALL", [word for word in SMALL if "beam" not in word])
    more = ["--trainer.accumulate=3", "--trainer.strategy=ddp"]
    (expected, one), (result, two) = (
        train(text, tmp_path / str(number), *CARRYING, *argv) for number, argv in enumerate(([], [*PAIR, *more]))
    )
    assert result.id == expected.id
    for name in ("train/loss", "val/loss"):
        losses = [[line[name] for line in lines if name in line] for lines in (one, two)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert result.metrics["test/loss"] == pytest.approx(expected.metrics["test/loss"], abs=1e-5)


SKIPPED = """
import torch
from transformer_pl.model import FeedForward

class Skipped(FeedForward):
    def forward(self, x):
        return x if self.training and torch.rand(()).item() < 0.5 else super().forward(x)
"""


def test_a_component_may_use_part_of_its_parameters_in_a_step(text, tmp_path, monkeypatch):
    (tmp_path / "skipped.py").write_text(SKIPPED)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    argv = [*PAIR, "--trainer.strategy=ddp_find_unused_parameters_true", "--model.ffn=skipped.Skipped"]
    result, _ = train(text, tmp_path / "runs", *argv, steps=6)
    assert result.steps == 6


COUNTING = """
import os
import torch
from ablations.no_position import NoPosition

class Counting(NoPosition):
    def forward(self, x, start=0):
        if self.training and torch.distributed.is_initialized():  # not in a check, which is no part of the training
            with open(os.environ["COUNTS"], "a") as file:
                file.write(f"{torch.get_num_threads()}\\n")
        return x
"""


def test_each_process_has_the_threads_that_the_config_says(text, tmp_path, monkeypatch):
    """Lightning chooses a number of its own where it starts processes and the environment has none."""
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("COUNTS", str(tmp_path / "counts"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    argv = [*PAIR, "--trainer.strategy=ddp", "--trainer.threads=3", "--model.position=counting.Counting"]
    train(text, tmp_path / "runs", *argv, steps=1)
    counts = (tmp_path / "counts").read_text().split()
    assert len(counts) >= 4 and set(counts) == {"3"}  # at least the encoder's and the decoder's, of two processes


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_stop_together_and_go_on(text, tmp_path, strategy):
    argv = [*PAIR, f"--trainer.strategy={strategy}", "--decode.average=2", "--decode.select=best"]
    whole, whole_lines = train(text, tmp_path / "whole", *argv, steps=60)
    with start(text, tmp_path / "parts", *argv, steps=60) as (process, printed):
        wait_for(lambda: any((tmp_path / "parts").glob("trials/*/checkpoints/last.ckpt")), 120)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == 143, printed.read_text()
        assert time.monotonic() - began < 10
    wait_for(lambda: not in_session(process.pid), seconds=20)
    result, lines = train(text, tmp_path / "parts", *argv, steps=60)
    assert result.metrics == whole.metrics
    losses = [
        [(line["step"], line["train/loss"]) for line in completed if "train/loss" in line]
        for completed in (lines, whole_lines)
    ]
    assert losses[0] == losses[1]


def test_when_one_process_dies_the_trial_ends(text, tmp_path):
    endless = {"steps": 100_000, "every": 100_000}
    with start(text, tmp_path, *PAIR, "--trainer.strategy=ddp", **endless) as (process, printed):
        wait_for(lambda: any("train/loss" in p.read_text() for p in tmp_path.glob("trials/*/metrics.jsonl")))
        ranks = {one.pid for one in in_session(process.pid) if "transformer_pl.train.__main__ " in one.command}
        (other,) = ranks - {process.pid}
        os.kill(other, signal.SIGKILL)
        assert process.wait(60) not in (0, 143), printed.read_text()
    wait_for(lambda: not in_session(process.pid), seconds=10)


def test_all_processes_stop_where_the_loss_of_one_is_not_finite(text, tmp_path):
    """That of the second process, at step 9."""
    (tmp_path / "unlucky.py").write_text(
        "import os\n\n"
        "from transformer_pl.model import SinusoidalPosition\n\n\n"
        "class Unlucky(SinusoidalPosition):\n"
        "    seen = 0\n\n"
        "    def forward(self, x, start=0):\n"
        "        self.seen += self.training and x.shape[0] > 4\n"
        "        spoilt = self.seen == 9 and os.environ.get('LOCAL_RANK') == '1'\n"
        "        return super().forward(x, start) * (float('inf') if spoilt else 1)\n"
    )
    argv = [*PAIR, "--trainer.strategy=ddp", "--model.position=unlucky.Unlucky"]
    with start(text, tmp_path / "runs", *argv, every=5, path=tmp_path) as (process, printed):
        assert process.wait(120) == 1, printed.read_text()
    wait_for(lambda: not in_session(process.pid), seconds=10)
    (folder,) = (tmp_path / "runs" / "trials").iterdir()
    assert json.loads((folder / "status.json").read_text()).items() >= {"state": "diverged", "step": 9}.items()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 5, 6, 7, 8] and not (folder / "result.json").exists()
    kept = torch.load(folder / "checkpoints" / "last.ckpt")
    assert kept["global_step"] == 5 and all(value.isfinite().all() for value in kept["state_dict"].values())
