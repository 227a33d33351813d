"""The rehearsal of what others plug in, in processes of its own: once for a part, and nothing of it is left."""

import os
import subprocess
import sys

import pytest
import tiny_trials
from helpers import processes
from lightning.pytorch.callbacks import Callback
from stopping_callback import StopAt

from tests.laws.rehearsals import ClosureTwice, path
from tests.laws.test_losses import Mean
from tests.laws.test_optimizers import Counts, Fraction
from transformer_pl.laws.checks import check_all
from transformer_pl.runtime.errors import InputError


def test_a_part_is_rehearsed_once_and_named_where_it_fails(row, tmp_path):
    """In child processes, for rows that differ in the model alone once. An error leaves nothing behind."""
    alike = [row({"optim.optimizer": path(Fraction), "model.h": h}) for h in (4, 8)]
    found, other, none = check_all([*alike, row({})], tmp_path)
    (kept,) = (tmp_path / "checks").iterdir()
    assert found == other and "0.5" in "".join(found.notes) and list(none.notes) == []
    time = kept.stat().st_mtime_ns
    assert check_all(alike, tmp_path)[0] == found and kept.stat().st_mtime_ns == time
    with pytest.raises(InputError) as caught:
        check_all([row({"optim.schedule": path(Counts)}), row({"optim.loss": path(Mean)})], tmp_path)
    starts = [f"optim.schedule = {path(Counts)}: ", f"optim.loss = {path(Mean)}: "]
    assert [message[: len(start)] for message, start in zip(caught.value.messages, starts, strict=True)] == starts
    assert all("rehearsal of 20 steps" in message for message in caught.value.messages)
    assert list((tmp_path / "checks").iterdir()) == [kept] and not (tmp_path / "data").exists()


class Leaves(Callback):
    """A process that goes on, and output."""

    def on_train_start(self, trainer, module):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left behind"])
        os.system("echo flood")
        print("flood")


def test_a_rehearsal_leaves_no_process_and_no_output(row, tmp_path, capfd):
    check_all([row({"trainer.callbacks": path(Leaves)})], tmp_path)
    assert "flood" not in "".join(capfd.readouterr())
    assert not [process for process in processes() if "left behind" in process.command]


class Shares(Callback):
    def setup(self, trainer, module, stage):
        first, second = module.model.encoder
        second.ffn = first.ffn


def test_the_cost_of_several_passes_and_of_shared_weights_is_true(tmp_path):
    """FLOPs are those of all passes, parameters those of the trained model; steps cannot be matched to several."""
    for name in ("plain", "twice", "flops"):
        (tmp_path / name).mkdir()
    _, plain = tiny_trials.train(tmp_path / "plain" / "runs", {})
    twice = {"optim.optimizer": path(ClosureTwice), "trainer.callbacks": path(Shares)}
    _, shared = tiny_trials.train(tmp_path / "twice" / "runs", twice)
    before, after = plain.result(), shared.result()
    assert after.flops == 2 * before.flops
    ffn = 2 * 16 * 64 + 64 + 16  # of the second layer, which is the first's
    assert after.params == before.params - ffn == sum(w.numel() for w in plain.weights().values()) - ffn
    with pytest.raises(InputError, match="match=flops"):
        tiny_trials.train(tmp_path / "flops" / "runs", twice | {"optim.match": "flops"})


def test_a_callback_that_only_watches_cannot_end_a_training(tmp_path):
    """Not even after the steps of a rehearsal: else its result would be that of the config without it."""
    stops = f"{{{path(StopAt)}: {{step: 25, in_identity: false}}}}"
    with pytest.raises(InputError, match="in_identity"):
        tiny_trials.train(tmp_path / "runs", {"optim.max_steps": 30, "trainer.callbacks": stops})
    _, whole = tiny_trials.train(tmp_path / "runs", {"optim.max_steps": 30})
    assert whole.result().steps == 30
