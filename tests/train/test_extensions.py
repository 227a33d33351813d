"""`trainer.callbacks` and `trainer.loggers`: Lightning's, and those of its form."""

import csv
import json
import re
import time

import pytest
import tiny_trials
from helpers import little_text, write_sweep

from tests.train import watchers
from transformer_pl.config.levels import Level, resolve
from transformer_pl.plan.sweep_file import read_sweep
from transformer_pl.report import __main__ as report
from transformer_pl.runtime.errors import InputError
from transformer_pl.trials.convergence import convergence
from transformer_pl.trials.identity import describe_difference, row_identity
from transformer_pl.trials.trial_config import trial_config

pytestmark = pytest.mark.usefixtures("unrehearsed")
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
    (path,) = trial.path.glob("lightning_logs/version_0/metrics.csv")
    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert [line["step"] for line in lines if line["val/loss"]] == ["2", "4", "4"]  # the last one of the evaluation
    assert [float(line["val/bleu"]) for line in lines if line["val/bleu"]] == [result.metrics["val/bleu"]]
    assert "model.h: 8" in path.with_name("hparams.yaml").read_text()
    _, whole = tiny_trials.train(tmp_path / "whole", {"optim.max_steps": 4})
    assert result.flops == pytest.approx(whole.result().flops)  # of the steps that were trained
    assert result.stopped_early and not whole.result().stopped_early
    assert result.convergence == convergence(result.losses, 4).as_record()
    printed = tiny_trials.TINY | {"data.path": str(tmp_path / "text")} | keys
    file = write_sweep(tmp_path / "s.yaml", printed)
    capsys.readouterr()
    assert report.main([str(file), f"--runs={tmp_path / 'runs'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\b1\b.*early\b.*\b4 steps", printed) and f"in_identity: false): {TIMER}" in printed


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


def test_a_trial_that_stopped_early_and_was_killed_before_its_result_stays_stopped(tmp_path, monkeypatch):
    """Its time is that of both processes."""
    monkeypatch.setattr(time, "perf_counter", lambda: watchers.Clock.now)
    failed = tmp_path / "failed"
    stop = {"stopping_callback.StopAt": {"step": 3, "fails_once": str(failed)}}
    keys = {"optim.max_steps": 30, "trainer.callbacks": json.dumps([stop, f"{watchers.__name__}.Clock"])}
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


KEYS = {"trainer.callbacks": (EARLY, "stopping_callback.StopAt"), "trainer.loggers": (CSV, CSV)}
OPTIONS = {
    "trainer.callbacks": [
        {"monitor": "val/loss", "patience": 2},
        {"monitor": "a", "mode": "max", "in_identity": False},
    ],
    "trainer.loggers": [{"name": "a", "flush_logs_every_n_steps": 7}],
}


@pytest.mark.parametrize(("key", "options"), [(key, one) for key in KEYS for one in OPTIONS[key]], ids=str)
def test_the_options_of_one_class_can_be_keys(key, options):
    """As text or as YAML, in one level or in two. It is the same trial as with a list."""
    path, _ = KEYS[key]
    listed = resolve([Level("test", {key: [{path: options}]})])
    below = {f"{key}.{name}": value for name, value in options.items()}
    as_text = {name: str(value) for name, value in below.items()}
    spelled = [
        [{key: path} | below],
        [{key: path} | as_text],
        [as_text | {key: path}],
        [{key: path}, below],
        [{key: [path]}, as_text],
        [{key: json.dumps([{path: dict.fromkeys(options, "lower")}])}, below],
    ]
    for levels in spelled:
        found = resolve([Level(f"level {i}", keys) for i, keys in enumerate(levels)])
        assert found == listed and row_identity(found) == row_identity(listed)


@pytest.mark.parametrize("key", KEYS)
def test_a_level_that_names_the_class_drops_the_options_of_lower_levels(key):
    path, other = KEYS[key]
    lower = Level("lower", {key: path, f"{key}.name": "a"})
    for higher in (other, [other], [{other: {}}, path], [], None, "[]", "None", "null"):
        alone = Level("higher", {key: higher})
        assert resolve([lower, alone]) == resolve([alone])
        assert bool(resolve([alone]).trainer.extensions[key]) == (path in str(higher) or other in str(higher))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("count", [0, 2])
def test_options_of_no_single_class_are_one_mistake_that_names_them(key, count):
    with pytest.raises(InputError) as caught:
        resolve([Level("a", {key: list(KEYS[key][:count])}), Level("b", {f"{key}.first": 1, f"{key}.second": 2})])
    (message,) = caught.value.messages
    assert message.startswith("a and b: ") and f"{key}.first = 1, {key}.second = 2" in message


def test_a_wrong_list_is_one_mistake_with_options_or_without():
    with pytest.raises(InputError) as caught:
        resolve([Level("test", {"trainer.callbacks": "[nowhere", "trainer.callbacks.step": 5})])
    assert len(caught.value.messages) == 1


@pytest.mark.parametrize(("option", "told"), [("stp", "did you mean step?"), ("step", "step = many")])
def test_an_option_that_is_a_key_is_checked_by_the_constructor(option, told):
    keys = {"trainer.callbacks": "stopping_callback.StopAt", f"trainer.callbacks.{option}": "many"}
    with pytest.raises(InputError, match=re.escape(told)):
        trial_config([Level("test", keys)])


def test_a_grid_and_a_variant_change_an_option_of_a_callback(tmp_path):
    text = {"data.path": str(little_text(tmp_path / "text"))}
    stop = {"trainer.callbacks": "stopping_callback.StopAt"}
    steps = {"trainer.callbacks.step": [5, 3, 10]}
    grid = read_sweep(write_sweep(tmp_path / "grid.yaml", tiny_trials.TINY | text | stop | steps))
    variants = ["base", *(f"trainer.callbacks=stopping_callback.StopAt trainer.callbacks.step={n}" for n in (5, 3, 10))]
    rows = read_sweep(write_sweep(tmp_path / "rows.yaml", tiny_trials.TINY | text | {"variant": variants})).rows
    assert [row.name for row in grid.rows] == [f"callbacks=StopAt(step={n})" for n in (5, 3, 10)]
    assert [row_identity(row.configs[0]) for row in grid.rows] == [row_identity(row.configs[0]) for row in rows[1:]]


def test_the_train_command_takes_an_option_of_a_callback(tmp_path):
    keys = {"trainer.callbacks": "stopping_callback.StopAt", "trainer.callbacks.step": 3}
    code, trial = tiny_trials.train(tmp_path / "runs", keys | {"optim.max_steps": 6})
    assert code == 0 and trial.result().steps == 3
    listed = {"trainer.callbacks": json.dumps([{"stopping_callback.StopAt": {"step": 3}}])}
    assert tiny_trials.train(tmp_path / "runs", listed | {"optim.max_steps": 6})[1].path == trial.path


@pytest.mark.parametrize(
    "written",
    ["[nowhere", "nowhere.Stop", "{stopping_callback.StopAt: {stop: 3}}", f"{{{EARLY}: {{patience: 2}}}}", CSV],
)
def test_what_is_not_a_callback_is_refused_before_training(written):
    with pytest.raises(InputError):
        trial_config([Level("test", {"trainer.callbacks": written})])
