"""`trainer.callbacks` and `trainer.loggers`: Lightning's, and those of its form."""

import csv
import json
import re
import time

import lightning as L
import pytest
import tiny_trials
from helpers import write_sweep

from transformer_pl.config.levels import Level, resolve
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.convergence import convergence
from transformer_pl.trials.identity import describe_difference, row_identity
from transformer_pl.trials.trial_config import trial_config

CSV = "lightning.pytorch.loggers.CSVLogger"
EARLY = "lightning.pytorch.callbacks.EarlyStopping"
TIMER = "lightning.pytorch.callbacks.Timer"
NEVER_ENOUGH = {"monitor": "val/loss", "min_delta": 99, "patience": 1}  # stops at the second validation


def config(*entries):
    """As text, as the command line has them."""
    return resolve([Level("test", {"trainer.callbacks": json.dumps(entries)})])


def test_a_trial_that_stops_early_is_finished_at_that_step_and_the_table_says_so(tmp_path, capsys):
    callbacks = json.dumps([{EARLY: NEVER_ENOUGH}, {TIMER: {"in_identity": False}}])
    keys = {"optim.max_steps": 20, "trainer.callbacks": callbacks, "trainer.loggers": CSV}
    code, trial = tiny_trials.train(tmp_path / "runs", keys)
    result = trial.result()
    assert code == 0 and result.steps == 4 and {line["step"] for line in trial.metrics()} == {1, 2, 3, 4}
    (path,) = trial.folder.glob("lightning_logs/version_0/metrics.csv")
    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert [line["step"] for line in lines if line["val/loss"]] == ["2", "4", "4"]  # the last one of the evaluation
    assert [float(line["val/bleu"]) for line in lines if line["val/bleu"]] == [result.metrics["val/bleu"]]
    assert "model.h: 8" in path.with_name("hparams.yaml").read_text()
    _, whole = tiny_trials.train(tmp_path / "whole", {"optim.max_steps": 4})
    assert result.flops == pytest.approx(whole.result().flops)  # of the steps that were trained
    assert result.stopped_early and not whole.result().stopped_early
    assert result.convergence == convergence(trial.metrics(), 4)._asdict()
    printed = tiny_trials.TINY | {"data.path": str(tmp_path / "text")} | keys
    file = write_sweep(tmp_path / "s.yaml", printed)
    capsys.readouterr()
    assert report.main([str(file), f"--runs={tmp_path / 'runs'}"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\b4\b.*\b20\b", printed) and f"in_identity: false): {TIMER}" in printed


def test_what_a_callback_logs_is_shown_and_takes_the_place_of_nothing(tmp_path):
    """Also under names that a line has itself, and under those of the final evaluation."""
    code, trial = tiny_trials.train(tmp_path / "runs", {"trainer.callbacks": "stopping_callback.Logs"})
    lines, result = trial.metrics(), trial.result()
    own = [line for line in lines if "mine" in line]
    assert code == 0 and [line["mine"] for line in own] == [1.0, 2.0, 3.0, 4.0] and len(lines) > len(own)
    assert [line["step"] for line in own] == [1, 2, 3, 4] and "epoch" not in own[0]
    assert [line["kind"] for line in lines if "val/loss" in line] == ["validation", "validation", "final"]
    assert [line["kind"] for line in lines if line.get("val/bleu") == -1] == ["validation"] * 4
    assert result.metrics["val/bleu"] >= 0 and result.convergence["validations"] > 0


class Clock(L.Callback):
    """The clock of the process, by which a step takes 1,000 seconds, and all else no time."""

    now = 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        Clock.now += 1000


def test_a_trial_that_stopped_early_and_was_killed_before_its_result_stays_stopped(tmp_path, monkeypatch):
    """Its time is that of both processes."""
    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now)
    failed = tmp_path / "failed"
    stop = {"stopping_callback.StopAt": {"step": 3, "fails_once": str(failed), "of": 30}}
    keys = {"optim.max_steps": 30, "trainer.callbacks": json.dumps([stop, f"{__name__}.Clock"])}
    code, trial = tiny_trials.train(tmp_path / "runs", keys)
    assert code == 1 and failed.exists() and trial.result() is None
    code, trial = tiny_trials.train(tmp_path / "runs", keys)
    assert code == 0 and trial.result().steps == 3 and trial.result().wall_s == 3000


def test_a_callback_is_part_of_the_identity_unless_it_only_watches():
    base, watches = config(), config({EARLY: NEVER_ENOUGH | {"in_identity": False}})
    assert row_identity(watches) == row_identity(base) and describe_difference(watches, base) == "base"
    rows = [config({EARLY: NEVER_ENOUGH | {"patience": n}}) for n in (1, 2)]
    assert len({row_identity(row) for row in (base, *rows)}) == 3
    assert len({describe_difference(row, base) for row in (base, *rows)}) == 3
    assert describe_difference(base, rows[0]) != "base"


@pytest.mark.parametrize("keys", [{}, {"patience": 2, "in_identity": False}], ids=str)
def test_what_was_read_is_written_so_that_it_is_read_alike(keys):
    one = config({EARLY: NEVER_ENOUGH | keys}, "stopping_callback.StopAt")
    again = resolve([Level("test", {k: v for k, v in one.flat().items() if k == "trainer.callbacks"})])
    assert again == one and [plugin.options.get("patience") for plugin in one.trainer.callbacks] == [
        keys.get("patience", 1),
        None,
    ]


@pytest.mark.parametrize(
    "written",
    [
        "[nowhere",
        "nowhere.Stop",
        "{stopping_callback.StopAt: {stop: 3}}",
        f"{{{EARLY}: {{patience: 2}}}}",
        CSV,
    ],
)
def test_what_is_not_a_callback_is_refused_before_training(written):
    with pytest.raises(InputError):
        trial_config([Level("test", {"trainer.callbacks": written})])
